package agent

import "time"

// firstReaderGrace is the least time from the start of a run to its first watcher.
const firstReaderGrace = 10 * time.Second

// Reader is somebody's interest in a run. It must be released once.
type Reader struct {
	agent *Agent
	id    string
}

// OpenReader keeps the run of that id from being cancelled as one that nobody reads, wherever
// it is executed. It does nothing for a run that has ended.
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

// Close ends the interest; the last one to leave starts the grace period.
func (w *Reader) Close() { w.closeAfter(w.agent.DisconnectGrace) }

// CloseAndCancel ends the interest of a caller that would not come back: if nobody else
// watches, the run is cancelled at once.
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

// Detach ends the interest of a caller who was told to come back for the answer: from
// now on the run goes on without readers, as a background run does.
func (w *Reader) Detach() {
	w.agent.mu.Lock()
	if r := w.agent.active[w.id]; r != nil {
		r.Background = true
	}
	w.agent.mu.Unlock()
	w.Close()
}

// startGraceLocked lets a run that nobody watches go on for at most grace.
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

// awaitReader lets a run go on until whoever caused that reads it.
func (a *Agent) awaitReader(r *run) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.active[r.ID] == r {
		r.startGraceLocked(max(a.DisconnectGrace, firstReaderGrace))
	}
}

// holdGrace keeps a run that waits for a person from being cancelled as one that nobody
// reads: it ends with the time to answer at the latest.
func (a *Agent) holdGrace(r *run) {
	a.mu.Lock()
	defer a.mu.Unlock()
	r.stopGraceLocked()
}

// cancelUnread ends a run that nobody reads. Where others share the log, it may be read by
// way of them; then it is looked at again.
func (a *Agent) cancelUnread(r *run) {
	a.mu.Lock()
	if a.active[r.ID] != r || r.graceTimer == nil {
		a.mu.Unlock()
		return
	}
	a.runs.Add(1) // beside that of the run
	a.mu.Unlock()
	defer a.runs.Done()
	read := a.Durable && a.Log.HasRemoteReader(r.ctx, r.ID)
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.active[r.ID] != r || r.graceTimer == nil {
		return // it ended, or somebody came
	}
	r.graceTimer = nil
	if read {
		r.startGraceLocked(max(a.DisconnectGrace, time.Second))
		return
	}
	r.cancel(errAbandoned)
}
