package api

import (
	"cmp"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strconv"

	"github.com/go-chi/chi/v5"

	"answerd/internal/api/responses"
	"answerd/internal/event"
)

// maxItems and someItems bound a page of input items, and are one that names no bound.
const (
	maxItems  = 100
	someItems = 20
)

// inputItems is GET /v1/responses/{response_id}/input_items.
func (h *Handler) inputItems(w http.ResponseWriter, r *http.Request) error {
	s, err := h.stretch(r, chi.URLParam(r, "response_id"))
	if err != nil {
		return notThere(err, "response_id")
	}
	query, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return newProblem("invalid_request", "The query is not well formed.")
	}
	limit, err := strconv.Atoi(cmp.Or(query.Get("limit"), strconv.Itoa(someItems)))
	if err != nil || limit < 1 || limit > maxItems {
		return wrongParam("limit", "must be a number from 1 to 100")
	}
	order := cmp.Or(query.Get("order"), "desc")
	if order != "asc" && order != "desc" {
		return wrongParam("order", "must be asc or desc")
	}
	var events []event.Event
	if s.After > 0 { // only then are they looked at
		if events, err = h.all(r.Context(), s.run.ID); err != nil {
			return notThere(err, "response_id")
		}
	}
	items := s.kept.InputItems(responses.ID(s.run.ID, s.Span), events)
	if order == "desc" {
		slices.Reverse(items)
	}
	page, ok := responses.NewPage(items, query.Get("after"), limit)
	if !ok {
		return wrongParam("after", "is not the id of an item of this list")
	}
	writeJSON(w, http.StatusOK, "application/json", page)
	return nil
}

// wrongParam is what is wrong with a parameter of the query.
func wrongParam(name, detail string) error {
	p := newProblem("invalid_request", name+": "+detail)
	p.param = name
	return p
}

// deleteResponse is DELETE /v1/responses/{response_id}: nothing of its run is kept, the
// responses before and after it in the same run included. Those that went on from it have
// what they need. One that waits for approvals ends; one that goes on is cancelled first
// by whoever means that.
func (h *Handler) deleteResponse(w http.ResponseWriter, r *http.Request) error {
	id := chi.URLParam(r, "response_id")
	s, err := h.stretch(r, id)
	if err != nil {
		return notThere(err, "response_id")
	}
	run := s.run
	if run.Status() == event.StatusSuspended {
		if run, err = h.stop(r, run.ID); err != nil && !errors.Is(err, errGone) {
			return err
		}
	}
	if !run.Last.Terminal() {
		return onceOnly(newProblem("conflict", "The response is in progress. Cancel it first."), false)
	}
	if err := h.Log.Delete(r.Context(), s.run.ID); err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, "application/json", map[string]any{"id": id, "object": "response", "deleted": true})
	return nil
}
