package event

import (
	"context"
	"errors"
	"time"

	"answerd/internal/values"
)

// Errors of a Log. They mean the same in every log.
var (
	// ErrNotFound: the log does not know the run, or has no result of the call.
	ErrNotFound = errors.New("no such run")
	// ErrGone: the run, or the events after the position, are no longer kept.
	ErrGone = errors.New("no longer kept")
	// ErrLost: the run was in the memory of a process that has ended.
	ErrLost = errors.New("the run was lost with its process")
	// ErrInvalidPosition: the run has not reached that position.
	ErrInvalidPosition = errors.New("not a position of this run")
	// ErrEnded: the run has its terminal event, which nothing may follow.
	ErrEnded = errors.New("the run has ended")
	// ErrExists: a run with this id was created before.
	ErrExists = errors.New("the run exists already")
	// ErrFenced: another process is the run's writer.
	ErrFenced = errors.New("the run is written elsewhere")
	// ErrDuplicateInput: the run has an input with this id.
	ErrDuplicateInput = errors.New("this input was given before")
	// ErrUnavailable: the log did not answer, or not in time.
	ErrUnavailable = errors.New("the log is not available")
	// ErrStarting: the run that a key refers to was created and has no event yet.
	ErrStarting = errors.New("the run is being started")
	// ErrTooLarge: a result is longer than MaxResult.
	ErrTooLarge = errors.New("the result is too large to be kept")
)

// Bounds of a log whose options leave them out.
const (
	DefaultRetention = time.Hour
	DefaultMaxBytes  = 256 << 20
)

// MaxResult bounds one result that a log keeps, in bytes: the largest answer of an MCP server and its envelope.
const MaxResult = 4<<20 + 64<<10

// Owner identifies the caller that a run belongs to, by the issuer and subject of their token.
// The zero Owner is the anonymous caller.
type Owner struct {
	Issuer  string
	Subject string
}

// Run has what the log keeps of a run besides its events.
type Run struct {
	ID         string
	ThreadID   string
	TraceID    string
	Owner      Owner
	Created    time.Time
	Background bool   // is not cancelled when it has no readers
	Agent      string // the named agent that answers; "" if the service has no names
	// ParentID is the run that asks this one in a call; "" if a caller asks. Both have the same owner and thread.
	ParentID string
	// Metadata is the caller's own, as in the run's start event.
	Metadata map[string]string
	// Request is data of the process that created the run. The log returns it unchanged as long as the
	// events are kept. It has at most some 300 KiB; nil for nothing.
	Request []byte
	// Key is the idempotency key of the request that created the run, "" without one, and
	// Fingerprint is a digest of that request. Only Create and RunByKey use them.
	Key         string
	Fingerprint [32]byte
	// Last is the newest event, which implies the Status. Its Seq is 0 if the run has no event yet.
	Last Event
}

// Page has the events after a position.
type Page struct {
	Events  []Event // in order, the first one right after the position; shared, so they must not be changed
	Ended   bool    // the terminal event is the last one of Events, or is at the position itself
	HasNext bool    // the log has further events after these; false also if it would take effort to find out
	// More is closed when there is more to read, or when it is time to ask again. It is nil if Ended is set, and if
	// Events is not empty: then After can be called again at once.
	More <-chan struct{}
}

// KeyError says that the owner's key refers to another run, which is still kept.
type KeyError struct {
	Run  string
	Same bool // the request that created Run has the same fingerprint
}

func (e *KeyError) Error() string { return "the key refers to another run" }

// Log keeps the events of runs. Every implementation passes eventtest.Run.
//
// One Writer appends to a run while any number of goroutines read it. No method waits for a reader. A log in memory
// answers at once. A log beyond a network returns ErrUnavailable when ctx ends, or after some seconds (30 for Append).
// Every method returns ErrNotFound for a run's id that is not a ValidID.
type Log interface {
	// NewID returns an id for a run: a ValidID that cannot be guessed. A log in memory
	// recognizes the ids of earlier processes, and returns ErrLost for them.
	NewID() string
	// Create makes a run without events, which this process may append to. It returns ErrExists if
	// there is a run with that id, and a *KeyError if its key refers to another run.
	Create(ctx context.Context, r Run) error
	// BeginThread creates the thread of a run that has no events yet, and makes the run its active one,
	// as BeginTurn does. The thread's id must be new. A durable log may return before the thread is
	// stored: the first Append to the run then waits until it is stored, and returns the error if that fails.
	BeginThread(ctx context.Context, r Run, title string) error
	// Append adds an event to a run and returns its number. The event is stored and readable before Append returns. One
	// exception: a durable log may delay a delta of text, reasoning or arguments for 50 ms, to join it with the next
	// deltas into one event; the order of events is kept. Append returns ErrEnded after the terminal event, and
	// ErrFenced if another process writes this run.
	Append(ctx context.Context, run string, b Body) (int64, error)
	// AppendAsync adds an event like Append, in the same order, but may return before the event is stored. The event is
	// stored within milliseconds, at once if a reader waits, and before the next Append or Flush of the run returns. If
	// the event cannot be stored, the next Append, AppendAsync or Flush of the run returns the error.
	AppendAsync(ctx context.Context, run string, b Body) (int64, error)
	// Flush waits until all events that were appended to the run are stored and readable, deltas
	// included. If they cannot be stored, it returns the error that Append would. Call it before anyone outside of
	// the process may learn of the events.
	Flush(ctx context.Context, run string) error
	// After returns the next events after seq, not always all that the log has; 0 is the position before the first
	// event. It does not wait for later events. It returns ErrGone if some of the events after seq are no longer kept,
	// and ErrInvalidPosition if seq is negative or beyond the newest event.
	After(ctx context.Context, run string, seq int64) (Page, error)
	// Settled returns a channel that is closed when the newest event of the run is Settled, or when it
	// is time to ask again. A caller that waits only for the end of the run is not woken for other events, and
	// a durable log need not store those events at once.
	Settled(ctx context.Context, run string) (<-chan struct{}, error)
	// Run returns a run. With ErrGone it still returns the owner, so that
	// the API can answer other callers as if the run had never existed.
	Run(ctx context.Context, id string) (Run, error)
	// SaveResult stores the full result of a call, which may be too large for an event, for as long as the events of
	// the run are kept. The log does not interpret the bytes; the caller must not change them after the call. They may
	// be readable before SaveResult returns. A second result of a call replaces the first one, because a run that was
	// taken over may repeat a call. SaveResult returns ErrTooLarge beyond MaxResult, ErrNotFound, ErrGone, or ErrEnded
	// after the terminal event. A full log may drop results before events.
	SaveResult(ctx context.Context, run, call string, result []byte) error
	// Result returns the result of a call, which is shared and must not be changed. It returns ErrNotFound if
	// the call has no result, and ErrGone if the result or the run is no longer kept.
	Result(ctx context.Context, run, call string) ([]byte, error)

	Inbox
	Jobs
	Journal
	Directory
	Threads
	values.Store

	// HasRemoteReader reports whether in another process a reader waits for more events of the run, or did so some
	// seconds ago. It takes some seconds at most. A process that does not answer does not count.
	HasRemoteReader(ctx context.Context, run string) bool

	// Now returns the time of the log's clock, which is the same for all processes that share the log. Events have the
	// time of this clock. Code that stores a time for other processes, or compares a stored time with the present, must
	// use Now: the clocks of machines can differ by an hour.
	Now() time.Time
	// Ready returns an error while the log cannot be used.
	Ready(ctx context.Context) error
}
