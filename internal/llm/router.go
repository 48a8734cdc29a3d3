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
	native   Model
	text     Model
	calling  ToolCalling
	profiles map[string]Profile
}

// NewRouter returns a Router over native, a model with tool calling of its own, and text,
// the same model with tool calls written as text. calling applies to models whose profile
// does not say which to use. The keys of profiles are the ids that requests name.
func NewRouter(native, text Model, calling ToolCalling, profiles map[string]Profile) *Router {
	return &Router{native: native, text: text, calling: calling, profiles: profiles}
}

// Stream asks the model that r names.
func (router *Router) Stream(ctx context.Context, r Request) iter.Seq2[Part, error] {
	p := router.profiles[r.Model]
	r.Model = cmp.Or(p.Upstream, r.Model)
	if p.MaxOutputTokens > 0 && (r.MaxTokens <= 0 || r.MaxTokens > p.MaxOutputTokens) {
		r.MaxTokens = p.MaxOutputTokens
	}
	if cmp.Or(p.ToolCalling, router.calling) == TextCalling {
		return router.text.Stream(ctx, r)
	}
	return router.native.Stream(ctx, r)
}
