package llm

import (
	"cmp"
	"context"
	"errors"
	"iter"
	"slices"
)

// Router asks each model as its profile says: by the endpoint's own id, with its kind of
// tool calling and its bound on an answer. A model without a profile is asked as the
// request has it.
type Router struct {
	models   map[ToolCalling]Model
	calling  ToolCalling
	profiles map[string]Profile
	own      map[string]map[ToolCalling]Model
}

// NewRouter returns a Router over models, which ask the same endpoint and differ in how it is
// offered tools; there must be one for each ToolCalling. calling applies to models whose
// profile does not say which to use; "" is AutoCalling. The keys of profiles are the ids that requests name.
func NewRouter(models map[ToolCalling]Model, calling ToolCalling, profiles map[string]Profile) *Router {
	return &Router{models: models, calling: calling, profiles: profiles}
}

// SetEndpoint sets what asks the endpoint of the model id, in place of the models of NewRouter.
// It must not be called after the first Stream.
func (router *Router) SetEndpoint(id string, models map[ToolCalling]Model) {
	if router.own == nil {
		router.own = make(map[string]map[ToolCalling]Model)
	}
	router.own[id] = models
}

// Stream asks the model that r names. If that one is unavailable before the first part of its
// answer, it asks those of the profile's Fallback in order.
func (router *Router) Stream(ctx context.Context, r Request) iter.Seq2[Part, error] {
	return func(yield func(Part, error) bool) {
		candidates := router.candidates(r)
		for i, id := range candidates {
			failed, stopped := router.tryModel(ctx, r, id, yield, i+1 < len(candidates))
			if failed == nil || stopped {
				return
			}
		}
	}
}

// candidates returns the ids of the models to ask, in order. One that answered in this run
// comes first: another endpoint lacks the members that its messages must carry.
func (router *Router) candidates(r Request) []string {
	ids := append([]string{r.Model}, router.profiles[r.Model].Fallback...)
	if i := slices.Index(ids, r.Preferred); i > 0 {
		ids = append([]string{r.Preferred}, slices.Delete(ids, i, i+1)...)
	}
	return ids
}

// tryModel asks one model and yields its parts. It returns an error that it did not yield if
// another model may be asked, and otherwise reports that it has stopped.
func (router *Router) tryModel(ctx context.Context, r Request, id string, yield func(Part, error) bool, mayFail bool) (failed error, stopped bool) {
	r.Model = id
	began := false
	for part, err := range router.ask(ctx, r) {
		if err != nil {
			e, isOurs := errors.AsType[*Error](err)
			if isOurs {
				e.Asked = id
			}
			if mayFail && !began && ctx.Err() == nil && isOurs && e.Unavailable {
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
			p.Asked, p.Model = id, cmp.Or(p.Model, router.profiles[id].Upstream, id)
			part = p
		}
		if !yield(part, nil) {
			return nil, true
		}
	}
	return nil, true
}

// ask asks the one model that r names.
func (router *Router) ask(ctx context.Context, r Request) iter.Seq2[Part, error] {
	p, models := router.profiles[r.Model], router.models
	if own := router.own[r.Model]; own != nil {
		models = own
	}
	r.Model = cmp.Or(p.Upstream, r.Model)
	if p.MaxOutputTokens > 0 && (r.MaxTokens <= 0 || r.MaxTokens > p.MaxOutputTokens) {
		r.MaxTokens = p.MaxOutputTokens
	}
	return models[cmp.Or(p.ToolCalling, router.calling, AutoCalling)].Stream(ctx, r)
}
