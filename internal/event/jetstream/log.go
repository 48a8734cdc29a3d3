// Package jetstream is the event log on NATS JetStream: on the disk of this process, or
// on a cluster that any number of processes share.
//
//	log, err := jetstream.Open(ctx, jetstream.Options{URL: "file:/var/lib/answerd"})
//	log, err := jetstream.Open(ctx, jetstream.Options{URL: "nats://a:4222,b:4222"})
//	defer log.Close()
//
// file: runs a NATS server inside this process that listens nowhere; the code is the
// same in both cases. What is acknowledged survives kill -9 of every process, and as many lost
// machines as the streams' replicas allow.
//
// A run is one subject, and every append expects the number that the run's last message
// has in the stream. So a run has one writer, whatever anybody believes: one that was
// replaced is told ErrFenced at its next append. An append whose acknowledgement was
// lost is repeated with the same bytes and the same expectation until it is known to be
// in the log or not, for 30 s.
//
// Readers share one live subscription per run that is read, and nothing per reader. It
// has only the newest events; older ones, and what a subscription misses, are read
// from the stream in batches.
//
// A run's job is a message of a work queue that is not acknowledged while somebody
// executes the run (job.go).
package jetstream

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	js "github.com/nats-io/nats.go/jetstream"

	"answerd/internal/event"
)

// DefaultLease is the lease on a cluster.
const DefaultLease = 3 * time.Second

// Options says where a log is and bounds it. URL is required.
type Options struct {
	// URL is file:DIR, or the servers of a cluster, nats:// or tls://, separated by
	// commas. It may hold a password and is not put into any error.
	URL string
	// Credentials is a file to log in to a cluster with: .creds, or the seed of an NKey.
	Credentials string
	// Retention is how long a run is kept after its last event; 0 means 1 h.
	Retention time.Duration
	// MaxBytes bounds the events, inputs and results of all runs; 0 means 256 MiB.
	// Runs that ended go first; then the oldest messages, whosever they are. Records of
	// runs and jobs may take a quarter of it besides.
	MaxBytes int64
	// Lease is how long a process that is silent keeps its runs; 0 means DefaultLease, and
	// 1 s for file:, where nobody else can be the process that is silent.
	Lease  time.Duration
	Logger *slog.Logger
}

// Log is an event.Log. Its methods may be called concurrently.
type Log struct {
	name      string // this log among those that share the streams: a token
	retention time.Duration
	maxBytes  int64
	lease     time.Duration
	logger    *slog.Logger

	embedded *embedded   // nil on a cluster
	full     atomic.Bool // its disk takes nothing any more
	// Two connections: what is sent to many readers must not contend with appends for
	// one connection's lock.
	write, read *nats.Conn
	js          js.JetStream
	runsStream  js.Stream
	indexStream js.Stream
	jobsStream  js.Stream
	maxPart     int  // bytes of a payload that need not be cut
	clustered   bool // streams have replicas, which may lag behind their leader

	ctx   context.Context // ends with Close
	stop  context.CancelFunc
	wg    sync.WaitGroup // every goroutine and armed timer of this log
	close func() error   // once
	live  chan *nats.Msg // of all live subscriptions
	stale chan struct{}  // a hint that live messages may be missing

	mu     sync.Mutex // guards what follows; taken before a run's own mutex
	runs   map[string]*run
	held   map[string]*job
	taking map[string]bool      // runs that a call of Claim looks at
	dead   map[string]time.Time // logs that did not answer, and since when
}

var _ event.Log = (*Log)(nil)

