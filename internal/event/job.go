package event

import (
	"context"
	"time"
)

// Jobs is the part of a log that says which process executes a run. A run without a job is
// executed by the process that created it.
//
//	job, err := log.CreateJob(ctx, run.ID, request) // after Create and the start event
//
//	job, err := log.Claim(ctx) // a run that was released, lost or woken
//	w, err := ResumeWriter(ctx, log, job.Run())
//
// The log keeps the job claimed as long as the process runs. When the process dies, other
// processes that share the log claim its jobs within seconds. To hand a job to another process, end all calls of
// Claim before Release: a call in flight would claim the job again.
type Jobs interface {
	// CreateJob makes the job of a run that this process created. request has what another
	// process needs to continue the run; the log does not interpret it. It returns ErrFenced if another
	// process writes the run, and ErrTooLarge if request exceeds MaxResult.
	CreateJob(ctx context.Context, run string, request []byte) (Job, error)
	// Claim waits for a job that no process executes, and makes this process the one writer
	// of its run. It returns ctx's cause when ctx ends. Concurrent calls get different runs.
	Claim(ctx context.Context) (Job, error)
}

// Job is the right to execute a run: this process is the run's one writer. Exactly one of
// Done, Release and Park ends it.
type Job interface {
	Run() string
	Request() []byte // the request of CreateJob; shared, so it must not be changed
	// Attempt is 1 after CreateJob, and one more after each Claim of the run.
	Attempt() int
	// Lost returns a channel that is closed when this process knows that another process has claimed the run: at
	// its next append at the latest, which fails like all later ones.
	Lost() <-chan struct{}
	// Done ends the job for good. It must come after the run's terminal event.
	Done(ctx context.Context) error
	// Release makes the run available to a Claim of any process.
	Release(ctx context.Context) error
	// Park makes the run available to a Claim of any process once it has an input with a position after seen, or at
	// the time until. For the zero time only an input counts.
	Park(ctx context.Context, seen int64, until time.Time) error
}

// CancelID is the id of the input that asks the executor to cancel the run.
const CancelID = "cancel"

// Input is an answer or a request to a run's executor.
type Input struct {
	ID   string // id of the interrupt that it answers, or CancelID
	Pos  int64  // orders the inputs of a run; above 0
	Data []byte // shared, so it must not be changed
}

// InputPage has the inputs after a position.
type InputPage struct {
	Inputs []Input
	More   <-chan struct{} // as in Page; nil when Inputs is not empty
}

// Inbox is the part of a log that carries answers and requests to a run's executor, from any process to any process.
type Inbox interface {
	// AddInput adds an input to a run, and wakes the run if it is parked. The first input with an id counts, from
	// any process; for a later one AddInput returns ErrDuplicateInput. It returns ErrEnded after the terminal
	// event, ErrNotFound if id is not a ValidID, and ErrTooLarge if data exceeds MaxResult.
	AddInput(ctx context.Context, run, id string, data []byte) error
	// Inputs returns the inputs of a run with positions after the given one; 0 is before the first.
	Inputs(ctx context.Context, run string, after int64) (InputPage, error)
}

// ValidID reports whether id can be an id in a log: 1 to 64 characters of A–Z, a–z, 0–9, _ and -. All ids
// that answerd makes are valid.
func ValidID(id string) bool {
	if id == "" || len(id) > 64 {
		return false
	}
	for _, c := range []byte(id) {
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '_', c == '-':
		default:
			return false
		}
	}
	return true
}
