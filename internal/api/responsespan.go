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

// responseSpan is the part of a run that one response covers: from one of its events to its end,
// or to its suspension for approvals.
type responseSpan struct {
	run     event.Run
	request responses.StoredRequest
	responses.Span
}

// findResponse returns the caller's response with that id. For the response of another caller the
// error is event.ErrNotFound, so that nothing reveals that it exists.
func (h *Handler) findResponse(r *http.Request, id string) (responseSpan, error) {
	runID, span, ok := responses.ParseID(id)
	if !ok {
		return responseSpan{}, event.ErrNotFound
	}
	run, err := h.ownedRun(r, runID)
	if err != nil {
		return responseSpan{}, err
	}
	request, ok := responses.DecodeStored(run.Request)
	if !ok || max(span.After, span.Until) > run.Last.Seq {
		return responseSpan{}, event.ErrNotFound
	}
	return responseSpan{run, request, span}, nil
}

// responseHeader returns the header with which an encoder encodes s. skip is the number of events
// of the stream that the caller already has.
func (h *Handler) responseHeader(r *http.Request, s responseSpan, skip int) (responses.Header, error) {
	head := responses.Header{
		ID: responses.FormatID(s.run.ID, s.Span), Created: s.run.Created, Model: cmp.Or(s.request.Model, h.Agent.DefaultModel),
		PreviousID: s.request.PreviousID, Echo: s.request.Echo, Span: s.Span, Skip: skip,
	}
	if s.After > 0 {
		events, err := h.allEvents(r.Context(), s.run.ID)
		if err != nil {
			return responses.Header{}, err
		}
		head.PreviousID = responses.FormatID(s.run.ID, spanEndingAt(events, s.After))
	} else {
		head.ToolLists = h.toolLists(r, s.request)
	}
	return head, nil
}

// spanEndingAt returns the span of the response that ended with the event end. If the caller gave
// the run its approvals one after the other, that is the response to all of them.
func spanEndingAt(events []event.Event, end int64) (s responses.Span) {
	newRequests := false       // the run has asked for approvals since lastSuspension
	lastSuspension := int64(0) // sequence number
	for _, e := range events {
		if e.Seq >= end {
			break
		}
		switch e.Body.(type) {
		case event.ApprovalRequired:
			newRequests = true
		case event.ApprovalResolved:
			if lastSuspension > s.After {
				s.Until = e.Seq
			}
		case event.Suspended:
			lastSuspension = e.Seq
			if newRequests { // the run has suspended for new requests, so a new response begins
				s = responses.Span{After: e.Seq}
			}
			newRequests = false
		}
	}
	return s
}

// spanAnswering returns the span of the response that follows those approvals, which the run has
// in its log.
func spanAnswering(events []event.Event, approvals []responses.Approval) (s responses.Span) {
	lastSuspension, firstSuspension := int64(0), int64(0) // before any of the approvals, before the first
	for _, e := range events {
		switch b := e.Body.(type) {
		case event.Suspended:
			lastSuspension = e.Seq
		case event.ApprovalResolved:
			if !slices.ContainsFunc(approvals, func(a responses.Approval) bool { return a.Interrupt == b.InterruptID }) {
				continue
			}
			if firstSuspension == 0 {
				firstSuspension = lastSuspension
				s.After = lastSuspension
			}
			if lastSuspension > firstSuspension {
				s.Until = e.Seq
			}
		}
	}
	if firstSuspension == 0 { // the log does not have the approvals yet
		s.After = lastSuspension
	}
	return s
}

// toolLists returns the tools of the MCP servers that the request named, as far as the caller may
// use them.
func (h *Handler) toolLists(r *http.Request, request responses.StoredRequest) []responses.ToolList {
	if len(request.ListedServers) == 0 {
		return nil
	}
	tools := h.Agent.UsableTools(r.Context(), identity(r), agent.Request{Servers: request.ListedServers, Tools: request.Tools})
	var out []responses.ToolList
	for _, server := range request.ListedServers {
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

// maxInputItems bounds a page of input items; defaultInputItems is the size of a page if the
// caller names none.
const (
	maxInputItems     = 100
	defaultInputItems = 20
)

// listInputItems serves GET /v1/responses/{response_id}/input_items.
func (h *Handler) listInputItems(w http.ResponseWriter, r *http.Request) error {
	s, err := h.findResponse(r, chi.URLParam(r, "response_id"))
	if err != nil {
		return missingResponse(err, "response_id")
	}
	query, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return newProblem("invalid_request", "The query is malformed.")
	}
	limit, err := strconv.Atoi(cmp.Or(query.Get("limit"), strconv.Itoa(defaultInputItems)))
	if err != nil || limit < 1 || limit > maxInputItems {
		return queryProblem("limit", "must be a number from 1 to 100")
	}
	order := cmp.Or(query.Get("order"), "desc")
	if order != "asc" && order != "desc" {
		return queryProblem("order", "must be asc or desc")
	}
	var events []event.Event
	if s.After > 0 { // InputItems needs the events only then
		if events, err = h.allEvents(r.Context(), s.run.ID); err != nil {
			return missingResponse(err, "response_id")
		}
	}
	items := s.request.InputItems(responses.FormatID(s.run.ID, s.Span), events)
	if order == "desc" {
		slices.Reverse(items)
	}
	page, ok := responses.NewPage(items, query.Get("after"), limit)
	if !ok {
		return queryProblem("after", "is not the id of an item of this list")
	}
	writeJSON(w, http.StatusOK, "application/json", page)
	return nil
}

// queryProblem returns the problem of a parameter of the query.
func queryProblem(name, detail string) error {
	p := newProblem("invalid_request", name+": "+detail)
	p.param = name
	return p
}

// deleteResponse serves DELETE /v1/responses/{response_id}. It removes everything about the run,
// which includes the responses before and after this one in the same run. Responses of other runs
// that continue this one have their own copy of the conversation. A response that waits for
// approvals is cancelled and deleted. The caller must cancel a response in progress first.
func (h *Handler) deleteResponse(w http.ResponseWriter, r *http.Request) error {
	id := chi.URLParam(r, "response_id")
	s, err := h.findResponse(r, id)
	if err != nil {
		return missingResponse(err, "response_id")
	}
	run := s.run
	if run.Status() == event.StatusSuspended {
		if run, err = h.cancelAndWait(r, run.ID); err != nil && !errors.Is(err, errCallerGone) {
			return err
		}
	}
	if !run.Last.Terminal() {
		return newProblem("conflict", "The response is in progress. Cancel it first.")
	}
	if err := h.Log.Delete(r.Context(), s.run.ID); err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, "application/json", map[string]any{"id": id, "object": "response", "deleted": true})
	return nil
}
