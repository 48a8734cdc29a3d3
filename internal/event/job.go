package event

import (
	"context"
	"time"
)

// Jobs is the part of a log that says which process executes a run. A run that is
// never held has no job, and is executed by whoever created it.
//
//	job, err := log.CreateJob(ctx, run.ID, request) // after Create and the start event
//
//	job, err := log.Claim(ctx) // what others gave up, or lost; and what was woken
//	w, err := ResumeWriter(ctx, log, job.Run())
//
// Holding a job is kept up by the log itself while the process lives. When it dies,
// its jobs are claimed elsewhere within seconds, where the log is shared. Stop claiming
// before you Release for others: a claim under way would take the job right back.
type Jobs interface {
	// CreateJob makes the job of a run that this process created. request is whatever
	// another process needs to go on; it means nothing to the log. ErrFenced if the
	// run is written elsewhere, ErrTooLarge beyond MaxResult.
	CreateJob(ctx context.Context, run string, request []byte) (Job, error)
	// Claim waits for a run that is to be executed and that nobody executes, and makes
	// this process its one writer. It returns ctx's cause when ctx ends. Several claims at a
	// time get different runs.
	Claim(ctx context.Context) (Job, error)
}

// Job is the right to execute a run. While it is held, this process is the run's one
// writer. Exactly one of Done, Release and Park ends it.
type Job interface {
	Run() string
	Request() []byte // what CreateJob was given; shared, not to be changed
	// Attempt counts the times that the run was taken up, from 1.
	Attempt() int
	// Lost is closed when another process has taken the run: no event of this one's is
	// taken any more. That is noticed at an append at the latest.
	Lost() <-chan struct{}
	// Done ends the job for good, after the run's terminal event.
	Done(ctx context.Context) error
	// Release hands the run over to whoever claims it, this process included.
	Release(ctx context.Context) error
	// Park gives the run up until an input comes that has a position after seen, or
	// until then; a time that is zero never comes.
	Park(ctx context.Context, seen int64, until time.Time) error
}

// CancelID is the input that asks for a run's end.
const CancelID = "cancel"

// Input is what somebody gave to a run from outside.
type Input struct {
	ID   string // of what it answers, or CancelID
	Pos  int64  // orders the inputs of a run; above 0
	Data []byte // shared, not to be changed
}

// InputPage is the inputs that follow a position.
type InputPage struct {
	Inputs []Input
	More   <-chan struct{} // as in Page; nil when Inputs is not empty
}

// Inbox is the part of a log that takes answers and requests to a run's executor,
// wherever both are.
type Inbox interface {
	// AddInput adds an input to a run, and wakes it if it is parked. The first of an id
	// wins, on any process: the others are ErrDuplicateInput. ErrEnded after the terminal
	// event, ErrNotFound where id is not a ValidID, ErrTooLarge beyond MaxResult.
	AddInput(ctx context.Context, run, id string, data []byte) error
	// Inputs returns the inputs of a run after a position, 0 being before the first.
	Inputs(ctx context.Context, run string, after int64) (InputPage, error)
}

// ValidID reports whether s can be a name inside a log: 1 to 64 of A–Z, a–z, 0–9, _ and -.
// The ids that answerd makes are tokens.
func ValidID(s string) bool {
	if s == "" || len(s) > 64 {
		return false
	}
	for _, c := range []byte(s) {
		if (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '_' && c != '-' {
			return false
		}
	}
	return true
}
