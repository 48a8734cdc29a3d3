package agent

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"

	"answerd/internal/event"
	"answerd/internal/mcp"
)

// permit refuses what the run may not do, and asks a person where the operator wants.
func (a *Agent) permit(ctx context.Context, in *invocation) error {
	if in.refusal != "" {
		return in.fail(mcp.Denied, in.refusal)
	}
	// As it is now: the run was given it as it was when it began.
	if tool, known := a.Tools.Tool(in.Tool); known && in.own == nil {
		in.tool = tool
	}
	switch {
	case !in.tool.NeedsApproval:
		in.decision = decision{verdict: allowed}
		return nil
	case in.loop != nil:
		return in.loop.approve(ctx, in)
	case !in.consent:
		in.decision = decision{verdict: denied, why: "not approved by its caller"}
		return in.fail(mcp.Denied, `The operator wants a person to approve each call of this tool. Send "approved": true to approve this one.`)
	}
	// The caller of a direct call is the person who would be asked.
	in.approved = in.tool.Version()
	in.decision = decision{verdict: approved, by: in.caller.Subject}
	return nil
}

// approve asks the owner of the run to agree to one call. What he agrees to is this call
// of this run, of the tool as it is defined now, with the arguments that he was shown or
// wrote himself; the agreement is spent on it.
func (l *loop) approve(ctx context.Context, in *invocation) error {
	rec := event.Interrupt{
		Kind: event.KindApproval, Call: in.Call, Message: fmt.Sprintf("Allow the call of %s on the MCP server %s?", in.Tool, in.Server),
		Args: in.args, ArgsSHA256: digest(in.args), ToolVersion: in.tool.Version(),
	}
	if c := l.past.known(in.CallID); c != nil && c.approval != nil {
		rec.ToolVersion = c.approval.ToolVersion // as it was asked about
	}
	v, err := l.ask(ctx, rec, nil)
	if err != nil {
		return err
	}
	if errors.Is(v.why, errWithdrawn) { // ctx is over
		return in.givenUp(ctx)
	}
	if !v.approves() {
		in.decision = v.denial()
		return in.fail(mcp.Denied, v.refusal())
	}
	if v.Args != nil && !bytes.Equal(v.Args, in.args) {
		in.args, in.edited = v.Args, true
		if err := l.agent.reannounce(ctx, in); err != nil {
			return err
		}
	}
	in.approved = rec.ToolVersion
	in.decision = decision{verdict: approved, by: v.by.Subject, edited: in.edited}
	return nil
}

// reannounce asks the hook about arguments that a person wrote: what it may refuse of the
// model's, it may refuse of them. What it makes of them, nobody has approved.
func (a *Agent) reannounce(ctx context.Context, in *invocation) error {
	approved := in.args
	if err := a.announce(ctx, in); err != nil {
		return err
	}
	if !bytes.Equal(in.args, approved) {
		in.decision = decision{verdict: denied, why: "changed by a hook after its approval"}
		return in.fail(mcp.Denied, "A hook does not let this call be made with the arguments that a person approved.")
	}
	return nil
}

// refusal is what the model is told of a call that was not approved.
func (v verdict) refusal() string {
	switch {
	case v.why == nil && v.Reason != "":
		return "A person refused this call. Their reason: " + v.Reason
	case v.why == nil:
		return "A person refused this call."
	case errors.Is(v.why, ErrExpired):
		return "This call needs a person's approval, and nobody gave it in time."
	}
	return "This call needs a person's approval, and " + v.why.Error() + "."
}

// denial is the same for the operator. A person's words are not for the log.
func (v verdict) denial() decision {
	if v.why == nil {
		return decision{verdict: denied, by: v.by.Subject, why: "refused"}
	}
	return decision{verdict: denied, why: v.why.Error()}
}

// digest is the SHA-256 in hex of arguments as they stand.
func digest(args jsonText) string {
	sum := sha256.Sum256(args)
	return hex.EncodeToString(sum[:])
}
