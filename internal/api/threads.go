package api

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"net/url"
	"strconv"

	"answerd/internal/agent/thread"
	"answerd/internal/api/native"
	"answerd/internal/event"
)

// missingThread turns event.ErrNotFound into the problem of a missing thread. It returns any other error, or nil,
// unchanged.
func missingThread(err error) error {
	if errors.Is(err, event.ErrNotFound) {
		return newProblem("not_found", "There is no such thread.")
	}
	return err
}

// ownedThread returns the caller's thread whose id is in the path. If the caller has no such thread, the error is the
// problem not_found, even if the id is that of another caller's thread.
func (h *Handler) ownedThread(r *http.Request) (event.Thread, error) {
	t, err := h.Log.Thread(r.Context(), ownerOf(r), pathParam(r, "thread_id"))
	return t, missingThread(err)
}

// describeThread returns a description of t with the status of its newest run. The log may keep a thread longer than
// its runs (THREADS_RETENTION); the status then comes from the newest turn. If the log has neither, the status is
// completed, because nothing is active in the thread.
func (h *Handler) describeThread(ctx context.Context, t event.Thread) (native.Thread, error) {
	if id := cmp.Or(t.Active, t.LastRun); id != "" {
		run, err := h.Log.Run(ctx, id)
		if err == nil {
			return native.NewThread(t, run.Status()), nil
		}
		if !isMissing(err) {
			return native.Thread{}, err
		}
	}
	t.Active = "" // the log no longer has the active run, so it does not count as one of the thread's runs
	status := event.StatusCompleted
	const fromNewest = 0
	page, err := h.Log.Turns(ctx, t.Owner, t.ID, fromNewest, 1, event.MaxTurn)
	if err != nil && !errors.Is(err, event.ErrNotFound) {
		return native.Thread{}, err
	}
	for _, stored := range page.Turns {
		if turn, err := thread.Decode(stored.Data); err == nil {
			status = turn.Status
		}
	}
	return native.NewThread(t, status), nil
}

// listThreads serves GET /threads: a page of the caller's threads, most recently updated first.
func (h *Handler) listThreads(w http.ResponseWriter, r *http.Request) error {
	query := r.URL.Query()
	limit, err := queryLimit(query, defaultThreadPage, event.MaxThreadsPage)
	if err != nil {
		return err
	}
	page, err := h.Log.ListThreads(r.Context(), event.ThreadFilter{
		Owner: ownerOf(r), Query: query.Get("q"), After: query.Get("after"), Limit: limit,
	})
	if errors.Is(err, event.ErrInvalidPosition) {
		return newProblem("invalid_request", "The parameter after must be the next of an earlier page.")
	}
	if err != nil {
		return err
	}
	list := native.ThreadList{Threads: make([]native.Thread, len(page.Threads)), Next: page.Next}
	for i, t := range page.Threads {
		if list.Threads[i], err = h.describeThread(r.Context(), t); err != nil {
			return err
		}
	}
	return answerJSON(w, list)
}

const (
	// defaultThreadPage is how many threads or messages a page has if the query has no limit.
	defaultThreadPage = 50
	maxThreadMessages = 200     // in a page of messages
	maxThreadPage     = 4 << 20 // bytes of turns in a page of messages
)

// getThread serves GET /threads/{thread_id}: the thread with a page of its messages. Without the parameter before, that
// is the newest page.
func (h *Handler) getThread(w http.ResponseWriter, r *http.Request) error {
	query := r.URL.Query()
	limit, err := queryLimit(query, defaultThreadPage, maxThreadMessages)
	if err != nil {
		return err
	}
	before, err := turnBefore(query)
	if err != nil {
		return err
	}
	t, err := h.ownedThread(r)
	if err != nil {
		return err
	}
	out := native.ThreadMessages{}
	if out.Thread, err = h.describeThread(r.Context(), t); err != nil {
		return err
	}
	if out.Messages, out.Next, err = h.threadMessages(r.Context(), t, before, limit); err != nil {
		return err
	}
	return answerJSON(w, out)
}

// turnBefore returns the query's parameter before: the page of messages ends before the turn with this number. It
// accepts only the spelling of native.FormatTurn. It returns 0 if the parameter is missing.
func turnBefore(query url.Values) (int64, error) {
	if !query.Has("before") {
		return 0, nil
	}
	before, err := strconv.ParseInt(query.Get("before"), 10, 64)
	if err != nil || before < 1 || strconv.FormatInt(before, 10) != query.Get("before") {
		return 0, newProblem("invalid_request", "The parameter before must be the next of an earlier page.")
	}
	return before, nil
}

