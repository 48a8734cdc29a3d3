package jetstream

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	js "github.com/nats-io/nats.go/jetstream"

	"answerd/internal/event"
	"answerd/internal/event/jetstream/embedded"
	"answerd/internal/event/jetstream/share"
	"answerd/internal/event/jetstream/threads"
	"answerd/internal/help"
)

const (
	// DefaultLease applies to a cluster. A run that is taken over waits for a lease, and for half a lease
	// in which its executor is asked: less than 3 s together.
	DefaultLease = 1800 * time.Millisecond
	// embeddedLease applies to an embedded log. No other process shares it, so it can be short.
	embeddedLease = time.Second
	// liveBuffer bounds the live messages that wait for dispatchLoop. The client library drops
	// and reports the messages above it; their readers then read the stream.
	liveBuffer = 4096
)

// Options locates a log and limits it. URL is required.
type Options struct {
	// URL is file:DIR, or the servers of a cluster, nats:// or tls://, separated by commas. It
	// may contain a password and is never part of an error.
	URL string
	// Credentials names a file to log in to a cluster with: .creds, or the seed of an NKey.
	Credentials string
	// Retention says how long a run is kept after its last event; 0 means
	// event.DefaultRetention.
	Retention time.Duration
	// ThreadsRetention says how long a thread is kept after its last update; 0 means
	// event.DefaultThreadsRetention.
	ThreadsRetention time.Duration
	// MaxBytes limits the events, inputs and results of all runs, and the threads, which may use a
	// quarter of it. 0 means event.DefaultMaxBytes, or with file: the space of its file system, if that
	// is less. Runs that have ended are deleted first, those of owners above an equal share before
	// others, then the oldest messages of any run. Threads that
	// were not updated for longest are deleted first. Records of runs and jobs may use
	// another quarter of MaxBytes, and file: reserves 12 MiB.
	MaxBytes int64
	// Memory says how many bytes of memory the log may use; 0 means DefaultMemory. A sixth of it is
	// for the cached events of runs that have ended. The server of a file: log holds what it wrote in
	// the last ten seconds, so two thirds are the most that MaxBytes is by default.
	Memory int64
	// Lease says how long a process that does not respond keeps its runs; 0 means DefaultLease,
	// or 1 s for file:.
	Lease time.Duration
	// NoBatch makes each event and each request a message of its own, and messages of a file: log arrive live, as older
	// versions of answerd need it.
	NoBatch bool
	// Logger receives errors that no method can return; nil discards them.
	Logger *slog.Logger
}

// DiskError reports that the file system of a log has too little space for Options.MaxBytes.
type DiskError = embedded.DiskError

// Open connects, makes missing streams, and starts the log's goroutines, which Close ends. If a
// cluster cannot be reached, Open returns ErrUnavailable when ctx ends. It returns a *DiskError
// if MaxBytes exceeds the space on the file system of a file: URL.
func Open(ctx context.Context, opts Options) (log *Log, err error) {
	log = newLog(opts)
	defer func() {
		if err != nil {
			_ = log.Close() // err explains more
		}
	}()

	login, err := credentialsOption(opts.Credentials)
	if err != nil {
		return log, err
	}

	servers, connect := opts.URL, append(log.connectOptions(), login)
	if dir, ok := strings.CutPrefix(opts.URL, "file:"); ok {
		log.embedded, err = embedded.Start(embedded.Options{
			Dir: dir, MaxBytes: opts.MaxBytes, Default: cmp.Or(max(opts.Memory, 0), DefaultMemory) / 3 * 2,
			Streams: []string{runsName, threads.HeadsStream, threads.TurnsStream}, Logger: log.logger,
		})
		if err != nil {
			return log, err
		}
		log.maxBytes = log.embedded.MaxBytes
		log.alone = log.batches
		log.unrepaired = log.embedded.DiskFull
		log.diskFull.Store(log.unrepaired)
		servers, connect = "", append(connect, nats.InProcessServer(log.embedded))
	} else if err = CheckURL(opts.URL); err != nil {
		return log, err
	}
	if log.write, err = connectUntilDone(ctx, servers, connect); err != nil {
		return log, err
	}
	if log.read, err = connectUntilDone(ctx, servers, connect); err != nil {
		return log, err
	}
	if err = log.openStreams(ctx); err != nil {
		return log, err
	}
	if log.embedded != nil && !log.unrepaired { // else recoverDisk does it
		if err = log.repairRuns(ctx); err != nil {
			return log, err
		}
	}
	if err = log.openThreads(ctx, opts.ThreadsRetention); err != nil {
		return log, err
	}
	log.sizes = share.New(share.Source{Conn: log.read, JetStream: log.js, Stream: runsName, Run: runOf, Entries: log.readOwners})
	return log, log.startLoops()
}

