package event

import (
	"context"
	"time"
)

// Jobs is the part of a log that decides which process executes a run. A run without a job is executed by the process
// that created it.
//
//	job, err := log.CreateJob(ctx, run.ID, request) // after Create and the start event
//
//	job, err := log.Claim(ctx) // a run that was released, lost or woken
//	w, err := ResumeWriter(ctx, log, job.Run())
//
// The log keeps a job claimed as long as the process runs. When the process dies, other processes that share the log
// claim its jobs within seconds. To hand a job to another process, make sure that no call of Claim is in flight before
// calling Release. Otherwise that call could claim the job again.
type Jobs interface {
	// CreateJob creates the job of a run that this process created. request holds what another process needs to
	// continue the run. The log does not interpret it. CreateJob returns ErrFenced if another process writes the run,
	// and ErrTooLarge if request exceeds MaxResult.
	CreateJob(ctx context.Context, run string, request []byte) (Job, error)
	// Claim waits for a job that no process executes, and makes this process the only writer of the job's run. It
	// returns ctx's cause when ctx ends. Concurrent calls return different runs.
	Claim(ctx context.Context) (Job, error)
}

// Job is the right to execute a run. While a process holds the job, it is the run's only writer. Exactly one of Done,
// Release and Park ends the job.
type Job interface {
	Run() string
	Request() []byte // the request that was passed to CreateJob; shared, so it must not be changed
	// Attempt returns 1 after CreateJob. Each Claim of the run adds 1.
	Attempt() int
	// Lost returns a channel that is closed when this process learns that another process has claimed the run. The
	// process learns that at its next append at the latest: this append and all later ones fail.
	Lost() <-chan struct{}
	// Done ends the job permanently. Call it only after the run's terminal event was appended.
	Done(ctx context.Context) error
	// Release ends the job here and lets any process claim the run.
	Release(ctx context.Context) error
	// Park ends the job here. Any process can claim the run again once the run has an input with a position above seen,
	// or at the time until. If until is zero, the run waits for an input only.
	Park(ctx context.Context, seen int64, until time.Time) error
}

// CancelID is the id of the input that asks the executor to cancel the run.
const CancelID = "cancel"

// Input is an answer or a request that is sent to a run's executor.
type Input struct {
	ID   string // id of the interrupt that the input answers, or CancelID
	Pos  int64  // orders the inputs of a run; always above 0
	Data []byte // shared, so it must not be changed
}

// InputPage holds the inputs after a position.
type InputPage struct {
	Inputs []Input
	More   <-chan struct{} // as in Page; nil if Inputs is not empty
}

// Inbox is the part of a log that carries inputs from any process to the process that executes the run.
type Inbox interface {
	// AddInput adds an input to a run, and wakes the run if it is parked. Only the first input with an id is kept, no
	// matter which process adds it. For later ones AddInput returns ErrDuplicateInput. It returns ErrEnded after the
	// terminal event, ErrNotFound if id is not a ValidID, and ErrTooLarge if data exceeds MaxResult.
	AddInput(ctx context.Context, run, id string, data []byte) error
	// Inputs returns the inputs of a run with positions above after. Pass 0 for the inputs from the first one on.
	Inputs(ctx context.Context, run string, after int64) (InputPage, error)
}

// ValidID reports whether id can be used as an id in a log: 1 to 64 characters of A–Z, a–z, 0–9, _ and -. All ids that
// answerd makes are valid.
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
