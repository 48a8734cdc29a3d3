package api

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"answerd/internal/agent"
	"answerd/internal/agent/thread"
	"answerd/internal/api/native"
	"answerd/internal/api/responses"
	"answerd/internal/event"
)

// createResponse serves POST /v1/responses.
func (h *Handler) createResponse(w http.ResponseWriter, r *http.Request) error {
	var request responses.Request
	req, err := h.decodeRequest(r, func(body []byte) (_ agent.Request, err error) {
		if request, err = responses.Decode(body); err == nil {
			err = native.DecodeOptions(request.Options, &request.Request)
		}
		if err == nil && len(request.Approvals) == 0 {
			err = h.continueThread(r, &request)
		}
		return request.Request, err
	})
	if err != nil {
		return err
	}
	if len(request.Approvals) > 0 {
		return h.answerApprovals(w, r, request)
	}

	// Use the stored form for this response too, so that it is the same when it is retrieved later.
	record := request.EncodeStored()
	stored, _ := responses.DecodeStored(record)
	req.Record = responses.NotStored

	if request.IsStored() {
		// The caller's next request can answer an approval. Elicitations and limits have no item
		// in this format, so they could not be answered.
		req.Interactive = true
		req.FormsDeclined = true
		req.AskAtLimit = false
		req.Record = record
		req.Awaited = !request.Stream
	}
	if err := h.selectAgent(&req); err != nil {
		return err
	}
	run, err := h.Agent.Start(r.Context(), identity(r), req)
	if err != nil {
		return startProblem(err, request)
	}
	return h.sendResponse(w, r, responseSpan{run: run, request: stored}, request.Stream, request.Background)
}

// continueThread makes the request continue the thread of the previous response, after that response. It
// replaces references to items of earlier responses by the items.
func (h *Handler) continueThread(r *http.Request, request *responses.Request) error {
	err := request.ResolveReferences(h.Agent.MaxHistory, func(run string) ([]event.Event, error) {
		if _, err := h.ownedRun(r, run); err != nil {
			return nil, err
		}
		return h.allEvents(r.Context(), run)
	})
	if err != nil {
		return missingResponse(err, "input")
	}
	if request.ConversationID != "" && request.ThreadID != request.ConversationID {
		return &responses.Invalid{Param: "conversation", Message: "names another thread than answerd.thread_id"}
	}
	if request.PreviousID == "" {
		return nil
	}
	id, _, _ := responses.ParseID(request.PreviousID)
	previous, err := h.findResponse(r, request.PreviousID)
	if errors.Is(err, event.ErrGone) { // the thread may have its turn longer than the log has its events
		previous.run, err = h.ownedRun(r, id)
		if errors.Is(err, event.ErrGone) && previous.run.ThreadID != "" {
			err = nil
		}
	}
	if err != nil {
		return missingResponse(err, "previous_response_id")
	}
	if request.ThreadID != "" && request.ThreadID != previous.run.ThreadID {
		return &responses.Invalid{Param: "answerd.thread_id", Message: "is not the thread of the previous response"}
	}
	request.ThreadID, request.AfterRun = previous.run.ThreadID, id
	return nil
}

// startProblem returns the error of a run that did not start as the problem of the parameter that is the
// cause.
func startProblem(err error, request responses.Request) error {
	busy, isBusy := errors.AsType[*event.BusyError](err)
	bad, isInvalid := errors.AsType[*agent.InvalidError](err)
	switch {
	case isInvalid && strings.HasPrefix(bad.Pointer, "/servers/"):
		index, _ := strconv.Atoi(strings.TrimPrefix(bad.Pointer, "/servers/")) // the agent made it of a number
		return &responses.Invalid{Param: request.ServerParam(index), Message: bad.Detail}
	case errors.Is(err, thread.ErrNoTurn):
		p := newProblem("not_found", "Previous response with id '"+request.PreviousID+"' not found.")
		p.param = "previous_response_id"
		return p
	case isBusy:
		p, _ := problemFor(busy)
		p.param = "conversation"
		if request.PreviousID != "" {
			p.param = "previous_response_id"
		}
		return p
	}
	return err
}

