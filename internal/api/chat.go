package api

import (
	"cmp"
	"maps"
	"net/http"
	"net/url"
	"slices"

	"github.com/go-chi/chi/v5"

	"answerd/internal/agent"
	"answerd/internal/api/chat"
	"answerd/internal/api/native"
)

// served are the models that the caller can ask for.
func (h *Handler) served(r *http.Request) []chat.Model {
	ids := slices.Sorted(maps.Keys(h.Agent.Profiles))
	if len(ids) == 0 {
		ids = []string{h.Agent.DefaultModel}
	}
	ids = slices.DeleteFunc(ids, func(id string) bool { return !h.Agent.MayUseModel(identity(r), id) })
	return chat.ModelList(ids, h.started)
}

// models is GET /v1/models.
func (h *Handler) models(w http.ResponseWriter, r *http.Request) error {
	writeJSON(w, http.StatusOK, "application/json", map[string]any{"object": "list", "data": h.served(r)})
	return nil
}

// model is GET /v1/models/{model}. The ids of some have slashes in them, which clients
// escape; chi matches the path as it was escaped where that matters.
func (h *Handler) model(w http.ResponseWriter, r *http.Request) error {
	id := chi.URLParam(r, "model")
	if r.URL.RawPath != "" {
		id, _ = url.PathUnescape(id) // what cannot be is the id of no model
	}
	all := h.served(r)
	i := slices.IndexFunc(all, func(m chat.Model) bool { return m.ID == id })
	if i < 0 {
		return &agent.InvalidError{Pointer: "/model", Detail: "not one of the models that are served"}
	}
	writeJSON(w, http.StatusOK, "application/json", all[i])
	return nil
}

// chatCompletions is POST /v1/chat/completions. What would need a person is declined:
// the format has no way to ask.
func (h *Handler) chatCompletions(w http.ResponseWriter, r *http.Request) error {
	var q chat.Request
	req, err := h.decode(r, func(body []byte) (_ agent.Request, err error) {
		if q, err = chat.Decode(body); err == nil {
			err = native.DecodeOptions(q.Options, &q.Request)
		}
		return q.Request, err
	})
	if err != nil {
		return err
	}
	run, err := h.Agent.Start(r.Context(), identity(r), req)
	if err != nil {
		return err
	}
	head := chat.Header{ID: run.ID, Model: cmp.Or(q.Model, h.Agent.DefaultModel), Created: run.Created}
	if q.Stream {
		h.follow(w, r, run.ID, 0, framesOf(chat.NewEncoder(head, q.IncludeUsage)))
		return nil
	}
	c := chat.NewCollector(head)
	run, err = h.await(r.Context(), run.ID, nil, c.Add)
	if err != nil {
		return err
	}
	if err := endProblem(run); err != nil {
		return onceOnly(err, c.CalledTools())
	}
	writeJSON(w, http.StatusOK, "application/json", c.Completion())
	return nil
}
