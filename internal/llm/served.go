package llm

import (
	"cmp"
	"context"
	"iter"
)

// Served is one endpoint's models, each as its profile says: by the endpoint's own id,
// with its way of calling tools and its bound on an answer. A model without a profile is
// asked as the request has it.
type Served struct {
	native   Model
	text     Model
	calling  ToolCalling
	profiles map[string]Profile
}

// NewServed returns the models behind native. calling is the way of those whose profile
// names none; profiles are by what requests name.
func NewServed(native Model, calling ToolCalling, profiles map[string]Profile) *Served {
	return &Served{native: native, text: NewText(native), calling: calling, profiles: profiles}
}

// Stream asks the model that r names.
func (s *Served) Stream(ctx context.Context, r Request) iter.Seq2[Part, error] {
	p := s.profiles[r.Model]
	r.Model = cmp.Or(p.Upstream, r.Model)
	if p.MaxOutputTokens > 0 && (r.MaxTokens <= 0 || r.MaxTokens > p.MaxOutputTokens) {
		r.MaxTokens = p.MaxOutputTokens
	}
	if cmp.Or(p.ToolCalling, s.calling) == TextCalling {
		return s.text.Stream(ctx, r)
	}
	return s.native.Stream(ctx, r)
}
