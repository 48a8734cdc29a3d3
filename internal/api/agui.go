package api

import (
	"net/http"

	"answerd/internal/agent"
	"answerd/internal/agent/definition"
	"answerd/internal/api/agui"
	"answerd/internal/event"
)

// postAGUI serves POST /agui and POST /agui/{agent}. The request has either a question, which starts a run of the
// agent, or answers to interrupts, which resume the thread's suspended run. Both are streamed as one AG-UI run.
func (h *Handler) postAGUI(w http.ResponseWriter, r *http.Request) error {
	agentID := pathParam(r, "agent")
	if agentID == definition.CapabilitiesID { // /agui/capabilities has a route for GET only, and is not an agent
		return methodNotAllowed(w, r)
	}
	if err := requireAcceptable(r, "text/event-stream"); err != nil {
		return err
	}
	body, err := h.readBody(r)
	if err != nil {
		return err
	}
	request, err := agui.Decode(body)
	if err != nil {
		return err
	}
	if err := decodeOptions(request.Options, "/forwardedProps", &request.Request); err != nil {
		return err
	}
	if err := readIdempotencyKey(r, body, &request.Request); err != nil {
		return err
	}
	if agentID != "" {
		if err := setAgent(&request.Request, agentID); err != nil {
			return mapPointer(err, "/forwardedProps")
		}
	}
	if len(request.Answers) > 0 {
		return h.resumeAGUI(w, r, request)
	}
	run, err := h.Agent.Start(r.Context(), identity(r), request.Request)
	if err != nil {
		return mapPointer(err, "/forwardedProps")
	}
	h.streamAGUI(w, r, request, run, 0)
	return nil
}

// resumeAGUI answers the interrupts of the thread's suspended run and streams the rest of that run as a new AG-UI run.
// The request must answer all open interrupts, because the client then shows the run as running again. Answers to
// interrupts that are no longer open are ignored.
func (h *Handler) resumeAGUI(w http.ResponseWriter, r *http.Request, request agui.Request) error {
	answers := make(map[string]agui.Answer) // by interrupt id
	for _, answer := range request.Answers {
		answers[answer.ID] = answer
	}
	isAnswered := func(i event.Interrupt) bool {
		_, ok := answers[i.ID]
		return ok
	}
	run, _, err := h.findSuspendedRun(r, request.ThreadID, isAnswered)
	if err != nil {
		return err
	}
	suspension, _ := run.Last.Body.(event.Suspended) // without interrupts if no run was found
	if len(suspension.Interrupts) == 0 {
		return newProblem("conflict", "The interrupts that this request resumes have been resolved already, or are no longer open.")
	}
	var inputs []agent.Input
	kinds := make(map[string]string) // by interrupt id
	for _, i := range suspension.Interrupts {
		answer, ok := answers[i.ID]
		if !ok {
			return &agui.Invalid{Field: "resume", Message: "must answer every open interrupt"}
		}
		input, err := answer.InputFor(i.Kind)
		if err != nil {
			return err
		}
		inputs = append(inputs, input)
		kinds[i.ID] = i.Kind
	}
	if err := h.Agent.Answer(r.Context(), identity(r), run.ID, inputs...); err != nil {
		return mapInputPointers(err, func(interrupt, field string) string {
			return jsonPointer(answers[interrupt].Field) + agui.PayloadField(kinds[interrupt], field)
		})
	}
	h.streamAGUI(w, r, request, run, run.Last.Seq)
	return nil
}

// streamAGUI streams the events that follow the event after, as the AG-UI run that request names. It reads the run from
// its start, because the encoder needs all events. The encoder returns no frames for those up to after.
func (h *Handler) streamAGUI(w http.ResponseWriter, r *http.Request, request agui.Request, run event.Run, after int64) {
	head := agui.Header{
		ThreadID: request.ThreadID, ClientRunID: request.RunID, RunID: run.ID, V1: request.V1, After: after,
	}
	canAskAnything := func(event.Suspended) bool { return true } // AG-UI has interrupts of every kind
	h.streamRun(w, r, run.ID, 0, h.untilSuspended(r, formatOf(agui.NewEncoder(head)), canAskAnything))
}

// getAGUICapabilities serves GET /agui/capabilities.
func (h *Handler) getAGUICapabilities(w http.ResponseWriter, r *http.Request) error {
	return answerJSON(w, agui.Capabilities())
}
