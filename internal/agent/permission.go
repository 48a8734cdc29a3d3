package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"slices"

	"answerd/internal/agent/recorded"
	"answerd/internal/auth"
	"answerd/internal/event"
	"answerd/internal/mcp"
	"answerd/internal/mcp/catalog"
	"answerd/internal/mcp/content"
)

// Tools are the tools that an agent calls. A *mcp.Client calls those of MCP servers; package rerun returns
// what a run recorded. The methods are described there.
type Tools interface {
	ToolsFor(ctx context.Context, caller auth.Identity) []catalog.Tool
	Tool(name string) (catalog.Tool, bool)
	NameOf(server, name string) string
	CheckArgs(tool string, args json.RawMessage) (json.RawMessage, error)
	Call(ctx context.Context, call mcp.Call) (*content.Result, error)
	Repeatable(tool string) bool

	Servers() []mcp.ServerStatus
	Unavailable(waited bool) []string
	InstructionsFor(ctx context.Context, caller auth.Identity, isUsed func(server string) bool) []mcp.Instructions
	Prompts(ctx context.Context, caller auth.Identity, server string) ([]mcp.Prompt, error)
	Prompt(ctx context.Context, caller auth.Identity, server, name string, args map[string]string) ([]mcp.PromptMessage, error)
	RefreshFor(ctx context.Context, caller auth.Identity, server string) error
	Ready() bool

	AwaitSignIn(ctx context.Context, call mcp.Call, action string) error
	Callback(ctx context.Context, query url.Values) (waiters []string, found bool, err error)
	SignOut(ctx context.Context, caller auth.Identity, server string) (bool, error)
}

// ToolsFor returns the tools that the rules let a caller use. The slice is shared: do not change
// it.
func (a *Agent) ToolsFor(ctx context.Context, caller auth.Identity) []catalog.Tool {
	all, access := a.Tools.ToolsFor(ctx, caller), a.Rules.Of(caller)
	if access.AllowsEverything() {
		return all // the same slice, so that toolCatalogCache recognizes it
	}
	allowed := make([]catalog.Tool, 0, len(all))
	for _, t := range all {
		if _, ok := access.AllowsTool(t.Server, t.Name); ok {
			allowed = append(allowed, t)
		}
	}
	return allowed
}

// ServersFor returns the states of the servers that the rules let a caller use, in the
// configuration's order.
func (a *Agent) ServersFor(caller auth.Identity) []mcp.ServerStatus {
	access := a.Rules.Of(caller)
	return slices.DeleteFunc(a.Tools.Servers(), func(s mcp.ServerStatus) bool { return !access.AllowsServer(s.Name) })
}

// unavailableServers returns the servers that r would use and that cannot be connected at present, as
// mcp.Client.Unavailable has them.
func (a *Agent) unavailableServers(caller auth.Identity, r Request, waited bool) []string {
	access := a.Rules.Of(caller)
	return slices.DeleteFunc(a.Tools.Unavailable(waited), func(name string) bool {
		return !access.AllowsServer(name) || !matches(r.Servers, name) || r.as != nil && !r.as.AllowsServer(name)
	})
}

// checkToolsAvailable refuses a question that cannot be answered as asked because servers are down:
// it names only servers or tools that are unavailable, or requires a call and no tool is available.
// The model would otherwise answer without the tools, and the caller might not notice.
func (a *Agent) checkToolsAvailable(ctx context.Context, caller auth.Identity, r Request) error {
	if r.ToolChoice == ToolNone || r.ToolChoice != ToolRequired && len(r.Servers) == 0 && len(r.Tools) == 0 {
		return nil
	}
	all := r.filterTools(a.ToolsFor(ctx, caller)) // waits for servers that are being connected
	down := a.unavailableServers(caller, r, true)
	if len(down) == 0 {
		return nil
	}
	available := slices.ContainsFunc(all, func(t catalog.Tool) bool {
		return !slices.Contains(down, t.Server) && (r.ForcedTool == "" || t.Name == r.ForcedTool)
	})
	if r.ToolChoice == ToolRequired && r.ForcedTool == "" {
		available = available || len(r.ClientTools) > 0
	}
	if r.ForcedTool != "" {
		available = available || slices.ContainsFunc(r.ClientTools, func(t ClientTool) bool { return t.Name == r.ForcedTool })
	}
	if available {
		return nil
	}
	// The tools of a server that was never listed are not known: the question may mean any of them.
	return &ToolsUnavailableError{Servers: down}
}

// MayUseModel reports whether the rules let a caller use a model.
func (a *Agent) MayUseModel(caller auth.Identity, model string) bool {
	return a.Rules.Of(caller).AllowsModel(model)
}

// Refresh lists the tools of a server again, for a caller. It returns ErrUnknownServer, even if
// the server exists but the caller may not use it, or the error of the listing.
func (a *Agent) Refresh(ctx context.Context, caller auth.Identity, server string) error {
	if !a.Rules.Of(caller).AllowsServer(server) {
		return fmt.Errorf("refresh %.64q: %w", server, ErrUnknownServer)
	}
	return a.Tools.RefreshFor(ctx, caller, server)
}

