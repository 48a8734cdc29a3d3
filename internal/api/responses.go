package api

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"slices"
	"strconv"

	"github.com/go-chi/chi/v5"

	"answerd/internal/agent"
	"answerd/internal/api/native"
	"answerd/internal/api/responses"
	"answerd/internal/event"
)

// stretch is a response: a run from one of its events on, to its end or to where it
// waits for approvals.
type stretch struct {
	run   event.Run
	kept  responses.Kept
	after int64
}

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
	record := q.Keep()
	kept, _ := responses.ReadKept(record)
	if q.Stored() {
		// Whoever reads can answer an approval with the next request; forms have no item.
		req.Interactive, req.FormsDeclined, req.Record = true, true, record
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
	err := q.Resolve(func(run string) ([]event.Event, error) {
		if _, err := h.owned(r, run); err != nil {
			return nil, err
		}
		return h.all(r.Context(), run)
	})
	if err != nil || q.Previous == "" {
		return err
	}
	before, err := h.stretch(r, q.Previous)
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
	q.History = slices.Concat(before.kept.Asked(), responses.Conversation(events), q.History)
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

// approve gives the answers to approval requests. The response that follows begins where
// the one that asked ended.
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
	after := int64(0)
	for _, a := range q.Approvals {
		err := h.Agent.Answer(r.Context(), identity(r), id, agent.Input{ID: a.Interrupt, Approved: &a.Approve, Reason: a.Reason})
		if err != nil && !(errors.Is(err, agent.ErrAnswered) && answeredSo(events, a)) {
			return err
		}
		after = max(after, askedBy(events, a.Interrupt))
	}
	return h.respond(w, r, stretch{run, kept, after}, q.Stream, q.Background)
}

// answeredSo reports whether an approval was given before just so: a client that repeats
// its request, because the answer was lost, is to get the answer.
func answeredSo(events []event.Event, a responses.Approval) bool {
	return slices.ContainsFunc(events, func(e event.Event) bool {
		b, ok := e.Body.(event.ApprovalResolved)
		return ok && b.InterruptID == a.Interrupt && b.Approved == a.Approve
	})
}

// askedBy is where the response ended that asked for the approval.
func askedBy(events []event.Event, interrupt string) int64 {
	asked := false
	for _, e := range events {
		switch b := e.Body.(type) {
		case event.ApprovalRequired:
			asked = asked || b.InterruptID == interrupt
		case event.Suspended:
			if asked {
				return e.Seq
			}
		}
	}
	return 0
}

// stretch is the caller's response of that id.
func (h *Handler) stretch(r *http.Request, id string) (stretch, error) {
	name, after, ok := responses.ParseID(id)
	if !ok {
		return stretch{}, event.ErrNotFound
	}
	run, err := h.owned(r, name)
	if err != nil {
		return stretch{}, err
	}
	kept, ok := responses.ReadKept(run.Request)
	if !ok || after > run.Last.Seq {
		return stretch{}, event.ErrNotFound
	}
	return stretch{run, kept, after}, nil
}

// encoder tells s. Its events have to be given from the run's first on.
func (h *Handler) encoder(r *http.Request, s stretch, skip int) (*responses.Encoder, error) {
	head := responses.Header{
		ID: responses.ID(s.run.ID, s.after), Created: s.run.Created, Model: cmp.Or(s.kept.Model, h.Agent.DefaultModel),
		Previous: s.kept.Previous, Echo: s.kept.Echo, After: s.after, Skip: skip,
	}
	if s.after > 0 {
		events, err := h.all(r.Context(), s.run.ID)
		if err != nil {
			return nil, err
		}
		head.Previous = responses.ID(s.run.ID, suspendedBefore(events, s.after))
	} else {
		head.Lists = h.lists(r, s.kept)
	}
	return responses.NewEncoder(head), nil
}

// suspendedBefore is where the response began that ended with the event of that number.
func suspendedBefore(events []event.Event, end int64) (begin int64) {
	for _, e := range events {
		if _, ok := e.Body.(event.Suspended); ok && e.Seq < end {
			begin = e.Seq
		}
	}
	return begin
}

// lists are the tools of the MCP servers that the request named.
func (h *Handler) lists(r *http.Request, k responses.Kept) []responses.List {
	var out []responses.List
	if len(k.Listed) == 0 {
		return nil
	}
	tools := h.Agent.Usable(r.Context(), identity(r), agent.Request{Servers: k.Listed, Tools: k.Tools})
	for _, server := range k.Listed {
		l := responses.List{Server: server}
		for _, t := range tools {
			if t.Server == server {
				l.Tools = append(l.Tools, responses.ListedTool{Name: t.Name, Description: t.Description, InputSchema: t.InputSchema})
			}
		}
		out = append(out, l)
	}
	return out
}

// respond tells a response that has begun: as a stream, as it is, or once it has ended.
func (h *Handler) respond(w http.ResponseWriter, r *http.Request, s stretch, stream, background bool) error {
	enc, err := h.encoder(r, s, 0)
	if err != nil {
		return err
	}
	switch {
	case stream:
		h.tell(w, r, s, enc)
		return nil
	case background:
		return h.show(w, r, s, enc)
	}
	acted := false
	over := make(chan struct{})
	close(over) // who waits for an approval is told so at once
	run, err := h.await(r.Context(), s.run.ID, over, func(e event.Event) {
		enc.Encode(e)
		b, ok := e.Body.(event.ToolCall)
		acted = acted || ok && b.Executor != event.Client
	})
	if err != nil {
		return err
	}
	if end, failed := run.Last.Body.(event.RunError); failed {
		return onceOnly(runProblem(run, end), acted)
	}
	writeJSON(w, http.StatusOK, "application/json", enc.Response())
	return nil
}

// tell streams a response, whose encoder has seen nothing yet.
func (h *Handler) tell(w http.ResponseWriter, r *http.Request, s stretch, enc *responses.Encoder) {
	f := framesOf(enc.Encode)
	f.ended = enc.Ended
	h.follow(w, r, s.run.ID, 0, f)
}

// show is a response as it stands.
func (h *Handler) show(w http.ResponseWriter, r *http.Request, s stretch, enc *responses.Encoder) error {
	events, err := h.all(r.Context(), s.run.ID)
	if err != nil {
		return err
	}
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
	query, skip := r.URL.Query(), 0
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
	enc, err := h.encoder(r, s, skip)
	if err != nil {
		return err
	}
	if stream {
		h.tell(w, r, s, enc)
		return nil
	}
	return h.show(w, r, s, enc)
}

// cancelResponse is POST /v1/responses/{response_id}/cancel.
func (h *Handler) cancelResponse(w http.ResponseWriter, r *http.Request) error {
	s, err := h.stretch(r, chi.URLParam(r, "response_id"))
	if err != nil {
		return notThere(err, "response_id")
	}
	enc, err := h.encoder(r, s, 0)
	if err != nil {
		return err
	}
	h.Agent.Cancel(s.run.ID)
	ctx, stop := context.WithTimeout(r.Context(), cancelWait)
	defer stop()
	if _, err := h.await(ctx, s.run.ID, nil, nil); err != nil && !errors.Is(err, errGone) {
		return err
	}
	return h.show(w, r, s, enc)
}
