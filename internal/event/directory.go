package event

import "context"

// Status is what the newest event of a run says about it.
type Status string

// All there are.
const (
	StatusRunning   Status = "running"
	StatusSuspended Status = "suspended"
	StatusCompleted Status = "completed"
	StatusFailed    Status = "failed"
	StatusCancelled Status = "cancelled"
)

// Status is the run's, by its newest event.
func (r Run) Status() Status {
	switch r.Last.Body.(type) {
	case Suspended:
		return StatusSuspended
	case FinalAnswer:
		return StatusCompleted
	case RunError:
		return StatusFailed
	case Cancelled:
		return StatusCancelled
	}
	return StatusRunning
}

// Filter chooses runs of one owner.
type Filter struct {
	Owner    Owner
	ThreadID string // "" for any
	Status   Status // "" for any
	Before   string // where the last page ended; "" for the newest run on
	Limit    int    // runs of a page; 0 means 20, at most MaxPage
}

// MaxPage bounds a page of runs.
const MaxPage = 100

// PageSize is how many runs f asks for.
func (f Filter) PageSize() int {
	if f.Limit <= 0 {
		return 20
	}
	return min(f.Limit, MaxPage)
}

// RunPage is some runs, the newest first.
type RunPage struct {
	Runs []Run
	Next string // the Before of the next page; "" after the last one
}

// Directory is the part of a log that knows runs by more than their id.
type Directory interface {
	// Runs lists an owner's runs that are kept. ErrInvalidPosition if Before is no page's
	// end.
	Runs(ctx context.Context, f Filter) (RunPage, error)
	// RunByKey returns the run that an owner's key stands for, with its Fingerprint, or
	// ErrNotFound.
	RunByKey(ctx context.Context, owner Owner, key string) (Run, error)
	// Delete forgets a run: its events, results, inputs, job and key. From then on it
	// is ErrGone, and so is appending to it.
	Delete(ctx context.Context, run string) error
}
