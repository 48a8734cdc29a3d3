package agent

import (
	"context"
	"errors"
	"fmt"

	"answerd/internal/agent/replay"
	"answerd/internal/event"
	"answerd/internal/mcp"
)

// authorizeCall refuses a call that the access rules do not allow at this moment; they may have changed since the tool
// was offered. It sets exec.rule to the rule that allows the call. The agent's built-in tools need no permission, but
// the caller must be allowed to use the agent that the call asks.
func (a *Agent) authorizeCall(_ context.Context, exec *toolExecution) error {
	access := a.Rules.Of(exec.caller)
	if exec.askedAgent != "" && !access.AllowsAgent(exec.askedAgent) {
		return exec.denyByRules()
	}
	if exec.builtin != nil {
		return nil
	}
	var ok bool
	if exec.rule, ok = access.AllowsTool(exec.tool.Server, exec.tool.Name); !ok {
		return exec.denyByRules()
	}
	return nil
}

// denyByRules records that the access rules deny the call, and returns the call's failure.
func (exec *toolExecution) denyByRules() error {
	exec.decision = decision{verdict: denied, reason: "rules"}
	return exec.failure(mcp.Denied, "The caller of this service may not use this tool.")
}

// requireApproval decides whether the call may be made, and sets exec.decision. It refuses a call that already has a
// refusal, for example because the turn has too many calls. If the operator requires approval for the tool,
// requireApproval asks the run's owner and blocks until they have answered. A direct call is approved by its own caller
// (ToolCall.Approved).
//
// An approval is for one version of the tool. exec.approvedVersion is sent along with the call, and package mcp refuses
// the call if the tool's version has changed by then.
func (a *Agent) requireApproval(ctx context.Context, exec *toolExecution) error {
	if exec.refusal != "" {
		return exec.failure(mcp.Denied, exec.refusal)
	}
	// exec.tool is the tool's definition from the start of the run, but its current definition decides whether it needs
	// approval.
	if tool, known := a.Tools.Tool(a.currentToolName(exec)); known && exec.builtin == nil {
		exec.tool = tool
		if exec.loop != nil {
			exec.tool.NeedsApproval = exec.loop.run.req.namedAgent.NeedsApproval(tool)
		}
	}
	switch {
	case !exec.tool.NeedsApproval:
		exec.decision = decision{verdict: allowed}
		return nil
	case exec.loop != nil:
		return exec.loop.askApproval(ctx, exec)
	case !exec.preapproved:
		exec.decision = decision{verdict: denied, reason: "not approved by its caller"}
		return exec.failure(mcp.Denied, `The operator wants a person to approve each call of this tool. Send "approved": true to approve this one.`)
	}
	// In a direct call, the caller is also the person who would be asked.
	exec.approvedVersion = exec.tool.Version()
	exec.decision = decision{verdict: approved, by: exec.caller.Subject}
	return nil
}

// askApproval asks the run's owner to approve one call, and blocks until the question is resolved. If the call is
// approved, askApproval returns nil and records in exec what the approval covers: only this call, with the version of
// the tool that the person was shown and the arguments that the person was shown or entered instead. Otherwise it
// returns the call's failure, or an error that ends the run.
func (l *loop) askApproval(ctx context.Context, exec *toolExecution) error {
	question := event.Interrupt{
		Kind: event.KindApproval, Call: exec.Call, Message: fmt.Sprintf("Allow the call of %s on the MCP server %s?", exec.Tool, exec.Server),
		Args: exec.args, ArgsSHA256: replay.ArgsDigest(exec.args), ToolVersion: exec.tool.Version(),
	}
	if c := l.replayed.Call(exec.CallID); c != nil && c.Approval != nil {
		question.ToolVersion = c.Approval.ToolVersion // the version that the person was shown
	}
	res, err := l.askOwner(ctx, question)
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
	if res.Args != nil && replay.ArgsDigest(res.Args) != replay.ArgsDigest(exec.args) {
		exec.args = res.Args
		exec.edited = true
		if err := l.agent.recheckEditedArgs(ctx, exec); err != nil {
			return err
		}
	}
	exec.approvedVersion = question.ToolVersion
	exec.decision = decision{verdict: approved, by: res.by.Subject, edited: exec.edited}
	return nil
}

// recheckEditedArgs calls the pre-hook again with the arguments that a person entered, because the hook must see all
// arguments. If the hook changes them, it refuses the call, since no person approved the changed arguments.
func (a *Agent) recheckEditedArgs(ctx context.Context, exec *toolExecution) error {
	approved := exec.args
	if err := a.callPreHook(ctx, exec); err != nil {
		return err
	}
	if replay.ArgsDigest(exec.args) != replay.ArgsDigest(approved) {
		exec.decision = decision{verdict: denied, reason: "changed by a hook after its approval"}
		return exec.failure(mcp.Denied, "A hook does not let this call be made with the arguments that a person approved.")
	}
	return nil
}

// repeatDenial refuses, in a rerun, a call that a rule or a hook refused in the recording. If the recorded refusal came
// after an approval, it is repeated only after the call was approved here too, and otherwise only before that.
func (a *Agent) repeatDenial(_ context.Context, exec *toolExecution) error {
	inRecording := exec.recordedDecision()
	isApproved := exec.approvedVersion != ""
	if inRecording.Denied == "" || inRecording.AfterApproval != isApproved {
		return nil
	}
	exec.decision = decision{verdict: denied, reason: "recorded"}
	return exec.failure(mcp.Denied, inRecording.Denied)
}

// currentToolName returns the unique name that the catalog now has for the call's tool. The name may have changed since
// the model was offered the tool.
func (a *Agent) currentToolName(exec *toolExecution) string {
	return a.Tools.NameOf(exec.Server, exec.Tool)
}