// threadMessages returns a page of about limit messages, oldest first, and the parameter before of the page with older
// messages; next is "" if there are none. messages is not nil unless err is set. The page ends before the turn numbered
// before. If before is 0, the page is the newest one, and includes the messages so far of the thread's active run.
func (h *Handler) threadMessages(
	ctx context.Context, t event.Thread, before int64, limit int,
) (messages []native.ThreadMessage, next string, err error) {
	var active []native.ThreadMessage
	if before == 0 && t.Active != "" {
		if active, err = h.activeMessages(ctx, t.Active); err != nil {
			return nil, "", err
		}
	}
	turnCount := max((limit-len(active)+1)/2, 1) // a turn has two messages
	page, err := h.Log.Turns(ctx, t.Owner, t.ID, before, turnCount, maxThreadPage)
	if err != nil {
		return nil, "", missingThread(err)
	}

	messages = []native.ThreadMessage{}
	for _, stored := range page.Turns {
		if stored.Run == t.Active { // the active run has ended since it was read, and its turn has all messages
			active = nil
		}
		turn, err := thread.Decode(stored.Data)
		if err != nil { // the rest of the thread must be readable; the model does not get this turn either
			h.Logger.WarnContext(ctx, "a turn of a thread cannot be read", "run_id", stored.Run, "error", err)
			continue
		}
		messages = append(messages, native.NewThreadMessages(stored.Run, turn)...)
	}
	if len(active) >= limit && len(page.Turns) > 0 { // the active run fills the page, so all turns are on the next page
		messages = nil
		page.Before = page.Turns[len(page.Turns)-1].Number + 1
	}
	return append(messages, active...), native.FormatTurn(page.Before), nil
}

// activeMessages returns the messages so far of the run with that id. It returns none if the run has ended or is no
// longer in the log.
func (h *Handler) activeMessages(ctx context.Context, id string) ([]native.ThreadMessage, error) {
	run, err := h.Log.Run(ctx, id)
	if isMissing(err) || err == nil && run.Last.Terminal() {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	events, err := event.ReadAll(ctx, h.Log, id)
	if isMissing(err) || err == nil && len(events) == 0 {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	turn := thread.FromEvents(run, events)
	turn.Status = run.Status()
	return native.NewThreadMessages(id, turn), nil
}

// renameThread serves PATCH /threads/{thread_id}: it sets the thread's title, and answers with the thread.
func (h *Handler) renameThread(w http.ResponseWriter, r *http.Request) error {
	t, err := h.ownedThread(r)
	if err != nil {
		return err
	}
	body, err := h.readBody(r)
	if err != nil {
		return err
	}
	title, err := native.DecodeTitle(body)
	if err != nil {
		return err
	}
	if t, err = h.Log.RenameThread(r.Context(), t.Owner, t.ID, title); err != nil {
		return missingThread(err)
	}
	renamed, err := h.describeThread(r.Context(), t)
	if err != nil {
		return err
	}
	return answerJSON(w, renamed)
}

// deleteThread serves DELETE /threads/{thread_id}: it cancels the thread's unfinished runs, and then deletes all of its
// runs, with their child runs, and the thread. The runs are deleted one by one, because DeleteThread does not delete
// them. The thread is last, so that a client whose request failed in between still finds it and can repeat the request.
// If a run does not end within cancelWait, deleteThread answers 409 and keeps the thread.
func (h *Handler) deleteThread(w http.ResponseWriter, r *http.Request) error {
	t, err := h.ownedThread(r)
	if err != nil {
		return err
	}
	// The end of an active run lets a waiting question (on_busy) start another run of the thread. So look again until no
	// run is active.
	for wasActive := true; wasActive; {
		if wasActive, err = h.deleteRunsOfThread(r, t); err != nil {
			return err
		}
	}
	if err := h.Log.DeleteThread(r.Context(), t.Owner, t.ID); err != nil {
		return missingThread(err)
	}
	writeNoContent(w)
	return nil
}

// deleteRunsOfThread cancels the thread's unfinished runs, and deletes all of its runs. wasActive says that at least one
// of them had not ended. If a run does not end within cancelWait, deleteRunsOfThread deletes nothing, and the error is
// the problem conflict.
func (h *Handler) deleteRunsOfThread(r *http.Request, t event.Thread) (wasActive bool, err error) {
	runs, err := h.runsOfThread(r.Context(), t.Owner, t.ID)
	if err != nil {
		return false, err
	}
	for _, run := range runs {
		if run.Last.Terminal() || run.ParentID != "" { // a child ends before its parent, so waiting for that is enough
			continue
		}
		wasActive = true
		_, err := h.cancelAndWait(r, run.ID)
		if errors.Is(err, errContextEnded) {
			p := newProblem("conflict", "A run of the thread was cancelled and has not ended yet. Delete the thread again.")
			p.RunID = run.ID
			return wasActive, p
		}
		if err != nil && !isMissing(err) {
			return wasActive, err
		}
	}
	for _, run := range runs {
		if err := h.Log.Delete(r.Context(), run.ID); err != nil && !isMissing(err) {
			return wasActive, err
		}
	}
	return wasActive, nil
}
