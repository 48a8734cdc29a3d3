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
	// DefaultLease is the lease in a cluster. Taking a run over from a process that has died takes one lease, plus half
	// a lease in which isClaimedBy waits for an answer from that process: less than 3 s in total.
	DefaultLease = 1800 * time.Millisecond
	// embeddedLease is the lease in an embedded log. It can be short, because no other process shares the log.
	embeddedLease = time.Second
	// liveBuffer is the largest number of live messages that wait for dispatchLoop. The NATS client library drops
	// messages beyond it and reports an error. Readers then read the stream (requestResync).
	liveBuffer = 4096
)

// Options configures a log. URL is required.
type Options struct {
	// URL is file:DIR, or a comma-separated list of a cluster's servers with nats:// or tls:// URLs. It may contain a
	// password, and is never part of an error.
	URL string
	// Credentials names a file to log in to a cluster: a .creds file, or a file with the seed of an NKey.
	Credentials string
	// Retention is how long a run is kept after its last event; 0 means event.DefaultRetention.
	Retention time.Duration
	// ThreadsRetention is how long a thread is kept after its last update; 0 means event.DefaultThreadsRetention.
	ThreadsRetention time.Duration
	// MaxBytes limits the total size of all runs (events, inputs and results) and threads. Threads may use a quarter of
	// it. 0 means event.DefaultMaxBytes. For a file: URL, 0 means two thirds of Memory, or the space of the file system
	// if that is less. When space is short, the log deletes runs that have ended, starting with those of owners above
	// an equal share, and after that the oldest messages of any run. It deletes the least recently updated threads
	// first. Records of runs and jobs may use another quarter of MaxBytes. A file: log also reserves 12 MiB.
	MaxBytes int64
	// Memory is how many bytes of memory the log may use; 0 means DefaultMemory. A sixth of it is for the cached events
	// of runs. The server of a file: log keeps in memory what it wrote in the last ten seconds, at most MaxBytes. This
	// is why MaxBytes defaults to two thirds of Memory.
	Memory int64
	// Lease is how long a process that does not respond keeps its runs; 0 means DefaultLease, or 1 s for a file: URL.
	Lease time.Duration
	// NoBatch stores each event, and each job's request, in a separate message, and makes a file: log use live
	// messages. Older versions of answerd need both.
	NoBatch bool
	// Logger receives errors that no method can return; nil discards them.
	Logger *slog.Logger
}

// DiskError reports that the file system of a log has too little space for Options.MaxBytes.
type DiskError = embedded.DiskError

// Open connects, creates missing streams, and starts the log's goroutines, which Close ends. It waits until the log can
// be used. If a cluster cannot be reached, Open returns event.ErrUnavailable when ctx ends. It returns a *DiskError if
// MaxBytes exceeds the space on the file system of a file: URL. If Open returns an error, the returned log is already
// closed.
func Open(ctx context.Context, opts Options) (log *Log, err error) {
	log = newLog(opts)
	defer func() {
		if err != nil {
			_ = log.Close() // its error would be less useful than err
		}
	}()

	login, err := credentialsOption(opts.Credentials)
	if err != nil {
		return log, err
	}
	servers := opts.URL
	connect := append(log.connectOptions(), login)
	if dir, ok := strings.CutPrefix(opts.URL, "file:"); ok {
		if err = log.startEmbedded(dir, opts); err != nil {
			return log, err
		}
		servers = ""
		connect = append(connect, nats.InProcessServer(log.embedded))
	} else if err = CheckURL(opts.URL); err != nil {
		return log, err
	}
	if log.write, err = connectUntilDone(ctx, servers, connect, log.logger); err != nil {
		return log, err
	}
	if log.read, err = connectUntilDone(ctx, servers, connect, log.logger); err != nil {
		return log, err
	}
	if err = log.openStreams(ctx); err != nil {
		return log, err
	}
	if log.embedded != nil && !log.unrepaired { // on a full disk, recoverDisk calls repairRuns later
		if err = log.repairRuns(ctx); err != nil {
			return log, err
		}
	}
	if err = log.openThreads(ctx, opts.ThreadsRetention); err != nil {
		return log, err
	}
	log.sizes = share.New(share.Source{
		Conn: log.read, JetStream: log.js, Stream: runsName, Run: runOf, Entries: log.readOwners,
	})
	return log, log.startLoops()
}

