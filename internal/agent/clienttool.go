package agent

import (
	"context"
	"slices"

	"answerd/internal/auth"
	"answerd/internal/event"
	"answerd/internal/llm"
)

// clientTools are the caller's tools that the model is shown. Where a tool of ours has
// the name of one, ours it is: a caller cannot take the place of an operator's tool.
func (r Request) clientTools(ours *catalogue, search *toolSearch) []llm.Tool {
	if r.ToolChoice == ToolNone {
		return nil
	}
	var out []llm.Tool
	for _, t := range r.ClientTools {
		_, taken := ours.byName[t.Name]
		if !taken && (search == nil || t.Name != search.tool.Name) {
			out = append(out, t)
		}
	}
	return out
}

// offer makes what the model is shown: the caller's tools first, because they stay.
func (l *loop) offer() {
	switch {
	case l.search != nil:
		l.offered = append(slices.Clone(l.client), l.search.shown()...)
	case len(l.client) > 0:
		l.offered = append(slices.Clone(l.client), l.catalogue.offered...)
	default:
		l.offered = l.catalogue.offered
	}
}

// isClient reports whether the caller executes the calls of that tool.
func (l *loop) isClient(name string) bool {
	return slices.ContainsFunc(l.client, func(t llm.Tool) bool { return t.Name == name })
}

func (c *call) executor() event.Executor {
	if c.client {
		return event.Client
	}
	return ""
}

// served are the calls that we make.
func (r reply) served() []*call {
	return slices.DeleteFunc(slices.Clone(r.calls), func(c *call) bool { return c.client })
}

// asksClient reports whether the run ends here, because the caller has calls to make.
func (r reply) asksClient() bool {
	return slices.ContainsFunc(r.calls, func(c *call) bool { return c.client })
}

// checkForced refuses a request whose model must call a tool that it is not shown, which
// an endpoint would refuse less clearly.
func (a *Agent) checkForced(ctx context.Context, caller auth.Identity, r Request) error {
	if r.ForcedTool == "" {
		return nil
	}
	all := a.catalogues.of(a.ToolsFor(ctx, caller), r)
	_, ours := all.byName[r.ForcedTool]
	named := func(t ClientTool) bool { return t.Name == r.ForcedTool }
	if ours || slices.ContainsFunc(r.clientTools(all, nil), named) {
		return nil
	}
	return &InvalidError{"/tool_choice", "there is no tool of this name"}
}
