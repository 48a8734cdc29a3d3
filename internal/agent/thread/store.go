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

// ErrNoTurn means that a thread has no turn of the run that a question is to follow, or does not keep it any more.
var ErrNoTurn = errors.New("the thread does not have that turn")

const (
	// maxBytes and maxTurns bound the page of turns that Read reads at a time. The context window of the model usually
	// holds less.
	maxBytes = 1 << 20
	maxTurns = 500
	// maxPages bounds the pages that Read reads to find the turn of a run.
	maxPages = 32
	// startWait bounds how long Get and Begin wait until the log is available, and how long Release waits for the first
	// event of a run.
	startWait  = 5 * time.Second
	retryPause = 100 * time.Millisecond // between two attempts of Get and Begin
)

// Store reads and repairs threads in a log.
type Store struct {
	Log    event.Log
	Logger *slog.Logger
}

// Get returns a thread, or event.ErrNotFound. While the log is unavailable, it tries again for up to startWait.
func (s Store) Get(ctx context.Context, owner event.Owner, id string) (t event.Thread, err error) {
	err = retryUnavailable(ctx, func() error {
		t, err = s.Log.Thread(ctx, owner, id)
		return err
	})
	return t, err
}

// Begin makes a run the active run of its thread, and returns the thread. It creates the thread, with that title, if
// there is none. A *event.BusyError names another run that is active. While the log is unavailable, Begin tries again
// for up to startWait.
func (s Store) Begin(ctx context.Context, run event.Run, title string) (t event.Thread, err error) {
	err = retryUnavailable(ctx, func() error {
		t, err = s.Log.BeginTurn(ctx, run.Owner, run.ThreadID, run.ID, run.Agent, title)
		return err
	})
	return t, err
}

// retryUnavailable calls f until its error is not event.ErrUnavailable, for up to startWait or until ctx ends, and
// returns the error of the last call. A log that has just started may have its runs before it has its threads.
func retryUnavailable(ctx context.Context, f func() error) error {
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

// Read returns the newest page of turns of a thread, in order.
//
// If *after is the id of a run, Read returns instead the turn of that run and the turns before it, from the page with
// that turn and the previous page, without turns that it does not continue. Read then sets *after to "" if that turn is
// the newest turn of the thread. It returns ErrNoTurn if the newest maxPages pages do not have the turn.
func (s Store) Read(ctx context.Context, t event.Thread, after *string) ([]Turn, error) {
	var all []event.Turn
	isBranch := *after != ""
	found := !isBranch
	for before, pages := int64(0), 0; t.Turns > 0 && pages < maxPages; pages++ {
		page, err := s.Log.Turns(ctx, t.Owner, t.ID, before, maxTurns, maxBytes)
		if err != nil {
			return nil, fmt.Errorf("read the turns of a thread: %w", err)
		}
		if found { // This is the newest page, or the page before the one with the turn of *after.
			all = slices.Concat(page.Turns, all)
			break
		}
		if i := slices.IndexFunc(page.Turns, func(t event.Turn) bool { return t.Run == *after }); i >= 0 {
			found = true
			all = page.Turns[:i+1]
			isNewest := before == 0 && i == len(page.Turns)-1
			if isNewest {
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
	return s.decode(ctx, all, isBranch), nil
}

// decode decodes turns. It logs and leaves out turns that cannot be decoded, because one of them must not make the
// whole thread useless. If isBranch is set, it also leaves out the turns that the last turn does not continue, directly
// or through other turns: a question may follow an earlier turn than the newest one (Turn.After).
func (s Store) decode(ctx context.Context, stored []event.Turn, isBranch bool) (turns []Turn) {
	wantRun := "" // the run of the next turn to decode; "" for the next turn in stored
	for _, data := range slices.Backward(stored) {
		if wantRun != "" && data.Run != wantRun {
			continue
		}
		turn, err := Decode(data.Data)
		if err != nil {
			s.Logger.WarnContext(ctx, "a turn of a thread cannot be read", "run_id", data.Run, "error", err)
			continue
		}
		wantRun = ""
		if isBranch {
			wantRun = turn.After
		}
		turns = append(turns, turn)
	}
	slices.Reverse(turns)
	return turns
}

// Release lets other runs of the thread begin if the run with that id, its active run, has ended or is not in the log
// any more. It adds the turn of the run if the run has ended without adding it. It returns a *event.BusyError if the
// run has not ended. beginsHere says that this process executes the run or is about to.
//
// Release repairs the thread after a process died while it began or ended a run. It waits for up to startWait for the
// first event of a run without events, and then deletes the run: its process may have died before it created the job,
// and then no process would ever begin the run. If that process is only slow, its next append fails, and it does not
// begin the run either.
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

// endTurn adds data as the turn of the run, unless data is nil, and ends the run's time as the active run of its
// thread. It returns nil if the thread does not exist any more.
func (s Store) endTurn(ctx context.Context, owner event.Owner, thread, id string, data []byte) error {
	if err := s.Log.EndTurn(ctx, owner, thread, id, data); err != nil && !errors.Is(err, event.ErrNotFound) {
		return fmt.Errorf("end a turn of a thread: %w", err)
	}
	return nil
}

// awaitFirstEvent waits for up to startWait until a run, which another process has created, has an event, and returns
// the run. After that time it deletes the run and returns event.ErrGone; the other process can then not begin the run.
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

// AwaitEnd waits until a run has its terminal event. It returns nil then, or if stop is closed first; a nil stop is
// never closed. It returns the cause of ctx if ctx ends, or the error of the log.
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

// FromEvents returns the turn of a run from all of its events. The turn lacks what events do not have: Media, After and
// Given.
func FromEvents(run event.Run, events []event.Event) Turn {
	var b Builder
	var end event.Body
	question := ""
	ended := int64(0) // the time of the last event
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
