package api

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strconv"

	"github.com/go-chi/chi/v5"

	"answerd/internal/agent"
	"answerd/internal/api/native"
	"answerd/internal/api/responses"
	"answerd/internal/event"
)

// createResponse is POST /v1/responses.
func (h *Handler) createResponse(w http.ResponseWriter, r *http.Request) error {
	var q responses.Request
	req, err := h.decode(r, func(body []byte) (_ agent.Request, err error) {
		if q, err = responses.Decode(body); err == nil {
			err = native.DecodeOptions(q.Options, &q.Request)
		}
		if err == nil && len(q.Approvals) == 0 {
			err = h.goOn(r, &q)
		}
		return q.Request, err
	})
	if err != nil {
		return err
	}
	if len(q.Approvals) > 0 {
		return h.approve(w, r, q)
	}
	record := q.EncodeStored()
	kept, _ := responses.DecodeStored(record)
	if q.Stored() {
		// Whoever reads can answer an approval with the next request; forms and limits have no
		// item.
		req.Interactive, req.FormsDeclined, req.AskAtLimit, req.Record = true, true, false, record
		req.Awaited = !q.Stream
	}
	run, err := h.Agent.Start(r.Context(), identity(r), req)
	if err != nil {
		return err
	}
	return h.respond(w, r, stretch{run: run, kept: kept}, q.Stream, q.Background)
}

// goOn makes what was said before part of the request: the conversation of the previous
// response, and the items that are referred to.
func (h *Handler) goOn(r *http.Request, q *responses.Request) error {
	err := q.ResolveReferences(func(run string) ([]event.Event, error) {
		if _, err := h.owned(r, run); err != nil {
			return nil, err
		}
		return h.all(r.Context(), run)
	})
	if err != nil || q.PreviousID == "" {
		return err
	}
	before, err := h.stretch(r, q.PreviousID)
	if err != nil {
		return notThere(err, "previous_response_id")
	}
	if !before.run.Last.Terminal() {
		p := newProblem("conflict", "The previous response is not complete yet.")
		p.param = "previous_response_id"
		return onceOnly(p, false)
	}
	events, err := h.all(r.Context(), before.run.ID)
	if err != nil {
		return notThere(err, "previous_response_id")
	}
	q.History = slices.Concat(before.kept.Messages(), responses.HistoryOf(events), q.History)
	q.ThreadID = cmp.Or(q.ThreadID, before.run.ThreadID)
	return nil
}

// notThere is err as one of the parameter that names what is not there.
func notThere(err error, param string) error {
	if errors.Is(err, event.ErrNotFound) {
		p := newProblem("not_found", "There is no such response.")
		p.param = param
		return p
	}
	return err
}

// all is every event of a run so far.
func (h *Handler) all(ctx context.Context, run string) ([]event.Event, error) {
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

// respond tells a response that has begun: as a stream, as it is, or once it has ended.
func (h *Handler) respond(w http.ResponseWriter, r *http.Request, s stretch, stream, background bool) error {
	head, err := h.header(r, s, 0)
	if err != nil {
		return err
	}
	switch {
	case stream:
		h.tell(w, r, s, head)
		return nil
	case background:
		return h.show(w, r, s, head)
	}
	enc, acted, seen := responses.NewEncoder(head), false, int64(0)
	over := make(chan struct{})
	close(over) // who waits for an approval is told so at once
	run, err := h.await(r.Context(), s.run.ID, over, func(e event.Event) {
		if seen++; e.Seq == seen {
			enc.Encode(e)
		}
		b, ok := e.Body.(event.ToolCall)
		acted = acted || ok && b.Executor != event.Client
	})
	if err != nil {
		return err
	}
	if seen != run.Last.Seq && !enc.Ended() {
		return event.ErrGone // the log could not keep so much
	}
	if end, failed := run.Last.Body.(event.RunError); failed {
		return onceOnly(runProblem(run, end), acted)
	}
	writeJSON(w, http.StatusOK, "application/json", enc.Response())
	return nil
}

// tell streams a response.
func (h *Handler) tell(w http.ResponseWriter, r *http.Request, s stretch, head responses.Header) {
	enc := responses.NewEncoder(head)
	f := framesOf(enc)
	f.ended = enc.Ended
	h.follow(w, r, s.run.ID, 0, f)
}

// show is a response as it stands.
func (h *Handler) show(w http.ResponseWriter, r *http.Request, s stretch, head responses.Header) error {
	events, err := h.all(r.Context(), s.run.ID)
	if err != nil {
		return err
	}
	enc := responses.NewEncoder(head)
	for _, e := range events {
		enc.Encode(e)
	}
	writeJSON(w, http.StatusOK, "application/json", enc.Response())
	return nil
}

// response is GET /v1/responses/{response_id}, which streams if it is asked to.
func (h *Handler) response(w http.ResponseWriter, r *http.Request) error {
	s, err := h.stretch(r, chi.URLParam(r, "response_id"))
	if err != nil {
		return notThere(err, "response_id")
	}
	query, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return newProblem("invalid_request", "The query is not well formed.")
	}
	skip := 0
	stream, err := strconv.ParseBool(cmp.Or(query.Get("stream"), "false"))
	if err != nil {
		return newProblem("invalid_request", "The parameter stream is true or false.")
	}
	if after := query.Get("starting_after"); after != "" {
		n, err := strconv.ParseUint(after, 10, 31)
		if err != nil || !stream {
			return newProblem("invalid_request", "The parameter starting_after is the sequence_number of an event, and goes with stream.")
		}
		skip = int(n) + 1 // they count from 0
	}
	head, err := h.header(r, s, skip)
	if err != nil {
		return err
	}
	if stream {
		h.tell(w, r, s, head)
		return nil
	}
	return h.show(w, r, s, head)
}

// cancelResponse is POST /v1/responses/{response_id}/cancel.
func (h *Handler) cancelResponse(w http.ResponseWriter, r *http.Request) error {
	s, err := h.stretch(r, chi.URLParam(r, "response_id"))
	if err != nil {
		return notThere(err, "response_id")
	}
	head, err := h.header(r, s, 0)
	if err != nil {
		return err
	}
	if _, err := h.stop(r, s.run.ID); err != nil && !errors.Is(err, errGone) {
		return err
	}
	return h.show(w, r, s, head)
}

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
	kept, ok := responses.DecodeStored(run.Request)
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
