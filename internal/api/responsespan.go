package api

import (
	"cmp"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strconv"

	"github.com/go-chi/chi/v5"

	"answerd/internal/agent"
	"answerd/internal/api/responses"
	"answerd/internal/event"
)

// stretch is a response: a run from one of its events on, to its end or to where it
// waits for approvals.
type stretch struct {
	run  event.Run
	kept responses.StoredRequest
	responses.Span
}

// stretch is the caller's response of that id.
func (h *Handler) stretch(r *http.Request, id string) (stretch, error) {
	name, span, ok := responses.ParseID(id)
	if !ok {
		return stretch{}, event.ErrNotFound
	}
	run, err := h.owned(r, name)
	if err != nil {
		return stretch{}, err
	}
	kept, ok := responses.DecodeStored(run.Request)
	if !ok || max(span.After, span.Until) > run.Last.Seq {
		return stretch{}, event.ErrNotFound
	}
	return stretch{run, kept, span}, nil
}

// header is what an encoder has to know to tell s.
func (h *Handler) header(r *http.Request, s stretch, skip int) (responses.Header, error) {
	head := responses.Header{
		ID: responses.ID(s.run.ID, s.Span), Created: s.run.Created, Model: cmp.Or(s.kept.Model, h.Agent.DefaultModel),
		PreviousID: s.kept.PreviousID, Echo: s.kept.Echo, Span: s.Span, Skip: skip,
	}
	if s.After > 0 {
		events, err := h.all(r.Context(), s.run.ID)
		if err != nil {
			return responses.Header{}, err
		}
		head.PreviousID = responses.ID(s.run.ID, endingAt(events, s.After))
	} else {
		head.ToolLists = h.lists(r, s.kept)
	}
	return head, nil
}

// endingAt is the part of a run whose response ended with that event. Where the run took
// approvals one by one, that is the response to all of them.
func endingAt(events []event.Event, end int64) (s responses.Span) {
	asks, last := false, int64(0) // since the run waited last; the last time it did
	for _, e := range events {
		if e.Seq >= end {
			break
		}
		switch e.Body.(type) {
		case event.ApprovalRequired:
			asks = true
		case event.ApprovalResolved:
			if last > s.After {
				s.Until = e.Seq
			}
		case event.Suspended:
			if last = e.Seq; asks {
				s = responses.Span{After: e.Seq}
			}
			asks = false
		}
	}
	return s
}

// answering is the part of a run whose response is that to those approvals, which it has
// taken.
func answering(events []event.Event, approvals []responses.Approval) (s responses.Span) {
	first, waits := int64(0), int64(0) // where the run waited, before each approval
	for _, e := range events {
		switch b := e.Body.(type) {
		case event.Suspended:
			waits = e.Seq
		case event.ApprovalResolved:
			if !slices.ContainsFunc(approvals, func(a responses.Approval) bool { return a.Interrupt == b.InterruptID }) {
				continue
			}
			if first == 0 {
				first = waits
				s.After = waits
			}
			if waits > first {
				s.Until = e.Seq
			}
		}
	}
	if first == 0 { // the answer takes its time
		s.After = waits
	}
	return s
}

// lists are the tools of the MCP servers that the request named.
func (h *Handler) lists(r *http.Request, k responses.StoredRequest) []responses.ToolList {
	var out []responses.ToolList
	if len(k.ListedServers) == 0 {
		return nil
	}
	tools := h.Agent.UsableTools(r.Context(), identity(r), agent.Request{Servers: k.ListedServers, Tools: k.Tools})
	for _, server := range k.ListedServers {
		l := responses.ToolList{Server: server}
		for _, t := range tools {
			if t.Server == server {
				l.Tools = append(l.Tools, responses.ListedTool{Name: t.Name, Description: t.Description, InputSchema: t.InputSchema})
			}
		}
		out = append(out, l)
	}
	return out
}

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