// SignOut removes the tokens that a caller has granted for a server. It returns ErrUnknownServer like
// Refresh, and for a server that callers do not sign in to.
func (a *Agent) SignOut(ctx context.Context, caller auth.Identity, server string) error {
	if !a.Rules.Of(caller).AllowsServer(server) {
		return fmt.Errorf("sign out of %.64q: %w", server, ErrUnknownServer)
	}
	_, err := a.Tools.SignOut(ctx, caller, server)
	return err
}

// Prompts returns the prompts of a server, for a caller. It returns ErrUnknownServer like
// Refresh.
func (a *Agent) Prompts(ctx context.Context, caller auth.Identity, server string) ([]mcp.Prompt, error) {
	if !a.Rules.Of(caller).AllowsServer(server) {
		return nil, fmt.Errorf("list the prompts of %.64q: %w", server, ErrUnknownServer)
	}
	return a.Tools.Prompts(ctx, caller, server)
}

// mayUse reports whether the rules let a caller use a tool now.
func (a *Agent) mayUse(caller auth.Identity, t catalog.Tool) bool {
	_, ok := a.Rules.Of(caller).AllowsTool(t.Server, t.Name)
	return ok
}

// authorizeCall refuses a call that the rules do not allow now. The rules may have changed since
// the tool was offered. The agent's own tools need no permission, except to ask another agent.
func (a *Agent) authorizeCall(_ context.Context, x *toolExecution) error {
	if x.asks != "" && !a.Rules.Of(x.caller).AllowsAgent(x.asks) {
		return x.denyByRules()
	}
	if x.builtin != nil {
		return nil
	}
	var ok bool
	if x.rule, ok = a.Rules.Of(x.caller).AllowsTool(x.tool.Server, x.tool.Name); !ok {
		return x.denyByRules()
	}
	return nil
}

// denyByRules returns the failure of a call that the rules do not allow.
func (x *toolExecution) denyByRules() error {
	x.decision = decision{verdict: denied, why: "rules"}
	return x.failure(mcp.Denied, "The caller of this service may not use this tool.")
}

// requireApproval refuses a call that the run may not make, and asks a person if the operator
// requires that. An approval is of one version of the tool: x.approvedVersion goes with the request, and package
// mcp refuses the call if the tool has another version by then.
func (a *Agent) requireApproval(ctx context.Context, x *toolExecution) error {
	if x.refusal != "" {
		return x.failure(mcp.Denied, x.refusal)
	}
	// Use the current definition of the tool; the run has the one from its start.
	if tool, known := a.Tools.Tool(a.presentName(x)); known && x.builtin == nil {
		x.tool = tool
		if x.loop != nil {
			x.tool.NeedsApproval = x.loop.run.req.as.NeedsApproval(tool)
		}
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

// askApproval asks the owner of the run to approve one call. The approval covers only this call,
// the current definition of the tool, and the arguments that the person was shown or wrote.
func (l *loop) askApproval(ctx context.Context, x *toolExecution) error {
	rec := event.Interrupt{
		Kind: event.KindApproval, Call: x.Call, Message: fmt.Sprintf("Allow the call of %s on the MCP server %s?", x.Tool, x.Server),
		Args: x.args, ArgsSHA256: argsDigest(x.args), ToolVersion: x.tool.Version(),
	}
	if c := l.replayed.Call(x.CallID); c != nil && c.Approval != nil {
		rec.ToolVersion = c.Approval.ToolVersion // the version that the person was asked about
	}
	v, err := l.askOwner(ctx, rec)
	if err != nil {
		return err
	}
	if errors.Is(v.unanswered, errWithdrawn) { // because ctx ended
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

// recheckEditedArgs calls the pre-hook again for arguments that a person wrote, because the
// hook's rules apply to them as well. If the hook changes them, the call is refused, since no
// person has approved the changed arguments.
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

// refusalMessage returns the model's message for a call that was not approved.
func (v resolution) refusalMessage() string {
	switch {
	case v.unanswered == nil && v.Reason != "":
		return recorded.RefusedByPerson + " Their reason: " + v.Reason
	case v.unanswered == nil:
		return recorded.RefusedByPerson
	case errors.Is(v.unanswered, ErrExpired):
		return recorded.NotApproved + "nobody gave it in time."
	}
	return recorded.NotApproved + v.unanswered.Error() + "."
}

// denialDecision returns the audit-log form of refusalMessage. It omits the person's own words.
func (v resolution) denialDecision() decision {
	if v.unanswered == nil {
		return decision{verdict: denied, by: v.by.Subject, why: "refused"}
	}
	return decision{verdict: denied, why: v.unanswered.Error()}
}

// recordedDecision returns what a rule or a hook decided about the call, if the run repeats a recorded one.
func (x *toolExecution) recordedDecision() (d recorded.Decision) {
	if x.loop != nil && x.loop.agent.Repeat != nil {
		d = x.loop.agent.Repeat.Decision(x.runID, x.CallID)
	}
	return d
}

// repeatDenial refuses a call that a rule or a hook refused in the recording.
func (a *Agent) repeatDenial(_ context.Context, x *toolExecution) error {
	d := x.recordedDecision()
	if d.Denied == "" || d.AfterApproval != (x.approvedVersion != "") {
		return nil
	}
	x.decision = decision{verdict: denied, why: "recorded"}
	return x.failure(mcp.Denied, d.Denied)
}
