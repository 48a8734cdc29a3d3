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

// abortError is a run that a hook ended. The reason is one line, fit for the caller.
type abortError struct{ reason string }

func (e *abortError) Error() string { return sentence("a hook ended the run", e.reason) }

// sentence is what happened, and the reason where one was given.
func sentence(what, reason string) string {
	if reason == "" {
		return what + "."
	}
	return what + ": " + reason
}

// announce asks the hook pre_tool_call, which may change the call, answer it in place
// of the tool, or refuse it. Without its word no call is made.
func (a *Agent) announce(ctx context.Context, in *invocation) error {
	if a.Hooks == nil || in.refusal != "" {
		return nil
	}
	reply, err := a.Hooks.Ask(ctx, in.question(webhook.PreToolCall))
	changed := call{}
	if err == nil && reply.Args != nil {
		if changed.parse(string(reply.Args)); changed.bad != "" {
			err = errors.New("the reply's args cannot be used: " + changed.bad)
		}
	}
	switch {
	case ctx.Err() != nil:
		return in.givenUp(ctx)
	case err != nil:
		a.hookFailed(ctx, in, webhook.PreToolCall, err)
		in.decision = decision{verdict: denied, why: "no word from the hook"}
		return in.fail(mcp.Denied, "The service that must agree to every call could not be asked, so the call was not made.")
	}
	a.hookDecided(ctx, in, webhook.PreToolCall, reply)
	switch {
	case reply.Abort:
		in.abort = &abortError{reply.Reason}
		in.decision = decision{verdict: denied, why: "refused by the hook"}
		return in.fail(mcp.Denied, sentence("A hook refused this call", reply.Reason))
	case reply.Args != nil:
		in.args, in.argsText, in.bad = changed.args, "", ""
	case reply.Content != nil:
		in.answered = resultOf(*reply.Content)
	}
	return nil
}

// review asks the hook of how the call ended, and returns how it ends now. Not asked
// are what a hook answered itself; refusals, which are our own decision and not the
// tool's failure; and calls that were given up. A result whose review is cut short by
// that is given up too: the hook might have taken something out.
func (a *Agent) review(ctx context.Context, in *invocation, res *content.Result, err error) (*content.Result, error) {
	failed, isFailure := errors.AsType[*mcp.CallError](err)
	switch {
	case a.Hooks == nil, in.answered != nil, err != nil && !isFailure, isFailure && failed.Kind == mcp.Denied:
		return res, err
	case ctx.Err() != nil:
		return in.unseen(ctx, err)
	}
	q := in.question(webhook.ToolResult)
	if isFailure {
		told, _ := content.TruncateText(failed.Message, maxForModel, "")
		q.Hook, q.Failure = webhook.ToolError, &webhook.Failure{Kind: string(failed.Kind), Message: told}
	} else {
		q.Result = &webhook.Result{Content: contentOf(res), Structured: res.Structured}
	}
	reply, noReply := a.Hooks.Ask(ctx, q)
	switch {
	case ctx.Err() != nil:
		return in.unseen(ctx, err)
	case noReply != nil:
		a.hookFailed(ctx, in, q.Hook, noReply)
		return res, err
	}
	a.hookDecided(ctx, in, q.Hook, reply)
	switch {
	case reply.Abort && isFailure:
		in.abort = &abortError{reply.Reason}
	case reply.Abort:
		in.abort = &abortError{reply.Reason}
		return nil, in.fail(mcp.Denied, sentence("The call was made, and a hook withheld its result", reply.Reason))
	case reply.Content != nil:
		return resultOf(*reply.Content), nil
	}
	return res, err
}

// unseen is how a call ends that was given up before the hook had seen how it ended.
func (in *invocation) unseen(ctx context.Context, err error) (*content.Result, error) {
	if err == nil {
		err = in.givenUp(ctx)
	}
	return nil, err
}

// question is the call as hooks are told of it.
func (in *invocation) question(about webhook.Event) webhook.Call {
	return webhook.Call{
		Hook: about, RunID: in.runID, Subject: in.caller.Subject, Server: in.Server, Tool: in.Tool, CallID: in.CallID,
		Args: in.args, ArgsText: in.argsText,
	}
}

// resultOf is a hook's text as a tool's result: for the model, the events and the
// metadata alike, so that what a hook takes out is nowhere.
func resultOf(text string) *content.Result {
	if text == "" {
		return &content.Result{}
	}
	block, _ := json.Marshal(map[string]string{"type": "text", "text": text}) // strings always marshal
	return &content.Result{Content: []jsonText{block}}
}

// contentOf is the content of a result as a list, which readers expect even where
// there is structured content alone.
func contentOf(res *content.Result) []jsonText {
	if res.Content == nil {
		return []jsonText{}
	}
	return res.Content
}

// hookFailed and hookDecided are the log's lines of a hook; one that changes nothing
// has none.
func (a *Agent) hookFailed(ctx context.Context, in *invocation, about webhook.Event, err error) {
	a.logHook(ctx, slog.LevelWarn, "hook failed", in, about, slog.String("error", err.Error()))
}

func (a *Agent) hookDecided(ctx context.Context, in *invocation, about webhook.Event, r webhook.Reply) {
	if r.Abort || r.Args != nil || r.Content != nil {
		a.logHook(ctx, slog.LevelInfo, "hook decided", in, about, slog.String("reply", r.String()))
	}
}

func (a *Agent) logHook(ctx context.Context, level slog.Level, what string, in *invocation, about webhook.Event, more slog.Attr) {
	a.Logger.LogAttrs(ctx, level, what, slog.String("run_id", in.runID), slog.String("call_id", in.CallID),
		slog.String("tool", in.Tool), slog.String("server", in.Server), slog.String("hook", string(about)), more)
}
