package api

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"answerd/internal/api/native"
	"answerd/internal/event"
)

// cancelWait bounds how long cancelAndWait waits for the run to end.
const cancelWait = 5 * time.Second

// ownedRun returns the caller's run with that id. For another caller's run, the error is event.ErrNotFound even if the
// log has dropped the run, because nothing may reveal that it exists. If the log no longer keeps the caller's run, the
// error is event.ErrGone, and the returned Run holds what the log still knows.
func (h *Handler) ownedRun(r *http.Request, id string) (event.Run, error) {
	run, err := h.Log.Run(r.Context(), id)
	if err != nil && !errors.Is(err, event.ErrGone) {
		return run, err
	}
	if run.Owner != ownerOf(r) {
		return event.Run{}, event.ErrNotFound
	}
	return run, err
}

// runStatus returns the body of GET /runs/{run_id}. The error of a failed run becomes a problem document.
func (h *Handler) runStatus(run event.Run) native.Status {
	return native.NewStatus(run, func(e event.RunError) any {
		p := runProblem(run, e)
		p.Instance = h.basePath + p.Instance
		return p
	})
}

// getRun serves GET /runs/{run_id}.
func (h *Handler) getRun(w http.ResponseWriter, r *http.Request) error {
	run, err := h.ownedRun(r, pathParam(r, "run_id"))
	if err != nil {
		return err
	}
	return answerJSON(w, h.runStatus(run))
}

// streamEvents serves GET /runs/{run_id}/events: it streams the run's events after a position. Last-Event-ID has
// precedence over the parameter after, because an EventSource repeats its URL when it reconnects.
func (h *Handler) streamEvents(w http.ResponseWriter, r *http.Request) error {
	id := pathParam(r, "run_id")
	var pos int64
	if after := r.URL.Query().Get("after"); after != "" {
		var err error
		if pos, err = strconv.ParseInt(after, 10, 64); err != nil {
			return newProblem("invalid_request", "The parameter after must be a number.")
		}
	}
	pos, err := resumePosition(r, id, pos)
	if err != nil {
		return err
	}
	return h.resumeStream(w, r, id, pos)
}

// resumePosition returns the position in run id that Last-Event-ID names, or pos without that header. A header that
// does not name an event of run id is a problem. resumePosition does not read the run, so the event may not exist.
func resumePosition(r *http.Request, id string, pos int64) (int64, error) {
	last := r.Header.Get("Last-Event-ID")
	if last == "" {
		return pos, nil
	}
	run, seq, ok := native.ParsePosition(last)
	if !ok || run != id {
		return 0, newProblem("invalid_request", "Last-Event-ID is not the id of an event of this run.")
	}
	return seq, nil
}

// exportRun serves GET /runs/{run_id}/export: the run as one document (api/openapi/export.schema.json).
func (h *Handler) exportRun(w http.ResponseWriter, r *http.Request) error {
	id := pathParam(r, "run_id")
	if _, err := h.ownedRun(r, id); err != nil {
		return err
	}
	doc, err := h.Agent.Export(r.Context(), id)
	if err != nil {
		return err
	}
	body, err := doc.Encode()
	if err != nil {
		return err
	}
	w.Header().Set("Content-Disposition", `attachment; filename="`+id+`.json"`)
	writeBody(w, "application/json", body)
	return nil
}

// noReceipts returns the problem of a service without RECEIPT_KEY_FILE.
func noReceipts() error {
	return newProblem("not_found", "This service signs no receipts: its operator has not set RECEIPT_KEY_FILE.")
}

// getReceipt serves GET /runs/{run_id}/receipt: a signed statement about the run.
func (h *Handler) getReceipt(w http.ResponseWriter, r *http.Request) error {
	id := pathParam(r, "run_id")
	if _, err := h.ownedRun(r, id); err != nil {
		return err
	}
	if h.Receipts == nil {
		return noReceipts()
	}
	if err := requireAcceptable(r, "application/jose"); err != nil {
		return err
	}
	doc, err := h.Agent.Export(r.Context(), id)
	if err != nil {
		return err
	}
	signed, err := h.Receipts.Sign(doc)
	if err != nil {
		return err
	}
	writeBody(w, "application/jose", []byte(signed))
	return nil
}

