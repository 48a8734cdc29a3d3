package api

import (
	"cmp"
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

// createResponse serves POST /v1/responses: it starts a run, or resumes one if the request answers approval requests.
func (h *Handler) createResponse(w http.ResponseWriter, r *http.Request) error {
	body, err := h.readBody(r)
	if err != nil {
		return err
	}
	request, err := h.decodeResponseRequest(r, body)
	if err != nil {
		return err
	}
	if len(request.Approvals) > 0 {
		return h.answerApprovals(w, r, request)
	}

	// Encode this response from its stored form, so that it is the same when it is retrieved later.
	record := request.EncodeStored()
	stored, _ := responses.DecodeStored(record) // cannot fail for what EncodeStored returns
	request.Record = responses.NotStored

	if request.Echo.IsStored() {
		// The caller's next request can answer an approval. Elicitations and limits have no item
		// in this format, so they could not be answered.
		request.Interactive = true
		request.FormsDeclined = true
		request.AskAtLimit = false
		request.Record = record
		request.Awaited = !request.Stream
	}
	if err := h.selectAgent(identity(r), &request.Request); err != nil {
		return err
	}
	run, err := h.Agent.Start(r.Context(), identity(r), request.Request)
	if err != nil {
		return startProblem(err, request)
	}
	return h.sendResponse(w, r, responseSpan{run: run, request: stored}, request.Stream, request.Background)
}

// decodeResponseRequest decodes the body of a request for a response. If the request starts a run, it also adds what the
// log has: the thread that the run continues, and the items of earlier responses.
func (h *Handler) decodeResponseRequest(r *http.Request, body []byte) (request responses.Request, err error) {
	if request, err = responses.Decode(body); err != nil {
		return request, err
	}
	if err := native.DecodeOptions(request.Options, &request.Request); err != nil {
		return request, err
	}
	request.KeepHistory = request.ThreadID == "" && request.PreviousID == "" // else the thread may have the input already
	if len(request.Approvals) == 0 {
		if err := h.checkPastApprovals(r, request.PastApprovals); err != nil {
			return request, err
		}
		if err := h.continueThread(r, &request); err != nil {
			return request, err
		}
	}
	err = readIdempotencyKey(r, body, &request.Request)
	return request, err
}

// checkPastApprovals returns a *responses.Invalid if the newest of approvals answers a request that is still open. Other
// items follow these approvals in the input. Such an answer must not be ignored, but a suspended run cannot take the
// message that follows it. A run that cannot be found is not an error, but an unreachable log is.
func (h *Handler) checkPastApprovals(r *http.Request, approvals []responses.Approval) error {
	if len(approvals) == 0 {
		return nil
	}
	newest := approvals[len(approvals)-1]
	run, err := h.ownedRun(r, newest.Run)
	if errors.Is(err, event.ErrUnavailable) {
		return err
	}
	suspended, _ := run.Last.Body.(event.Suspended)
	if !slices.ContainsFunc(suspended.Interrupts, func(i event.Interrupt) bool { return i.ID == newest.Interrupt }) {
		return nil
	}
	return &responses.Invalid{Param: newest.Param, Message: "answers an approval request that is still open, so it must be at the end of the input: send what follows it in the next request"}
}

// continueThread makes request continue the thread of its previous response (PreviousID), after that response's turn.
// It also replaces references to items of earlier responses by the items themselves. The error names the wrong
// parameter.
func (h *Handler) continueThread(r *http.Request, request *responses.Request) error {
	err := request.ResolveReferences(h.Agent.MaxHistory, func(run string) ([]event.Event, error) {
		if _, err := h.ownedRun(r, run); err != nil {
			return nil, err
		}
		return event.ReadAll(r.Context(), h.Log, run)
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
	threadID, err := h.threadOfResponse(r, request.PreviousID)
	if err != nil {
		return missingResponse(err, "previous_response_id")
	}
	if request.ThreadID != "" && request.ThreadID != threadID {
		return &responses.Invalid{Param: "answerd.thread_id", Message: "is not the thread of the previous response"}
	}
	request.ThreadID = threadID
	request.AfterRun, _, _ = responses.ParseID(request.PreviousID)
	return nil
}

// threadOfResponse returns the id of the thread of the caller's response id. The thread may keep the response's turn
// longer than the log keeps its run or events. So a run that is gone is an error only if its thread is unknown.
func (h *Handler) threadOfResponse(r *http.Request, id string) (string, error) {
	span, err := h.findResponse(r, id)
	if !errors.Is(err, event.ErrGone) {
		return span.run.ThreadID, err
	}
	runID, _, _ := responses.ParseID(id)
	run, err := h.ownedRun(r, runID)
	if run.ThreadID != "" && errors.Is(err, event.ErrGone) {
		return run.ThreadID, nil
	}
	return run.ThreadID, err
}

// startProblem turns err, an error of Agent.Start, into an error that names the parameter of request that caused it. If
// no parameter did, it returns err unchanged.
func startProblem(err error, request responses.Request) error {
	busy, isBusy := errors.AsType[*event.BusyError](err)
	invalid, isInvalid := errors.AsType[*agent.InvalidError](err)
	switch {
	case isInvalid && strings.HasPrefix(invalid.Pointer, "/servers/"):
		index, _ := strconv.Atoi(strings.TrimPrefix(invalid.Pointer, "/servers/")) // cannot fail: the agent has written a number
		return &responses.Invalid{Param: request.ServerParam(index), Message: invalid.Detail}
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

// missingResponse turns err into the problem not_found about the parameter param, if err means that the response does
// not exist or is no longer kept. OpenAI's API answers 404 in both cases and has no 410. Any other error, or nil, is
// returned unchanged.
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

// sendResponse answers with a response whose run was started or resumed. If stream is true, it streams the response. If
// background is true, it sends the response as it is now. Otherwise it waits for the response to end, which may take as
// long as the run.
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
	return h.awaitResponse(w, r, span.run.ID, head)
}

// awaitResponse waits until the run has ended or is suspended, and answers with the response. If the log has dropped
// events of the run, the response has only the final answer. It is then the error event.ErrGone if the run is suspended
// for approvals or calls the client's functions, because those would be missing.
func (h *Handler) awaitResponse(w http.ResponseWriter, r *http.Request, runID string, head responses.Header) error {
	enc := responses.NewEncoder(head)
	calledTools := false
	eventCount := int64(0)
	// closedChannel stops the wait at a suspension, because that ends the response.
	run, err := h.awaitRun(r.Context(), runID, closedChannel, func(e event.Event) {
		eventCount++
		if e.Seq == eventCount { // after a gap, the encoder gets no more events
			enc.Encode(e)
		}
		call, ok := e.Body.(event.ToolCall)
		calledTools = calledTools || ok && call.Executor != event.Client
	})
	if err != nil {
		forbidSecondRun(w, r)
		return err
	}
	isPartial := eventCount != run.Last.Seq && !enc.HasEnded() // the log has dropped events of this long run
	if runErr, failed := run.Last.Body.(event.RunError); failed {
		return forbidRetry(runProblem(run, runErr), run, calledTools || isPartial)
	}
	if isPartial {
		answer, _ := run.Last.Body.(event.FinalAnswer)
		if !run.Last.Terminal() || answer.FinishReason == "tool_calls" {
			return event.ErrGone // approval requests or calls, which are the response, may be missing
		}
		// The last event has the whole answer and the usage. StructuredOutput makes the encoder take the text from it
		// and not from deltas, some of which are missing.
		enc = responses.NewEncoder(head)
		enc.Encode(event.Event{Seq: head.After + 1, Body: event.Start{StructuredOutput: true}})
		enc.Encode(run.Last)
	}
	return answerJSON(w, enc.Response())
}

// streamResponse streams a response, without the first head.Skip events of its stream, which the client already has.
func (h *Handler) streamResponse(w http.ResponseWriter, r *http.Request, s responseSpan, head responses.Header) {
	enc := responses.NewEncoder(head)
	encode := h.encodeSpan(r.Context(), s, enc)
	f := formatOf(enc)
	f.append = func(buf []byte, e event.Event) []byte { return appendFrames(buf, encode(e)) }
	f.ended = enc.HasEnded
	h.streamRun(w, r, s.run.ID, 0, f)
}

// writeResponse answers with the response as of the run's newest event.
func (h *Handler) writeResponse(w http.ResponseWriter, r *http.Request, s responseSpan, head responses.Header) error {
	events, err := event.ReadAll(r.Context(), h.Log, s.run.ID)
	if err != nil {
		return err
	}
	enc := responses.NewEncoder(head)
	encode := h.encodeSpan(r.Context(), s, enc)
	for _, e := range events {
		encode(e)
	}
	return answerJSON(w, enc.Response())
}

// getResponse serves GET /v1/responses/{response_id}, as a stream if the query has stream=true.
func (h *Handler) getResponse(w http.ResponseWriter, r *http.Request) error {
	span, err := h.findResponse(r, pathParam(r, "response_id"))
	if err != nil {
		return missingResponse(err, "response_id")
	}
	if err := span.checkReadable(); err != nil {
		return missingResponse(err, "response_id")
	}
	// Report dropped events now: after the header, a stream can only be cut.
	if _, err := h.Log.After(r.Context(), span.run.ID, 0); err != nil {
		return missingResponse(err, "response_id")
	}
	stream, skip, err := parseResponseQuery(r.URL.Query())
	if err != nil {
		return err
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

// parseResponseQuery parses the query of GET /v1/responses/{response_id}. stream reports that the client wants a
// stream, and skip is the number of the stream's events that the client already has. The error is a problem.
func parseResponseQuery(query url.Values) (stream bool, skip int, err error) {
	if stream, err = strconv.ParseBool(cmp.Or(query.Get("stream"), "false")); err != nil {
		return false, 0, newProblem("invalid_request", "The parameter stream must be true or false.")
	}
	after := query.Get("starting_after")
	if after == "" {
		return stream, 0, nil
	}
	sequenceNumber, err := strconv.ParseUint(after, 10, 31)
	if err != nil || !stream {
		return false, 0, newProblem("invalid_request", "The parameter starting_after must be the sequence_number of an event, and needs stream=true.")
	}
	return stream, int(sequenceNumber) + 1, nil // sequence numbers start at 0
}

// cancelResponse serves POST /v1/responses/{response_id}/cancel. It answers with the response when the run has ended,
// or as it is after cancelWait. The run is cancelled before its events are read. So a run whose first events the log
// has dropped is cancelled too, although the answer is then 404: its response cannot be built without these events.
func (h *Handler) cancelResponse(w http.ResponseWriter, r *http.Request) error {
	span, err := h.findResponse(r, pathParam(r, "response_id"))
	if err != nil {
		return missingResponse(err, "response_id")
	}
	if _, err := h.cancelAndWait(r, span.run.ID); err != nil && !errors.Is(err, errContextEnded) {
		return missingResponse(err, "response_id")
	}
	head, err := h.responseHeader(r, span, 0)
	if err != nil {
		return missingResponse(err, "response_id")
	}
	return missingResponse(h.writeResponse(w, r, span, head), "response_id")
}

// answerApprovals passes the request's answers to the run that asked for approvals, all or none, and sends the response
// that follows. It begins where the response with the approval requests ended. A client may repeat the request because
// it lost the response. Answers that the run already has are then not passed again.
func (h *Handler) answerApprovals(w http.ResponseWriter, r *http.Request, request responses.Request) error {
	runID := request.Approvals[0].Run // all approvals belong to the same run
	span, err := h.findResponse(r, responses.FormatID(runID, responses.Span{}))
	if err != nil {
		return missingResponse(err, "input")
	}
	events, err := h.submitApprovals(r, runID, request.Approvals)
	if err != nil {
		return err
	}
	span.Span = spanAnswering(events, request.Approvals)
	return h.sendResponse(w, r, span, request.Stream, request.Background)
}

// submitApprovals passes the approvals that the run does not have yet to the run, and returns the run's events, which
// then show all of them. The error is a conflict if the run has another answer to one of the requests.
func (h *Handler) submitApprovals(r *http.Request, runID string, approvals []responses.Approval) ([]event.Event, error) {
	events, err := event.ReadAll(r.Context(), h.Log, runID)
	if err != nil {
		return nil, missingResponse(err, "input")
	}
	var inputs []agent.Input
	for _, a := range unrecordedApprovals(events, approvals) {
		inputs = append(inputs, agent.Input{ID: a.Interrupt, Approved: &a.Approve, Reason: a.Reason})
	}
	var answerErr error
	if len(inputs) > 0 {
		answerErr = h.Agent.Answer(r.Context(), identity(r), runID, inputs...)
	}
	wasAnswered := errors.Is(answerErr, agent.ErrAnswered) // perhaps by the same request, which has arrived twice at once
	if answerErr != nil && !wasAnswered {
		return nil, answerErr
	}
	if events, err = event.ReadAll(r.Context(), h.Log, runID); err != nil {
		return nil, err
	}
	if wasAnswered && len(unrecordedApprovals(events, approvals)) > 0 {
		return nil, newProblem("conflict", "This approval request has been answered differently, or is no longer open.")
	}
	return events, nil
}

// unrecordedApprovals returns the approvals that events does not show as resolved with the same decision.
func unrecordedApprovals(events []event.Event, approvals []responses.Approval) []responses.Approval {
	return slices.DeleteFunc(slices.Clone(approvals), func(a responses.Approval) bool {
		return slices.ContainsFunc(events, func(e event.Event) bool {
			resolved, ok := e.Body.(event.ApprovalResolved)
			return ok && resolved.InterruptID == a.Interrupt && resolved.Approved == a.Approve
		})
	})
}
