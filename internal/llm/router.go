package llm

import (
	"cmp"
	"context"
	"errors"
	"iter"
	"log/slog"
	"slices"
	"sync/atomic"
)

// Router asks each model as its profile says: by the endpoint's own id, with its kind of
// tool calling and its bound on an answer. Without profiles each model is asked as the
// request has it.
type Router struct {
	// Logger gets a line for each fallback; nil discards them. It must be set before the first
	// Stream.
	Logger *slog.Logger

	routes atomic.Pointer[routes]
}

// routes says how models are asked. It does not change once a Stream uses it.
type routes struct {
	models   map[ToolCalling]Model
	calling  ToolCalling
	profiles map[string]Profile
	own      map[string]map[ToolCalling]Model
}

// NewRouter returns a Router over models, which ask the same endpoint and differ in how it is
// offered tools; there must be one for each ToolCalling. calling applies to models whose
// profile does not say which to use; "" is AutoCalling. The keys of profiles are the ids that
// requests name; if there are any, no other model is asked.
func NewRouter(models map[ToolCalling]Model, calling ToolCalling, profiles map[string]Profile) *Router {
	router := &Router{}
	router.routes.Store(&routes{models: models, calling: calling, profiles: profiles, own: make(map[string]map[ToolCalling]Model)})
	return router
}

// SetEndpoint sets what asks the endpoint of the model id, in place of the models of NewRouter.
// It must not be called after the first Stream.
func (router *Router) SetEndpoint(id string, models map[ToolCalling]Model) {
	router.routes.Load().own[id] = models
}

// Replace makes router ask models as other does, from the next Stream on.
func (router *Router) Replace(other *Router) { router.routes.Store(other.routes.Load()) }

// Stream asks the model that the request names. If that one is unavailable before the first part of its
// answer, it asks those of the profile's Fallback in order.
func (router *Router) Stream(ctx context.Context, r Request) iter.Seq2[Part, error] {
	routes := router.routes.Load()
	return func(yield func(Part, error) bool) {
		if _, served := routes.profiles[r.Model]; !served && len(routes.profiles) > 0 {
			yield(nil, &Error{
				Kind:         ModelError,
				UnknownModel: true,
				Public:       "The model is no longer served. Name one of GET /v1/models.",
				Err:          errors.New("the model has no profile"),
			})
			return
		}
		candidates := routes.candidates(r)
		for i, id := range candidates {
			failed, stopped := routes.tryModel(ctx, r, id, yield, i+1 < len(candidates))
			if failed == nil || stopped {
				return
			}
			logger := cmp.Or(router.Logger, slog.New(slog.DiscardHandler))
			logger.LogAttrs(ctx, slog.LevelInfo, "a model is unavailable, so its fallback is asked",
				slog.String("model", id), slog.String("fallback", candidates[i+1]), slog.String("reason", failed.Error()))
		}
	}
}

// candidates returns the ids of the models to ask, in order. One that answered in this run
// comes first: another endpoint lacks the members that its messages must carry.
func (routes *routes) candidates(r Request) []string {
	ids := append([]string{r.Model}, routes.profiles[r.Model].Fallback...)
	if i := slices.Index(ids, r.Preferred); i > 0 {
		ids = append([]string{r.Preferred}, slices.Delete(ids, i, i+1)...)
	}
	return ids
}

// tryModel asks one model and yields its parts. It returns an error that it did not yield if
// another model may be asked, and otherwise reports that it has stopped.
func (routes *routes) tryModel(ctx context.Context, r Request, id string, yield func(Part, error) bool, mayFail bool) (failed error, stopped bool) {
	r.Model = id
	began := false
	for part, err := range routes.ask(ctx, r) {
		if err != nil {
			e, isOurs := errors.AsType[*Error](err)
			if isOurs {
				e.Asked = id
			}
			isUnavailable := isOurs && e.Unavailable
			if mayFail && isUnavailable && !began && ctx.Err() == nil {
				return err, false
			}
			yield(nil, err)
			return err, true
		}
		began = true
		switch p := part.(type) {
		case Extensions:
			p.Model = id
			part = p
		case Finish:
			p.Asked, p.Model = id, cmp.Or(p.Model, routes.profiles[id].Upstream, id)
			part = p
		}
		if !yield(part, nil) {
			return nil, true
		}
	}
	return nil, true
}

// ask asks the one model that request names.
func (routes *routes) ask(ctx context.Context, request Request) iter.Seq2[Part, error] {
	p, models := routes.profiles[request.Model], routes.models
	if own := routes.own[request.Model]; own != nil {
		models = own
	}
	request.Model = cmp.Or(p.Upstream, request.Model)
	exceedsLimit := request.MaxTokens <= 0 || request.MaxTokens > p.MaxOutputTokens
	if p.MaxOutputTokens > 0 && exceedsLimit {
		request.MaxTokens = p.MaxOutputTokens
	}
	if p.StructuredOutput == PromptOutput {
		request = request.SchemaInPrompt()
	}
	return models[cmp.Or(p.ToolCalling, routes.calling, AutoCalling)].Stream(ctx, request)
}