// missingResponse returns the reason why there is no response as the problem of the parameter that
// names it, and other errors as they are. The OpenAI API has no 410: a response that is no longer
// kept is 404 there.
func missingResponse(err error, param string) error {
	p, ok := errors.AsType[*problem](err)
	switch {
	case ok && p.Code == "not_found":
	case errors.Is(err, event.ErrNotFound):
		p = newProblem("not_found", "There is no such response.")
	case errors.Is(err, event.ErrGone):
		p = newProblem("not_found", "The response is no longer kept.")
	case errors.Is(err, event.ErrLost):
		p = newProblem("not_found", "The response was lost when the process that executed it ended. Ask again.")
	default:
		return err
	}
	p.param = param
	return p
}

// allEvents returns the events of a run so far.
func (h *Handler) allEvents(ctx context.Context, run string) ([]event.Event, error) {
	var out []event.Event
	for {
		page, err := h.Log.After(ctx, run, int64(len(out)))
		if err != nil {
			return nil, err
		}
		out = append(out, page.Events...)
		if page.Ended || len(page.Events) == 0 {
			return out, nil
		}
	}
}

// sendResponse answers with a response whose run was started or resumed: as a stream, as it is now
// (background), or when it has ended.
func (h *Handler) sendResponse(w http.ResponseWriter, r *http.Request, span responseSpan, stream, background bool) error {
	head, err := h.responseHeader(r, span, 0)
	if err != nil {
		return err
	}
	switch {
	case stream:
		h.streamResponse(w, r, span, head)
		return nil
	case background:
		return h.writeResponse(w, r, span, head)
	}
	enc, calledTools, seen := responses.NewEncoder(head), false, int64(0)
	// closedChannel stops the wait at a suspension, because that ends the response.
	run, err := h.awaitRun(r.Context(), span.run.ID, closedChannel, func(e event.Event) {
		seen++
		if e.Seq == seen {
			enc.Encode(e)
		}
		call, ok := e.Body.(event.ToolCall)
		calledTools = calledTools || ok && call.Executor != event.Client
	})
	if err != nil {
		forbidSecondRun(w, r)
		return err
	}
	isPartial := seen != run.Last.Seq && !enc.HasEnded() // the log has dropped events of this long run
	answer, _ := run.Last.Body.(event.FinalAnswer)
	end, failed := run.Last.Body.(event.RunError)
	switch {
	case failed:
		return forbidRetry(runProblem(run, end), run, calledTools || isPartial)
	case isPartial && (!run.Last.Terminal() || answer.FinishReason == "tool_calls"):
		return event.ErrGone // approval requests or calls are missing
	}
	if isPartial { // the answer is complete, and so is the usage
		enc = responses.NewEncoder(head)
		enc.Encode(event.Event{Seq: head.After + 1, Body: event.Start{StructuredOutput: true}}) // takes the text from the last event
		enc.Encode(run.Last)
	}
	writeJSON(w, http.StatusOK, "application/json", enc.Response())
	return nil
}

// streamResponse streams a response from the first event that the caller lacks (Header.Skip).
func (h *Handler) streamResponse(w http.ResponseWriter, r *http.Request, s responseSpan, head responses.Header) {
	enc := responses.NewEncoder(head)
	encode := h.encodeSpan(r.Context(), s, enc)
	f := formatOf(enc)
	f.append = func(buf []byte, e event.Event) []byte { return appendFrames(buf, encode(e)) }
	f.ended = enc.HasEnded
	h.streamRun(w, r, s.run.ID, 0, f)
}

// writeResponse answers with a response as of the newest event of its run.
func (h *Handler) writeResponse(w http.ResponseWriter, r *http.Request, s responseSpan, head responses.Header) error {
	events, err := h.allEvents(r.Context(), s.run.ID)
	if err != nil {
		return err
	}
	enc := responses.NewEncoder(head)
	encode := h.encodeSpan(r.Context(), s, enc)
	for _, e := range events {
		encode(e)
	}
	writeJSON(w, http.StatusOK, "application/json", enc.Response())
	return nil
}

