package api

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"strconv"

	"answerd/internal/agent/thread"
	"answerd/internal/api/native"
	"answerd/internal/event"
)

// missingThread returns the reason why there is no thread as its problem, and other errors as they are.
func missingThread(err error) error {
	if errors.Is(err, event.ErrNotFound) {
		return newProblem("not_found", "There is no such thread.")
	}
	return err
}

// ownedThread returns the caller's thread that the path names.
func (h *Handler) ownedThread(r *http.Request) (event.Thread, error) {
	t, err := h.Log.Thread(r.Context(), ownerOf(r), pathParam(r, "thread_id"))
	return t, missingThread(err)
}

// describeThread returns a thread with the status of its newest run. The log may keep a thread longer
// than its runs (THREADS_RETENTION); the status is then in the newest turn. A thread without both counts
// as completed, because nothing is active in it.
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
	t.Active = "" // it is no longer in the log
	status := event.StatusCompleted
	page, err := h.Log.Turns(ctx, t.Owner, t.ID, 0, 1, event.MaxTurn)
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

// listThreads serves GET /threads: a page of the caller's threads, the one that was updated last first.
func (h *Handler) listThreads(w http.ResponseWriter, r *http.Request) error {
	if err := requireAcceptable(r, "application/json"); err != nil {
		return err
	}
	query := r.URL.Query()
	limit, err := queryLimit(query, 50, event.MaxThreadsPage)
	if err != nil {
		return err
	}
	page, err := h.Log.ListThreads(r.Context(), event.ThreadFilter{Owner: ownerOf(r), Query: query.Get("q"), After: query.Get("after"), Limit: limit})
	if errors.Is(err, event.ErrInvalidPosition) {
		return newProblem("invalid_request", "The parameter after must be the next of an earlier page.")
	}
	if err != nil {
		return err
	}
	out := native.ThreadList{Threads: make([]native.Thread, len(page.Threads)), Next: page.Next}
	for i, t := range page.Threads {
		if out.Threads[i], err = h.describeThread(r.Context(), t); err != nil {
			return err
		}
	}
	writeJSON(w, http.StatusOK, "application/json", out)
	return nil
}

// Bounds of a page of messages.
const (
	maxThreadMessages = 200
	maxThreadPage     = 4 << 20 // bytes of turns
)

// getThread serves GET /threads/{thread_id}: the thread with a page of its messages. The newest page also
// has the run that is active, as far as it has come.
func (h *Handler) getThread(w http.ResponseWriter, r *http.Request) error {
	if err := requireAcceptable(r, "application/json"); err != nil {
		return err
	}
	query := r.URL.Query()
	limit, err := queryLimit(query, 50, maxThreadMessages)
	if err != nil {
		return err
	}

	var before int64
	if query.Has("before") {
		if before, err = strconv.ParseInt(query.Get("before"), 10, 64); err != nil || before < 1 || strconv.FormatInt(before, 10) != query.Get("before") {
			return newProblem("invalid_request", "The parameter before must be the next of an earlier page.")
		}
	}

	t, err := h.ownedThread(r)
	if err != nil {
		return err
	}
	out := native.ThreadMessages{Messages: []native.ThreadMessage{}}
	if out.Thread, err = h.describeThread(r.Context(), t); err != nil {
		return err
	}

	var active []native.ThreadMessage
	if before == 0 && t.Active != "" {
		if active, err = h.activeMessages(r.Context(), t.Active); err != nil {
			return err
		}
	}

	page, err := h.Log.Turns(r.Context(), t.Owner, t.ID, before, max((limit-len(active)+1)/2, 1), maxThreadPage)
	if err != nil {
		return missingThread(err)
	}

	for _, stored := range page.Turns {
		if stored.Run == t.Active { // it has ended meanwhile
			active = nil
		}
		turn, err := thread.Decode(stored.Data)
		if err != nil { // it must not hide the others; the model does not get it either
			h.Logger.WarnContext(r.Context(), "a turn of a thread cannot be read", "run_id", stored.Run, "error", err)
			continue
		}
		out.Messages = append(out.Messages, native.NewThreadMessages(stored.Run, turn)...)
	}
	if len(active) >= limit && len(page.Turns) > 0 { // the run in progress fills the page, and all turns are on the next one
		out.Messages, page.Before = nil, page.Turns[len(page.Turns)-1].Number+1
	}
	out.Messages, out.Next = append(out.Messages, active...), native.FormatTurn(page.Before)
	writeJSON(w, http.StatusOK, "application/json", out)
	return nil
}

// activeMessages returns the messages of a run in progress; none if its turn has ended meanwhile.
func (h *Handler) activeMessages(ctx context.Context, id string) ([]native.ThreadMessage, error) {
	run, err := h.Log.Run(ctx, id)
	var events []event.Event
	if err == nil && !run.Last.Terminal() {
		events, err = h.allEvents(ctx, id)
	}
	if err != nil && !isMissing(err) {
		return nil, err
	}
	if len(events) == 0 {
		return nil, nil
	}
	turn := thread.FromEvents(run, events)
	turn.Status = run.Status()
	return native.NewThreadMessages(id, turn), nil
}

// renameThread serves PATCH /threads/{thread_id}.
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
	writeJSON(w, http.StatusOK, "application/json", renamed)
	return nil
}

// deleteThread serves DELETE /threads/{thread_id}: it cancels the active runs of the thread, and
// removes all of its runs, with their children, and the thread. The log removes a thread without its
// runs, so those are deleted one by one. The thread comes last, so that a caller whose request failed in
// between still finds it and can repeat the request.
func (h *Handler) deleteThread(w http.ResponseWriter, r *http.Request) error {
	t, err := h.ownedThread(r)
	if err != nil {
		return err
	}

	var runs []event.Run
	for f := (event.Filter{Owner: t.Owner, ThreadID: t.ID, Children: true, Limit: event.MaxPage}); ; {
		page, err := h.Log.Runs(r.Context(), f)
		if err != nil {
			return err
		}
		runs = append(runs, page.Runs...)
		f.Before = page.Next
		if f.Before == "" {
			break
		}
	}

	for _, run := range runs {
		if run.Last.Terminal() || run.ParentID != "" { // a parent ends after its children
			continue
		}
		_, err := h.cancelAndWait(r, run.ID)
		switch {
		case errors.Is(err, errContextEnded):
			p := newProblem("conflict", "A run of the thread was cancelled and has not ended yet. Delete the thread again.")
			p.RunID = run.ID
			return p
		case err != nil && !isMissing(err):
			return err
		}
	}

	for _, run := range runs {
		if err := h.Log.Delete(r.Context(), run.ID); err != nil && !isMissing(err) {
			return err
		}
	}

	if err := h.Log.DeleteThread(r.Context(), t.Owner, t.ID); err != nil {
		return missingThread(err)
	}
	writeNoContent(w)
	return nil
}