// startEmbedded starts the NATS server of a file: log, whose files are in dir.
func (l *Log) startEmbedded(dir string, opts Options) (err error) {
	l.embedded, err = embedded.Start(embedded.Options{
		Dir:      dir,
		MaxBytes: opts.MaxBytes,
		Default:  opts.memory() / 3 * 2,
		Streams:  []string{runsName, threads.HeadsStream, threads.TurnsStream},
		Logger:   l.logger,
	})
	if err != nil {
		return err
	}
	l.maxBytes = l.embedded.MaxBytes
	l.alone = l.batches // NoBatch asks for live messages
	l.unrepaired = l.embedded.DiskFull
	l.diskFull.Store(l.unrepaired)
	return nil
}

// memory returns o.Memory, or its default.
func (o *Options) memory() int64 { return cmp.Or(max(o.Memory, 0), DefaultMemory) }

// newLog returns a log with the given options and their defaults. The log is not connected and has no goroutines.
func newLog(opts Options) *Log {
	log := &Log{
		client: client{
			instanceID:  strings.ToLower(rand.Text()),
			logger:      opts.Logger,
			expireNow:   make(chan struct{}, 1),
			pullInboxes: make(chan pullInbox, maxPullInboxes),
		},
		retention:    opts.Retention,
		maxBytes:     opts.MaxBytes,
		lease:        opts.Lease,
		batches:      !opts.NoBatch,
		maxCached:    opts.memory() / 6,
		live:         make(chan *nats.Msg, liveBuffer),
		resync:       make(chan struct{}, 1),
		evictNow:     make(chan struct{}, 1),
		runs:         make(map[string]*run),
		jobs:         make(map[string]*job),
		claiming:     make(map[string]bool),
		unresponsive: make(map[string]time.Time),
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

// connectOptions returns the options for both connections. The connections reconnect forever. After each reconnect, the
// cached runs are read again (requestResync).
func (l *Log) connectOptions() []nats.Option {
	return []nats.Option{
		nats.Name("answerd"),
		nats.MaxReconnects(-1),
		nats.ReconnectWait(100 * time.Millisecond),
		nats.ReconnectJitter(100*time.Millisecond, 100*time.Millisecond),
		// Otherwise the client library gives up after two refused logins, for example while credentials are being
		// replaced.
		nats.IgnoreAuthErrorAbort(),
		nats.Timeout(connectTimeout),
		nats.PingInterval(10 * time.Second),
		nats.MaxPingsOutstanding(2),
		// Do not buffer messages while disconnected. publishAfter repeats an append that could not be sent, and the
		// buffered copy would be sent as well.
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
			if !errors.Is(err, nats.ErrSlowConsumer) { // dropped messages are expected under load, and read again
				l.logger.Warn("event log", "error", err)
			}
			l.requestResync()
		}),
	}
}

// startLoops subscribes to the requests of other instances, and starts the goroutines that run until Close.
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

// Close stores the events that are not stored yet, for up to attemptTimeout. It then closes the connections and waits
// for all goroutines of this log. Other processes claim this log's jobs when their leases end. To hand the jobs over at
// once, release them before Close. Further calls of Close wait for the first one and return its result.
func (l *Log) Close() error { return l.closeOnce() }

// closeAll implements Close. It can also close a log that Open has opened only in part.
func (l *Log) closeAll() error {
	if l.js != nil { // the log was connected
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

// flushAllRuns stores the pending deltas and queued events of all runs, for up to attemptTimeout. Close calls it before
// it stops the log.
func (l *Log) flushAllRuns() {
	ctx, cancel := context.WithTimeout(l.ctx, attemptTimeout)
	defer cancel()
	l.mu.Lock()
	var writers []*writer
	for _, r := range l.runs {
		r.mu.Lock()
		if r.writer != nil {
			writers = append(writers, r.writer)
		}
		r.mu.Unlock()
	}
	l.mu.Unlock()
	var all sync.WaitGroup
	for _, w := range writers {
		all.Go(func() { _ = w.flushAll(ctx) }) // Close cannot wait longer for a log that does not answer
	}
	all.Wait()
}

// Check connects to the cluster at opts.URL. It returns nil if the cluster can be reached, accepts the credentials and
// has JetStream. It changes nothing there. It tries to connect until ctx ends.
func Check(ctx context.Context, opts Options) error {
	if err := CheckURL(opts.URL); err != nil {
		return err
	}
	login, err := credentialsOption(opts.Credentials)
	if err != nil {
		return err
	}
	connect := []nats.Option{nats.Name("answerd check"), nats.Timeout(connectTimeout), login}
	c, err := connectUntilDone(ctx, opts.URL, connect, slog.New(slog.DiscardHandler))
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