// getReceiptKeys serves GET /.well-known/jwks.json: the public keys of receipts.
func (h *Handler) getReceiptKeys(w http.ResponseWriter, _ *http.Request) error {
	if h.Receipts == nil {
		return noReceipts()
	}
	w.Header().Set("Content-Type", "application/jwk-set+json")
	_, _ = w.Write(h.Receipts.JWKS()) // fails only if the caller has left
	return nil
}

// getResult serves GET /runs/{run_id}/results/{call_id}: the whole result of one tool call.
func (h *Handler) getResult(w http.ResponseWriter, r *http.Request) error {
	id, call := pathParam(r, "run_id"), pathParam(r, "call_id")
	if _, err := h.ownedRun(r, id); err != nil {
		return err
	}
	result, err := h.Agent.Result(r.Context(), id, call)
	if errors.Is(err, event.ErrNotFound) {
		return newProblem("not_found", "The run has no finished tool call with this id.")
	}
	if err != nil {
		return err
	}
	return answerJSON(w, result)
}

// postInput serves POST /runs/{run_id}/input: a person's answer to one interrupt. It responds with the run's status
// once the answer is in the log. If the client accepts only a stream, it streams the events after Last-Event-ID instead
// or, without that header, after the event that was the newest when the request arrived.
func (h *Handler) postInput(w http.ResponseWriter, r *http.Request) error {
	id := pathParam(r, "run_id")
	run, err := h.ownedRun(r, id)
	if err != nil {
		return err
	}
	accept := strings.ToLower(strings.Join(r.Header.Values("Accept"), ","))
	wantsStream := strings.Contains(accept, "text/event-stream") && !strings.Contains(accept, "application/json")
	if !wantsStream && requireAcceptable(r, "application/json") != nil {
		return newProblem("not_acceptable", "The response would be application/json or text/event-stream.")
	}
	pos, err := resumePosition(r, id, run.Last.Seq)
	if err != nil {
		return err
	}

	if _, err := h.Log.After(r.Context(), id, pos); err != nil {
		return err // the position cannot be streamed: fail while the interrupt is still open
	}
	body, err := h.readBody(r)
	if err != nil {
		return err
	}
	input, err := native.DecodeInput(body)
	if err != nil {
		return err
	}
	if err := h.Agent.Answer(r.Context(), identity(r), id, input); err != nil {
		return err
	}
	if wantsStream {
		h.streamRun(w, r, id, pos, nativeFormat)
		return nil
	}
	if run, err = h.Log.Run(r.Context(), id); err != nil {
		return err
	}
	return answerJSON(w, h.runStatus(run))
}

// cancelAndWait cancels a run and returns it when it has ended. If that takes longer than cancelWait, or this process
// hands its runs over to another one, it returns the zero Run and errContextEnded. The run will end all the same: the
// process that takes it over finds the cancellation in the log.
func (h *Handler) cancelAndWait(r *http.Request, id string) (event.Run, error) {
	if err := h.Agent.Cancel(r.Context(), id); err != nil {
		return event.Run{}, err
	}
	ctx, stop := context.WithTimeout(r.Context(), cancelWait)
	defer stop()
	run, err := h.awaitRun(ctx, id, nil, nil)
	if p, ok := errors.AsType[*problem](err); ok && p.Code == "draining" {
		err = errContextEnded
	}
	return run, err
}

// cancelRun serves POST /runs/{run_id}/cancel. It responds with the status of the ended run, or with 202 and the
// current status if the run takes longer than cancelWait to end. It does not change a run that had already ended.
func (h *Handler) cancelRun(w http.ResponseWriter, r *http.Request) error {
	id := pathParam(r, "run_id")
	if _, err := h.ownedRun(r, id); err != nil {
		return err
	}
	status := http.StatusOK
	run, err := h.cancelAndWait(r, id)
	if errors.Is(err, errContextEnded) {
		status = http.StatusAccepted // cancelled, but not ended yet
		run, err = h.Log.Run(r.Context(), id)
	}
	if err != nil {
		return err
	}
	writeJSON(w, status, "application/json", h.runStatus(run))
	return nil
}

