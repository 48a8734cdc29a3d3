package agent

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"

	"answerd/internal/agent/recorded"
	"answerd/internal/agent/replay"
	"answerd/internal/agent/webhook"
	"answerd/internal/event"
	"answerd/internal/help"
	"answerd/internal/llm"
	"answerd/internal/mcp"
	"answerd/internal/mcp/content"
)

// callPreHook asks the pre_tool_call hook about a call. The hook may change the arguments (exec.args), supply a result
// so that the tool is not called (exec.hookResult), or refuse the call and end the run (exec.abort). Without a usable
// reply, the call is refused, because the hook's decision is unknown (docs/hooks.md). In a rerun, the recorded decision
// is applied first. A call that is refused anyway (exec.refusal) is not shown to the hook. If ctx has ended, the call
// fails as cancelled.
func (a *Agent) callPreHook(ctx context.Context, exec *toolExecution) error {
	if exec.refusal != "" {
		return nil
	}
	inRecording := exec.recordedDecision()
	exec.hookResult = inRecording.Result
	if inRecording.Args != nil {
		exec.replaceArgs(inRecording.Args)
	}
	if a.Hooks == nil {
		return nil
	}

	reply, result, err := a.askPreHook(ctx, exec)
	if ctx.Err() != nil {
		return exec.canceledFailure(ctx)
	}
	a.logHook(ctx, reply, err, exec.hookAttrs(webhook.PreToolCall)...)
	if err != nil {
		exec.decision = decision{verdict: denied, reason: "no reply from the hook"}
		return exec.failure(mcp.Denied, "The service that must agree to every call could not be asked, so the call was not made.")
	}
	switch {
	case reply.Abort:
		exec.abort = &abortError{reason: reply.Reason}
		exec.decision = decision{verdict: denied, reason: "refused by the hook"}
		return exec.failure(mcp.Denied, withReason("A hook refused this call", reply.Reason))
	case reply.Args != nil:
		exec.replaceArgs(reply.Args)
	case result != nil:
		exec.hookResult = result
	}
	return nil
}

// askPreHook asks the pre_tool_call hook about a call. It first waits until the log has stored the run's events so far
// (flushEvents). reply.Args, if set, is a JSON object. result is the result in the reply, or nil if the tool is to be
// called. The error says why the hook cannot be asked or its reply cannot be used.
func (a *Agent) askPreHook(ctx context.Context, exec *toolExecution) (reply webhook.Reply, result *content.Result, _ error) {
	if err := a.flushEvents(ctx, exec.runID); err != nil {
		return webhook.Reply{}, nil, err
	}
	reply, result, err := a.askCallHook(ctx, exec, exec.hookCall(webhook.PreToolCall))
	if err != nil || reply.Args == nil {
		return reply, result, err
	}
	var changed call
	changed.parseArgs(string(reply.Args))
	if changed.argsProblem != "" {
		return webhook.Reply{}, nil, errors.New("the reply's args cannot be used: " + changed.argsProblem)
	}
	reply.Args = changed.args
	return reply, nil, nil
}

// askCallHook sends request, which is about exec, to its hook, and returns the reply and the result in it
// (replyResult). The error says why the reply cannot be used.
func (a *Agent) askCallHook(ctx context.Context, exec *toolExecution, request webhook.Call) (webhook.Reply, *content.Result, error) {
	reply, err := a.Hooks.Ask(ctx, request)
	if err != nil {
		return webhook.Reply{}, nil, err
	}
	result, err := exec.replyResult(reply)
	return reply, result, err
}

// replaceArgs replaces the call's arguments by args, which must be a JSON object.
func (exec *toolExecution) replaceArgs(args json.RawMessage) {
	exec.args = args
	exec.argsText = ""
	exec.argsProblem = ""
}

