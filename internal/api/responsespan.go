package api

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"slices"
	"strconv"

	"answerd/internal/agent"
	"answerd/internal/api/responses"
	"answerd/internal/event"
	"answerd/internal/sse"
)

// responseSpan is one response: the part of a run from one of its events to its end, or to a suspension for approvals.
type responseSpan struct {
	run            event.Run
	request        responses.StoredRequest // the request that started the run
	responses.Span                         // where in the run the response begins and ends
	otherFormat    bool                    // the run was started in another API format
}

// findResponse returns the caller's response with that id, which may be a run of any API format. The error is
// event.ErrNotFound if the response does not exist or is another caller's, so that nothing reveals that it exists. It
// is the problem not_found if the response was created with store false, and event.ErrGone if the log has dropped the
// run or the events that are needed of it.
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
	if ok && !request.Echo.IsStored() {
		return responseSpan{}, newProblem("not_found", "The response was created with store false, so it is not kept. "+
			"The native API has its run, at /runs/"+run.ID+".")
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

// startEventOf returns the run's start event, or the zero value if the log does not have it yet.
func (h *Handler) startEventOf(ctx context.Context, run string) (event.Start, error) {
	page, err := h.Log.After(ctx, run, 0)
	if err != nil || len(page.Events) == 0 {
		return event.Start{}, err
	}
	start, _ := page.Events[0].Body.(event.Start)
	return start, nil
}

// isWhole reports whether the response covers a whole run: the run was started in another API format, and the response
// begins at its start. The run's approvals may have been given in any format, so a suspension that is over does not end
// the response.
func (s responseSpan) isWhole() bool { return s.otherFormat && s.After == 0 }

// checkReadable returns a problem while the run waits for input other than approvals, because the format has no item
// for it. Otherwise it returns nil.
func (s responseSpan) checkReadable() error {
	if suspended, ok := s.run.Last.Body.(event.Suspended); ok && !responses.OnlyApprovals(suspended) {
		return newProblem("not_found", "The run waits for input that a response has no item for: a form or a page of an "+
			"MCP server, or a limit to raise. The native API has the question, at /runs/"+s.run.ID+".")
	}
	return nil
}

// encodeSpan returns a function that encodes the run's events with enc, one by one. If s covers a whole run, a
// suspension that is over must not end the response, so the function tells enc to continue after it.
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

// responseHeader returns the header for encoding the response. skip is the number of the stream's events that the
// client already has. A run's first response also has the lists of tools, which are those of now. Apart from them and
// from the default model's name, the header depends only on the stored request and the log, so another process encodes
// the same response.
func (h *Handler) responseHeader(r *http.Request, span responseSpan, skip int) (responses.Header, error) {
	defaultModel, _ := h.Agent.Models()
	head := responses.Header{
		ID: responses.FormatID(span.run.ID, span.Span), Created: span.run.Created,
		Model: cmp.Or(span.request.Model, defaultModel), PreviousID: span.request.PreviousID,
		Conversation: span.request.Conversation, Echo: span.request.Echo,
		Span: span.Span, Skip: skip, Whole: span.isWhole(),
	}
	if span.After > 0 { // the response follows another one of the same run
		events, err := event.ReadAll(r.Context(), h.Log, span.run.ID)
		if err != nil {
			return responses.Header{}, err
		}
		head.PreviousID = responses.FormatID(span.run.ID, spanEndingAt(events, span.After))
	} else {
		head.ToolLists = h.toolLists(r, span.run.Agent, span.request)
	}
	return head, nil
}

// spanEndingAt returns the span of the response that ended with a suspension; end is the suspension's sequence number,
// and events are the run's events. If the client answered the approval requests of an earlier suspension one by one,
// the result is the span of the response to all of them (spanAnswering has an example).
func spanEndingAt(events []event.Event, end int64) (span responses.Span) {
	newRequests := false       // the run has asked for approvals since lastSuspension
	lastSuspension := int64(0) // the sequence number; 0 before the first suspension
	for _, e := range events {
		if e.Seq >= end {
			break
		}
		switch e.Body.(type) {
		case event.ApprovalRequired:
			newRequests = true
		case event.ApprovalResolved:
			if lastSuspension > span.After { // it was for a request that this response answers, so it is within the span
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

// spanAnswering returns the span of the response to a request that has these approvals. events are the run's events,
// which show the approvals as resolved. For example, a run is suspended for two approvals (event 10), gets the first
// (11), is suspended for the second (12), and gets it too (13). A request with both answers has the span After 10,
// Until 13: the suspension 12 is within its response and does not end it. A request with only the second answer has
// After 12.
func spanAnswering(events []event.Event, approvals []responses.Approval) (span responses.Span) {
	lastSuspension := int64(0)  // the sequence number of the latest suspension
	firstSuspension := int64(0) // the one before the first of the approvals; 0 until that is found
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
			if lastSuspension > firstSuspension { // it was for another of the approvals, so it is within the span
				span.Until = e.Seq
			}
		}
	}
	if firstSuspension == 0 { // the log does not have the approvals yet
		span.After = lastSuspension
	}
	return span
}

// toolLists returns a list for each MCP server that the request named. A list has the server's tools that both the
// caller and the agent may use, and may be empty. The result is nil if the request named no servers.
func (h *Handler) toolLists(r *http.Request, agentID string, request responses.StoredRequest) []responses.ToolList {
	if len(request.ListedServers) == 0 {
		return nil
	}
	tools := h.Agent.UsableTools(r.Context(), identity(r), agent.Request{
		Agent: agentID, Servers: request.ListedServers, Tools: request.Tools, ServerTools: request.ServerTools,
	})
	var lists []responses.ToolList
	for _, server := range request.ListedServers {
		list := responses.ToolList{Server: server}
		for _, t := range tools {
			if t.Server == server {
				list.Tools = append(list.Tools, responses.ListedTool{Name: t.Name, Description: t.Description, InputSchema: t.InputSchema})
			}
		}
		lists = append(lists, list)
	}
	return lists
}

// maxInputItems is the largest page of input items, and defaultInputItems is the size of a page if the query has no
// limit.
const (
	maxInputItems     = 100
	defaultInputItems = 20
)

// listInputItems serves GET /v1/responses/{response_id}/input_items: a page of the conversation up to the question or,
// if the response resumed its run, of the approvals that resumed it.
func (h *Handler) listInputItems(w http.ResponseWriter, r *http.Request) error {
	span, err := h.findResponse(r, pathParam(r, "response_id"))
	if err != nil {
		return missingResponse(err, "response_id")
	}
	if span.isWhole() { // the log does not keep the conversation, and a part of it would be wrong
		p := newProblem("not_found", "The run was started in another API format, "+
			"which does not keep the conversation before it as the input of a response.")
		return missingResponse(p, "response_id")
	}
	query := r.URL.Query()
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
		if events, err = event.ReadAll(r.Context(), h.Log, span.run.ID); err != nil {
			return missingResponse(err, "response_id")
		}
	}

	items := span.request.InputItems(responses.FormatID(span.run.ID, span.Span), events)
	if order == "desc" {
		slices.Reverse(items)
	}
	page, found := responses.NewPage(items, query.Get("after"), limit)
	if !found {
		return queryProblem("after", "is not the id of an item of this list")
	}
	return answerJSON(w, page)
}

// queryProblem returns the problem for the query parameter name.
func queryProblem(name, detail string) error {
	p := newProblem("invalid_request", name+": "+detail)
	p.param = name
	return p
}

// deleteResponse serves DELETE /v1/responses/{response_id}. It deletes the run and its child runs, and therefore also
// the other responses of that run. The thread keeps the run's turn, because later runs may have continued it. A
// response that waits for approvals is cancelled first. A response in progress is refused with 409: the client must
// cancel it first.
func (h *Handler) deleteResponse(w http.ResponseWriter, r *http.Request) error {
	id := pathParam(r, "response_id")
	span, err := h.findResponse(r, id)
	if err != nil {
		return missingResponse(err, "response_id")
	}
	run := span.run
	if run.Status() == event.StatusSuspended {
		run, err = h.cancelAndWait(r, run.ID)
		if errors.Is(err, errContextEnded) {
			return newProblem("conflict", "The response was cancelled and has not ended yet. Delete it again.").withRetryAfter()
		}
		if err != nil {
			return missingResponse(err, "response_id")
		}
	}
	if !run.Last.Terminal() {
		return newProblem("conflict", "The response is in progress. Cancel it, and delete it when it has ended.")
	}
	if err := h.deleteWithChildren(r.Context(), run); err != nil {
		return err
	}
	return answerJSON(w, map[string]any{"id": id, "object": "response", "deleted": true})
}
