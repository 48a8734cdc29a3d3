package api

import (
	"net/http"

	"answerd/internal/agent"
	"answerd/internal/api/agui"
	"answerd/internal/event"
)

// agui is POST /agui: an AG-UI run, which is a run of ours or goes on with one.
func (h *Handler) agui(w http.ResponseWriter, r *http.Request) error {
	if err := accepts(r, "text/event-stream"); err != nil {
		return err
	}
	var q agui.Request
	req, err := h.decode(r, func(body []byte) (_ agent.Request, err error) {
		if q, err = agui.Decode(body); err == nil {
			err = decodeOptions(q.Options, "/forwardedProps", &q.Request)
		}
		return q.Request, err
	})
	if err != nil {
		return err
	}
	if len(q.Answers) > 0 {
		return h.aguiGoOn(w, r, q)
	}
	run, err := h.Agent.Start(r.Context(), identity(r), req)
	if err != nil {
		return underPrefix(err, "/forwardedProps", "messages")
	}
	h.aguiStream(w, r, q, run, 0)
	return nil
}

// aguiGoOn answers what the thread's run asks, and goes on with it as an AG-UI run of its
// own. Nothing is answered where an answer is missing or does not fit; one to what is not
// asked any more is passed over.
func (h *Handler) aguiGoOn(w http.ResponseWriter, r *http.Request, q agui.Request) error {
	answers := make(map[string]agui.Answer)
	for _, a := range q.Answers {
		answers[a.ID] = a
	}
	run, _, err := h.waiting(r, q.ThreadID, func(i event.Interrupt) bool { _, ok := answers[i.ID]; return ok })
	if err != nil {
		return err
	}
	waits, _ := run.Last.Body.(event.Suspended)
	if len(waits.Interrupts) == 0 {
		return newProblem("conflict", "What this resumes was answered before, or is not asked any more.")
	}
	var inputs []agent.Input
	for _, i := range waits.Interrupts {
		a, ok := answers[i.ID]
		if !ok {
			return &agui.Invalid{Field: "resume", Message: "must answer every interrupt that is open"}
		}
		in, err := a.Input(i.Kind)
		if err != nil {
			return err
		}
		inputs = append(inputs, in)
	}
	if err := h.Agent.Answer(r.Context(), identity(r), run.ID, inputs...); err != nil {
		return err
	}
	h.aguiStream(w, r, q, run, run.Last.Seq)
	return nil
}

func (h *Handler) aguiStream(w http.ResponseWriter, r *http.Request, q agui.Request, run event.Run, after int64) {
	head := agui.Header{ThreadID: q.ThreadID, ClientRunID: q.RunID, RunID: run.ID, V1: q.V1, After: after}
	h.follow(w, r, run.ID, 0, h.untilSuspended(r, framesOf(agui.NewEncoder(head))))
}

// aguiCapabilities is GET /agui/capabilities.
func (h *Handler) aguiCapabilities(w http.ResponseWriter, r *http.Request) error {
	if err := accepts(r, "application/json"); err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, "application/json", agui.Capabilities())
	return nil
}
