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

	"github.com/go-chi/chi/v5"

	"answerd/internal/api/native"
	"answerd/internal/auth"
	"answerd/internal/event"
)

// cancelWait is how long POST /runs/{run_id}/cancel waits for the run's last event.
const cancelWait = 5 * time.Second

// owned returns a run of the caller's. Somebody else's does not exist for them, be
// it kept or not.
func (h *Handler) owned(r *http.Request, id string) (event.Run, error) {
	run, err := h.Log.Run(r.Context(), id)
	if err != nil && !errors.Is(err, event.ErrGone) {
		return run, err
	}
	if !identity(r).Owns(auth.Identity{Issuer: run.Owner.Issuer, Subject: run.Owner.Subject}) {
		return event.Run{}, event.ErrNotFound
	}
	return run, err
}

func (h *Handler) status(run event.Run) native.Status {
	return native.NewStatus(run, func(e event.RunError) any { return runProblem(run, e) })
}

// run is GET /runs/{run_id}.
func (h *Handler) run(w http.ResponseWriter, r *http.Request) error {
	run, err := h.owned(r, chi.URLParam(r, "run_id"))
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, "application/json", h.status(run))
	return nil
}

// events is GET /runs/{run_id}/events. Last-Event-ID wins over ?after=, because an
// EventSource repeats its URL when it reconnects.
func (h *Handler) events(w http.ResponseWriter, r *http.Request) error {
	if err := accepts(r, "text/event-stream"); err != nil {
		return err
	}
	id := chi.URLParam(r, "run_id")
	var pos int64
	if after := r.URL.Query().Get("after"); after != "" {
		var err error
		if pos, err = strconv.ParseInt(after, 10, 64); err != nil {
			return newProblem("invalid_request", "The parameter after is not a number.")
		}
	}
	pos, err := position(r, id, pos)
	if err != nil {
		return err
	}
	return h.read(w, r, id, pos)
}

// position is where in the run of that id the caller wants to go on; pos if it says
// nothing. Whether the run has been there is not looked at: it may be somebody else's.
func position(r *http.Request, id string, pos int64) (int64, error) {
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

func noResult() error {
	return newProblem("not_found", "The run has no call of this id that has ended.")
}

// result is GET /runs/{run_id}/results/{call_id}: the whole result of one call.
func (h *Handler) result(w http.ResponseWriter, r *http.Request) error {
	if err := accepts(r, "application/json"); err != nil {
		return err
	}
	id, call := chi.URLParam(r, "run_id"), chi.URLParam(r, "call_id")
	if _, err := h.owned(r, id); err != nil {
		return err
	}
	// The id is whatever the model's provider made up. chi matches the path as it was
	// escaped where that matters.
	if r.URL.RawPath != "" {
		var err error
		if call, err = url.PathUnescape(call); err != nil {
			return noResult()
		}
	}
	res, err := h.Agent.Result(r.Context(), id, call)
	if errors.Is(err, event.ErrNotFound) {
		return noResult()
	}
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, "application/json", res)
	return nil
}

// input is POST /runs/{run_id}/input: a person's answer to one thing that the run
// waits for. It answers with the run as it is once the answer is in the log, or, where
// that is what the caller accepts, with the stream that goes on from before the answer.
func (h *Handler) input(w http.ResponseWriter, r *http.Request) error {
	id := chi.URLParam(r, "run_id")
	run, err := h.owned(r, id)
	if err != nil {
		return err
	}
	wanted := strings.ToLower(strings.Join(r.Header.Values("Accept"), ","))
	streams := strings.Contains(wanted, "text/event-stream") && !strings.Contains(wanted, "application/json")
	if !streams && accepts(r, "application/json") != nil {
		return newProblem("not_acceptable", "The response would be application/json or text/event-stream.")
	}
	pos, err := position(r, id, run.Last.Seq)
	if err != nil {
		return err
	}
	if _, err := h.Log.After(r.Context(), id, pos); err != nil {
		return err // before the answer is taken
	}
	body, err := h.body(r)
	if err != nil {
		return err
	}
	in, err := native.DecodeInput(body)
	if err != nil {
		return err
	}
	if err := h.Agent.Answer(r.Context(), identity(r), id, in); err != nil {
		return err
	}
	if streams {
		h.follow(w, r, id, pos, nativeFormat)
		return nil
	}
	if run, err = h.Log.Run(r.Context(), id); err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, "application/json", h.status(run))
	return nil
}

// stop cancels a run, and returns it when its last event is written; errGone if that
// takes too long.
func (h *Handler) stop(r *http.Request, id string) (event.Run, error) {
	if err := h.Agent.Cancel(r.Context(), id); err != nil {
		return event.Run{}, err
	}
	ctx, done := context.WithTimeout(r.Context(), cancelWait)
	defer done()
	return h.await(ctx, id, nil, nil)
}

// cancel is POST /runs/{run_id}/cancel. It answers with the run as it is when its
// last event is written; a run that had ended stays as it was.
func (h *Handler) cancel(w http.ResponseWriter, r *http.Request) error {
	id := chi.URLParam(r, "run_id")
	if _, err := h.owned(r, id); err != nil {
		return err
	}
	status := http.StatusOK
	run, err := h.stop(r, id)
	if errors.Is(err, errGone) {
		status = http.StatusAccepted // told, and not yet done
		run, err = h.Log.Run(r.Context(), id)
	}
	if err != nil {
		return err
	}
	writeJSON(w, status, "application/json", h.status(run))
	return nil
}

// statuses are those that a list can be narrowed to.
var statuses = []event.Status{event.StatusRunning, event.StatusSuspended, event.StatusCompleted, event.StatusFailed, event.StatusCancelled}

// list is GET /runs: the caller's runs, the newest first, a page at a time.
func (h *Handler) list(w http.ResponseWriter, r *http.Request) error {
	if err := accepts(r, "application/json"); err != nil {
		return err
	}
	who, query := identity(r), r.URL.Query()
	f := event.Filter{
		Owner:    event.Owner{Issuer: who.Issuer, Subject: who.Subject},
		ThreadID: query.Get("thread_id"), Status: event.Status(query.Get("status")), Before: query.Get("before"),
	}
	if f.Status != "" && !slices.Contains(statuses, f.Status) {
		return newProblem("invalid_request", "The parameter status is not the status of a run.")
	}
	if limit := query.Get("limit"); limit != "" {
		n, err := strconv.Atoi(limit)
		if err != nil || n < 1 || n > event.MaxPage {
			return newProblem("invalid_request", "The parameter limit is not a number from 1 to "+strconv.Itoa(event.MaxPage)+".")
		}
		f.Limit = n
	}
	page, err := h.Log.Runs(r.Context(), f)
	if errors.Is(err, event.ErrInvalidPosition) {
		return newProblem("invalid_request", "The parameter before is not where a page ended.")
	}
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, "application/json", native.NewRunList(page))
	return nil
}

// forget is DELETE /runs/{run_id}: nothing of the run is kept. One that goes on has to be
// cancelled first, so that nobody loses a running one by mistake.
func (h *Handler) forget(w http.ResponseWriter, r *http.Request) error {
	id := chi.URLParam(r, "run_id")
	run, err := h.owned(r, id)
	if err != nil {
		return err
	}
	if !run.Last.Terminal() {
		return newProblem("conflict", "The run has not ended. Cancel it first.")
	}
	if err := h.Log.Delete(r.Context(), id); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}
