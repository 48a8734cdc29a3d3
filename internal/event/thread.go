package event

import (
	"context"
	"strings"
	"time"
	"unicode/utf8"
)

// MaxTurn bounds the data of one turn of a thread, in bytes.
const MaxTurn = 512 << 10

// Bounds of a thread's id and title, and of a page of threads.
const (
	MaxThreadID    = 1024 // bytes
	MaxTitle       = 200  // bytes
	MaxThreadsPage = 100
)

// DefaultThreadsRetention is the retention of threads in a durable log whose options leave it out.
const DefaultThreadsRetention = 720 * time.Hour

// minActiveRetention is how long a thread with an active run is kept at least: as long as a run may wait for a person.
const minActiveRetention = 7 * 24 * time.Hour

// BusyError says that a thread has an active run: one that has not ended, suspended ones included.
type BusyError struct{ Run string }

func (e *BusyError) Error() string { return "the thread has an active run" }

// Thread is a conversation of one caller: the turns of runs that share a thread id, in order.
type Thread struct {
	ID      string
	Owner   Owner
	Title   string
	Agent   string // the agent of the newest turn; "" if the service has no named agents
	Created time.Time
	Updated time.Time // when its last turn began or ended
	Turns   int       // number of turns that have ended
	Active  string    // the active run; "" if there is none
	LastRun string    // the run of its newest turn; "" before the first
}

// Expired reports whether the retention of a thread has passed at the time now. The retention counts from the last
// update. For a thread with an active run it is minActiveRetention at least.
func (t Thread) Expired(now time.Time, retention time.Duration) bool {
	if t.Active != "" {
		retention = max(retention, minActiveRetention)
	}
	return now.Sub(t.Updated) >= retention
}

// ValidThreadID reports whether a log can have a thread with that id: 1 to MaxThreadID bytes of valid UTF-8.
func ValidThreadID(id string) bool {
	return id != "" && len(id) <= MaxThreadID && utf8.ValidString(id)
}

// CutTitle returns the beginning of a title, at most MaxTitle bytes of valid UTF-8. Invalid bytes become U+FFFD.
func CutTitle(title string) string {
	title = strings.ToValidUTF8(title, "\uFFFD")
	if len(title) <= MaxTitle {
		return title
	}
	n := MaxTitle
	for !utf8.RuneStart(title[n]) {
		n--
	}
	return title[:n]
}

// Turn is what one run adds to its thread: its question and what came of it.
type Turn struct {
	Run string
	// Number orders the turns of a thread. It rises, and may have gaps.
	Number int64
	Time   time.Time
	Data   []byte // at most MaxTurn bytes, which the log does not interpret; shared, so they must not be changed
}

// ThreadFilter chooses threads of one owner.
type ThreadFilter struct {
	Owner Owner
	Query string // part of the title, without regard to case; "" for any
	After string // the Next of the previous page; "" for the first page
	Limit int    // threads of a page; 0 means 50, at most MaxThreadsPage
}

// PageSize returns the largest number of threads on a page of f.
func (f ThreadFilter) PageSize() int {
	if f.Limit <= 0 {
		return 50
	}
	return min(f.Limit, MaxThreadsPage)
}

// ThreadPage has some threads, the one that was updated last first.
type ThreadPage struct {
	Threads []Thread
	Next    string // the After of the next page; "" after the last one
}

// TurnPage has some turns of a thread in order.
type TurnPage struct {
	Turns []Turn
	// Before is the before of the next call of Turns: the number of the first of these turns. It is 0 if there are
	// no older turns.
	Before int64
}

// Threads is the part of a log that keeps conversations. Threads are stored as durably as the events of their runs, and
// are kept longer. Callers choose the ids of their threads: threads of two owners with one id are two threads. Methods
// for an existing thread return ErrNotFound if the owner has no thread with that id, and all methods if an id is not a
// ValidThreadID. The space of threads is bounded: a full log drops the threads that were not updated for longest, those
// with an active run last, or the oldest turns of a thread that alone is too large.
type Threads interface {
	// BeginTurn makes a run the active one of a thread, which it creates if there is none. It sets the
	// thread's Agent, and the Title of a new thread to CutTitle(title). If another run is active, it returns a
	// *BusyError that names that run. The log does not find out whether the active run is still executed: the
	// caller does, and ends the turn of a dead run with EndTurn. A second call for the active run changes nothing.
	BeginTurn(ctx context.Context, owner Owner, thread, run, agent, title string) (Thread, error)
	// EndTurn ends the turn of a run, so that another run can be the active one. If data is not nil, it adds the
	// turn to the thread, whether or not the run is still active. A second call for one of the last runs replaces
	// nothing and returns nil. EndTurn returns ErrNotFound if the thread was deleted after the run began, even if a new
	// thread has the same id, and for a run that began no turn of it. It returns ErrTooLarge beyond MaxTurn.
	EndTurn(ctx context.Context, owner Owner, thread, run string, data []byte) error
	// Thread returns a thread, or ErrNotFound.
	Thread(ctx context.Context, owner Owner, thread string) (Thread, error)
	// Turns returns, in order, the last turns before the one with the number before, or the last turns of the thread
	// for 0: at most limit turns with at most maxBytes of data, but at least one turn if there is one.
	Turns(ctx context.Context, owner Owner, thread string, before int64, limit, maxBytes int) (TurnPage, error)
	// ListThreads lists an owner's threads. It returns ErrInvalidPosition if After is not the Next of a page. A change
	// by this process is in the list at once, a change by another process within a second.
	ListThreads(ctx context.Context, f ThreadFilter) (ThreadPage, error)
	// RenameThread sets a thread's title, which is cut as CutTitle does. Updated and the order of the list stay as
	// they are.
	RenameThread(ctx context.Context, owner Owner, thread, title string) (Thread, error)
	// DeleteThread removes a thread and its turns, but not its runs.
	DeleteThread(ctx context.Context, owner Owner, thread string) error
}
