// Package jetstream is the event log on NATS JetStream: on the disk of this process, or on a
// cluster that any number of processes share. It implements event.Log.
//
//	log, err := jetstream.Open(ctx, jetstream.Options{URL: "file:/var/lib/answerd"})
//	log, err := jetstream.Open(ctx, jetstream.Options{URL: "nats://a:4222,b:4222"})
//	if err != nil {
//		return err
//	}
//	defer log.Close()
//	id := log.NewID()
//	err = log.Create(ctx, event.Run{ID: id, Owner: owner, Created: log.Now()})
//	seq, err := log.Append(ctx, id, event.Start{Question: "?"})
//
// With file:, the log runs a NATS server inside this process that does not listen; the rest
// of the code is the same in both cases. An acknowledged event survives kill -9 of every
// process, and the loss of as many machines as the replicas of the streams allow.
//
// One writer. The events of a run are on one subject. Every append expects the number that the
// run's last message has in the stream (compare and append). So a run has one writer, whatever
// the processes believe: a writer that was replaced gets ErrFenced at its next append. If the
// acknowledgement of an append is lost, the append is repeated with the same bytes and the same
// expectation, for up to 30 s, until it is certain whether the stream has the event
// (publish.go).
//
// Batches. Events and notes of a run that come close together are one message (package batch): those within
// batchDelay, and those that come while the message before is being stored. The server stores a message as a
// whole, so a batch is atomic. Readers see an event when its message is acknowledged, in this process too.
// Append and Flush wait for that; AppendAsync and AddNote do not.
//
// Order. The readers of a run share one live subscription, which delivers new events only. A
// live event is used only if it directly follows the last known event. Otherwise the missing
// events are read from the stream (run.go). A lost live message therefore delays an event, but
// cannot lose or reorder one. With file: the writer of a run is in the same process as its readers, so nothing
// needs to arrive live.
//
// Leases. The job of a run is a message in a work queue. It stays unacknowledged while a process
// executes the run. When its lease ends it is delivered again, which lets another process take
// the run over (claim.go).
//
// Threads are on streams of their own (package threads), with a quarter of the log's space.
//
// Tombstones. For a run that was deleted or has expired, the log keeps the owner for seven days,
// so that the owner reads ErrGone and everyone else reads ErrNotFound (retention.go).
package jetstream

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
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
	// readyTimeout bounds the request of Ready.
	readyTimeout = time.Second
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

// Log implements event.Log. Its methods may be called concurrently.
type Log struct {
	event.Threads

	instanceID string // identifies this Log among those that share the streams
	retention  time.Duration
	maxBytes   int64 // of runs and threads
	lease      time.Duration
	logger     *slog.Logger

	embedded    *embedded.Server // nil on a cluster
	unrepaired  bool             // repairRuns is still to be called, because the log was opened on a full disk
	expired     atomic.Int64     // runs that retention has deleted, ever
	accountFull atomic.Bool      // an append was refused since expireLoop looked
	diskFull    atomic.Bool      // the disk of the embedded server accepts no writes (disk.go)
	// Two connections: messages to many readers must not contend with appends for the lock
	// of one connection.
	write, read *nats.Conn
	js          js.JetStream
	runsStream  js.Stream
	indexStream js.Stream
	jobsStream  js.Stream
	headsStream js.Stream
	turnsStream js.Stream
	threads     *threads.Store // the same as Threads
	sizes       *share.Table   // of the runs, while the log is nearly full
	maxPart     int            // bytes of a payload that is not split
	clustered   bool           // the streams have replicas, which may lag behind their leader
	batches     bool           // events that occur close together become one message
	alone       bool           // no other process shares the log, so no message needs to arrive live

	ctx       context.Context // ends with Close
	stop      context.CancelFunc
	wg        sync.WaitGroup // every goroutine and running timer of this log
	closeOnce func() error
	clock     clock          // of the server
	live      chan *nats.Msg // from all live subscriptions
	evictNow  chan struct{}  // signals that the cache is full
	resync    chan struct{}  // signals that live messages may be missing
	expireNow chan struct{}  // signals that the log is full

	pullInboxes chan pullInbox // that wait for their next request
	// tombstonePos is the position from which dropTombstones continues to read the index.
	tombstonePos atomic.Uint64

	maxCached int64        // limits cached, by evicting runs that have ended
	cached    atomic.Int64 // bytes of the events in runs

	mu           sync.Mutex // guards the fields below; taken before a run's own mutex
	runs         map[string]*run
	jobs         map[string]*job      // of the runs that this instance executes
	claiming     map[string]bool      // runs that a call of Claim examines
	unresponsive map[string]time.Time // when an instance last did not answer
}

var _ event.Log = (*Log)(nil)

// DiskError reports that the file system of a log has too little space for Options.MaxBytes.
type DiskError = embedded.DiskError

