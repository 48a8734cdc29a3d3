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

var (
	// ErrNoTurn means that the thread has no turn, or no longer has it, for the run that a question is to follow.
	ErrNoTurn = errors.New("the thread does not have that turn")
	// ErrNoAgent means that a question names no agent, and that the agent that answered last in the thread does not
	// exist any more, or that the caller may not use it.
	ErrNoAgent = errors.New("the agent of the thread is not available")
)

const (
	// maxBytes and maxTurns limit the page of turns that Read reads at once. A context window usually holds less.
	maxBytes = 1 << 20
	maxTurns = 500
	// maxPages is how many pages Read searches for the turns of a branch.
	maxPages = 32
	// startWait is how long Get and Begin wait for an unavailable log, and Release for a run's first event.
	startWait  = 5 * time.Second
	retryPause = 100 * time.Millisecond // between two attempts of Get and Begin
)

// Store reads and repairs the threads in a log.
type Store struct {
	Log    event.Log
	Logger *slog.Logger
}

// Get returns a thread, or event.ErrNotFound. While the log is unavailable, it retries for up to startWait.
func (s Store) Get(ctx context.Context, owner event.Owner, id string) (t event.Thread, err error) {
	err = retryUnavailable(ctx, func() error {
		t, err = s.Log.Thread(ctx, owner, id)
		return err
	})
	return t, err
}

// Begin makes a run the active run of its thread, and returns the thread. If the thread does not exist, Begin creates
// it with this title. If another run is active, the error is a *event.BusyError that names it. While the log is
// unavailable, Begin retries for up to startWait.
func (s Store) Begin(ctx context.Context, run event.Run, title string) (t event.Thread, err error) {
	err = retryUnavailable(ctx, func() error {
		t, err = s.Log.BeginTurn(ctx, run.Owner, run.ThreadID, run.ID, run.Agent, title)
		return err
	})
	return t, err
}

// retryUnavailable calls f again while f returns event.ErrUnavailable, for up to startWait or until ctx ends, and
// returns the last error. It is needed because a log that has just started may have its runs before its threads.
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

// Read returns the newest page of a thread's turns, in order.
//
// If *after is not "", the question follows that run's turn, which may be older than the newest one (Turn.After). Read
// then returns the branch that ends with that turn: the turn itself, and about a page of the turns that it continues,
// directly or indirectly. If that turn is the thread's newest turn, Read sets *after to "". If the turn is not found on
// the newest maxPages pages or the page before them, Read returns ErrNoTurn.
//
// Read logs and leaves out turns that it cannot decode, so that one of them does not make the whole thread unusable. A
// branch ends at such a turn, because it is unknown which turn that one continues.
func (s Store) Read(ctx context.Context, t event.Thread, after *string) ([]Turn, error) {
	if *after != "" {
		return s.readBranch(ctx, t, after)
	}
	if t.Turns == 0 {
		return nil, nil
	}
	page, err := s.readPage(ctx, t, 0)
	if err != nil {
		return nil, err
	}
	turns := make([]Turn, 0, len(page.Turns))
	for _, stored := range page.Turns {
		if turn, ok := s.decode(ctx, stored); ok {
			turns = append(turns, turn)
		}
	}
	return turns, nil
}

// readBranch implements Read if *after is not "".
func (s Store) readBranch(ctx context.Context, t event.Thread, after *string) ([]Turn, error) {
	if t.Turns == 0 {
		return nil, ErrNoTurn
	}
	var branch []Turn  // newest turn first
	next := *after     // the run whose turn comes next in the branch; "" means the next older turn of the thread
	size := 0          // bytes of the turns in branch
	before := int64(0) // the position before which the next page ends; 0 for the newest page
	// Read one page more than maxPages, because the turns that precede those of the last page are on the next one.
	for range maxPages + 1 {
		page, err := s.readPage(ctx, t, before)
		if err != nil {
			return nil, err
		}
		for i, stored := range slices.Backward(page.Turns) {
			if next != "" && stored.Run != next {
				continue
			}
			isNewest := before == 0 && i == len(page.Turns)-1
			if isNewest {
				*after = ""
			}
			turn, ok := s.decode(ctx, stored)
			if !ok {
				slices.Reverse(branch)
				return branch, nil
			}
			branch = append(branch, turn)
			size += len(stored.Data)
			next = turn.After
		}
		before = page.Before
		if before == 0 || size >= maxBytes || len(branch) >= maxTurns {
			break
		}
	}
	if len(branch) == 0 {
		return nil, ErrNoTurn
	}
	slices.Reverse(branch)
	return branch, nil
}

