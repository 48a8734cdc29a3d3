package event

import "context"

// Status is the state of a run.
type Status string

// The statuses of a run.
const (
	StatusRunning   Status = "running"
	StatusSuspended Status = "suspended"
	StatusCompleted Status = "completed"
	StatusFailed    Status = "failed"
	StatusCancelled Status = "cancelled"
)

// Status returns the status that the newest event of the run implies.
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
	Children bool   // include child runs
	Before   string // the Next of the previous page; "" for the first page
	Limit    int    // runs of a page; 0 means 20, at most MaxPage
}

// MaxPage bounds a page of runs.
const MaxPage = 100

// HidesChild reports whether f leaves out a run because it is a child run. parentID is the run's ParentID.
func (f Filter) HidesChild(parentID string) bool { return parentID != "" && !f.Children }

// PageSize returns the largest number of runs on a page of f.
func (f Filter) PageSize() int {
	if f.Limit <= 0 {
		return 20
	}
	return min(f.Limit, MaxPage)
}

// RunPage has some runs, the newest first.
type RunPage struct {
	Runs []Run
	Next string // the Before of the next page; "" after the last one
}

// Directory is the part of a log that finds runs by owner, thread, status and key.
type Directory interface {
	// Runs lists an owner's runs that are kept. It returns ErrInvalidPosition if Before is not the Next of a page.
	Runs(ctx context.Context, f Filter) (RunPage, error)
	// RunByKey returns the run that an owner's idempotency key refers to, with its Fingerprint, or ErrNotFound. A log
	// that processes share returns a run only once the run has an event. It waits some seconds for the first event, and
	// then returns ErrStarting, or ErrNotFound if the process that created the run has died.
	RunByKey(ctx context.Context, owner Owner, key string) (Run, error)
	// Delete removes a run: its events, results, inputs, job and key. Reading it and
	// appending to it returns ErrGone from then on.
	Delete(ctx context.Context, run string) error
}