// Open connects, makes missing streams, and starts the log's goroutines, which Close ends. If a
// cluster cannot be reached, Open returns ErrUnavailable when ctx ends. It returns a *DiskError
// if MaxBytes exceeds the space on the file system of a file: URL.
func Open(ctx context.Context, o Options) (l *Log, err error) {
	l = newLog(o)
	defer func() {
		if err != nil {
			_ = l.Close() // err explains more
		}
	}()
	login, err := credentialsOption(o.Credentials)
	if err != nil {
		return l, err
	}
	servers, connect := o.URL, append(l.connectOptions(), login)
	if dir, ok := strings.CutPrefix(o.URL, "file:"); ok {
		l.embedded, err = embedded.Start(embedded.Options{
			Dir: dir, MaxBytes: o.MaxBytes, Default: cmp.Or(max(o.Memory, 0), DefaultMemory) / 3 * 2,
			Streams: []string{runsName, threads.HeadsStream, threads.TurnsStream}, Logger: l.logger,
		})
		if err != nil {
			return l, err
		}
		l.maxBytes, l.alone, l.unrepaired = l.embedded.MaxBytes, l.batches, l.embedded.DiskFull
		l.diskFull.Store(l.unrepaired)
		servers, connect = "", append(connect, nats.InProcessServer(l.embedded))
	} else if err = CheckURL(o.URL); err != nil {
		return l, err
	}
	if l.write, err = connectUntilDone(ctx, servers, connect); err != nil {
		return l, err
	}
	if l.read, err = connectUntilDone(ctx, servers, connect); err != nil {
		return l, err
	}
	if err = l.openStreams(ctx); err != nil {
		return l, err
	}
	if l.embedded != nil && !l.unrepaired { // else recoverDisk does it
		if err = l.repairRuns(ctx); err != nil {
			return l, err
		}
	}
	if err = l.openThreads(ctx, o.ThreadsRetention); err != nil {
		return l, err
	}
	l.sizes = share.New(share.Source{Conn: l.read, JetStream: l.js, Stream: runsName, Run: runOf, Entries: l.readOwners})
	return l, l.startLoops()
}

func newLog(o Options) *Log {
	l := &Log{
		instanceID: strings.ToLower(rand.Text()), retention: o.Retention, maxBytes: o.MaxBytes, lease: o.Lease, logger: o.Logger,
		live: make(chan *nats.Msg, liveBuffer), resync: make(chan struct{}, 1), expireNow: make(chan struct{}, 1), pullInboxes: make(chan pullInbox, maxPullInboxes),
		batches: !o.NoBatch, evictNow: make(chan struct{}, 1), maxCached: cmp.Or(max(o.Memory, 0), DefaultMemory) / 6,
		runs: make(map[string]*run), jobs: make(map[string]*job), claiming: make(map[string]bool), unresponsive: make(map[string]time.Time),
	}
	if l.retention <= 0 {
		l.retention = event.DefaultRetention
	}
	if l.maxBytes <= 0 {
		l.maxBytes = event.DefaultMaxBytes
	}
	if l.lease <= 0 {
		l.lease = DefaultLease
		if strings.HasPrefix(o.URL, "file:") {
			l.lease = embeddedLease
		}
	}
	if l.logger == nil {
		l.logger = slog.New(slog.DiscardHandler)
	}
	l.ctx, l.stop = context.WithCancel(context.Background())
	l.closeOnce = sync.OnceValue(l.closeAll)
	return l
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

func (l *Log) closeAll() error {
	if l.js != nil {
		l.flushAllRuns()
	}
	l.stop()
	l.wg.Wait()
	for _, c := range []*nats.Conn{l.read, l.write} {
		if c != nil {
			c.Close()
		}
	}
	if l.embedded != nil {
		return l.embedded.Close()
	}
	return nil
}

// Ready implements event.Log: the leader of the events' stream answers, and the disk of an
// embedded server takes writes.
func (l *Log) Ready(ctx context.Context) error {
	if l.diskFull.Load() {
		return fmt.Errorf("write to the log: %w", event.ErrUnavailable)
	}
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	if _, err := l.streamInfo(ctx, l.runsStream); err != nil {
		return fmt.Errorf("ask for the state of the log: %w", event.ErrUnavailable)
	}
	return nil
}

// Now implements event.Log. It returns the time of the server. Between two answers of the server it
// adds monotonic time, so a change of this machine's clock has no effect.
func (l *Log) Now() time.Time { return l.clock.now() }

// streamInfo returns the state of a stream from its leader, and sets the log's clock by it.
func (l *Log) streamInfo(ctx context.Context, s js.Stream) (*js.StreamInfo, error) {
	info, err := s.Info(ctx)
	switch {
	case err != nil:
		return nil, err
	case isLeaderless(info):
		return nil, errNoLeader
	}
	l.clock.set(info.TimeStamp)
	return info, nil
}

// clock is the clock of the server, which also gives messages their time. Each state of a stream
// sets it. Until the first one it is the clock of this machine.
type clock struct {
	mu       sync.Mutex // guards the fields below
	server   time.Time  // the server's time in its last answer
	received time.Time  // when that arrived, with a monotonic clock reading
}

func (c *clock) set(server time.Time) {
	if server.IsZero() {
		return // NATS servers before 2.10 do not send it
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.server, c.received = server, time.Now()
}

func (c *clock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.received.IsZero() {
		return time.Now()
	}
	return c.server.Add(time.Since(c.received))
}

// goGuarded runs f in a goroutine that Close waits for. It reports false if the log is closed.
func (l *Log) goGuarded(f func()) bool {
	if l.ctx.Err() != nil {
		return false
	}
	l.wg.Go(func() {
		defer l.recoverPanic("append events")
		f()
	})
	return true
}

// recoverPanic must be deferred. It recovers from a panic and logs it. The goroutines of the log
// serve all runs, so a bug in the handling of one run or message must not end them or the
// process. pollLoop finds what was missed because of the panic.
func (l *Log) recoverPanic(doing string) {
	v := recover()
	if v == nil {
		return
	}
	l.logger.Error("panic in the event log", "doing", doing, "panic", fmt.Sprint(v), "stack", string(debug.Stack()))
}
