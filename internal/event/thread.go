package event

import (
	"context"
	"strings"
	"time"
	"unicode/utf8"
)

// MaxTurn is the largest size of a turn's data, in bytes.
const MaxTurn = 512 << 10

// Limits for the id and the title of a thread, and for a page of threads.
const (
	MaxThreadID    = 1024 // bytes
	MaxTitle       = 200  // bytes
	MaxThreadsPage = 100
)

// DefaultThreadsRetention is the retention of threads in a durable log whose options do not set one.
const DefaultThreadsRetention = 720 * time.Hour

// minActiveRetention is the shortest retention of a thread with an active run. It is as long as a run may wait for a
// person.
const minActiveRetention = 7 * 24 * time.Hour

// BusyError says that the thread already has an active run: one that has not ended. A suspended run is active too.
type BusyError struct{ Run string }

func (e *BusyError) Error() string { return "the thread has an active run" }

// Thread is a conversation of one caller: the turns of runs that share a thread id, in order.
type Thread struct {
	ID      string
	Owner   Owner
	Title   string
	Agent   string // the agent of the newest turn; "" if the service has no named agents
	Created time.Time
	Updated time.Time // when its newest turn began or ended
	Turns   int       // number of turns that have ended
	Active  string    // the active run; "" if there is none
	LastRun string    // the run of its newest turn; "" before the first turn
}

// Expired reports whether the thread's retention has passed at the time now. The retention counts from the last update.
// A thread with an active run is kept for at least minActiveRetention.
func (t Thread) Expired(now time.Time, retention time.Duration) bool {
	if t.Active != "" {
		retention = max(retention, minActiveRetention)
	}
	return now.Sub(t.Updated) >= retention
}

// ValidThreadID reports whether id can be the id of a thread: 1 to MaxThreadID bytes of valid UTF-8.
func ValidThreadID(id string) bool {
	return id != "" && len(id) <= MaxThreadID && utf8.ValidString(id)
}

// CutTitle shortens a title to at most MaxTitle bytes without splitting a character. Invalid UTF-8 becomes U+FFFD.
func CutTitle(title string) string {
	title = strings.ToValidUTF8(title, "\uFFFD")
	if len(title) <= MaxTitle {
		return title
	}
	end := MaxTitle
	for !utf8.RuneStart(title[end]) {
		end--
	}
	return title[:end]
}

// Turn is what one run adds to its thread: the question and its outcome.
type Turn struct {
	Run string
	// Number orders the turns of a thread. Numbers increase and may have gaps.
	Number int64
	Time   time.Time
	Data   []byte // at most MaxTurn bytes, opaque to the log; shared, so they must not be changed
}

// ThreadFilter selects threads of one owner.
type ThreadFilter struct {
	Owner Owner
	Query string // text that the title contains, ignoring case; "" for any title
	After string // "" for the first page, otherwise the Next of the previous page
	Limit int    // largest number of threads on a page; 0 means 50, values above MaxThreadsPage mean MaxThreadsPage
}

// PageSize returns the largest number of threads on a page, with the default and the maximum applied to Limit.
func (f ThreadFilter) PageSize() int {
	if f.Limit <= 0 {
		return 50
	}
	return min(f.Limit, MaxThreadsPage)
}

// ThreadPage is a page of threads, most recently updated first.
type ThreadPage struct {
	Threads []Thread
	Next    string // the After of the next page; "" on the last page
}

// TurnPage is a page of a thread's turns, in order.
type TurnPage struct {
	Turns []Turn
	// Before is the argument before for the next call of Turns, which returns the page with older turns. It is the
	// Number of the first turn in Turns, or 0 if this page has the thread's oldest turns.
	Before int64
}

// Threads is the part of a log that keeps conversations. Threads are stored as durably as the events of their runs, and
// are kept longer. Callers choose the ids of their threads, so two owners can have different threads with the same id.
// Methods for an existing thread return ErrNotFound if the owner has no thread with that id. All methods return
// ErrNotFound for an id that is not a ValidThreadID. The space for threads is bounded. A full log drops the threads
// that were not updated for longest, those with an active run last. If a single thread is too large, the log drops its
// oldest turns.
type Threads interface {
	// BeginTurn makes run the active run of a thread, and creates the thread if it does not exist. It sets the thread's
	// Agent, and a new thread's Title to CutTitle(title). If another run is active, it returns a *BusyError with that
	// run's id. The log does not check whether the active run is still being executed. The caller must do that, and end
	// the turn of a dead run with EndTurn. BeginTurn changes nothing if run is already active.
	BeginTurn(ctx context.Context, owner Owner, thread, run, agent, title string) (Thread, error)
	// EndTurn ends the turn of run, so that another run can become active. If data is not nil, EndTurn adds the turn to
	// the thread, even if run is no longer active. A second call for one of the thread's last runs changes nothing and
	// returns nil. EndTurn returns ErrNotFound if run began no turn of the thread, or if the thread was deleted after
	// the run began (even if a new thread has the same id). It returns ErrTooLarge if data exceeds MaxTurn.
	EndTurn(ctx context.Context, owner Owner, thread, run string, data []byte) error
	// Thread returns a thread, or ErrNotFound.
	Thread(ctx context.Context, owner Owner, thread string) (Thread, error)
	// Turns returns the turns right before turn number before, in order. If before is 0, it returns the thread's newest
	// turns. A page has at most limit turns and at most maxBytes of data, but always at least one turn if any exists.
	Turns(ctx context.Context, owner Owner, thread string, before int64, limit, maxBytes int) (TurnPage, error)
	// ListThreads lists an owner's threads. It returns ErrInvalidPosition if f.After is not the Next of a page. A
	// change made by this process shows at once, a change made by another process within a second.
	ListThreads(ctx context.Context, f ThreadFilter) (ThreadPage, error)
	// RenameThread sets a thread's title to CutTitle(title). It changes neither Updated nor the thread's place in the
	// list.
	RenameThread(ctx context.Context, owner Owner, thread, title string) (Thread, error)
	// DeleteThread removes a thread and its turns, but not its runs.
	DeleteThread(ctx context.Context, owner Owner, thread string) error
}
