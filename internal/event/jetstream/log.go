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
// One writer. The events of a run are on one subject. Every append states the number that the run's last message has in
// the stream, and the server refuses it if that is wrong (compare and append). So a run has one writer at a time: a
// writer that was replaced gets ErrFenced at its next append. If the acknowledgement of an append is lost, the append
// is repeated with the same bytes and the same expectation, for up to 30 s, until it is certain whether the stream has
// the event (publish.go).
//
// Batches. Events and notes of a run that are added close together are one message (package batch): those within
// batchDelay, and those that are added while the message before is being stored. The server stores a message as a
// whole, so a batch is atomic. Readers see an event when its message is acknowledged, in this process too.
// Append and Flush wait for that; AppendAsync and AddNote do not.
//
// Order. The readers of a run share one live subscription, which delivers new events only. A live event is used only if
// it directly follows the last known event. Otherwise the missing events are read from the stream (run.go). A lost live
// message therefore delays an event, but cannot lose or reorder one. With file: the writer of a run is in the same
// process as its readers, so nothing needs to arrive live.
//
// Leases. The job of a run is a message in a work queue. It stays unacknowledged while a process executes the run. When
// its lease ends it is delivered again, which lets another process take the run over (claim.go).
//
// Threads are on streams of their own (package threads), with a quarter of the log's space.
//
// Tombstones. For a run that was deleted or has expired, the log keeps the owner for seven days,
// so that the owner reads ErrGone and everyone else reads ErrNotFound (retention.go).
package jetstream

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"

	"answerd/internal/event"
	"answerd/internal/event/jetstream/share"
	"answerd/internal/event/jetstream/threads"
)

// Log implements event.Log. Its methods may be called concurrently.
type Log struct {
	client
	event.Threads // the field threads; set by openThreads

	retention time.Duration // how long a run is kept after its last event
	maxBytes  int64         // the limit of runs and threads together
	lease     time.Duration // how long an instance has a job without renewing its claim

	unrepaired bool           // recoverDisk must call repairRuns, because the log was opened on a full disk
	expired    atomic.Int64   // how many runs retention has deleted since the log was opened
	threads    *threads.Store // of this log
	sizes      *share.Table   // the sizes of runs, which watchSpace updates while the log is nearly full
	batches    bool           // events that occur close together become one message
	alone      bool           // no other process shares the log, so no message needs to arrive live

	stop      context.CancelFunc // ends client.ctx
	wg        sync.WaitGroup     // every goroutine and running timer of this log
	closeOnce func() error       // closeAll, executed once
	live      chan *nats.Msg     // from all live subscriptions, to dispatchLoop
	evictNow  chan struct{}      // signals to pollLoop that the cache is full
	resync    chan struct{}      // signals to dispatchLoop that live messages may be missing

	// tombstonePos is the position from which dropTombstones continues to read the index.
	tombstonePos atomic.Uint64

	maxCached int64        // the limit of cached; above it, runs that have ended are evicted
	cached    atomic.Int64 // about how many bytes the cached events use

	mu           sync.Mutex           // guards the fields below; taken before a run's own mutex
	runs         map[string]*run      // the cache, by id
	jobs         map[string]*job      // the jobs that this instance executes, by the run's id
	claiming     map[string]bool      // the runs that a call of Claim examines
	unresponsive map[string]time.Time // when each instance last did not answer isClaimedBy
}

var _ event.Log = (*Log)(nil)

// Ready implements event.Log. It returns an error if the leader of the stream of runs does not answer within
// readyTimeout, or if the disk of an embedded server is full.
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

// goGuarded runs f in a goroutine, for which Close waits. A panic of f is logged. goGuarded reports false, and does not
// run f, if the log is closed.
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

// recoverPanic must be deferred. It recovers from a panic and logs it; doing says what the goroutine did. The
// goroutines of the log serve all runs, so a bug in the handling of one run or message must not end them or the
// process. pollLoop makes readers ask again, so they do not miss events because of the panic.
func (l *Log) recoverPanic(doing string) {
	v := recover()
	if v == nil {
		return
	}
	l.logger.Error("panic in the event log", "doing", doing, "panic", fmt.Sprint(v), "stack", string(debug.Stack()))
}

// SaveResult implements event.Log.
func (l *Log) SaveResult(ctx context.Context, id, call string, result []byte) error {
	if len(result) > event.MaxResult {
		return event.ErrTooLarge
	}
	w, err := l.writerFor(ctx, id)
	if err != nil {
		return err
	}
	if err := w.checkWritable(); err != nil {
		return err
	}
	err = l.savePayload(ctx, id, resultToken+"."+subjectDigest(call), result)
	if errors.Is(w.checkWritable(), event.ErrGone) { // the run was deleted while the result was stored
		l.purgeIfGone(id)
	}
	return err
}

// Result implements event.Log.
func (l *Log) Result(ctx context.Context, id, call string) ([]byte, error) {
	if _, err := l.Run(ctx, id); err != nil {
		return nil, err
	}
	m, err := l.readLast(ctx, runsName, runSubject(id, resultToken+"."+subjectDigest(call)))
	if err != nil {
		return nil, err
	}
	if m == nil {
		return nil, event.ErrNotFound
	}
	return l.readPayload(ctx, *m)
}
