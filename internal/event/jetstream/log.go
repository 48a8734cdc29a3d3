// Package jetstream implements event.Log on NATS JetStream. The log is either on the disk of this process, or on a
// cluster that any number of processes share.
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
// With a file: URL, the log runs a NATS server inside this process. That server does not listen on the network. The
// rest of the code is the same in both cases. An acknowledged event survives kill -9 of every process, and the loss of
// as many machines as the replicas of the streams allow.
//
// One writer. All events of a run are on one subject. Every append states the stream position of the run's last
// message, and the server refuses the append if that position is wrong (compare and append). So a run has one writer at
// a time: a writer that was replaced gets ErrFenced at its next append. If the acknowledgement of an append is lost,
// the append is repeated with the same bytes and the same expected position, for up to 30 s, until it is certain
// whether the stream has the event (publish.go).
//
// Batches. Events and notes of a run that are added close together are stored as one message (package batch). They are
// those added within batchDelay, and those added while the previous message is being stored. The server stores a
// message as a whole, so a batch is atomic. Readers see an event when its message is acknowledged, even readers in this
// process. Append and Flush wait for the acknowledgement. AppendAsync and AddNote do not.
//
// Order. All readers of a run share one live subscription, which delivers only new events. A live event is used only if
// it directly follows the last known event. Otherwise the missing events are read from the stream (run.go). So a lost
// live message delays an event, but cannot lose or reorder one. With a file: URL, a run's writer is in the same process
// as its readers, and no live messages are needed.
//
// Leases. A run's job is a message in a work queue. It stays unacknowledged while a process executes the run. When its
// lease ends, it is delivered again, so that another process can take the run over (claim.go).
//
// Threads are in separate streams (package threads), which may use a quarter of the log's space.
//
// Tombstones. When a run is deleted or expires, the log remembers its owner for seven days. The owner then gets ErrGone
// for the run, and everyone else gets ErrNotFound (retention.go).
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
	event.Threads // the same store as the field threads; set by openThreads

	retention time.Duration // how long a run is kept after its last event
	maxBytes  int64         // limits runs and threads together
	lease     time.Duration // how long an instance keeps a job without renewing its claim

	unrepaired bool           // recoverDisk must call repairRuns, because the log was opened on a full disk
	expired    atomic.Int64   // how many runs retention has deleted since the log was opened
	threads    *threads.Store // this log's threads
	sizes      *share.Table   // the sizes of runs; watchSpace updates it while the log is nearly full
	batches    bool           // events that occur close together are stored as one message
	alone      bool           // no other process uses the log, so no live messages are needed

	stop      context.CancelFunc // ends client.ctx
	wg        sync.WaitGroup     // counts every goroutine and running timer of this log
	closeOnce func() error       // runs closeAll once
	live      chan *nats.Msg     // messages from all live subscriptions, for dispatchLoop
	evictNow  chan struct{}      // tells pollLoop that the cache is full
	resync    chan struct{}      // tells dispatchLoop that live messages may be missing

	// tombstonePos is the index position at which dropTombstones continues.
	tombstonePos atomic.Uint64

	maxCached int64        // if cached exceeds it, runs that have ended are evicted
	cached    atomic.Int64 // approximate size of the cached events, in bytes

	mu           sync.Mutex           // guards the fields below; locked before a run's own mutex
	runs         map[string]*run      // the cache, by id
	jobs         map[string]*job      // the jobs that this instance executes, by the run's id
	claiming     map[string]bool      // runs reserved by a call of Claim (beginClaim)
	unresponsive map[string]time.Time // when each instance last failed to answer isClaimedBy
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

// goGuarded runs f in a goroutine that Close waits for, and logs a panic in f. If the log is closed, goGuarded does not
// run f and returns false.
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

// recoverPanic recovers from a panic and logs it. It must be deferred. doing says what the goroutine was doing. The
// log's goroutines serve all runs, so a bug in the handling of one run or message must not end them or the process.
// Readers do not miss events because of the panic, because pollLoop makes them ask again.
func (l *Log) recoverPanic(doing string) {
	v := recover()
	if v == nil {
		return
	}
	l.logger.Error("panic in the event log", "doing", doing, "panic", fmt.Sprint(v), "stack", string(debug.Stack()))
}

// SaveResult implements event.Log. It keeps earlier results of the call in the stream, but Result returns only the
// newest. If the run is deleted while the result is being stored, SaveResult removes the result again.
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
	if errors.Is(w.checkWritable(), event.ErrGone) { // the run was deleted while the result was being stored
		l.purgeIfGone(id)
	}
	return err
}

// Result implements event.Log. It returns the newest result of the call, and event.ErrGone if a part of it is no longer
// kept.
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
