package api

import (
	"errors"
	"net/http"
	"slices"
	"strings"

	"answerd/internal/agent"
	"answerd/internal/api/native"
	"answerd/internal/event"
)

// How the formats show what the native events say
//
//	native              Chat Completions    Responses             AI SDK                 AG-UI
//	call by the agent   reasoning_content   mcp_call              dynamic tool           TOOL_CALL_*
//	call by the caller  tool_calls          function_call         tool of the page       TOOL_CALL_*
//	approval_required   –                   mcp_approval_request  tool-approval-request  interrupt
//	elicitation         –                   –                     client tool            interrupt
//	limit of a budget   –                   –                     –                      interrupt
//	step_reset          line of reasoning   item incomplete       data-step-reset        CUSTOM
//	run_error           error, no [DONE]    response.failed       error                  RUN_ERROR
//	cancelled           finish_reason stop  response.incomplete   abort                  RUN_FINISHED (0.x: RUN_ERROR)
//
// A dash means that the format cannot ask a person for that. When the handler starts the run, it sets Interactive,
// FormsDeclined and AskAtLimit of agent.Request accordingly, and the agent declines such questions itself. Otherwise
// the run would be suspended for a question that its reader cannot see, until the question expires.
//
// Only the native format has positions, so only native streams can begin in the middle of a run. In any other format,
// the encoding of an event depends on all earlier events. For example, a text delta of the AI SDK is fatal to a client
// that did not get the chunk that opens its part. So these streams are always encoded from the first event, and leave
// out the frames that the client already has (Header.After, Header.Skip).

// ownerOf returns the caller as the owner of runs and threads in the log.
func ownerOf(r *http.Request) event.Owner {
	id := identity(r)
	return event.Owner{Issuer: id.Issuer, Subject: id.Subject}
}

// findSuspendedRun returns the newest suspended run of the caller's thread that has open interrupts for which match
// returns true, and these interrupts. If no run has any, it returns the zero Run without interrupts or an error. It is
// for API formats whose requests name the thread but not the run to resume. The error is event.ErrGone if the log has
// dropped events of the run.
func (h *Handler) findSuspendedRun(
	r *http.Request, thread string, match func(event.Interrupt) bool,
) (_ event.Run, matching []event.Interrupt, _ error) {
	page, err := h.Log.Runs(r.Context(), event.Filter{
		Owner: ownerOf(r), ThreadID: thread, Status: event.StatusSuspended, Limit: event.MaxPage,
	})
	if err != nil {
		return event.Run{}, nil, err
	}
	for _, run := range page.Runs {
		suspension, _ := run.Last.Body.(event.Suspended) // without interrupts if the run was just resumed
		matching = slices.DeleteFunc(slices.Clone(suspension.Interrupts), func(i event.Interrupt) bool { return !match(i) })
		if len(matching) == 0 {
			continue
		}
		// Encoders need the run from its first event on. If the log has dropped it, the request must fail before the
		// interrupts are answered.
		_, err := h.Log.After(r.Context(), run.ID, 0)
		return run, matching, err
	}
	return event.Run{}, nil, nil
}

// untilSuspended returns a copy of format, for one stream, that also ends the stream at a suspension. canAsk must
// report that the format can ask a person for the input that the run waits for; any other suspension adds no frames and
// does not end the stream. A suspension is also skipped if it is over, because the run has newer events, or if the run
// cannot be read.
func (h *Handler) untilSuspended(r *http.Request, format streamFormat, canAsk func(event.Suspended) bool) streamFormat {
	suspended := false
	appendEvent := format.append
	format.append = func(buf []byte, e event.Event) []byte {
		encoded := appendEvent(buf, e)
		suspension, ok := e.Body.(event.Suspended)
		if !ok {
			return encoded
		}
		run, err := h.Log.Run(r.Context(), e.RunID)
		isOver := err != nil || run.Last.Seq != e.Seq
		if isOver || !canAsk(suspension) {
			return encoded[:len(buf)]
		}
		suspended = true
		return encoded
	}
	format.ended = func() bool { return suspended }
	return format
}

// decodeOptions decodes raw, the member "answerd" with native fields, into req. It is for API formats that have their
// own field for the thread. prefix is the JSON pointer to the object that has the member; "" is the body. The error is
// a *native.Invalid, also if the member names another thread or agent than req.
func decodeOptions(raw []byte, prefix string, req *agent.Request) error {
	threadID, agentID := req.ThreadID, req.Agent // as the fields of the API format name them
	err := native.DecodeOptions(raw, req)
	switch {
	case err != nil:
	case agentID != "" && req.Agent != agentID:
		err = native.NewInvalid("/answerd/agent", "the request also names the agent "+agentID)
	case req.ThreadID != threadID:
		err = native.NewInvalid("/answerd/thread_id", "this API format has its own field for the thread")
	}
	if invalid, ok := errors.AsType[*native.Invalid](err); ok {
		for i := range invalid.Errors {
			invalid.Errors[i].Pointer = prefix + invalid.Errors[i].Pointer
		}
	}
	return err
}

// mapPointer changes the JSON pointer of err, if that is an *agent.InvalidError, from the native field to the field of
// an API format that has the question and the history in "messages". It returns other errors unchanged. prefix is as in
// decodeOptions.
func mapPointer(err error, prefix string) error {
	invalid, ok := errors.AsType[*agent.InvalidError](err)
	if !ok {
		return err
	}
	pointer := invalid.Pointer
	field, _, _ := strings.Cut(strings.TrimPrefix(pointer, "/"), "/")
	switch field {
	case "servers", "tools", "max_turns", "budget", "context", "prompt", "output_schema", "agent":
		pointer = prefix + "/answerd" + pointer
	case "question", "history":
		pointer = "/messages"
	}
	return &agent.InvalidError{Pointer: pointer, Detail: invalid.Detail}
}

// mapInputPointers changes the JSON pointers in err, an error of Agent.Answer, from the fields of POST
// /runs/{run_id}/input to those of a request in another API format. newPointer returns the pointer in that request for
// pointer, a native pointer, in the answer to the interrupt with that id. Errors without pointers are returned unchanged.
func mapInputPointers(err error, newPointer func(interrupt, pointer string) string) error {
	input, ok := errors.AsType[*agent.InputError](err)
	if !ok {
		return err
	}
	if invalid, ok := errors.AsType[*agent.InvalidError](err); ok {
		return &agent.InvalidError{Pointer: newPointer(input.ID, invalid.Pointer), Detail: invalid.Detail}
	}
	content, ok := errors.AsType[*agent.ContentError](err)
	if !ok {
		return err
	}
	mapped := &agent.ContentError{}
	for _, f := range content.Fields {
		mapped.Fields = append(mapped.Fields, agent.InvalidError{Pointer: newPointer(input.ID, f.Pointer), Detail: f.Detail})
	}
	return mapped
}
