package agent

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"answerd/internal/event"
	"answerd/internal/mcp"
)

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

// repeatDenial refuses a call that a rule or a hook refused in the recording.
func (a *Agent) repeatDenial(_ context.Context, x *toolExecution) error {
	d := x.recordedDecision()
	if d.Denied == "" || d.AfterApproval != (x.approvedVersion != "") {
		return nil
	}
	x.decision = decision{verdict: denied, why: "recorded"}
	return x.failure(mcp.Denied, d.Denied)
}
