package agent

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"

	"answerd/internal/agent/webhook"
	"answerd/internal/mcp"
	"answerd/internal/mcp/content"
)

// abortError reports that a hook ended the run. Its reason is one line that the caller may read.
type abortError struct{ reason string }

func (e *abortError) Error() string { return withReason("a hook ended the run", e.reason) }

// withReason returns what, followed by the reason if there is one.
func withReason(what, reason string) string {
	if reason == "" {
		return what + "."
	}
	return what + ": " + reason
}

// callPreHook asks the hook pre_tool_call. The hook may change the arguments, answer in place of
// the tool, or refuse the call. Without a usable reply the call is refused, because its
// decision is unknown (docs/hooks.md).
func (a *Agent) callPreHook(ctx context.Context, x *toolExecution) error {
	if a.Hooks == nil || x.refusal != "" {
		return nil
	}
	reply, err := a.Hooks.Ask(ctx, x.hookCall(webhook.PreToolCall))
	changed := call{}
	if err == nil && reply.Args != nil {
		if changed.parseArgs(string(reply.Args)); changed.argsProblem != "" {
			err = errors.New("the reply's args cannot be used: " + changed.argsProblem)
		}
	}
	switch {
	case ctx.Err() != nil:
		return x.canceledFailure(ctx)
	case err != nil:
		a.logHookFailure(ctx, x, webhook.PreToolCall, err)
		x.decision = decision{verdict: denied, why: "no reply from the hook"}
		return x.failure(mcp.Denied, "The service that must agree to every call could not be asked, so the call was not made.")
	}
	a.logHookReply(ctx, x, webhook.PreToolCall, reply)
	switch {
	case reply.Abort:
		x.abort = &abortError{reply.Reason}
		x.decision = decision{verdict: denied, why: "refused by the hook"}
		return x.failure(mcp.Denied, withReason("A hook refused this call", reply.Reason))
	case reply.Args != nil:
		x.args, x.argsText, x.argsProblem = changed.args, "", ""
	case reply.Content != nil:
		x.hookResult = textResult(*reply.Content)
	}
	return nil
}

// callPostHook sends the result or the failure to the hook, and returns the hook's version of
// it. It skips a hook's own answer, a refusal (the tool was not called), and a cancelled call.
// If ctx ends before the reply, the result is dropped: the hook might have removed something
// from it.
func (a *Agent) callPostHook(ctx context.Context, x *toolExecution, err error) (*content.Result, error) {
	res := x.result
	if x.hookResult != nil {
		res = x.hookResult
	}
	failed, isFailure := errors.AsType[*mcp.CallError](err)
	switch {
	case a.Hooks == nil, x.hookResult != nil, err != nil && !isFailure, isFailure && failed.Kind == mcp.Denied:
		return res, err
	case ctx.Err() != nil:
		return x.unreviewedFailure(ctx, err)
	}
	q := x.hookCall(webhook.ToolResult)
	if isFailure {
		told, _ := content.TruncateText(failed.Message, maxForModel, "")
		q.Hook, q.Failure = webhook.ToolError, &webhook.Failure{Kind: string(failed.Kind), Message: told}
	} else {
		q.Result = &webhook.Result{Content: contentList(res), Structured: res.Structured}
	}
	reply, noReply := a.Hooks.Ask(ctx, q)
	switch {
	case ctx.Err() != nil:
		return x.unreviewedFailure(ctx, err)
	case noReply != nil:
		a.logHookFailure(ctx, x, q.Hook, noReply)
		return res, err
	}
	a.logHookReply(ctx, x, q.Hook, reply)
	switch {
	case reply.Abort && isFailure:
		x.abort = &abortError{reply.Reason}
	case reply.Abort:
		x.abort = &abortError{reply.Reason}
		return nil, x.failure(mcp.Denied, withReason("The call was made, and a hook withheld its result", reply.Reason))
	case reply.Content != nil:
		return textResult(*reply.Content), nil
	}
	return res, err
}

// unreviewedFailure returns the failure of a call that was cancelled before the hook replied.
func (x *toolExecution) unreviewedFailure(ctx context.Context, err error) (*content.Result, error) {
	if err == nil {
		err = x.canceledFailure(ctx)
	}
	return nil, err
}

// hookCall returns the call as a webhook describes it.
func (x *toolExecution) hookCall(about webhook.Event) webhook.Call {
	return webhook.Call{
		Hook: about, RunID: x.runID, Subject: x.caller.Subject, Server: x.Server, Tool: x.Tool, CallID: x.CallID,
		Args: x.args, ArgsText: x.argsText,
	}
}

// textResult makes a tool's result from a hook's text. It replaces the tool's own result for the
// model, the events and the log.
func textResult(text string) *content.Result {
	if text == "" {
		return &content.Result{}
	}
	block, _ := json.Marshal(map[string]string{"type": "text", "text": text}) // strings always marshal
	return &content.Result{Content: []jsonText{block}}
}

// contentList returns the content blocks of a result, never nil.
func contentList(res *content.Result) []jsonText {
	if res.Content == nil {
		return []jsonText{}
	}
	return res.Content
}

// logHookFailure logs that a hook sent no usable reply.
func (a *Agent) logHookFailure(ctx context.Context, x *toolExecution, about webhook.Event, err error) {
	a.logHook(ctx, slog.LevelWarn, "hook failed", x, about, slog.String("error", err.Error()))
}

func (a *Agent) logHookReply(ctx context.Context, x *toolExecution, about webhook.Event, r webhook.Reply) {
	if r.Abort || r.Args != nil || r.Content != nil {
		a.logHook(ctx, slog.LevelInfo, "hook decided", x, about, slog.String("reply", r.String()))
	}
}

func (a *Agent) logHook(ctx context.Context, level slog.Level, what string, x *toolExecution, about webhook.Event, more slog.Attr) {
	a.Logger.LogAttrs(ctx, level, what, slog.String("run_id", x.runID), slog.String("call_id", x.CallID),
		slog.String("tool", x.Tool), slog.String("server", x.Server), slog.String("hook", string(about)), more)
}
