package api

import (
	"errors"
	"net/http"
	"slices"

	"answerd/internal/agent"
	"answerd/internal/api/responses"
	"answerd/internal/event"
)

// approve gives the answers to approval requests, all of them or none. The response that
// follows begins where the one that asked ended.
func (h *Handler) approve(w http.ResponseWriter, r *http.Request, q responses.Request) error {
	id := q.Approvals[0].Run
	run, err := h.owned(r, id)
	if err != nil {
		return notThere(err, "input")
	}
	events, err := h.all(r.Context(), id)
	if err != nil {
		return notThere(err, "input")
	}
	kept, ok := responses.ReadKept(run.Request)
	if !ok {
		return newProblem("not_found", "There is no such response.")
	}
	var inputs []agent.Input
	for _, a := range q.Approvals {
		if !answeredSo(events, a) {
			inputs = append(inputs, agent.Input{ID: a.Interrupt, Approved: &a.Approve, Reason: a.Reason})
		}
	}
	if len(inputs) > 0 {
		err = h.Agent.Answer(r.Context(), identity(r), id, inputs...)
	}
	again := errors.Is(err, agent.ErrAnswered) // the same request may have come at the same moment
	if err == nil || again {
		events, err = h.all(r.Context(), id)
		if err == nil && again && slices.ContainsFunc(q.Approvals, func(a responses.Approval) bool { return !answeredSo(events, a) }) {
			err = onceOnly(newProblem("conflict", "This was answered otherwise, or is not asked any more."), false)
		}
	}
	if err != nil {
		return err
	}
	return h.respond(w, r, stretch{run, kept, answering(events, q.Approvals)}, q.Stream, q.Background)
}

// answeredSo reports whether an approval was given before just so: a client that repeats
// its request, because the answer was lost, is to get the answer.
func answeredSo(events []event.Event, a responses.Approval) bool {
	return slices.ContainsFunc(events, func(e event.Event) bool {
		b, ok := e.Body.(event.ApprovalResolved)
		return ok && b.InterruptID == a.Interrupt && b.Approved == a.Approve
	})
}
