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

// Router asks each model as the model's Profile says: with the endpoint's id for it, its kind of tool calling, and its
// limit for an answer. Without profiles, it asks each model as the request says.
type Router struct {
	// Logger gets a line for each fallback; nil discards these lines. It must be set before the first Stream.
	Logger *slog.Logger

	routes atomic.Pointer[routes]
}

// routes says how models are asked. It must not change once a Stream uses it.
type routes struct {
	models         map[ToolCalling]Model            // ask the endpoint of the setting LLM_BASE_URL
	defaultCalling ToolCalling                      // for models whose profile does not set it; "" means AutoCalling
	profiles       map[string]Profile               // by the model's id in requests
	ownEndpoints   map[string]map[ToolCalling]Model // ask the endpoint of a profile with a BaseURL, by the model's id in requests
}

// NewRouter returns a Router over models, which must have one Model for each ToolCalling. These Models ask the same
// endpoint and differ in how they offer tools to it. calling applies to models whose profile does not set it; "" means
// AutoCalling. The keys of profiles are the model ids that requests use. If profiles is not empty, the Router refuses
// all other models.
func NewRouter(models map[ToolCalling]Model, calling ToolCalling, profiles map[string]Profile) *Router {
	router := &Router{}
	router.routes.Store(&routes{models: models, defaultCalling: calling, profiles: profiles, ownEndpoints: make(map[string]map[ToolCalling]Model)})
	return router
}

// SetEndpoint makes the Router use models for the model id, instead of the models passed to NewRouter. It must not be
// called after the first Stream.
func (router *Router) SetEndpoint(id string, models map[ToolCalling]Model) {
	router.routes.Load().ownEndpoints[id] = models
}

// Replace makes the Router ask models the way other does. It affects later calls of Stream only.
func (router *Router) Replace(other *Router) { router.routes.Store(other.routes.Load()) }

// Stream asks the requested model, or request.Preferred if that is one of its fallbacks. If a model is unavailable
// before the first part of its answer, Stream logs that and asks the next candidate. If the Router has profiles, but
// none for the requested model, Stream yields an error.
func (router *Router) Stream(ctx context.Context, request Request) iter.Seq2[Part, error] {
	routes := router.routes.Load()
	return func(yield func(Part, error) bool) {
		if _, served := routes.profiles[request.Model]; !served && len(routes.profiles) > 0 {
			yield(nil, &Error{
				Kind:         ModelError,
				UnknownModel: true,
				Public:       "The model is no longer served. Name one of GET /v1/models.",
				Err:          errors.New("the model has no profile"),
			})
			return
		}
		candidates := routes.candidates(request)
		for i, id := range candidates {
			hasFallback := i+1 < len(candidates)
			unavailable := routes.tryModel(ctx, request, id, yield, hasFallback)
			if unavailable == nil {
				return
			}
			logger := cmp.Or(router.Logger, slog.New(slog.DiscardHandler))
			logger.LogAttrs(ctx, slog.LevelInfo, "a model is unavailable, so its fallback is asked",
				slog.String("model", id), slog.String("fallback", candidates[i+1]), slog.String("reason", unavailable.Error()))
		}
	}
}

// candidates returns the ids of the models to ask, in order: the requested model and its fallbacks. If one of them is
// request.Preferred, which answered earlier in this run, it comes first. The conversation may have Extensions from its
// answers, and only its own endpoint accepts those (Message.Extensions).
func (routes *routes) candidates(request Request) []string {
	ids := append([]string{request.Model}, routes.profiles[request.Model].Fallback...)
	if i := slices.Index(ids, request.Preferred); i > 0 {
		ids = append([]string{request.Preferred}, slices.Delete(ids, i, i+1)...)
	}
	return ids
}

// tryModel asks the model id and yields the parts of its answer, or its error. But if hasFallback is true and the model
// is unavailable before its first part, tryModel yields nothing and returns the error. Otherwise it returns nil, and
// the stream has ended.
func (routes *routes) tryModel(ctx context.Context, request Request, id string, yield func(Part, error) bool, hasFallback bool) (unavailable error) {
	request.Model = id
	hasYielded := false
	for part, err := range routes.ask(ctx, request) {
		if err != nil {
			modelErr, isModelErr := errors.AsType[*Error](err)
			if isModelErr {
				modelErr.Asked = id
			}
			isUnavailable := isModelErr && modelErr.Unavailable
			if hasFallback && isUnavailable && !hasYielded && ctx.Err() == nil {
				return err
			}
			yield(nil, err)
			return nil
		}
		hasYielded = true
		if !yield(routes.withModel(part, id), nil) {
			return nil
		}
	}
	return nil
}

// withModel returns part with id as the model that was asked.
func (routes *routes) withModel(part Part, id string) Part {
	switch p := part.(type) {
	case Extensions:
		p.Model = id
		return p
	case Usage:
		p.Asked = id
		return p
	case Finish:
		p.Asked, p.Model = id, cmp.Or(p.Model, routes.profiles[id].Upstream, id)
		return p
	}
	return part
}

// ask sends the request to the endpoint of the requested model, as the model's profile says. The model's limit for an
// answer applies if the request has no limit or a higher one.
func (routes *routes) ask(ctx context.Context, request Request) iter.Seq2[Part, error] {
	profile, models := routes.profiles[request.Model], routes.models
	if own := routes.ownEndpoints[request.Model]; own != nil {
		models = own
	}
	request.Model = cmp.Or(profile.Upstream, request.Model)
	exceedsLimit := request.MaxTokens <= 0 || request.MaxTokens > profile.MaxOutputTokens
	if profile.MaxOutputTokens > 0 && exceedsLimit {
		request.MaxTokens = profile.MaxOutputTokens
	}
	if profile.StructuredOutput == PromptOutput {
		request = request.SchemaInPrompt()
	}
	calling := cmp.Or(profile.ToolCalling, routes.defaultCalling, AutoCalling)
	return models[calling].Stream(ctx, request)
}
