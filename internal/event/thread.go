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

// maxActive is how long a thread with an active run is kept at least: as long as a run may wait for a person.
const maxActive = 7 * 24 * time.Hour

// BusyError says that a thread has an active run: one that has not ended, suspended ones included.
type BusyError struct{ Run string }

func (e *BusyError) Error() string { return "the thread has an active run" }

// Thread is a conversation of one caller: the turns of runs that share a thread id, in order.
type Thread struct {
	ID      string
	Owner   Owner
	Title   string
	Agent   string // that answered last; "" if the service has no names
	Created time.Time
	Updated time.Time // when its last turn began or ended
	Turns   int       // that have ended
	Active  string    // the run that answers now; "" for none
	LastRun string    // the run of its newest turn; "" before the first
}

// Expired reports whether a thread is no longer kept at a time. Retention counts from its last update. A
// thread with an active run is kept for seven days at least, since the run may wait that long for a person.
func (t Thread) Expired(now time.Time, retention time.Duration) bool {
	if t.Active != "" {
		retention = max(retention, maxActive)
	}
	return now.Sub(t.Updated) >= retention
}

// ValidThreadID reports whether a log can have a thread with that id: a text of up to MaxThreadID bytes.
func ValidThreadID(id string) bool {
	return id != "" && len(id) <= MaxThreadID && utf8.ValidString(id)
}

// CutTitle returns a title in at most MaxTitle bytes, and as valid UTF-8.
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
	Data   []byte // opaque to the log, at most MaxTurn; shared, not to be changed
}

// ThreadFilter chooses threads of one owner.
type ThreadFilter struct {
	Owner Owner
	Query string // part of the title, without regard to case; "" for any
	After string // the Next of the page before; "" for the first
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
	// Before is the number of the first of these turns if there are older ones, else 0.
	Before int64
}

// Threads is the part of a log that keeps conversations. Threads are kept longer than the events of
// their runs, as durably as those. Their ids are chosen by callers: threads of two owners with one id
// are two threads, and ErrNotFound means that this owner has none with that id, or that it is not a
// ValidThreadID. The space of threads is bounded: a full log drops the threads that were not updated for
// longest, those with an active run last, or the oldest turns of a thread that alone is too large.
type Threads interface {
	// BeginTurn makes a run the active one of a thread, which it creates if there is none. It sets the
	// thread's Agent, and title as the Title of a new thread. A *BusyError names the active run if
	// another one is. The log does not find out whether that run is still alive: see EndTurn. A second
	// call for the active run changes nothing. Titles are cut, see CutTitle.
	BeginTurn(ctx context.Context, owner Owner, thread, run, agent, title string) (Thread, error)
	// EndTurn adds the turn of a run, if data is not nil, and lets other runs begin if it was the active
	// one. A second call for one of the last runs replaces nothing and returns nil. ErrNotFound if the thread was
	// deleted meanwhile, even if there is another one with its id now, and for a run that began no turn
	// of it. ErrTooLarge beyond MaxTurn.
	EndTurn(ctx context.Context, owner Owner, thread, run string, data []byte) error
	// Thread returns a thread, or ErrNotFound.
	Thread(ctx context.Context, owner Owner, thread string) (Thread, error)
	// Turns returns the last turns before a number, or the last ones for 0: at most limit, and at most
	// maxBytes of data, but at least one if there is one.
	Turns(ctx context.Context, owner Owner, thread string, before int64, limit, maxBytes int) (TurnPage, error)
	// ListThreads lists an owner's threads. ErrInvalidPosition if After is not the Next of a page. What
	// this process changed is listed at once, what other processes changed within a second.
	ListThreads(ctx context.Context, f ThreadFilter) (ThreadPage, error)
	// RenameThread sets a thread's title. It is not an update: the order of the list stays.
	RenameThread(ctx context.Context, owner Owner, thread, title string) (Thread, error)
	// DeleteThread removes a thread and its turns, but not its runs. ErrNotFound if there is none.
	DeleteThread(ctx context.Context, owner Owner, thread string) error
}
