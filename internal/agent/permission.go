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
func (a *Agent) authorizeCall(_ context.Context, exec *toolExecution) error {
	if exec.asks != "" && !a.Rules.Of(exec.caller).AllowsAgent(exec.asks) {
		return exec.denyByRules()
	}
	if exec.builtin != nil {
		return nil
	}
	var ok bool
	exec.rule, ok = a.Rules.Of(exec.caller).AllowsTool(exec.tool.Server, exec.tool.Name)
	if !ok {
		return exec.denyByRules()
	}
	return nil
}

// denyByRules returns the failure of a call that the rules do not allow.
func (exec *toolExecution) denyByRules() error {
	exec.decision = decision{verdict: denied, why: "rules"}
	return exec.failure(mcp.Denied, "The caller of this service may not use this tool.")
}

// requireApproval refuses a call that the run may not make, and asks a person if the operator
// requires that. An approval is of one version of the tool: exec.approvedVersion goes with the request, and package
// mcp refuses the call if the tool has another version by then.
func (a *Agent) requireApproval(ctx context.Context, exec *toolExecution) error {
	if exec.refusal != "" {
		return exec.failure(mcp.Denied, exec.refusal)
	}
	// Use the current definition of the tool; the run has the one from its start.
	if tool, known := a.Tools.Tool(a.presentName(exec)); known && exec.builtin == nil {
		exec.tool = tool
		if exec.loop != nil {
			exec.tool.NeedsApproval = exec.loop.run.req.as.NeedsApproval(tool)
		}
	}
	switch {
	case !exec.tool.NeedsApproval:
		exec.decision = decision{verdict: allowed}
		return nil
	case exec.loop != nil:
		return exec.loop.askApproval(ctx, exec)
	case !exec.preapproved:
		exec.decision = decision{verdict: denied, why: "not approved by its caller"}
		return exec.failure(mcp.Denied, `The operator wants a person to approve each call of this tool. Send "approved": true to approve this one.`)
	}
	// The caller of a direct call is the person who would be asked.
	exec.approvedVersion = exec.tool.Version()
	exec.decision = decision{verdict: approved, by: exec.caller.Subject}
	return nil
}

// askApproval asks the owner of the run to approve one call. The approval covers only this call,
// the current definition of the tool, and the arguments that the person was shown or wrote.
func (l *loop) askApproval(ctx context.Context, exec *toolExecution) error {
	rec := event.Interrupt{
		Kind: event.KindApproval, Call: exec.Call, Message: fmt.Sprintf("Allow the call of %s on the MCP server %s?", exec.Tool, exec.Server),
		Args: exec.args, ArgsSHA256: argsDigest(exec.args), ToolVersion: exec.tool.Version(),
	}
	if c := l.replayed.Call(exec.CallID); c != nil && c.Approval != nil {
		rec.ToolVersion = c.Approval.ToolVersion // the version that the person was asked about
	}
	res, err := l.askOwner(ctx, rec)
	if err != nil {
		return err
	}
	if errors.Is(res.unanswered, errWithdrawn) { // because ctx ended
		return exec.canceledFailure(ctx)
	}
	if !res.isApproved() {
		exec.decision = res.denialDecision()
		return exec.failure(mcp.Denied, res.refusalMessage())
	}
	if res.Args != nil && !bytes.Equal(res.Args, exec.args) {
		exec.args, exec.edited = res.Args, true
		if err := l.agent.recheckEditedArgs(ctx, exec); err != nil {
			return err
		}
	}
	exec.approvedVersion = rec.ToolVersion
	exec.decision = decision{verdict: approved, by: res.by.Subject, edited: exec.edited}
	return nil
}

// recheckEditedArgs calls the pre-hook again for arguments that a person wrote, because the
// hook's rules apply to them as well. If the hook changes them, the call is refused, since no
// person has approved the changed arguments.
func (a *Agent) recheckEditedArgs(ctx context.Context, exec *toolExecution) error {
	approved := exec.args
	if err := a.callPreHook(ctx, exec); err != nil {
		return err
	}
	if !bytes.Equal(exec.args, approved) {
		exec.decision = decision{verdict: denied, why: "changed by a hook after its approval"}
		return exec.failure(mcp.Denied, "A hook does not let this call be made with the arguments that a person approved.")
	}
	return nil
}

// repeatDenial refuses a call that a rule or a hook refused in the recording.
func (a *Agent) repeatDenial(_ context.Context, exec *toolExecution) error {
	d := exec.recordedDecision()
	if d.Denied == "" || d.AfterApproval != (exec.approvedVersion != "") {
		return nil
	}
	exec.decision = decision{verdict: denied, why: "recorded"}
	return exec.failure(mcp.Denied, d.Denied)
}
