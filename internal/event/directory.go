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

// Status returns the status that the run's newest event implies. A run without events is running.
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

// Filter selects runs of one owner.
type Filter struct {
	Owner    Owner
	ThreadID string // "" for any
	Status   Status // "" for any
	Children bool   // include child runs
	Before   string // "" for the first page, otherwise the Next of the previous page
	Limit    int    // largest number of runs on a page; 0 means 20, values above MaxPage mean MaxPage
}

// MaxPage is the largest number of runs on a page.
const MaxPage = 100

// HidesChild reports whether f excludes a run because it is a child run. parentID is the run's ParentID.
func (f Filter) HidesChild(parentID string) bool { return parentID != "" && !f.Children }

// PageSize returns the largest number of runs on a page, with the default and the maximum applied to Limit.
func (f Filter) PageSize() int {
	if f.Limit <= 0 {
		return 20
	}
	return min(f.Limit, MaxPage)
}

// RunPage is a page of runs, newest first.
type RunPage struct {
	Runs []Run
	Next string // the Before of the next page; "" on the last page
}

// Directory is the part of a log that finds runs by owner, thread, status and key.
type Directory interface {
	// Runs lists the owner's runs that the log still keeps. It returns ErrInvalidPosition if f.Before is not the Next
	// of a page.
	Runs(ctx context.Context, f Filter) (RunPage, error)
	// RunByKey returns the run that the owner's idempotency key refers to, with its Fingerprint, or ErrNotFound. A log
	// that several processes share returns a run only once it has an event. It waits a few seconds for the first event.
	// After that it returns ErrStarting, or ErrNotFound if the process that created the run has died.
	RunByKey(ctx context.Context, owner Owner, key string) (Run, error)
	// Delete removes a run with its events, results, inputs, job and key. From then on, reading the run or appending to
	// it returns ErrGone. The first append of another process to a run that had no events returns ErrFenced.
	Delete(ctx context.Context, run string) error
}