// callPostHook shows a call's result (exec.result) or failure (err) to the hook tool_result or tool_error, and returns
// the result or failure as the hook's reply leaves it. If the hook ends the run, callPostHook sets exec.abort. It does
// not ask the hook about a result that a hook supplied, about a refused call, whose tool was not called, or about an
// error that is not a failure of the call. If ctx ends before the reply, a cancellation replaces the result, because
// the hook might have removed something from it. Without a usable reply, the result stays as it is (docs/hooks.md).
func (a *Agent) callPostHook(ctx context.Context, exec *toolExecution, err error) (*content.Result, error) {
	if inRecording := exec.recordedDecision(); inRecording.Ended {
		exec.abort = &abortError{reason: inRecording.Reason}
	}
	if exec.hookResult != nil {
		return exec.hookResult, err
	}
	failed, isFailure := errors.AsType[*mcp.CallError](err)
	isRefused := isFailure && failed.Kind == mcp.Denied
	endsRun := err != nil && !isFailure
	if a.Hooks == nil || isRefused || endsRun {
		return exec.result, err
	}
	if ctx.Err() != nil {
		return nil, cmp.Or(err, exec.canceledFailure(ctx))
	}
	request := exec.postHookCall(failed)
	reply, replacement, hookErr := a.askCallHook(ctx, exec, request)
	if ctx.Err() != nil {
		return nil, cmp.Or(err, exec.canceledFailure(ctx))
	}
	a.logHook(ctx, reply, hookErr, exec.hookAttrs(request.Hook)...)
	switch {
	case hookErr == nil && replacement != nil:
		return replacement, nil
	case hookErr != nil || !reply.Abort:
		return exec.result, err
	}
	exec.abort = &abortError{reason: reply.Reason}
	if isFailure {
		return nil, err
	}
	return nil, exec.failure(mcp.Denied, withReason(recorded.ResultWithheld, reply.Reason))
}

// postHookCall returns the request to a hook after a call: to tool_error if failed is the call's failure, or to
// tool_result if failed is nil.
func (exec *toolExecution) postHookCall(failed *mcp.CallError) webhook.Call {
	if failed == nil {
		request := exec.hookCall(webhook.ToolResult)
		request.Result = &webhook.Result{Content: contentList(exec.result), Structured: exec.result.Structured}
		return request
	}
	request := exec.hookCall(webhook.ToolError)
	message, _ := content.TruncateText(failed.Message, maxForModel, "")
	request.Failure = &webhook.Failure{Kind: string(failed.Kind), Message: message}
	return request
}

// replyResult returns the result in a hook's reply about the call, or nil if the reply has neither text nor content. It
// decodes content blocks like those of an MCP server, checks structured content against the tool's output schema, and
// notes violations in the result. An error means that the reply cannot be used.
func (exec *toolExecution) replyResult(reply webhook.Reply) (*content.Result, error) {
	switch {
	case reply.Text != nil:
		return textResult(*reply.Text), nil
	case reply.Content == nil:
		return nil, nil
	}
	encoded, err := webhook.Encode(struct { // like a CallToolResult of MCP
		Content    []jsonText `json:"content"`
		Structured jsonText   `json:"structuredContent,omitempty"`
	}{reply.Content.Content, reply.Content.Structured})
	if err != nil {
		return nil, fmt.Errorf("encode the reply's content: %w", err)
	}
	res, err := content.Decode(encoded)
	if _, tooDeep := errors.AsType[*content.DepthError](err); tooDeep {
		return nil, fmt.Errorf("the reply's content or structured is nested deeper than %d levels", content.MaxDepth)
	}
	if err != nil {
		return nil, errors.New("the reply's content cannot be used")
	}
	if res.Structured != nil && exec.toolExists {
		res.Violations = exec.tool.ResultViolations(res.Structured, res.IsError)
	}
	return res, nil
}

// hookCall returns a request to hook about the call, without a result or failure.
func (exec *toolExecution) hookCall(hook webhook.Event) webhook.Call {
	return webhook.Call{
		Hook: hook, RunID: exec.runID, Subject: exec.caller.Subject, Server: exec.Server, Tool: exec.Tool, CallID: exec.CallID,
		Args: exec.args, ArgsText: exec.argsText,
	}
}

// logHook logs a hook's reply or, if err is not nil, that the hook gave no usable one. It does not log an empty reply,
// which decides nothing. attrs identify the run, the hook and what the hook was asked about.
func (a *Agent) logHook(ctx context.Context, reply webhook.Reply, err error, attrs ...slog.Attr) {
	switch {
	case err != nil:
		a.Logger.LogAttrs(ctx, slog.LevelWarn, "hook failed", append(attrs, slog.String("error", err.Error()), help.Hooks.Attr())...)
	case reply.String() != (webhook.Reply{}).String():
		a.Logger.LogAttrs(ctx, slog.LevelInfo, "hook decided", append(attrs, slog.String("reply", reply.String()))...)
	}
}

// hookAttrs returns the attributes of a log line about hook and the call.
func (exec *toolExecution) hookAttrs(hook webhook.Event) []slog.Attr {
	return []slog.Attr{
		slog.String("run_id", exec.runID), slog.String("call_id", exec.CallID),
		slog.String("tool", exec.Tool), slog.String("server", exec.Server), slog.String("hook", string(hook)),
	}
}