// readPage returns the newest page of a thread's turns or, if before is not 0, the page before that position.
func (s Store) readPage(ctx context.Context, t event.Thread, before int64) (event.TurnPage, error) {
	page, err := s.Log.Turns(ctx, t.Owner, t.ID, before, maxTurns, maxBytes)
	if err != nil {
		return page, fmt.Errorf("read the turns of a thread: %w", err)
	}
	return page, nil
}

// decode decodes a stored turn. If that fails, it logs the error, and ok is false.
func (s Store) decode(ctx context.Context, stored event.Turn) (turn Turn, ok bool) {
	turn, err := Decode(stored.Data)
	if err != nil {
		s.Logger.WarnContext(ctx, "a turn of a thread cannot be read", "run_id", stored.Run, "error", err)
	}
	return turn, err == nil
}

// Release lets other runs of a thread begin if the thread's active run, runID, has ended or is no longer in the log. If
// the run ended without adding its turn, Release adds it. If the run has not ended, Release returns a *event.BusyError.
// If the thread no longer exists, it returns nil. beginsHere says that this process executes the run, or is about to.
//
// Release repairs the thread after a process died while it began or ended a run. If a run has no events, Release waits
// for its first event for up to startWait and then deletes the run: its process may have died before it created the
// job, and then no process would ever begin the run. If the process is only slow, its next append fails.
func (s Store) Release(ctx context.Context, owner event.Owner, threadID, runID string, beginsHere bool) error {
	turn, err := s.turnOfEndedRun(ctx, runID, beginsHere)
	if err != nil {
		return err
	}
	err = s.Log.EndTurn(ctx, owner, threadID, runID, turn)
	if err != nil && !errors.Is(err, event.ErrNotFound) {
		return fmt.Errorf("end a turn of a thread: %w", err)
	}
	return nil
}

// turnOfEndedRun returns the encoded turn of a run that has ended, or nil if the log no longer has the run. If the run
// has not ended, it returns a *event.BusyError. See Release for beginsHere and runs without events.
func (s Store) turnOfEndedRun(ctx context.Context, runID string, beginsHere bool) ([]byte, error) {
	run, err := s.Log.Run(ctx, runID)
	if err == nil && run.Last.Seq == 0 && !beginsHere {
		run, err = s.awaitFirstEvent(ctx, runID)
	}
	var events []event.Event
	if err == nil {
		if !run.Last.Terminal() {
			return nil, &event.BusyError{Run: runID}
		}
		events, err = event.ReadAll(ctx, s.Log, runID)
	}
	isGone := errors.Is(err, event.ErrNotFound) || errors.Is(err, event.ErrGone) || errors.Is(err, event.ErrLost)
	switch {
	case isGone, err == nil && len(events) == 0:
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("read the active run of a thread: %w", err)
	}
	return FromEvents(run, events).Encode(), nil
}

// awaitFirstEvent waits up to startWait for the first event of a run that another process created, and returns the run.
// If none arrives, it deletes the run and returns event.ErrGone; the other process can then no longer begin the run.
func (s Store) awaitFirstEvent(ctx context.Context, runID string) (event.Run, error) {
	timeout := time.NewTimer(startWait)
	defer timeout.Stop()
	for {
		page, err := s.Log.After(ctx, runID, 0)
		if err != nil {
			return event.Run{}, err
		}
		if len(page.Events) > 0 || page.Ended {
			return s.Log.Run(ctx, runID)
		}
		select {
		case <-page.More:
		case <-timeout.C:
			if err := s.Log.Delete(ctx, runID); err != nil {
				return event.Run{}, err
			}
			return event.Run{}, event.ErrGone
		case <-ctx.Done():
			return event.Run{}, context.Cause(ctx)
		}
	}
}

// AwaitEnd waits until a run has its terminal event, or until stop is closed, and then returns nil. A nil stop means to
// wait only for the event. It returns the cause of ctx if ctx ends first, or an error of the log.
func AwaitEnd(ctx context.Context, log event.Log, id string, stop <-chan struct{}) error {
	for {
		run, err := log.Run(ctx, id)
		hasEnded := run.Last.Terminal()
		var page event.Page
		if err == nil && !hasEnded {
			page, err = log.After(ctx, id, run.Last.Seq)
			hasEnded = page.Ended
		}
		if ctx.Err() != nil { // the log may have failed because of that
			return context.Cause(ctx)
		}
		if err != nil {
			return err
		}
		if hasEnded {
			return nil
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

// FromEvents returns a run's turn, made from all of its events. It has no Media, After and Given, because events have
// none.
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
