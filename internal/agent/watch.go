package agent

import "time"

// startGrace is the least time from the start of a run to its first watcher.
const startGrace = 10 * time.Second

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
	a.watchers[id]++
	if r := a.active[id]; r != nil {
		r.stayLocked()
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
	if a.watchers[w.id]--; a.watchers[w.id] == 0 {
		delete(a.watchers, w.id)
	}
	if r := a.active[w.id]; r != nil {
		r.restLocked(grace)
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

// restLocked lets a run that nobody watches go on for at most grace.
func (r *run) restLocked(grace time.Duration) {
	if r.Background || r.timer != nil || r.agent.watchers[r.ID] > 0 || r.waits.asking.Load() > 0 {
		return
	}
	r.timer = time.AfterFunc(grace, func() { r.guard(func() { r.agent.abandon(r) }) })
}

func (r *run) stayLocked() {
	if r.timer != nil {
		r.timer.Stop()
		r.timer = nil
	}
}

// expectReader lets a run go on until whoever caused that reads it.
func (a *Agent) expectReader(r *run) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.active[r.ID] == r {
		r.restLocked(max(a.DisconnectGrace, startGrace))
	}
}

// linger keeps a run that waits for a person from being cancelled as one that nobody
// reads: it ends with the time to answer at the latest.
func (a *Agent) linger(r *run) {
	a.mu.Lock()
	defer a.mu.Unlock()
	r.stayLocked()
}

// abandon ends a run that nobody reads. Where others share the log, it may be read by
// way of them; then it is looked at again.
func (a *Agent) abandon(r *run) {
	a.mu.Lock()
	if a.active[r.ID] != r || r.timer == nil {
		a.mu.Unlock()
		return
	}
	a.runs.Add(1) // beside that of the run
	a.mu.Unlock()
	defer a.runs.Done()
	read := a.Durable && a.Log.HasRemoteReader(r.ctx, r.ID)
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.active[r.ID] != r || r.timer == nil {
		return // it ended, or somebody came
	}
	r.timer = nil
	if read {
		r.restLocked(max(a.DisconnectGrace, time.Second))
		return
	}
	r.cancel(errAbandoned)
}