// flushEvents waits until the log has stored a run's events. Call it before a hook sees the events: a process that
// takes over the run must find everything in the log that the hook has seen. It does nothing if run is "" (direct
// call).
func (a *Agent) flushEvents(ctx context.Context, run string) error {
	if run == "" {
		return nil
	}
	if err := a.Log.Flush(ctx, run); err != nil {
		return fmt.Errorf("store the events of a run: %w", err)
	}
	return nil
}

// askAboutRun completes request with the run's ids, asks the hook that request names, and returns the reply. If the
// hook service does not give a usable reply, it logs that and returns the zero Reply (docs/hooks.md). The error is an
// *abortError if the hook ends the run, which askAboutRun also stores in notes; the cause of ctx if ctx has ended; or
// the log's error if the earlier events cannot be stored.
func (l *loop) askAboutRun(ctx context.Context, request webhook.Call) (webhook.Reply, error) {
	request.RunID = l.run.ID
	request.ThreadID = l.run.ThreadID
	request.Subject = l.run.caller.Subject
	if err := l.agent.flushEvents(ctx, l.run.ID); err != nil {
		return webhook.Reply{}, err
	}
	reply, err := l.agent.Hooks.Ask(ctx, request)
	attrs := []slog.Attr{slog.String("run_id", request.RunID), slog.String("hook", string(request.Hook))}
	if request.Step > 0 {
		attrs = append(attrs, slog.Int("step", request.Step))
	}
	if ctx.Err() != nil {
		return webhook.Reply{}, context.Cause(ctx)
	}
	l.agent.logHook(ctx, reply, err, attrs...)
	if err != nil {
		return webhook.Reply{}, nil
	}
	if reply.Abort {
		abort := &abortError{reason: reply.Reason, withheld: request.Hook == webhook.ModelResult}
		l.run.writeAbort(ctx, abort)
		return webhook.Reply{}, abort
	}
	return reply, nil
}

// repeatAbort returns an *abortError, in a rerun, if hook ended the recorded run in this step, and otherwise nil. hook
// is webhook.PreModelCall, before the model is asked, or webhook.ModelResult, after its answer.
func (l *loop) repeatAbort(step int, hook webhook.Event) error {
	if l.agent.Repeat == nil {
		return nil
	}
	answered := hook == webhook.ModelResult
	if reason, ok := l.agent.Repeat.Ended(l.run.ID, step, answered); ok {
		return &abortError{reason: reason, withheld: answered}
	}
	return nil
}

// writeAbort stores a hook's decision to end the run, so that a process that takes over the run ends it too. If that
// fails, it only logs a warning: the log will probably refuse the terminal event as well, and the next process asks the
// hook again.
func (r *run) writeAbort(ctx context.Context, abort *abortError) {
	data, _ := json.Marshal(replay.Abort{Reason: abort.reason, Withheld: abort.withheld}) // strings always marshal
	err := r.writeParts(context.WithoutCancel(ctx), data, replay.NoteAborted)
	if err != nil && r.relinquished() == nil && !errors.Is(err, event.ErrEnded) {
		r.agent.Logger.WarnContext(ctx, "the decision of a hook could not be stored", "run_id", r.ID, "error", err.Error())
	}
}

// isEmpty reports whether the hook adds nothing.
func (a hookAddition) isEmpty() bool { return a.Instructions == "" && len(a.Messages) == 0 }

// callPreModelHook asks the pre_model_call hook about the next step, and returns what the hook adds to the step's
// requests. If an earlier process has begun the step and stored the addition, callPreModelHook returns that and does
// not ask again. The addition is empty if no such hook is configured. The error is as for askAboutRun or, in a rerun,
// an *abortError if a hook ended the recorded run at this point.
func (l *loop) callPreModelHook(ctx context.Context, turn int, final bool) (addition hookAddition, err error) {
	if stored := l.replayed.HookAddition(l.step + 1); stored != nil && json.Unmarshal(stored, &addition) == nil {
		return addition, nil
	}
	if err := l.repeatAbort(l.step+1, webhook.PreModelCall); err != nil {
		return hookAddition{}, err
	}
	if !l.agent.Hooks.Asks(webhook.PreModelCall) {
		return hookAddition{}, nil
	}
	shown := hookRequest(l.modelRequest(turn, final))
	reply, err := l.askAboutRun(ctx, webhook.Call{Hook: webhook.PreModelCall, Step: l.step + 1, Request: shown})
	return hookAddition{Instructions: reply.Instructions, Messages: reply.Messages}, err
}

