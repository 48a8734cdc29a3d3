package agent

import (
	"context"
	"fmt"
	"slices"

	"answerd/internal/auth"
	"answerd/internal/mcp"
)

// ToolsFor are the tools that the rules let a caller use. The slice is shared: don't
// change it.
func (a *Agent) ToolsFor(ctx context.Context, caller auth.Identity) []mcp.Tool {
	all, access := a.Tools.ToolsFor(ctx, caller), a.Rules.Of(caller)
	if access.Unlimited() {
		return all // the very slice, by which catalogueCache knows it
	}
	allowed := make([]mcp.Tool, 0, len(all))
	for _, t := range all {
		if _, ok := access.Tool(t.Server, t.Name); ok {
			allowed = append(allowed, t)
		}
	}
	return allowed
}

// ServersFor are the states of the servers that the rules let a caller use, in the
// configuration's order.
func (a *Agent) ServersFor(caller auth.Identity) []mcp.ServerStatus {
	access := a.Rules.Of(caller)
	return slices.DeleteFunc(a.Tools.Servers(), func(s mcp.ServerStatus) bool { return !access.Server(s.Name) })
}

// MayUseModel reports whether the rules let a caller use a model.
func (a *Agent) MayUseModel(caller auth.Identity, model string) bool {
	return a.Rules.Of(caller).Model(model)
}

// Refresh lists the tools of a server again, for a caller. ErrUnknownServer, also for a
// server that he may not use, or why it failed.
func (a *Agent) Refresh(ctx context.Context, caller auth.Identity, server string) error {
	if !a.Rules.Of(caller).Server(server) {
		return fmt.Errorf("refresh %.64q: %w", server, ErrUnknownServer)
	}
	return a.Tools.RefreshFor(ctx, caller, server)
}

// Prompts are the prompts of a server, for a caller. ErrUnknownServer as with Refresh.
func (a *Agent) Prompts(ctx context.Context, caller auth.Identity, server string) ([]mcp.Prompt, error) {
	if !a.Rules.Of(caller).Server(server) {
		return nil, fmt.Errorf("list the prompts of %.64q: %w", server, ErrUnknownServer)
	}
	return a.Tools.Prompts(ctx, caller, server)
}

func (a *Agent) mayUse(caller auth.Identity, t mcp.Tool) bool {
	_, ok := a.Rules.Of(caller).Tool(t.Server, t.Name)
	return ok
}

// authorize refuses what the rules don't let the caller use. They count as they are now:
// what was offered when the run began may be forbidden since. Tools of ours, which look for
// others, are nobody's to forbid.
func (a *Agent) authorize(_ context.Context, in *invocation) error {
	if in.own != nil {
		return nil
	}
	var ok bool
	if in.rule, ok = a.Rules.Of(in.caller).Tool(in.tool.Server, in.tool.Name); !ok {
		return in.forbid()
	}
	return nil
}

// forbid ends a call that the rules don't allow.
func (in *invocation) forbid() error {
	in.decision = decision{verdict: denied, why: "rules"}
	return in.fail(mcp.Denied, "The caller of this service may not use this tool.")
}
