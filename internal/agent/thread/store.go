package thread

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"answerd/internal/event"
)

// ErrNoTurn means that a thread does not have the turn of a run, or not any more.
var ErrNoTurn = errors.New("the thread does not have that turn")

const (
	// maxBytes and maxTurns bound what a run reads of its thread. The window of the model usually has
	// room for less.
	maxBytes = 1 << 20
	maxTurns = 500
	// maxPages bounds the pages that are read to find the turn of a run.
	maxPages = 32
	// startWait bounds how long Get and Begin wait for the log, and Release for the first event of a run,
	// whose process may have died before that.
	startWait  = 5 * time.Second
	retryPause = 100 * time.Millisecond // between two attempts of Get and Begin
)

// Store reads and repairs threads in a log.
type Store struct {
	Log    event.Log
	Logger *slog.Logger
}

// Get returns a thread, or event.ErrNotFound.
func (s Store) Get(ctx context.Context, owner event.Owner, id string) (t event.Thread, err error) {
	err = await(ctx, func() error {
		t, err = s.Log.Thread(ctx, owner, id)
		return err
	})
	return t, err
}

// Begin makes a run the active one of its thread.
func (s Store) Begin(ctx context.Context, run event.Run, title string) (t event.Thread, err error) {
	err = await(ctx, func() error {
		t, err = s.Log.BeginTurn(ctx, run.Owner, run.ThreadID, run.ID, run.Agent, title)
		return err
	})
	return t, err
}

// await repeats f for a moment while the log does not answer, as it does when a run is created. A log
// that starts again may have its runs before it has its threads.
func await(ctx context.Context, f func() error) error {
	deadline := time.Now().Add(startWait)
	for {
		err := f()
		if !errors.Is(err, event.ErrUnavailable) || !time.Now().Before(deadline) {
			return err
		}
		select {
		case <-time.After(retryPause):
		case <-ctx.Done():
			return err
		}
	}
}

// Read returns the newest turns of a thread in order, as far as a question may read them. If *after names
// a run, they end with its turn, and without that turn the error is ErrNoTurn. Read sets *after to "" if
// that turn is the newest one.
func (s Store) Read(ctx context.Context, t event.Thread, after *string) ([]Turn, error) {
	var all []event.Turn
	branch, found := *after != "", *after == ""
	for before, pages := int64(0), 0; t.Turns > 0 && pages < maxPages; pages++ {
		page, err := s.Log.Turns(ctx, t.Owner, t.ID, before, maxTurns, maxBytes)
		if err != nil {
			return nil, fmt.Errorf("read the turns of a thread: %w", err)
		}
		if found { // the first page, or the one before that with the turn
			all = slices.Concat(page.Turns, all)
			break
		}
		if i := slices.IndexFunc(page.Turns, func(t event.Turn) bool { return t.Run == *after }); i >= 0 {
			found, all = true, page.Turns[:i+1]
			if i == len(page.Turns)-1 && before == 0 {
				*after = ""
				break
			}
		}
		before = page.Before
		if before == 0 {
			break
		}
	}
	if !found {
		return nil, ErrNoTurn
	}
	return s.decode(ctx, all, branch), nil
}

// decode decodes turns. If branch is set, it leaves out turns that the last one does not continue: a
// question may follow another turn than the newest one.
func (s Store) decode(ctx context.Context, stored []event.Turn, branch bool) (turns []Turn) {
	previous := "" // the run whose turn comes before those in turns; "" means the next one
	for _, data := range slices.Backward(stored) {
		if previous != "" && data.Run != previous {
			continue
		}
		turn, err := Decode(data.Data)
		if err != nil { // it must not make the whole thread useless
			s.Logger.WarnContext(ctx, "a turn of a thread cannot be read", "run_id", data.Run, "error", err)
			continue
		}
		previous = ""
		if branch {
			previous = turn.After
		}
		turns = append(turns, turn)
	}
	slices.Reverse(turns)
	return turns
}