// writeHookAddition stores what a hook adds to the current step, before the model is asked. If this process dies during
// the answer, the next process repeats the step with the same addition, without asking the hook again.
// writeHookAddition does nothing if the addition is empty or already stored.
func (l *loop) writeHookAddition(ctx context.Context, addition hookAddition) error {
	if addition.isEmpty() || l.replayed.HookAddition(l.step) != nil {
		return nil
	}
	data, _ := json.Marshal(addition) // strings always marshal
	return l.run.writeParts(ctx, data, replay.NoteHookAddition)
}

// hookRequest converts a model request for a hook.
func hookRequest(request llm.Request) *webhook.ModelRequest {
	out := &webhook.ModelRequest{Model: request.Model, MaxTokens: request.MaxTokens, Tools: []string{}} // not nil, for JSON
	for _, t := range request.Tools {
		out.Tools = append(out.Tools, t.Name)
	}
	for i := range request.Messages {
		out.Messages = append(out.Messages, hookMessage(&request.Messages[i]))
	}
	return out
}

// hookMessage converts a message of the conversation for a hook. The hook gets the size of media instead of their data.
func hookMessage(message *llm.Message) webhook.Message {
	out := webhook.Message{Role: string(message.Role), Content: message.Text, CallID: message.CallID, Tool: message.Tool}
	for _, c := range message.Calls {
		var parsed call
		parsed.parseArgs(c.Arguments)
		out.Calls = append(out.Calls, webhook.MessageCall{CallID: c.ID, Tool: c.Name, Args: parsed.args, ArgsText: parsed.argsText})
	}
	for _, media := range message.Media {
		decodedSize := len(media.Data) / 4 * 3 // Data is base64
		out.Media = append(out.Media, webhook.Media{MIME: media.MIME, Bytes: decodedSize, URL: media.URL})
	}
	return out
}

// extendMessages returns messages with what the pre_model_call hook adds. It does not change the run's conversation. If
// the result is too long for the model's window, extendMessages trims it like a conversation, and an event says so
// (reportTrimmed). If it cannot be trimmed to the window, the error is an *llm.Error.
func (s *modelStream) extendMessages(ctx context.Context, messages []llm.Message) ([]llm.Message, error) {
	if s.addition.isEmpty() {
		return messages, nil
	}
	messages = slices.Clone(messages)
	if s.addition.Instructions != "" {
		messages[0].Text += "\n\n" + s.addition.Instructions // the system prompt
	}
	for _, text := range s.addition.Messages {
		messages = append(messages, llm.Message{Role: llm.User, Text: text})
	}
	conversation := s.windowConversation(s.offeredTools(s.finalTurn))
	conversation.Messages = messages
	trimmed := s.window.Trim(conversation)
	if trimmed.TooLarge {
		return nil, &llm.Error{Kind: llm.TooLarge, Public: "The question and what a hook adds to it do not fit the model's context window.",
			Err: fmt.Errorf("about %d tokens, and the limit is %d", trimmed.After, trimmed.Limit)}
	}
	if trimmed.Trimmed {
		return conversation.Messages, s.reportTrimmed(ctx, trimmed)
	}
	return conversation.Messages, nil
}

// callModelResultHook asks the model_result hook, if one is configured, about a step's answer. The hook cannot change
// the answer, but it can end the run; the error is then an *abortError. In a rerun, the error is an *abortError also if
// the hook ended the recorded run here. Call it before step_end is appended: a process that takes over repeats a step
// without step_end, so the hook sees every answer that is used.
func (s *modelStream) callModelResultHook(ctx context.Context) error {
	if err := s.repeatAbort(s.step, webhook.ModelResult); err != nil {
		return err
	}
	if !s.agent.Hooks.Asks(webhook.ModelResult) {
		return nil
	}
	answer := &webhook.ModelAnswer{
		Model: cmp.Or(s.metadata.UpstreamModel, s.run.req.Model), Text: s.text, FinishReason: s.finish,
		Calls: make([]webhook.MessageCall, len(s.calls)),
	}
	for i, c := range s.calls {
		answer.Calls[i] = webhook.MessageCall{CallID: c.CallID, Tool: c.Tool, Args: c.args, ArgsText: c.argsText}
	}
	if s.usageSeen {
		answer.Usage, _ = json.Marshal(s.usage) // numbers always marshal
	}
	_, err := s.askAboutRun(ctx, webhook.Call{Hook: webhook.ModelResult, Step: s.step, Answer: answer})
	return err
}

