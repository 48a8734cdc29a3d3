package event

import (
	"context"
	"errors"
	"time"

	"answerd/internal/values"
)

// Errors of a Log. They have the same meaning in every implementation.
var (
	// ErrNotFound: the log does not know the run, or it has no result for the call.
	ErrNotFound = errors.New("no such run")
	// ErrGone: the run, or the events after the position, are no longer kept.
	ErrGone = errors.New("no longer kept")
	// ErrLost: the run was in the memory of a process that has ended.
	ErrLost = errors.New("the run was lost with its process")
	// ErrInvalidPosition: the run has not reached that position.
	ErrInvalidPosition = errors.New("not a position of this run")
	// ErrEnded: the run has its terminal event, and no event may follow it.
	ErrEnded = errors.New("the run has ended")
	// ErrExists: a run with this id already exists.
	ErrExists = errors.New("the run exists already")
	// ErrFenced: another process is the run's writer.
	ErrFenced = errors.New("the run is written elsewhere")
	// ErrDuplicateInput: the run already has an input with this id.
	ErrDuplicateInput = errors.New("this input was given before")
	// ErrUnavailable: the log did not answer, or not in time.
	ErrUnavailable = errors.New("the log is not available")
	// ErrStarting: the key refers to a run that was created but has no events yet.
	ErrStarting = errors.New("the run is being started")
	// ErrTooLarge: the data exceeds the log's limit for it, such as MaxResult.
	ErrTooLarge = errors.New("the result is too large to be kept")
)

// Defaults for the bounds of a log, used if its options do not set them.
const (
	DefaultRetention = time.Hour
	DefaultMaxBytes  = 256 << 20
)

// MaxResult is the largest size of a result, in bytes: the largest answer of an MCP server with its envelope.
const MaxResult = 4<<20 + 64<<10

// Owner identifies the caller that owns a run, by the issuer and subject of the caller's token. The zero Owner is the
// anonymous caller.
type Owner struct {
	Issuer  string
	Subject string
}

// Run is what the log keeps about a run besides its events.
type Run struct {
	ID         string
	ThreadID   string
	TraceID    string
	Owner      Owner
	Created    time.Time
	Background bool   // the run is not cancelled when it has no readers
	Agent      string // the named agent that answers; "" if no agents are configured by name
	// ParentID is the run whose tool call started this one, or "" if a caller started it. Both runs have the same owner
	// and thread.
	ParentID string
	// Metadata was set by the caller. It is the same as in the run's start event.
	Metadata map[string]string
	// Request is opaque data from the process that created the run. The log returns it unchanged as long as it keeps
	// the events. Request has at most about 300 KiB, and may be nil.
	Request []byte
	// Key is the idempotency key of the request that created the run, or "" if the request had none. Fingerprint is a
	// digest of that request. Only Create and RunByKey use these two fields.
	Key         string
	Fingerprint [32]byte
	// Last is the run's newest event, which determines the Status. Last.Seq is 0 if the run has no events yet.
	Last Event
}

// Page holds the events after a position.
type Page struct {
	Events  []Event // in order, starting right after the position; shared, so they must not be changed
	Ended   bool    // the run's terminal event is in Events, or at the position itself
	HasNext bool    // the log has more events after these; also false if the log cannot say so cheaply
	// More is closed when more events may be available. It is nil if Ended is true or Events is not empty. In the
	// second case, call After again at once.
	More <-chan struct{}
}

// KeyError says that the owner's idempotency key already refers to another run, which is still kept.
type KeyError struct {
	Run  string
	Same bool // the request that created Run has the same fingerprint
}

func (e *KeyError) Error() string { return "the key refers to another run" }

