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

// Router asks each model as its profile says: by the endpoint's own id, with its kind of tool calling and its bound on
// an answer. Without profiles each model is asked as the request has it.
type Router struct {
	// Logger gets a line for each fallback; nil discards them. It must be set before the first Stream.
	Logger *slog.Logger

	routes atomic.Pointer[routes]
}

// routes says how models are asked. It does not change once a Stream uses it.
type routes struct {
	models         map[ToolCalling]Model            // ask the endpoint of the setting LLM_BASE_URL
	defaultCalling ToolCalling                      // for models whose profile names none; "" means AutoCalling
	profiles       map[string]Profile               // by the id in requests
	ownEndpoints   map[string]map[ToolCalling]Model // ask the endpoint of a profile with a BaseURL, by the id in requests
}

// NewRouter returns a Router over models, which ask the same endpoint and differ in how it is offered tools; there must
// be one for each ToolCalling. calling applies to models whose profile does not say which to use; "" is AutoCalling.
// The keys of profiles are the ids that requests name; if there are any, no other model is asked.
func NewRouter(models map[ToolCalling]Model, calling ToolCalling, profiles map[string]Profile) *Router {
	router := &Router{}
	router.routes.Store(&routes{models: models, defaultCalling: calling, profiles: profiles, ownEndpoints: make(map[string]map[ToolCalling]Model)})
	return router
}

// SetEndpoint sets what asks the endpoint of the model id, in place of the models of NewRouter.
// It must not be called after the first Stream.
func (router *Router) SetEndpoint(id string, models map[ToolCalling]Model) {
	router.routes.Load().ownEndpoints[id] = models
}

// Replace makes router ask models as other does, from the next Stream on.
func (router *Router) Replace(other *Router) { router.routes.Store(other.routes.Load()) }

// Stream asks the model that the request names, or request.Preferred if that is one of its fallbacks. If a model is
// unavailable before the first part of its answer, Stream logs that and asks the next one of candidates. If there are
// profiles, a model without one is an error.
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

// candidates returns the ids of the models to ask, in order: the requested one and its fallbacks. If request.Preferred,
// which answered earlier in this run, is one of them, it comes first: the conversation may have Extensions of its
// answers, which only its own endpoint gets (Message.Extensions).
func (routes *routes) candidates(request Request) []string {
	ids := append([]string{request.Model}, routes.profiles[request.Model].Fallback...)
	if i := slices.Index(ids, request.Preferred); i > 0 {
		ids = append([]string{request.Preferred}, slices.Delete(ids, i, i+1)...)
	}
	return ids
}

// tryModel asks the model id and yields the parts of its answer, or its error. There is one exception: if hasFallback
// is set, and the model is unavailable before its first part, tryModel yields nothing and returns the error as
// unavailable. Otherwise unavailable is nil, and the stream has ended.
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
		switch p := part.(type) {
		case Extensions:
			p.Model = id
			part = p
		case Usage:
			p.Asked = id
			part = p
		case Finish:
			p.Asked, p.Model = id, cmp.Or(p.Model, routes.profiles[id].Upstream, id)
			part = p
		}
		if !yield(part, nil) {
			return nil
		}
	}
	return nil
}

// ask sends the request to the endpoint of the model that it names, in the way that the model's profile says. The
// model's limit on an answer applies if the request has none or a higher one.
func (routes *routes) ask(ctx context.Context, request Request) iter.Seq2[Part, error] {
	p, models := routes.profiles[request.Model], routes.models
	if own := routes.ownEndpoints[request.Model]; own != nil {
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
	return models[cmp.Or(p.ToolCalling, routes.defaultCalling, AutoCalling)].Stream(ctx, request)
}
