package api

import (
	"errors"
	"net/http"
	"slices"
	"strconv"

	"github.com/go-chi/chi/v5"

	"answerd/internal/api/native"
	"answerd/internal/event"
)

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
