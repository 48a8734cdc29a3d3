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
	event.Threads

	retention time.Duration
	maxBytes  int64 // of runs and threads
	lease     time.Duration

	unrepaired bool           // repairRuns is still to be called, because the log was opened on a full disk
	expired    atomic.Int64   // runs that retention has deleted, ever
	threads    *threads.Store // the same as Threads
	sizes      *share.Table   // of the runs, while the log is nearly full
	batches    bool           // events that occur close together become one message
	alone      bool           // no other process shares the log, so no message needs to arrive live

	stop      context.CancelFunc
	wg        sync.WaitGroup // every goroutine and running timer of this log
	closeOnce func() error
	live      chan *nats.Msg // from all live subscriptions
	evictNow  chan struct{}  // signals that the cache is full
	resync    chan struct{}  // signals that live messages may be missing

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
	if errors.Is(w.checkWritable(), event.ErrGone) {
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