// Log keeps the events of runs. Every implementation must pass eventtest.Run.
//
// One Writer appends to a run while any number of goroutines read it. No method waits for a reader. A log in memory
// answers at once. A log that uses a network returns ErrUnavailable when ctx ends or after several seconds (30 for
// Append). Every method returns ErrNotFound for a run id that is not a ValidID.
type Log interface {
	// NewID returns a new run id: a ValidID that cannot be guessed. A log in memory recognizes ids that earlier
	// processes made, and returns ErrLost for them.
	NewID() string
	// Create creates a run without events, which this process may append to. It returns ErrExists if a run with that id
	// exists, and a *KeyError if r.Key refers to another run.
	Create(ctx context.Context, r Run) error
	// BeginThread creates the thread of a run that has no events yet, and makes the run active in it, like BeginTurn.
	// The thread's id must be new. A durable log may return before the thread is stored. The run's first Append then
	// waits for the thread, and returns the error if the thread could not be stored.
	BeginThread(ctx context.Context, r Run, title string) error
	// Append adds an event to a run and returns the event's number. When Append returns, the event is stored and
	// readable, with one exception: a durable log may hold back a delta of text, reasoning or arguments for 50 ms, to
	// join it with the following deltas. This does not change the order of events. Append returns ErrEnded after the
	// terminal event, and ErrFenced if another process writes the run.
	Append(ctx context.Context, run string, b Body) (int64, error)
	// AppendAsync adds an event like Append, in the same order, but may return before the event is stored. The event is
	// stored within milliseconds (at once if a reader waits) and before the run's next Append or Flush returns. If the
	// event cannot be stored, the run's next Append, AppendAsync or Flush returns the error.
	AppendAsync(ctx context.Context, run string, b Body) (int64, error)
	// Flush waits until all events that were appended to the run, including deltas, are stored and readable. If they
	// cannot be stored, it returns the same error as Append. Call Flush before anything outside of the process can
	// learn of the events.
	Flush(ctx context.Context, run string) error
	// After returns the next events after seq, but not always all of them. Position 0 is before the first event. After
	// does not wait for later events. It returns ErrGone if some of the events after seq are no longer kept, and
	// ErrInvalidPosition if seq is negative or beyond the newest event.
	After(ctx context.Context, run string, seq int64) (Page, error)
	// Settled returns a channel that is closed when the run's newest event is Settled, or when it is time to call
	// Settled again. Other events do not wake a caller that only waits for the end of the run, and a durable log does
	// not have to store them at once.
	Settled(ctx context.Context, run string) (<-chan struct{}, error)
	// Run returns a run. If the error is ErrGone, the returned Run still has its Owner, so that the API can answer all
	// other callers as if the run had never existed.
	Run(ctx context.Context, id string) (Run, error)
	// SaveResult stores the full result of a call, which may be too large for an event, for as long as the run's events
	// are kept. The log does not interpret result, and the caller must not change it afterwards. The result may become
	// readable before SaveResult returns. A second result for a call replaces the first, because a run may repeat a
	// call after a takeover. SaveResult returns ErrTooLarge if result exceeds MaxResult, ErrEnded after the terminal
	// event, ErrNotFound, or ErrGone. A full log may drop results before it drops events.
	SaveResult(ctx context.Context, run, call string, result []byte) error
	// Result returns the result of a call. The slice is shared and must not be changed. Result returns ErrNotFound if
	// the call has no result, and ErrGone if the log no longer keeps the result or the run.
	Result(ctx context.Context, run, call string) ([]byte, error)

	Inbox
	Jobs
	Journal
	Directory
	Threads
	values.Store

	// HasRemoteReader reports whether a reader in another process is waiting for the run's next events, or was a few
	// seconds ago. It takes a few seconds at most, and ignores processes that do not answer.
	HasRemoteReader(ctx context.Context, run string) bool

	// Now returns the time of the log's clock. All processes that share the log see the same clock, and events have its
	// time. Code that stores a time for other processes, or compares a stored time with the current time, must use Now,
	// because the clocks of machines can differ by an hour.
	Now() time.Time
	// Ready returns an error if the log cannot be used at the moment.
	Ready(ctx context.Context) error
}

// ReadAll returns all events that a run has so far, in order. If the log has dropped some of them, the error is
// ErrGone.
func ReadAll(ctx context.Context, log Log, run string) (events []Event, _ error) {
	for {
		page, err := log.After(ctx, run, int64(len(events)))
		if err != nil {
			return nil, err
		}
		events = append(events, page.Events...)
		if page.Ended || len(page.Events) == 0 {
			return events, nil
		}
	}
}
