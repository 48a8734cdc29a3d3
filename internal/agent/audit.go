package agent

import (
	"cmp"
	"context"
	"errors"
	"log/slog"

	"answerd/internal/mcp"
)

// The verdicts of a decision.
const (
	allowed  = "allowed"  // no approval is needed
	approved = "approved" // by a person, this once
	denied   = "denied"
	replaced = "replaced" // by a hook's answer; nothing was called
)

// decision is whether a call might be made, and who said so.
type decision struct {
	verdict string // "" until somebody decides
	by      string // subject of the person who decided; "" if nobody had to, or is anonymous
	why     string // of a denial
	edited  bool   // the arguments are the person's, not the model's
}

// audit writes the one line that every call leaves in the log, whatever became of it:
// who wanted it and for whom, what exactly, who allowed it, and how it ended. Values of
// arguments are in it only where the operator wants them. err is how the call itself
// ended, whatever a hook makes of it.
func (a *Agent) audit(ctx context.Context, in *invocation, err error) {
	actor := "model"
	if in.loop == nil {
		actor = "caller"
	}
	outcome, cause := "ok", err
	if failed, ok := errors.AsType[*mcp.CallError](err); ok {
		outcome, cause = string(failed.Kind), failed.Err
		if failed.Kind == mcp.InvalidArguments && !a.AuditArguments {
			cause = nil // which quotes them, or may: it can be the server's
		}
	} else if err != nil {
		outcome = string(mcp.UnknownOutcome) // of the log; it may have been carried out
	}
	d := in.decision
	switch {
	case in.answered != nil:
		d = decision{verdict: replaced}
	case d.verdict == "": // it failed before anybody decided: it was none that could be made
		d = decision{verdict: denied, why: cmp.Or(in.refusal, outcome)}
	}
	attrs := []slog.Attr{
		slog.String("actor", actor), slog.String("subject", in.caller.Subject), slog.String("issuer", in.caller.Issuer),
		slog.String("call_id", in.CallID), slog.String("server", cmp.Or(in.Server, in.tool.Server)), slog.String("tool", in.Tool),
		slog.String("tool_version", in.tool.Version()), slog.String("args_sha256", digest(jsonText(in.written()))),
		slog.String("decision", d.verdict), slog.String("outcome", outcome), slog.Int64("duration_ms", in.took.Milliseconds()),
	}
	add := func(name, value string) {
		if value != "" {
			attrs = append(attrs, slog.String(name, value))
		}
	}
	add("run_id", in.runID)
	add("decided_by", d.by)
	add("reason", d.why)
	add("rule", in.rule)
	if d.edited {
		attrs = append(attrs, slog.Bool("args_edited", true))
	}
	if a.AuditArguments {
		add("args", string(in.args))
	}
	level := slog.LevelInfo
	if cause != nil {
		level = slog.LevelWarn
		attrs = append(attrs, slog.String("error", cause.Error()))
	}
	a.Logger.LogAttrs(ctx, level, "tool call", attrs...)
}