// newLog returns a log with the options and their defaults, which is not yet connected.
func newLog(opts Options) *Log {
	log := &Log{
		client: client{
			instanceID:  strings.ToLower(rand.Text()),
			logger:      opts.Logger,
			expireNow:   make(chan struct{}, 1),
			pullInboxes: make(chan pullInbox, maxPullInboxes),
		},
		retention: opts.Retention, maxBytes: opts.MaxBytes, lease: opts.Lease, live: make(chan *nats.Msg, liveBuffer), resync: make(chan struct{}, 1),
		batches: !opts.NoBatch, evictNow: make(chan struct{}, 1), maxCached: cmp.Or(max(opts.Memory, 0), DefaultMemory) / 6,
		runs: make(map[string]*run), jobs: make(map[string]*job), claiming: make(map[string]bool), unresponsive: make(map[string]time.Time),
	}
	if log.retention <= 0 {
		log.retention = event.DefaultRetention
	}
	if log.maxBytes <= 0 {
		log.maxBytes = event.DefaultMaxBytes
	}
	if log.lease <= 0 {
		log.lease = DefaultLease
		if strings.HasPrefix(opts.URL, "file:") {
			log.lease = embeddedLease
		}
	}
	if log.logger == nil {
		log.logger = slog.New(slog.DiscardHandler)
	}
	log.ctx, log.stop = context.WithCancel(context.Background())
	log.closeOnce = sync.OnceValue(log.closeAll)
	return log
}

// connectOptions returns the options of both connections.
func (l *Log) connectOptions() []nats.Option {
	return []nats.Option{
		nats.Name("answerd"), nats.MaxReconnects(-1), nats.ReconnectWait(100 * time.Millisecond), nats.ReconnectJitter(100*time.Millisecond, 100*time.Millisecond),
		nats.IgnoreAuthErrorAbort(), // else a login that is refused twice, as during a rotation, is never tried again
		nats.Timeout(connectTimeout), nats.PingInterval(10 * time.Second), nats.MaxPingsOutstanding(2),
		// No buffer while disconnected: publishAfter repeats an append that could not be sent,
		// and a buffered copy of it would be sent as well.
		nats.ReconnectBufSize(-1),
		nats.DisconnectErrHandler(func(_ *nats.Conn, err error) {
			if l.ctx.Err() == nil {
				l.logger.Warn("event log disconnected", "error", err, help.Scaling.Attr())
			}
		}),
		nats.ReconnectHandler(func(*nats.Conn) {
			l.logger.Info("event log connected again")
			l.requestResync()
		}),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) {
			if !errors.Is(err, nats.ErrSlowConsumer) { // the resync reads what was dropped
				l.logger.Warn("event log", "error", err)
			}
			l.requestResync()
		}),
	}
}

// startLoops starts the goroutines that run until Close.
func (l *Log) startLoops() error {
	if err := errors.Join(l.answerOwnerQueries(), l.answerReaderQueries()); err != nil {
		return err
	}
	l.wg.Go(l.dispatchLoop)
	l.wg.Go(l.pollLoop)
	l.wg.Go(l.expireLoop)
	l.wg.Go(l.heartbeatLoop)
	l.wg.Go(l.followThreadsLoop)
	if l.embedded != nil {
		l.wg.Go(l.recoverDiskLoop)
		return nil
	}
	for _, c := range []*nats.Conn{l.write, l.read} {
		l.wg.Go(func() { l.watchLeaderLoop(c) })
	}
	return nil
}

// Close stores the events that wait, closes the connections and waits for all goroutines of this
// log. Other processes claim this log's jobs when their leases end. To hand the jobs over at
// once, call Release on them first.
func (l *Log) Close() error { return l.closeOnce() }

// closeAll does what Close promises, at its first call. It also closes a log that Open could not open in full.
func (l *Log) closeAll() error {
	if l.js != nil {
		l.flushAllRuns()
	}
	l.stop()
	l.wg.Wait()
	for _, conn := range []*nats.Conn{l.read, l.write} {
		if conn != nil {
			conn.Close()
		}
	}
	if l.embedded != nil {
		return l.embedded.Close()
	}
	return nil
}

// Check connects to a cluster and returns an error unless it can be reached, accepts the
// credentials and has JetStream. It changes nothing there, and tries until ctx ends.
func Check(ctx context.Context, o Options) error {
	if err := CheckURL(o.URL); err != nil {
		return err
	}
	login, err := credentialsOption(o.Credentials)
	if err != nil {
		return err
	}
	c, err := connectUntilDone(ctx, o.URL, []nats.Option{nats.Name("answerd check"), nats.Timeout(connectTimeout), login})
	if err != nil {
		return err
	}
	defer c.Close()
	streams, err := js.New(c)
	if err == nil {
		_, err = streams.AccountInfo(ctx)
	}
	if err != nil {
		return fmt.Errorf("use JetStream: %w", err)
	}
	return nil
}
