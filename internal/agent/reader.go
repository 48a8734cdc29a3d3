package agent

import (
	"context"
	"errors"
	"time"

	"answerd/internal/agent/thread"
	"answerd/internal/auth"
	"answerd/internal/event"
)

// Disconnect grace: a run without a reader for Options.DisconnectGrace is cancelled. Two kinds
// of runs are exempt: background runs, and runs that wait for a person. A person may be asked
// outside of the stream, and the time to answer limits the wait. The first reader of a new run
// has at least firstReaderGrace to connect. Agent.readers counts the readers of each run in this
// process. Before a timer cancels a run, it asks the log for readers in other processes.

// firstReaderGrace bounds from below the time from the start of a run, or from its takeover, to
// its first reader.
const firstReaderGrace = 10 * time.Second

// Reader prevents that a run is cancelled for lack of readers. It must be closed once, with one
// of its methods.
type Reader struct {
	agent *Agent
	id    string
}

// OpenReader counts a reader of the run with that id; any process may execute the run. For a run
// that has ended it has no effect.
func (a *Agent) OpenReader(id string) *Reader {
	a.metrics.streams.Add(a.ctx, 1)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.readers[id]++
	if r := a.active[id]; r != nil {
		r.stopGraceLocked()
	}
	return &Reader{agent: a, id: id}
}

// Close ends the reader. If it was the last one, the grace period starts.
func (w *Reader) Close() { w.closeAfter(w.agent.DisconnectGrace) }

// CloseAndCancel ends a reader that cannot reconnect for the answer. If it was the last one, the
// run is cancelled at once.
func (w *Reader) CloseAndCancel() { w.closeAfter(0) }

func (w *Reader) closeAfter(grace time.Duration) {
	a := w.agent
	a.metrics.streams.Add(a.ctx, -1)
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.readers[w.id]--; a.readers[w.id] == 0 {
		delete(a.readers, w.id)
	}
	if r := a.active[w.id]; r != nil {
		r.startGraceLocked(grace)
	}
}

// Detach ends the reader of a caller who was asked to fetch the answer later. From now on the
// run needs no reader, like a background run.
func (w *Reader) Detach() {
	w.agent.mu.Lock()
	if r := w.agent.active[w.id]; r != nil {
		r.Background = true
	}
	w.agent.mu.Unlock()
	w.Close()
}

// startGraceLocked starts the timer that cancels the run, unless the run needs no reader, has
// one, or waits for a person.
func (r *run) startGraceLocked(grace time.Duration) {
	if r.Background || r.graceTimer != nil || r.agent.readers[r.ID] > 0 || r.suspension.openCount.Load() > 0 {
		return
	}
	r.graceTimer = time.AfterFunc(grace, func() { r.runGuarded(func() { r.agent.cancelUnread(r) }) })
}

func (r *run) stopGraceLocked() {
	if r.graceTimer != nil {
		r.graceTimer.Stop()
		r.graceTimer = nil
	}
}

// awaitReader starts the grace period of a run that starts or continues in this process. The
// client whose request caused that is about to read the run.
func (a *Agent) awaitReader(r *run) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.active[r.ID] == r {
		r.startGraceLocked(max(a.DisconnectGrace, firstReaderGrace))
	}
}

// holdGrace stops the grace period of a run that waits for a person. The time to answer limits
// the wait instead.
func (a *Agent) holdGrace(r *run) {
	a.mu.Lock()
	defer a.mu.Unlock()
	r.stopGraceLocked()
}

// cancelUnread cancels a run at the end of its grace period. With a shared log, another process
// may have readers of the run; in that case the grace period starts again.
func (a *Agent) cancelUnread(r *run) {
	a.mu.Lock()
	if a.active[r.ID] != r || r.graceTimer == nil {
		a.mu.Unlock()
		return
	}
	a.runs.Add(1) // Drain waits for this goroutine too
	a.mu.Unlock()
	defer a.runs.Done()
	readElsewhere := a.Durable && a.Log.HasRemoteReader(r.ctx, r.ID)
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.active[r.ID] != r || r.graceTimer == nil {
		return // the run ended or got a reader while the log was asked
	}
	r.graceTimer = nil
	if readElsewhere {
		r.startGraceLocked(max(a.DisconnectGrace, time.Second))
		return
	}
	r.cancel(errAbandoned)
}

// maxAbandoned bounds how many abandoned runs of one idempotency key are skipped.
const maxAbandoned = 64

// runByKey returns the run of an earlier request with r's key. It returns ErrNotFound if there
// was no such request, and ErrKeyReused or ErrKeyElsewhere if that request was a different one.
//
// An abandoned run has no answer for its caller, so the key starts a new run. The abandoned run
// keeps the caller's key, and the new run gets a key that is derived from both. So all processes
// that share the log find the same new run. key is the key with which to create a run of r.
func (a *Agent) runByKey(ctx context.Context, owner auth.Identity, r Request) (run event.Run, key string, err error) {
	if r.IdempotencyKey == "" {
		return event.Run{}, "", event.ErrNotFound
	}
	key = r.IdempotencyKey
	for range maxAbandoned {
		run, err = a.Log.RunByKey(ctx, ownerOf(owner), key)
		if err != nil {
			return event.Run{}, key, err
		}
		if run.Fingerprint != r.Fingerprint {
			return event.Run{}, key, reusedKeyError(run.Fingerprint, r.Fingerprint)
		}
		if run, err = a.awaitAbandoned(ctx, run); err != nil {
			return event.Run{}, key, err
		}
		if end, ok := run.Last.Body.(event.Cancelled); !ok || end.Reason != errAbandoned.Error() {
			return run, key, nil
		}
		key = r.IdempotencyKey + "\n" + run.ID // no caller's key contains a line feed
	}
	return run, key, nil
}

// FingerprintPathBytes gives the number of bytes of a Fingerprint that represent the request's
// path; the other bytes represent its body.
const FingerprintPathBytes = 8

func reusedKeyError(earlier, later [32]byte) error {
	if [FingerprintPathBytes]byte(earlier[:]) != [FingerprintPathBytes]byte(later[:]) {
		return ErrKeyElsewhere
	}
	return ErrKeyReused
}

// awaitAbandoned waits for the terminal event of a run that is executed here and is being
// cancelled because it has no readers. It returns other runs at once.
func (a *Agent) awaitAbandoned(ctx context.Context, run event.Run) (event.Run, error) {
	a.mu.Lock()
	active := a.active[run.ID]
	a.mu.Unlock()
	if active == nil || !errors.Is(context.Cause(active.ctx), errAbandoned) {
		return run, nil
	}
	if err := thread.AwaitEnd(ctx, a.Log, run.ID, nil); err != nil {
		return run, err
	}
	return a.Log.Run(ctx, run.ID)
}
