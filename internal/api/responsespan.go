package api

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strconv"

	"answerd/internal/agent"
	"answerd/internal/api/responses"
	"answerd/internal/event"
	"answerd/internal/sse"
)

// responseSpan is the part of a run that one response covers: from one of its events to its end,
// or to its suspension for approvals.
type responseSpan struct {
	run     event.Run
	request responses.StoredRequest
	responses.Span
	// otherFormat means that the run was not started as a response.
	otherFormat bool
}

// findResponse returns the caller's response with that id, which may be a run of any API format. For
// the response of another caller the error is event.ErrNotFound, so that nothing reveals that it
// exists.
func (h *Handler) findResponse(r *http.Request, id string) (responseSpan, error) {
	runID, span, ok := responses.ParseID(id)
	if !ok {
		return responseSpan{}, event.ErrNotFound
	}
	run, err := h.ownedRun(r, runID)
	if err != nil {
		return responseSpan{}, err
	}
	if max(span.After, span.Until) > run.Last.Seq {
		return responseSpan{}, event.ErrNotFound
	}
	request, ok := responses.DecodeStored(run.Request)
	if ok && !request.IsStored() {
		return responseSpan{}, newProblem("not_found", "The response was created with store false, so it is not kept. The native API has its run, at /runs/"+run.ID+".")
	}
	if !ok {
		start, err := h.startEventOf(r.Context(), run.ID)
		if err != nil {
			return responseSpan{}, err
		}
		request = responses.NewStoredRequest(run, start)
	}
	return responseSpan{run: run, request: request, Span: span, otherFormat: !ok}, nil
}

// startEventOf returns the start event of a run; the zero value if the run has none yet.
func (h *Handler) startEventOf(ctx context.Context, run string) (event.Start, error) {
	page, err := h.Log.After(ctx, run, 0)
	if err != nil || len(page.Events) == 0 {
		return event.Start{}, err
	}
	start, _ := page.Events[0].Body.(event.Start)
	return start, nil
}

// isWhole reports whether the response covers the whole run, whatever suspends it.
func (s responseSpan) isWhole() bool { return s.otherFormat && s.After == 0 }

// checkReadable returns why the response cannot be read at this time: the format has an item for
// approvals, but for no other input that a run can wait for.
func (s responseSpan) checkReadable() error {
	if suspended, ok := s.run.Last.Body.(event.Suspended); ok && !responses.OnlyApprovals(suspended) {
		return newProblem("not_found", "The run waits for input that a response has no item for: a form or a page of an MCP server, or a limit to raise. The native API has the question, at /runs/"+s.run.ID+".")
	}
	return nil
}

// needConversation returns the problem of a run of another API format whose conversation before
// the answer a caller needs. Such a run does not keep it, and a part of it would be wrong.
func (s responseSpan) needConversation() error {
	if s.otherFormat {
		return newProblem("not_found", "The run was started in another API format, which does not keep the conversation before it as the input of a response.")
	}
	return nil
}

// encodeSpan returns the function that encodes the events of s. A suspension that is over does not
// end a response that covers a whole run: the run is then read past it.
func (h *Handler) encodeSpan(ctx context.Context, s responseSpan, enc *responses.Encoder) func(event.Event) []sse.Frame {
	if !s.isWhole() {
		return enc.Encode
	}
	return func(e event.Event) []sse.Frame {
		if isSuspended(e) {
			if run, err := h.Log.Run(ctx, e.RunID); err == nil && run.Last.Seq != e.Seq {
				enc.Resume(e.Seq)
			}
		}
		return enc.Encode(e)
	}
}

// responseHeader returns the header with which an encoder encodes s. skip is the number of events
// of the stream that the caller already has. Apart from the lists of tools and the name of the default
// model, it depends on the stored request and the log alone. So the response is the same whenever it is
// encoded, also in another process.
func (h *Handler) responseHeader(r *http.Request, span responseSpan, skip int) (responses.Header, error) {
	defaultModel, _ := h.Agent.Models()
	head := responses.Header{
		ID: responses.FormatID(span.run.ID, span.Span), Created: span.run.Created, Model: cmp.Or(span.request.Model, defaultModel),
		PreviousID: span.request.PreviousID, Conversation: span.request.Conversation, Echo: span.request.Echo, Span: span.Span, Skip: skip, Whole: span.isWhole(),
	}
	if span.After > 0 {
		events, err := h.allEvents(r.Context(), span.run.ID)
		if err != nil {
			return responses.Header{}, err
		}
		head.PreviousID = responses.FormatID(span.run.ID, spanEndingAt(events, span.After))
	} else {
		head.ToolLists = h.toolLists(r, span.run.Agent, span.request)
	}
	return head, nil
}

// spanEndingAt returns the span of the response that ended with the event end. If the caller gave
// the run its approvals one after the other, that is the response to all of them.
func spanEndingAt(events []event.Event, end int64) (span responses.Span) {
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
			if lastSuspension > span.After {
				span.Until = e.Seq
			}
		case event.Suspended:
			lastSuspension = e.Seq
			if newRequests { // the run has suspended for new requests, so a new response begins
				span = responses.Span{After: e.Seq}
			}
			newRequests = false
		}
	}
	return span
}

// spanAnswering returns the span of the response that follows those approvals, which the run has
// in its log. For example, a run is suspended for two approvals (event 10), gets one of them (11), is
// suspended for the other (12), and gets that too (13). A request that answers both has the span After
// 10, Until 13: the suspension 12 is within the response and does not end it. A request that answers the
// second one alone has After 12.
func spanAnswering(events []event.Event, approvals []responses.Approval) (span responses.Span) {
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
				span.After = lastSuspension
			}
			if lastSuspension > firstSuspension {
				span.Until = e.Seq
			}
		}
	}
	if firstSuspension == 0 { // the log does not have the approvals yet
		span.After = lastSuspension
	}
	return span
}

// toolLists returns the tools of the MCP servers that the request named, as far as the caller and the
// agent may use them.
func (h *Handler) toolLists(r *http.Request, agentID string, request responses.StoredRequest) []responses.ToolList {
	if len(request.ListedServers) == 0 {
		return nil
	}
	tools := h.Agent.UsableTools(r.Context(), identity(r), agent.Request{Agent: agentID, Servers: request.ListedServers, Tools: request.Tools, ServerTools: request.ServerTools})
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
	span, err := h.findResponse(r, pathParam(r, "response_id"))
	if err == nil && span.isWhole() {
		err = span.needConversation()
	}
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
	if span.After > 0 { // InputItems needs the events only then
		if events, err = h.allEvents(r.Context(), span.run.ID); err != nil {
			return missingResponse(err, "response_id")
		}
	}

	items := span.request.InputItems(responses.FormatID(span.run.ID, span.Span), events)
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
// that continue this one do so with its thread, which keeps its turn. A response that waits for
// approvals is cancelled and deleted. The caller must cancel a response in progress first.
func (h *Handler) deleteResponse(w http.ResponseWriter, r *http.Request) error {
	id := pathParam(r, "response_id")
	s, err := h.findResponse(r, id)
	if err != nil {
		return missingResponse(err, "response_id")
	}
	run := s.run
	if run.Status() == event.StatusSuspended {
		if run, err = h.cancelAndWait(r, run.ID); err != nil && !errors.Is(err, errContextEnded) {
			return err
		}
	}
	if !run.Last.Terminal() {
		return newProblem("conflict", "The response is in progress. Cancel it first.")
	}
	if err := h.deleteWithChildren(r.Context(), run); err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, "application/json", map[string]any{"id": id, "object": "response", "deleted": true})
	return nil
}
