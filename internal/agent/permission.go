package agent

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"

	"answerd/internal/auth"
	"answerd/internal/event"
	"answerd/internal/mcp"
	"answerd/internal/mcp/catalog"
)

// ToolsFor are the tools that the rules let a caller use. The slice is shared: don't
// change it.
func (a *Agent) ToolsFor(ctx context.Context, caller auth.Identity) []catalog.Tool {
	all, access := a.Tools.ToolsFor(ctx, caller), a.Rules.Of(caller)
	if access.Unlimited() {
		return all // the very slice, by which catalogueCache knows it
	}
	allowed := make([]catalog.Tool, 0, len(all))
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

func (a *Agent) mayUse(caller auth.Identity, t catalog.Tool) bool {
	_, ok := a.Rules.Of(caller).Tool(t.Server, t.Name)
	return ok
}

// authorizeCall refuses what the rules don't let the caller use. They count as they are now:
// what was offered when the run began may be forbidden since. Tools of ours, which look for
// others, are nobody's to forbid.
func (a *Agent) authorizeCall(_ context.Context, x *toolExecution) error {
	if x.builtin != nil {
		return nil
	}
	var ok bool
	if x.rule, ok = a.Rules.Of(x.caller).Tool(x.tool.Server, x.tool.Name); !ok {
		return x.denyByRules()
	}
	return nil
}

// denyByRules ends a call that the rules don't allow.
func (x *toolExecution) denyByRules() error {
	x.decision = decision{verdict: denied, why: "rules"}
	return x.failure(mcp.Denied, "The caller of this service may not use this tool.")
}

// requireApproval refuses what the run may not do, and asks a person where the operator wants.
func (a *Agent) requireApproval(ctx context.Context, x *toolExecution) error {
	if x.refusal != "" {
		return x.failure(mcp.Denied, x.refusal)
	}
	// As it is now: the run was given it as it was when it began.
	if tool, known := a.Tools.Tool(x.Tool); known && x.builtin == nil {
		x.tool = tool
	}
	switch {
	case !x.tool.NeedsApproval:
		x.decision = decision{verdict: allowed}
		return nil
	case x.loop != nil:
		return x.loop.askApproval(ctx, x)
	case !x.preapproved:
		x.decision = decision{verdict: denied, why: "not approved by its caller"}
		return x.failure(mcp.Denied, `The operator wants a person to approve each call of this tool. Send "approved": true to approve this one.`)
	}
	// The caller of a direct call is the person who would be asked.
	x.approvedVersion = x.tool.Version()
	x.decision = decision{verdict: approved, by: x.caller.Subject}
	return nil
}

// askApproval asks the owner of the run to agree to one call. What he agrees to is this call
// of this run, of the tool as it is defined now, with the arguments that he was shown or
// wrote himself; the agreement is spent on it.
func (l *loop) askApproval(ctx context.Context, x *toolExecution) error {
	rec := event.Interrupt{
		Kind: event.KindApproval, Call: x.Call, Message: fmt.Sprintf("Allow the call of %s on the MCP server %s?", x.Tool, x.Server),
		Args: x.args, ArgsSHA256: argsDigest(x.args), ToolVersion: x.tool.Version(),
	}
	if c := l.replayed.Call(x.CallID); c != nil && c.Approval != nil {
		rec.ToolVersion = c.Approval.ToolVersion // as it was asked about
	}
	v, err := l.askOwner(ctx, rec, nil)
	if err != nil {
		return err
	}
	if errors.Is(v.unanswered, errWithdrawn) { // ctx is over
		return x.canceledFailure(ctx)
	}
	if !v.isApproved() {
		x.decision = v.denialDecision()
		return x.failure(mcp.Denied, v.refusalMessage())
	}
	if v.Args != nil && !bytes.Equal(v.Args, x.args) {
		x.args, x.edited = v.Args, true
		if err := l.agent.recheckEditedArgs(ctx, x); err != nil {
			return err
		}
	}
	x.approvedVersion = rec.ToolVersion
	x.decision = decision{verdict: approved, by: v.by.Subject, edited: x.edited}
	return nil
}

// recheckEditedArgs asks the hook about arguments that a person wrote: what it may refuse of the
// model's, it may refuse of them. What it makes of them, nobody has approved.
func (a *Agent) recheckEditedArgs(ctx context.Context, x *toolExecution) error {
	approved := x.args
	if err := a.callPreHook(ctx, x); err != nil {
		return err
	}
	if !bytes.Equal(x.args, approved) {
		x.decision = decision{verdict: denied, why: "changed by a hook after its approval"}
		return x.failure(mcp.Denied, "A hook does not let this call be made with the arguments that a person approved.")
	}
	return nil
}

// refusalMessage is what the model is told of a call that was not approved.
func (v resolution) refusalMessage() string {
	switch {
	case v.unanswered == nil && v.Reason != "":
		return "A person refused this call. Their reason: " + v.Reason
	case v.unanswered == nil:
		return "A person refused this call."
	case errors.Is(v.unanswered, ErrExpired):
		return "This call needs a person's approval, and nobody gave it in time."
	}
	return "This call needs a person's approval, and " + v.unanswered.Error() + "."
}

// denialDecision is the same for the operator. A person's words are not for the log.
func (v resolution) denialDecision() decision {
	if v.unanswered == nil {
		return decision{verdict: denied, by: v.by.Subject, why: "refused"}
	}
	return decision{verdict: denied, why: v.unanswered.Error()}
}

// argsDigest is the SHA-256 in hex of arguments as they stand.
func argsDigest(args jsonText) string {
	sum := sha256.Sum256(args)
	return hex.EncodeToString(sum[:])
}
