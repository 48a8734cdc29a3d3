package agent

import (
	"context"
	"encoding/json"
	"slices"
	"strings"

	"answerd/internal/auth"
	"answerd/internal/event"
	"answerd/internal/llm"
)

// MaxClientTools bounds the tools that a caller may bring.
const MaxClientTools = 128

// AddClientTool takes a tool of the caller's. One whose schema is left out, or null, takes no
// arguments. The error points at /name or /parameters: how the whole tool is written is the
// format's affair.
func (r *Request) AddClientTool(t ClientTool) *InvalidError {
	switch {
	case !IsToolName(t.Name):
		return &InvalidError{"/name", "must be 1 to 64 letters, digits, _ or -"}
	case slices.ContainsFunc(r.ClientTools, func(c ClientTool) bool { return c.Name == t.Name }):
		return &InvalidError{"/name", "given twice"}
	case len(t.Schema) == 0 || string(t.Schema) == "null":
		t.Schema = json.RawMessage(`{"type":"object","properties":{}}`)
	case t.Schema[0] != '{':
		return &InvalidError{"/parameters", "must be a JSON Schema object"}
	}
	r.ClientTools = append(r.ClientTools, t)
	return nil
}

// IsToolName reports whether models' endpoints take s as the name of a function.
func IsToolName(s string) bool {
	return s != "" && len(s) <= 64 && !strings.ContainsFunc(s, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && r != '_' && r != '-'
	})
}

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
