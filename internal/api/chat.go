package api

import (
	"cmp"
	"maps"
	"net/http"
	"slices"

	"answerd/internal/agent"
	"answerd/internal/api/chat"
	"answerd/internal/api/native"
	"answerd/internal/event"
)

// availableModels returns what the caller may use as the model of a request: the models that have a profile, or the
// default model if none has one, and the named agents.
func (h *Handler) availableModels(r *http.Request) []chat.Model {
	defaultModel, profiles := h.Agent.Models()
	ids := slices.Sorted(maps.Keys(profiles))
	if len(ids) == 0 {
		ids = []string{defaultModel}
	}
	ids = slices.DeleteFunc(ids, func(id string) bool { return !h.Agent.MayUseModel(identity(r), id) })
	for _, d := range h.Agent.Agents(identity(r)) {
		if h.Agent.HasAgent(d.ID) { // without AGENTS_FILE, the one agent has no name
			ids = append(ids, d.ID)
		}
	}
	return chat.ModelList(ids, h.started)
}

// listModels serves GET /v1/models.
func (h *Handler) listModels(w http.ResponseWriter, r *http.Request) error {
	return answerJSON(w, map[string]any{"object": "list", "data": h.availableModels(r)})
}

// getModel serves GET /v1/models/{model}. A model that the caller may not use gets the same error as an unknown one.
func (h *Handler) getModel(w http.ResponseWriter, r *http.Request) error {
	id := pathParam(r, "model")
	models := h.availableModels(r)
	i := slices.IndexFunc(models, func(m chat.Model) bool { return m.ID == id })
	if i < 0 {
		return &agent.InvalidError{Pointer: "/model", Detail: "not one of the models that are served"}
	}
	return answerJSON(w, models[i])
}

// chatCompletions serves POST /v1/chat/completions, with a stream or one completion. The format cannot ask a person, so
// the run is not Interactive: the agent declines everything that needs a person's decision.
func (h *Handler) chatCompletions(w http.ResponseWriter, r *http.Request) error {
	body, err := h.readBody(r)
	if err != nil {
		return err
	}
	request, err := chat.Decode(body)
	if err != nil {
		return err
	}
	if err := native.DecodeOptions(request.Options, &request.Request); err != nil {
		return err
	}
	if err := readIdempotencyKey(r, body, &request.Request); err != nil {
		return err
	}
	if err := h.selectAgent(identity(r), &request.Request); err != nil {
		return err
	}
	run, err := h.Agent.Start(r.Context(), identity(r), request.Request)
	if err != nil {
		return err
	}
	defaultModel, _ := h.Agent.Models()
	head := chat.Header{ID: run.ID, Model: cmp.Or(request.Model, defaultModel), Created: run.Created}
	if request.Stream {
		h.streamRun(w, r, run.ID, 0, formatOf(chat.NewEncoder(head, request.IncludeUsage)))
		return nil
	}
	return h.awaitCompletion(w, r, head)
}

// awaitCompletion waits until the run has ended, and answers with the completion.
func (h *Handler) awaitCompletion(w http.ResponseWriter, r *http.Request, head chat.Header) error {
	collector := chat.NewCollector(head)
	eventCount := int64(0)
	run, err := h.awaitRun(r.Context(), head.ID, nil, func(e event.Event) {
		eventCount++
		collector.Add(e)
	})
	if err != nil {
		forbidSecondRun(w, r)
		return err
	}
	isPartial := eventCount != run.Last.Seq // the log has dropped events of this long run
	if p := endProblem(run); p != nil {
		calledTools := collector.CalledTools() || isPartial // a call may be among the dropped events
		return forbidRetry(p, run, calledTools)
	}
	if answer, _ := run.Last.Body.(event.FinalAnswer); isPartial && answer.FinishReason == "tool_calls" {
		return event.ErrGone // the calls, which are the answer, may be incomplete
	}
	return answerJSON(w, collector.Completion())
}