// listStatuses are the allowed values of the parameter status of GET /runs.
var listStatuses = []event.Status{event.StatusRunning, event.StatusSuspended, event.StatusCompleted, event.StatusFailed, event.StatusCancelled}

// listRuns serves GET /runs: a page of the caller's runs, newest first.
func (h *Handler) listRuns(w http.ResponseWriter, r *http.Request) error {
	query := r.URL.Query()
	filter := event.Filter{
		Owner:    ownerOf(r),
		ThreadID: query.Get("thread_id"), Status: event.Status(query.Get("status")), Before: query.Get("before"),
	}
	if query.Has("status") && !slices.Contains(listStatuses, filter.Status) {
		return newProblem("invalid_request", "The parameter status must be the status of a run.")
	}
	var err error
	const defaultLimit = 0 // the log then uses its own default
	if filter.Limit, err = queryLimit(query, defaultLimit, event.MaxPage); err != nil {
		return err
	}
	page, err := h.Log.Runs(r.Context(), filter)
	if errors.Is(err, event.ErrInvalidPosition) {
		return newProblem("invalid_request", "The parameter before must be the next of an earlier page.")
	}
	if err != nil {
		return err
	}
	return answerJSON(w, native.NewRunList(page))
}

// deleteRun serves DELETE /runs/{run_id}: it deletes the run and its child runs. A run in progress is refused with 409,
// so that it is not lost by mistake: the client must cancel it first.
func (h *Handler) deleteRun(w http.ResponseWriter, r *http.Request) error {
	id := pathParam(r, "run_id")
	run, err := h.ownedRun(r, id)
	if err != nil {
		return err
	}
	if !run.Last.Terminal() {
		return newProblem("conflict", "The run has not ended. Cancel it first.")
	}
	if err := h.deleteWithChildren(r.Context(), run); err != nil {
		return err
	}
	writeNoContent(w)
	return nil
}

// runsOfThread returns all of the thread's runs that the log has, including child runs, newest first.
func (h *Handler) runsOfThread(ctx context.Context, owner event.Owner, threadID string) (runs []event.Run, err error) {
	filter := event.Filter{Owner: owner, ThreadID: threadID, Children: true, Limit: event.MaxPage}
	for {
		page, err := h.Log.Runs(ctx, filter)
		if err != nil {
			return nil, err
		}
		runs = append(runs, page.Runs...)
		if page.Next == "" {
			return runs, nil
		}
		filter.Before = page.Next
	}
}

// deleteWithChildren deletes an ended run, after its child runs and their children. Clients cannot delete child runs
// one by one, because GET /runs does not list them.
func (h *Handler) deleteWithChildren(ctx context.Context, run event.Run) error {
	if run.Agent == "" { // only a named agent can ask another agent, which starts a child
		return h.Log.Delete(ctx, run.ID)
	}
	runs, err := h.runsOfThread(ctx, run.Owner, run.ThreadID)
	if err != nil {
		return err
	}
	for _, child := range runs {
		if child.ParentID != run.ID {
			continue
		}
		if err := h.deleteWithChildren(ctx, child); err != nil && !isMissing(err) {
			return err
		}
	}
	return h.Log.Delete(ctx, run.ID)
}

// queryLimit returns the query's parameter limit, or defaultLimit if it is missing. The error is a problem unless limit
// is a number from 1 to maximum.
func queryLimit(query url.Values, defaultLimit, maximum int) (int, error) {
	limit := query.Get("limit")
	if limit == "" {
		return defaultLimit, nil
	}
	n, err := strconv.Atoi(limit)
	if err != nil || n < 1 || n > maximum {
		return 0, newProblem("invalid_request", "The parameter limit must be a number from 1 to "+strconv.Itoa(maximum)+".")
	}
	return n, nil
}

// isMissing reports whether err means that the log does not have a run, or no longer has it.
func isMissing(err error) bool {
	return errors.Is(err, event.ErrNotFound) || errors.Is(err, event.ErrGone) || errors.Is(err, event.ErrLost)
}
