package event

import (
	"context"
	"errors"
	"time"
)

// What a Log says instead of an answer. They mean the same in every log.
var (
	// ErrNotFound: no such run was ever created here, as far as is remembered; or
	// nothing was kept for such a call of it.
	ErrNotFound = errors.New("no such run")
	// ErrGone: the run or the position was here and is no longer kept.
	ErrGone = errors.New("no longer kept")
	// ErrLost: the run was one of a process that has ended, and of a log that ended with it.
	ErrLost = errors.New("the run was lost with its process")
	// ErrInvalidPosition: the run never reached that position.
	ErrInvalidPosition = errors.New("not a position of this run")
	// ErrEnded: the run has its terminal event; nothing may follow it.
	ErrEnded = errors.New("the run has ended")
	// ErrExists: a run with this id was created before.
	ErrExists = errors.New("the run exists already")
	// ErrFenced: another process is the run's writer.
	ErrFenced = errors.New("the run is written elsewhere")
	// ErrDuplicateInput: an input of this id was given before.
	ErrDuplicateInput = errors.New("this input was given before")
	// ErrUnavailable: the log cannot be reached, or did not acknowledge in time.
	ErrUnavailable = errors.New("the log is not available")
	// ErrTooLarge: a result is longer than MaxResult.
	ErrTooLarge = errors.New("the result is too large to be kept")
)

// Bounds of a log whose options leave them out.
const (
	DefaultRetention = time.Hour
	DefaultMaxBytes  = 256 << 20
)

// MaxResult bounds one result that a log keeps, in bytes. It leaves room for an answer
// of the most that an MCP server may send and what tells whose it is.
const MaxResult = 4<<20 + 64<<10

// Owner is who a run belongs to: the issuer and subject of the token that started
// it. The zero Owner is the anonymous caller.
type Owner struct {
	Issuer  string
	Subject string
}

// Run is what the log keeps of a run besides its events.
type Run struct {
	ID         string
	ThreadID   string
	TraceID    string
	Owner      Owner
	Created    time.Time
	Background bool // goes on when nobody reads it
	// Request is what whoever started the run needs of its request again, at most some
	// 300 KiB; nil for nothing. It is kept as long as the events, and not changed.
	Request []byte
	// Key is the owner's name for the request that made the run, "" for none, and
	// Fingerprint is a digest of that request. Create reads them.
	Key         string
	Fingerprint [32]byte
	// Last is the newest event; its Seq is 0 while there is none. The status of a
	// run is what its last event says.
	Last Event
}

// Page is what comes after a position.
type Page struct {
	Events  []Event // in order, the first one right after the position; shared, not to be changed
	Ended   bool    // the last event of Events, or the position itself, is the terminal one
	HasNext bool    // the log has the event after these already, where it can tell at no cost
	// More is closed when there is more to read, or when it is time to ask again. It
	// is nil when Ended is set or Events is not empty: then there is more to do first.
	More <-chan struct{}
}

// KeyError says that the owner used the key for another run, which is still kept.
type KeyError struct {
	Run  string
	Same bool // by a request of the same fingerprint
}

func (e *KeyError) Error() string { return "the key stands for another run" }

// Log keeps the events of runs. Every implementation passes eventtest.Run.
//
// One Writer appends to a run; reading goes on at the same time, from any number of
// goroutines. No method waits for a reader. A log in this process answers at once; one
// beyond a network takes its ctx, and some seconds at most, 30 for Append, before it
// says ErrUnavailable. A run's id that is not a ValidID is ErrNotFound everywhere.
type Log interface {
	// NewID makes an id for a run: a ValidID that nobody can guess. By it, a log that does not
	// outlive its process knows the runs of others for what they are: ErrLost.
	NewID() string
	// Create makes a run without events, which this process may append to. ErrExists
	// if there is one of that id, a *KeyError if its key stands for another one.
	Create(ctx context.Context, r Run) error
	// Append adds an event to a run and returns its number. The event is kept and
	// readable before Append returns, except that a durable log may hold a delta of
	// text, reasoning or arguments back for MaxDeltaDelay, to join it with the next ones into one
	// event; whatever else follows, follows it. ErrEnded after the terminal event,
	// ErrFenced if another process writes this run.
	Append(ctx context.Context, run string, b Body) (int64, error)
	// After returns events that follow seq, 0 being the position before the first; not
	// always all of them, but the next ones. It does not wait for events that are yet to come. ErrGone if those
	// that follow are no longer all kept, ErrInvalidPosition if seq is negative or the run
	// has not come that far.
	After(ctx context.Context, run string, seq int64) (Page, error)
	// Run returns what is known of a run. With ErrGone it still tells the owner,
	// so that others are told nothing.
	Run(ctx context.Context, id string) (Run, error)
	// SaveResult keeps the whole result of a call, which may be too large for an event,
	// as long as the events of the run. The bytes mean nothing to the log, are its own
	// from now on, and may be readable before SaveResult returns. For a call that has
	// one already the newer one counts: a run that was taken over may repeat a call.
	// ErrTooLarge beyond MaxResult, ErrNotFound, ErrGone, ErrEnded after the terminal
	// event. A log that is full may give up results before events.
	SaveResult(ctx context.Context, run, call string, result []byte) error
	// Result returns what was kept for a call; it is shared, not to be changed.
	// ErrNotFound if nothing was, ErrGone if it or the run is no longer kept.
	Result(ctx context.Context, run, call string) ([]byte, error)

	Inbox
	Jobs
	Journal
	Directory

	// HasRemoteReader reports whether another process has a reader of the run that waits
	// for more, or had one some seconds ago. It takes some seconds at most; whom it
	// cannot ask does not count.
	HasRemoteReader(ctx context.Context, run string) bool

	// Ready says why the log cannot be used at the moment, nil if it can.
	Ready(ctx context.Context) error
}

// MaxDeltaDelay bounds how long a log may keep a delta to itself.
const MaxDeltaDelay = 50 * time.Millisecond