// mustCallInterruptHook reports whether the interrupt hook must be asked about question. It must not if the question is
// already answered, if the hook replied to an earlier process, or if the question comes from a child run, which asks
// the hook itself.
func (l *loop) mustCallInterruptHook(question *interrupt) bool {
	if question.ChildRunID != "" || !l.agent.Hooks.Asks(webhook.Interrupt) {
		return false
	}
	hasReplied := l.replayed != nil && l.replayed.HookReplied[question.ID]
	return len(question.answer) == 0 && !hasReplied
}

// callInterruptHook asks the interrupt hook about question, and waits for the reply even if a person answers first. If
// the hook ends the run, callInterruptHook cancels the run's context with the *abortError; it only logs other errors.
// The run cannot be parked before the hook has replied, because only the process that executes a run asks the hook. The
// note NoteHookReplied follows the reply, so that a process that takes over asks again if the decision is not stored.
func (l *loop) callInterruptHook(ctx context.Context, question *interrupt) {
	r := l.run
	defer r.suspension.endNotification(question)
	ctx = context.WithoutCancel(ctx)
	waiting, err := json.Marshal(question.Interrupt)
	if err == nil {
		_, err = l.askAboutRun(ctx, webhook.Call{Hook: webhook.Interrupt, Waiting: waiting})
	}
	if abort, ok := errors.AsType[*abortError](err); ok {
		r.cancel(abort)
		return
	}
	if err == nil {
		err = r.writeNote(ctx, replay.NoteHookReplied, question.ID)
	}
	if err != nil && r.relinquished() == nil && !errors.Is(err, event.ErrEnded) {
		l.agent.Logger.WarnContext(ctx, "the hook interrupt may be asked about a question again", "run_id", r.ID, "error", err.Error())
	}
}

// callRunEndHook shows the run's terminal event to the run_end hook, before the event is appended, and waits for the
// reply, which cannot change the event. If this process dies before it appends the event, the process that takes over
// shows the hook the same end again: it rebuilds an answer from the log, and finds any other end in notes, which
// callRunEndHook stores first. Errors are only logged.
func (l *loop) callRunEndHook(ctx context.Context, end event.Body) {
	if !l.agent.Hooks.Asks(webhook.RunEnd) {
		return
	}
	if err := l.run.writeEnd(ctx, end); err != nil { // the log will probably refuse the terminal event too
		l.agent.Logger.WarnContext(ctx, "the hook run_end is not asked: the end of a run could not be stored", "run_id", l.run.ID, "error", err.Error())
		return
	}
	shown, err := endForHook(end)
	if err != nil {
		l.agent.Logger.LogAttrs(ctx, slog.LevelError, "hook failed",
			slog.String("run_id", l.run.ID), slog.String("hook", string(webhook.RunEnd)), slog.String("error", err.Error()), help.Hooks.Attr())
		return
	}
	_, _ = l.askAboutRun(ctx, webhook.Call{Hook: webhook.RunEnd, End: &shown})
}

// endForHook returns a run's terminal event in the form that the run_end hook gets. A cancellation has the form of an
// error with the code "cancelled".
func endForHook(end event.Body) (shown webhook.End, err error) {
	ended := event.Run{Last: event.Event{Body: end}}
	shown.Status = string(ended.Status())
	switch b := end.(type) {
	case event.FinalAnswer:
		shown.Result, err = json.Marshal(b)
	case event.RunError:
		shown.Error, err = json.Marshal(b)
	case event.Cancelled:
		shown.Error, err = json.Marshal(event.RunError{Code: "cancelled", Message: b.Reason, PartialAnswer: b.PartialAnswer})
	}
	return shown, err
}

// writeEnd stores a terminal event in notes, unless it is an answer or stored already, or no other process can continue
// the run. Without the notes, the next process could end the run differently, because a model that failed may answer.
func (r *run) writeEnd(ctx context.Context, end event.Body) error {
	_, isAnswer := end.(event.FinalAnswer)
	isStored := r.replayed != nil && r.replayed.End != nil
	if isAnswer || isStored || r.job == nil {
		return nil
	}
	e, err := event.Encode(r.ID, 0, 0, end)
	if err != nil {
		return err
	}
	return r.writeParts(ctx, e.JSON, replay.NoteEnd)
}
