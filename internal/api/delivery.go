package api

import (
	"slices"
	"sync"
	"time"

	"answerd/internal/event"
)

// maxTold bounds the runs of which it is known how far they were told.
const maxTold = 8192

// recently is how long after a run's end a page that another process told it to, or half
// of it, may come here for the rest. Pages come back within seconds of a cut.
const recently = time.Minute

// told is whether the streams of runs were read to their end by the page that started
// them, the oldest first. It is a help for who comes back, and not kept.
type told struct {
	mu    sync.Mutex // protects what follows
	runs  []string
	whole map[string]bool
}

// set says whether the stream of a run was whole. It is not while it lasts.
func (t *told) set(run string, whole bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.whole == nil {
		t.whole = make(map[string]bool)
	}
	if i := slices.Index(t.runs, run); i >= 0 {
		t.runs = slices.Delete(t.runs, i, i+1)
	}
	if len(t.runs) >= maxTold {
		delete(t.whole, t.runs[0])
		t.runs = slices.Delete(t.runs, 0, 1)
	}
	t.runs = append(t.runs, run)
	t.whole[run] = whole
}

// missed reports whether somebody lost the stream of a run that has ended before its
// end. Of one that was told by another process, or by one that is no more, that is not
// known; then whoever asks soon after the end is told it: a message twice does less harm
// than half of one. One that was stopped nobody wants to see again.
func (t *told) missed(run event.Run, now time.Time) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if whole, known := t.whole[run.ID]; known {
		return !whole
	}
	return run.Status() != event.StatusCancelled && now.Sub(time.UnixMilli(run.Last.Time)) < recently
}
