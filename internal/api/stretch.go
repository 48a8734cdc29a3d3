package api

import (
	"cmp"
	"net/http"

	"answerd/internal/agent"
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