// getResponse serves GET /v1/responses/{response_id}, as a stream if the query has stream=true.
func (h *Handler) getResponse(w http.ResponseWriter, r *http.Request) error {
	span, err := h.findResponse(r, pathParam(r, "response_id"))
	if err == nil {
		err = span.checkReadable()
	}
	if err == nil { // report dropped events now: after the header, a stream can only be cut
		_, err = h.Log.After(r.Context(), span.run.ID, 0)
	}
	if err != nil {
		return missingResponse(err, "response_id")
	}
	query, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return newProblem("invalid_request", "The query is malformed.")
	}
	skip := 0
	stream, err := strconv.ParseBool(cmp.Or(query.Get("stream"), "false"))
	if err != nil {
		return newProblem("invalid_request", "The parameter stream must be true or false.")
	}
	if after := query.Get("starting_after"); after != "" {
		n, err := strconv.ParseUint(after, 10, 31)
		if err != nil || !stream {
			return newProblem("invalid_request", "The parameter starting_after must be the sequence_number of an event, and needs stream=true.")
		}
		skip = int(n) + 1 // sequence numbers start at 0
	}
	head, err := h.responseHeader(r, span, skip)
	if err != nil {
		return err
	}
	if stream {
		h.streamResponse(w, r, span, head)
		return nil
	}
	return h.writeResponse(w, r, span, head)
}

// cancelResponse serves POST /v1/responses/{response_id}/cancel. It answers with the response as
// it is after cancelWait, if the run has not ended by then. The response is read last, because a run whose
// events the log has dropped can be cancelled too.
func (h *Handler) cancelResponse(w http.ResponseWriter, r *http.Request) error {
	span, err := h.findResponse(r, pathParam(r, "response_id"))
	if err != nil {
		return missingResponse(err, "response_id")
	}
	if _, err := h.cancelAndWait(r, span.run.ID); err != nil && !errors.Is(err, errContextEnded) {
		return missingResponse(err, "response_id")
	}
	head, err := h.responseHeader(r, span, 0)
	if err == nil {
		err = h.writeResponse(w, r, span, head)
	}
	return missingResponse(err, "response_id")
}

// answerApprovals gives the run the answers to its approval requests, all or none, and sends the
// response that follows. That response begins where the one that asked has ended. A client may
// repeat the request because it lost the response; answers that the run already has are then not
// given again.
func (h *Handler) answerApprovals(w http.ResponseWriter, r *http.Request, request responses.Request) error {
	id := request.Approvals[0].Run
	span, err := h.findResponse(r, responses.FormatID(id, responses.Span{}))
	if err != nil {
		return missingResponse(err, "input")
	}
	events, err := h.allEvents(r.Context(), id)
	if err != nil {
		return missingResponse(err, "input")
	}
	var inputs []agent.Input
	for _, a := range request.Approvals {
		if !hasApproval(events, a) {
			inputs = append(inputs, agent.Input{ID: a.Interrupt, Approved: &a.Approve, Reason: a.Reason})
		}
	}
	if len(inputs) > 0 {
		err = h.Agent.Answer(r.Context(), identity(r), id, inputs...)
	}
	repeated := errors.Is(err, agent.ErrAnswered) // the same request may have arrived twice at once
	if err != nil && !repeated {
		return err
	}
	if events, err = h.allEvents(r.Context(), id); err != nil {
		return err
	}
	notGiven := func(a responses.Approval) bool { return !hasApproval(events, a) }
	if repeated && slices.ContainsFunc(request.Approvals, notGiven) {
		return newProblem("conflict", "This approval request has been answered differently, or is no longer open.")
	}
	span.Span = spanAnswering(events, request.Approvals)
	return h.sendResponse(w, r, span, request.Stream, request.Background)
}

// hasApproval reports whether the run has this answer to an approval request already. A client
// that repeats its request because the response was lost then gets the response.
func hasApproval(events []event.Event, a responses.Approval) bool {
	return slices.ContainsFunc(events, func(e event.Event) bool {
		b, ok := e.Body.(event.ApprovalResolved)
		return ok && b.InterruptID == a.Interrupt && b.Approved == a.Approve
	})
}