// Open connects, makes the streams that are missing, and starts to watch. For a
// cluster that cannot be reached it fails when ctx ends, at the latest.
func Open(ctx context.Context, o Options) (l *Log, err error) {
	l = newLog(o)
	defer func() {
		if err != nil {
			_ = l.Close() // the error that counts is there already
		}
	}()
	connect := []nats.Option{
		nats.Name("answerd"), nats.MaxReconnects(-1), nats.ReconnectWait(100 * time.Millisecond), nats.ReconnectJitter(100*time.Millisecond, 100*time.Millisecond),
		nats.Timeout(connectTimeout), nats.PingInterval(10 * time.Second), nats.MaxPingsOutstanding(2),
		// An append that cannot be sent is repeated by us; one that waits in a buffer
		// would be sent twice.
		nats.ReconnectBufSize(-1),
		nats.DisconnectErrHandler(func(_ *nats.Conn, err error) {
			if l.ctx.Err() == nil {
				l.logger.Warn("event log disconnected", "error", err)
			}
		}),
		nats.ReconnectHandler(func(*nats.Conn) {
			l.logger.Info("event log connected again")
			l.hint()
		}),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) {
			if !errors.Is(err, nats.ErrSlowConsumer) { // which is refilled
				l.logger.Warn("event log", "error", err)
			}
			l.hint()
		}),
	}
	login, err := credentials(o.Credentials)
	if err != nil {
		return l, err
	}
	servers, connect := o.URL, append(connect, login)
	if dir, ok := strings.CutPrefix(o.URL, "file:"); ok {
		if l.embedded, err = startEmbedded(dir, l.maxBytes, l.logger); err != nil {
			return l, err
		}
		servers, connect = "", append(connect, nats.InProcessServer(l.embedded.server))
	} else if err = CheckURL(o.URL); err != nil {
		return l, err
	}
	if l.write, err = dial(ctx, servers, connect); err != nil {
		return l, err
	}
	if l.read, err = dial(ctx, servers, connect); err != nil {
		return l, err
	}
	if err = l.prepare(ctx); err != nil {
		return l, err
	}
	return l, l.start()
}

func newLog(o Options) *Log {
	l := &Log{
		name: strings.ToLower(rand.Text()), retention: o.Retention, maxBytes: o.MaxBytes, lease: o.Lease, logger: o.Logger,
		live: make(chan *nats.Msg, 4096), stale: make(chan struct{}, 1),
		runs: make(map[string]*run), held: make(map[string]*job), taking: make(map[string]bool), dead: make(map[string]time.Time),
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
			l.lease = time.Second
		}
	}
	if l.logger == nil {
		l.logger = slog.New(slog.DiscardHandler)
	}
	l.ctx, l.stop = context.WithCancel(context.Background())
	l.close = sync.OnceValue(l.end)
	return l
}

// start is everything that goes on until Close.
func (l *Log) start() error {
	if err := errors.Join(l.answerHeld(), l.answerReaders()); err != nil {
		return err
	}
	l.wg.Go(l.dispatch)
	l.wg.Go(l.sweep)
	l.wg.Go(l.keepHouse)
	l.wg.Go(l.heartbeat)
	if l.embedded != nil {
		l.wg.Go(l.mend)
	}
	return nil
}

// Close writes the deltas that are held back, gives up the connections and waits for
// everything that this log started. Jobs that are held are claimed elsewhere once their
// lease is over; Release them before, to hand them over at once.
func (l *Log) Close() error { return l.close() }

func (l *Log) end() error {
	if l.js != nil {
		l.flushAll()
	}
	l.stop()
	l.wg.Wait()
	for _, c := range []*nats.Conn{l.read, l.write} {
		if c != nil {
			c.Close()
		}
	}
	if l.embedded != nil {
		return l.embedded.close()
	}
	return nil
}

// Ready implements event.Log: the leader of the events' stream answers, and a disk of our
// own takes what is written.
func (l *Log) Ready(ctx context.Context) error {
	if l.full.Load() {
		return fmt.Errorf("write to the log: %w", event.ErrUnavailable)
	}
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	if _, err := l.runsStream.Info(ctx); err != nil {
		return fmt.Errorf("ask for the state of the log: %w", event.ErrUnavailable)
	}
	return nil
}