// Release lets other runs of the thread begin if its active run has ended or is not in the log any more.
// It adds the turn of a run that has ended without adding it. It returns a *event.BusyError if the run
// continues. beginsHere says that this process executes the run or is about to.
//
// This repairs what a process left that died between two steps of a turn. A run without an event is waited for
// and then deleted, because its process may have died before the job was created, and then no process would
// ever begin it. If that process is only slow, its next append fails, and it does not begin the run either.
func (s Store) Release(ctx context.Context, owner event.Owner, thread, id string, beginsHere bool) error {
	run, err := s.Log.Run(ctx, id)
	if err == nil && run.Last.Seq == 0 && !beginsHere {
		run, err = s.awaitFirstEvent(ctx, id)
	}
	switch {
	case errors.Is(err, event.ErrNotFound), errors.Is(err, event.ErrGone), errors.Is(err, event.ErrLost):
		return s.endTurn(ctx, owner, thread, id, nil)
	case err != nil:
		return fmt.Errorf("read the active run of a thread: %w", err)
	case !run.Last.Terminal():
		return &event.BusyError{Run: id}
	}
	events, err := allEvents(ctx, s.Log, id)
	switch {
	case errors.Is(err, event.ErrGone), errors.Is(err, event.ErrNotFound), err == nil && len(events) == 0:
		return s.endTurn(ctx, owner, thread, id, nil)
	case err != nil:
		return fmt.Errorf("read the active run of a thread: %w", err)
	}
	return s.endTurn(ctx, owner, thread, id, FromEvents(run, events).Encode())
}

// endTurn ends a turn; data is nil if the run left nothing. A thread that was deleted meanwhile is not an error.
func (s Store) endTurn(ctx context.Context, owner event.Owner, thread, id string, data []byte) error {
	if err := s.Log.EndTurn(ctx, owner, thread, id, data); err != nil && !errors.Is(err, event.ErrNotFound) {
		return fmt.Errorf("end a turn of a thread: %w", err)
	}
	return nil
}

// awaitFirstEvent waits a moment for the first event of a run that another process has created. A run
// without one is deleted, and its process, if it is alive, can then not begin it.
func (s Store) awaitFirstEvent(ctx context.Context, id string) (event.Run, error) {
	timeout := time.NewTimer(startWait)
	defer timeout.Stop()
	for {
		page, err := s.Log.After(ctx, id, 0)
		if err != nil {
			return event.Run{}, err
		}
		if len(page.Events) > 0 || page.Ended {
			return s.Log.Run(ctx, id)
		}
		select {
		case <-page.More:
		case <-timeout.C:
			if err := s.Log.Delete(ctx, id); err != nil {
				return event.Run{}, err
			}
			return event.Run{}, event.ErrGone
		case <-ctx.Done():
			return event.Run{}, context.Cause(ctx)
		}
	}
}

// AwaitEnd waits until a run has its terminal event, or until stop is closed.
func AwaitEnd(ctx context.Context, log event.Log, id string, stop <-chan struct{}) error {
	for {
		run, err := log.Run(ctx, id)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err != nil || run.Last.Terminal() {
			return err
		}
		page, err := log.After(ctx, id, run.Last.Seq)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err != nil || page.Ended {
			return err
		}
		if len(page.Events) > 0 {
			continue
		}
		select {
		case <-page.More:
		case <-stop:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// FromEvents returns the turn of a run as its events say, which do not have the files of the question.
func FromEvents(run event.Run, events []event.Event) Turn {
	var b Builder
	var end event.Body
	question, ended := "", int64(0)
	for _, e := range events {
		if start, ok := e.Body.(event.Start); ok {
			question = start.Question
		}
		ended = e.Time
		if e.Terminal() {
			end = e.Body
		}
		b.Add(e.Body)
	}
	t := b.Turn(end)
	t.Agent = run.Agent
	t.Question = question
	t.Asked = run.Created.UnixMilli()
	t.EndedAt = ended
	return t
}

// allEvents returns all events of a run so far.
func allEvents(ctx context.Context, log event.Log, id string) (events []event.Event, _ error) {
	for {
		page, err := log.After(ctx, id, int64(len(events)))
		if err != nil {
			return nil, err
		}
		events = append(events, page.Events...)
		if page.Ended || len(page.Events) == 0 {
			return events, nil
		}
	}
}
