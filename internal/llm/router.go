package llm

import (
	"cmp"
	"context"
	"iter"
)

// Router asks each model as its profile says: by the endpoint's own id, with its kind of
// tool calling and its bound on an answer. A model without a profile is asked as the
// request has it.
type Router struct {
	models   map[ToolCalling]Model
	calling  ToolCalling
	profiles map[string]Profile
}

// NewRouter returns a Router over models, which ask the same endpoint and differ in how it is
// offered tools; there must be one for each ToolCalling. calling applies to models whose
// profile does not say which to use; "" is AutoCalling. The keys of profiles are the ids that requests name.
func NewRouter(models map[ToolCalling]Model, calling ToolCalling, profiles map[string]Profile) *Router {
	return &Router{models: models, calling: calling, profiles: profiles}
}

// Stream asks the model that r names.
func (router *Router) Stream(ctx context.Context, r Request) iter.Seq2[Part, error] {
	p := router.profiles[r.Model]
	r.Model = cmp.Or(p.Upstream, r.Model)
	if p.MaxOutputTokens > 0 && (r.MaxTokens <= 0 || r.MaxTokens > p.MaxOutputTokens) {
		r.MaxTokens = p.MaxOutputTokens
	}
	return router.models[cmp.Or(p.ToolCalling, router.calling, AutoCalling)].Stream(ctx, r)
}
