package agent

import (
	"bytes"
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

// callPreHook asks the hook pre_tool_call. The hook may change the arguments, answer in place of
// the tool, or refuse the call. Without a usable reply the call is refused, because its
// decision is unknown (docs/hooks.md).
func (a *Agent) callPreHook(ctx context.Context, exec *toolExecution) error {
	if d := exec.recordedDecision(); exec.refusal == "" {
		exec.hookResult = d.Result
		if d.Args != nil {
			exec.replaceArgs(d.Args)
		}
	}
	if a.Hooks == nil || exec.refusal != "" {
		return nil
	}

	reply, err := a.askPreHook(ctx, exec)
	switch {
	case ctx.Err() != nil:
		return exec.canceledFailure(ctx)
	case err != nil:
		a.logHookFailure(ctx, exec, webhook.PreToolCall, err)
		exec.decision = decision{verdict: denied, reason: "no reply from the hook"}
		return exec.failure(mcp.Denied, "The service that must agree to every call could not be asked, so the call was not made.")
	}
	a.logHookReply(ctx, exec, webhook.PreToolCall, reply.Reply)
	switch {
	case reply.Abort:
		exec.abort = &abortError{reason: reply.Reason}
		exec.decision = decision{verdict: denied, reason: "refused by the hook"}
		return exec.failure(mcp.Denied, withReason("A hook refused this call", reply.Reason))
	case reply.Args != nil:
		exec.replaceArgs(reply.args)
	case reply.result != nil:
		exec.hookResult = reply.result
	}
	return nil
}

// preHookReply is a usable reply of the hook pre_tool_call.
type preHookReply struct {
	webhook.Reply
	args   json.RawMessage // Args as the tool gets them
	result *content.Result // in place of the tool's; nil for none
}

// askPreHook asks the hook pre_tool_call, after the events so far are stored, and checks its reply.
func (a *Agent) askPreHook(ctx context.Context, exec *toolExecution) (reply preHookReply, err error) {
	if err := a.flush(ctx, exec.runID); err != nil {
		return reply, err
	}
	if reply.Reply, err = a.Hooks.Ask(ctx, exec.hookCall(webhook.PreToolCall)); err != nil {
		return reply, err
	}
	if reply.Args != nil {
		var changed call
		changed.parseArgs(string(reply.Args))
		if changed.argsProblem != "" {
			return reply, errors.New("the reply's args cannot be used: " + changed.argsProblem)
		}
		reply.args = changed.args
	}
	reply.result, err = a.hookResult(exec, reply.Reply)
	return reply, err
}

// replaceArgs replaces the arguments of the call by valid ones.
func (exec *toolExecution) replaceArgs(args json.RawMessage) {
	exec.args = args
	exec.argsText = ""
	exec.argsProblem = ""
}

// callPostHook sends the result or the failure to the hook, and returns the hook's version of
// it. It skips a hook's own answer, a refusal (the tool was not called), and a cancelled call.
// If ctx ends before the reply, the result is dropped: the hook might have removed something
// from it. Without a usable reply the result stays as it is (docs/hooks.md), whereas callPreHook refuses the call.
func (a *Agent) callPostHook(ctx context.Context, exec *toolExecution, err error) (*content.Result, error) {
	if d := exec.recordedDecision(); d.Ended {
		exec.abort = &abortError{reason: d.Reason}
	}
	res := exec.result
	if exec.hookResult != nil {
		res = exec.hookResult
	}

	failed, isFailure := errors.AsType[*mcp.CallError](err)
	switch {
	case a.Hooks == nil, exec.hookResult != nil, err != nil && !isFailure, isFailure && failed.Kind == mcp.Denied:
		return res, err
	case ctx.Err() != nil:
		return exec.unreviewedFailure(ctx, err)
	}

	request := exec.hookCall(webhook.ToolResult)
	if isFailure {
		told, _ := content.TruncateText(failed.Message, maxForModel, "")
		request.Hook = webhook.ToolError
		request.Failure = &webhook.Failure{Kind: string(failed.Kind), Message: told}
	} else {
		request.Result = &webhook.Result{Content: contentList(res), Structured: res.Structured}
	}

	reply, noReply := a.Hooks.Ask(ctx, request)
	var given *content.Result
	if noReply == nil {
		given, noReply = a.hookResult(exec, reply)
	}

	switch {
	case ctx.Err() != nil:
		return exec.unreviewedFailure(ctx, err)
	case noReply != nil:
		a.logHookFailure(ctx, exec, request.Hook, noReply)
		return res, err
	}

	a.logHookReply(ctx, exec, request.Hook, reply)
	switch {
	case reply.Abort && isFailure:
		exec.abort = &abortError{reason: reply.Reason}
	case reply.Abort:
		exec.abort = &abortError{reason: reply.Reason}
		return nil, exec.failure(mcp.Denied, withReason(recorded.ResultWithheld, reply.Reason))
	case given != nil:
		return given, nil
	}
	return res, err
}

// hookResult returns the result that a hook's reply contains, or nil. Content blocks are read like
// those of an MCP server, and structured content is compared with the tool's output schema.
func (a *Agent) hookResult(exec *toolExecution, reply webhook.Reply) (*content.Result, error) {
	switch {
	case reply.Text != nil:
		return textResult(*reply.Text), nil
	case reply.Content == nil:
		return nil, nil
	}
	var raw bytes.Buffer
	enc := json.NewEncoder(&raw)
	enc.SetEscapeHTML(false)
	err := enc.Encode(struct {
		Content    []jsonText `json:"content"`
		Structured jsonText   `json:"structuredContent,omitempty"`
	}{reply.Content.Content, reply.Content.Structured})
	if err != nil {
		return nil, fmt.Errorf("encode the reply's content: %w", err)
	}
	res, err := content.Decode(raw.Bytes())
	if _, tooDeep := errors.AsType[*content.DepthError](err); tooDeep {
		return nil, fmt.Errorf("the reply's content or structured is nested deeper than %d levels", content.MaxDepth)
	}
	if err != nil {
		return nil, errors.New("the reply's content cannot be used")
	}
	if res.Structured != nil && exec.toolExists {
		res.Violations = exec.tool.ResultViolations(res.Structured, false)
	}
	return res, nil
}

// unreviewedFailure returns the failure of a call that was cancelled before the hook replied.
func (exec *toolExecution) unreviewedFailure(ctx context.Context, err error) (*content.Result, error) {
	if err == nil {
		err = exec.canceledFailure(ctx)
	}
	return nil, err
}

// hookCall returns the call as a webhook describes it.
func (exec *toolExecution) hookCall(about webhook.Event) webhook.Call {
	return webhook.Call{
		Hook: about, RunID: exec.runID, Subject: exec.caller.Subject, Server: exec.Server, Tool: exec.Tool, CallID: exec.CallID,
		Args: exec.args, ArgsText: exec.argsText,
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

// logHookFailure logs that a hook sent no usable reply.
func (a *Agent) logHookFailure(ctx context.Context, exec *toolExecution, about webhook.Event, err error) {
	a.logHook(ctx, slog.LevelWarn, "hook failed", exec, about, slog.String("error", err.Error()), help.Hooks.Attr())
}

func (a *Agent) logHookReply(ctx context.Context, exec *toolExecution, about webhook.Event, r webhook.Reply) {
	if r.String() != (webhook.Reply{}).String() {
		a.logHook(ctx, slog.LevelInfo, "hook decided", exec, about, slog.String("reply", r.String()))
	}
}

func (a *Agent) logHook(ctx context.Context, level slog.Level, what string, exec *toolExecution, about webhook.Event, more ...slog.Attr) {
	a.Logger.LogAttrs(ctx, level, what, append([]slog.Attr{slog.String("run_id", exec.runID), slog.String("call_id", exec.CallID),
		slog.String("tool", exec.Tool), slog.String("server", exec.Server), slog.String("hook", string(about))}, more...)...)
}

// flush returns nil when the events of a run are stored. It comes before anybody outside learns of the events:
// a process that takes the run over must find in the log what others have seen. The id is "" for a call without a run.
func (a *Agent) flush(ctx context.Context, run string) error {
	if run == "" {
		return nil
	}
	if err := a.Log.Flush(ctx, run); err != nil {
		return fmt.Errorf("store the events of a run: %w", err)
	}
	return nil
}

// askAboutRun asks a hook about the run. A reply that cannot be used counts as {} (docs/hooks.md).
// The error is an *abortError if the hook ends the run, the cause of ctx if ctx has ended, and that of the log
// if the events before are not stored.
func (l *loop) askAboutRun(ctx context.Context, c webhook.Call) (webhook.Reply, error) {
	c.RunID = l.run.ID
	c.ThreadID = l.run.ThreadID
	c.Subject = l.run.caller.Subject
	if err := l.agent.flush(ctx, l.run.ID); err != nil {
		return webhook.Reply{}, err
	}
	reply, err := l.agent.Hooks.Ask(ctx, c)
	attrs := []slog.Attr{slog.String("run_id", c.RunID), slog.String("hook", string(c.Hook))}
	if c.Step > 0 {
		attrs = append(attrs, slog.Int("step", c.Step))
	}
	switch {
	case ctx.Err() != nil:
		return webhook.Reply{}, context.Cause(ctx)
	case err != nil:
		l.agent.Logger.LogAttrs(ctx, slog.LevelWarn, "hook failed", append(attrs, slog.String("error", err.Error()), help.Hooks.Attr())...)
		return webhook.Reply{}, nil
	case reply.String() != (webhook.Reply{}).String():
		l.agent.Logger.LogAttrs(ctx, slog.LevelInfo, "hook decided", append(attrs, slog.String("reply", reply.String()))...)
	}
	if reply.Abort {
		abort := &abortError{reason: reply.Reason, withheld: c.Hook == webhook.ModelResult}
		l.run.writeAbort(ctx, abort)
		return webhook.Reply{}, abort
	}
	return reply, nil
}

// repeatAbort ends a run that repeats a recorded one as a hook ended that one: before the model was asked in a
// step, or with its answer.
func (l *loop) repeatAbort(step int, answered bool) error {
	if l.agent.Repeat == nil {
		return nil
	}
	if reason, ok := l.agent.Repeat.Ended(l.run.ID, step, answered); ok {
		return &abortError{reason: reason, withheld: answered}
	}
	return nil
}

// writeAbort stores the decision of a hook to end the run, so that a process that takes over the
// run ends it too. If that fails, the log will probably refuse the terminal event too, and the
// hook is asked again.
func (r *run) writeAbort(ctx context.Context, abort *abortError) {
	data, err := json.Marshal(replay.Abort{Reason: abort.reason, Withheld: abort.withheld})
	if err == nil {
		err = r.writeParts(context.WithoutCancel(ctx), data, replay.NoteAborted)
	}
	if err != nil && r.relinquished() == nil && !errors.Is(err, event.ErrEnded) {
		r.agent.Logger.LogAttrs(ctx, slog.LevelWarn, "the decision of a hook could not be stored",
			slog.String("run_id", r.ID), slog.String("error", err.Error()))
	}
}

func (a hookAddition) isEmpty() bool { return a.Instructions == "" && len(a.Messages) == 0 }

// callPreModelHook asks the hook pre_model_call about the next step. It does not ask again if
// another process stored the reply: a step that runs again is extended in the same way.
func (l *loop) callPreModelHook(ctx context.Context, turn int, final bool) (added hookAddition, err error) {
	if stored := l.replayed.Extension(l.step + 1); stored != nil && json.Unmarshal(stored, &added) == nil {
		return added, nil
	}
	if err := l.repeatAbort(l.step+1, false); err != nil {
		return hookAddition{}, err
	}
	if !l.agent.Hooks.Asks(webhook.PreModelCall) {
		return hookAddition{}, nil
	}
	r := l.modelRequest(turn, final)
	q := &webhook.ModelRequest{Model: r.Model, Tools: make([]string, len(r.Tools)), MaxTokens: r.MaxTokens, Messages: make([]webhook.Message, len(r.Messages))}
	for i, t := range r.Tools {
		q.Tools[i] = t.Name
	}
	for i := range r.Messages {
		q.Messages[i] = hookMessage(&r.Messages[i])
	}
	reply, err := l.askAboutRun(ctx, webhook.Call{Hook: webhook.PreModelCall, Step: l.step + 1, Request: q})
	return hookAddition{Instructions: reply.Instructions, Messages: reply.Messages}, err
}

// writeHookAddition stores what a hook adds to the step that has begun, before the model is asked. If the process
// dies during the answer, the step runs again with the same additions, and the hook is not asked twice.
func (l *loop) writeHookAddition(ctx context.Context, added hookAddition) error {
	if added.isEmpty() || l.replayed.Extension(l.step) != nil {
		return nil
	}
	data, err := json.Marshal(added)
	if err != nil {
		return fmt.Errorf("encode what a hook adds to a request: %w", err)
	}
	return l.run.writeParts(ctx, data, replay.NoteExtended)
}

// hookMessage returns a message as a webhook describes it.
func hookMessage(m *llm.Message) webhook.Message {
	out := webhook.Message{Role: string(m.Role), Content: m.Text, CallID: m.CallID, Tool: m.Tool}
	for _, c := range m.Calls {
		var written call
		written.parseArgs(c.Arguments)
		out.Calls = append(out.Calls, webhook.MessageCall{CallID: c.ID, Tool: c.Name, Args: written.args, ArgsText: written.argsText})
	}
	for _, media := range m.Media {
		out.Media = append(out.Media, webhook.Media{MIME: media.MIME, Bytes: len(media.Data) / 4 * 3, URL: media.URL})
	}
	return out
}

// extendMessages returns the messages of a request with what the hook pre_model_call adds. The conversation
// does not change. If the result is too long for the model's window, it is trimmed like the
// conversation.
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

// callModelResultHook asks the hook model_result about the answer of a step, before step_end. A
// step that did not end runs again after a takeover, so the hook is asked about every answer that
// is used.
func (s *modelStream) callModelResultHook(ctx context.Context) error {
	if err := s.repeatAbort(s.step, true); err != nil || !s.agent.Hooks.Asks(webhook.ModelResult) {
		return err
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

// mustCallInterruptHook reports whether the hook interrupt is to be asked about a question that is
// about to be asked, or was asked in another process.
func (l *loop) mustCallInterruptHook(i *interrupt) bool {
	if i.ChildRunID != "" {
		return false // the child has called the hook about it
	}
	return l.agent.Hooks.Asks(webhook.Interrupt) && len(i.answer) == 0 && (l.replayed == nil || !l.replayed.Told[i.ID])
}

// callInterruptHook asks the hook interrupt, in its own goroutine, about a question to a person. The
// run is not parked before the hook has replied: only the process that executes a run can ask. A
// hook that ends the run ends its context. The note NoteTold comes after the reply, so that a process which
// takes over asks again if the log does not have the hook's decision.
func (l *loop) callInterruptHook(ctx context.Context, i *interrupt) {
	r := l.run
	ctx = context.WithoutCancel(ctx) // the hook is asked even if the person answers first
	l.agent.runs.Go(func() {
		r.runGuarded(func() {
			defer r.suspension.endNotification(i)
			waiting, err := json.Marshal(i.Interrupt)
			if err == nil {
				_, err = l.askAboutRun(ctx, webhook.Call{Hook: webhook.Interrupt, Waiting: waiting})
			}
			if abort, ok := errors.AsType[*abortError](err); ok {
				r.cancel(abort)
				return
			}
			if err == nil {
				err = r.writeNote(ctx, replay.NoteTold, i.ID)
			}
			if err != nil && r.relinquished() == nil && !errors.Is(err, event.ErrEnded) {
				l.agent.Logger.LogAttrs(ctx, slog.LevelWarn, "the hook interrupt may be asked about a question again",
					slog.String("run_id", r.ID), slog.String("error", err.Error()))
			}
		})
	})
}

// callRunEndHook sends the terminal event of the run to the hook run_end, before the event is
// appended. A process that dies in between leaves a run without a terminal event, so another
// process takes it over and sends the same end again: an answer is rebuilt from the log, and any
// other end is stored here first.
func (l *loop) callRunEndHook(ctx context.Context, end event.Body) {
	if !l.agent.Hooks.Asks(webhook.RunEnd) {
		return
	}
	var e webhook.End
	err := l.run.writeEnd(ctx, end)
	if err != nil { // the log will probably refuse the terminal event too, so the run would not end here
		l.agent.Logger.LogAttrs(ctx, slog.LevelWarn, "the hook run_end is not asked: the end of a run could not be stored",
			slog.String("run_id", l.run.ID), slog.String("error", err.Error()))
		return
	}
	switch b := end.(type) {
	case event.FinalAnswer:
		e.Status = "completed"
		e.Result, err = json.Marshal(b)
	case event.RunError:
		e.Status = "failed"
		e.Error, err = json.Marshal(b)
	case event.Cancelled:
		e.Status = "cancelled"
		e.Error, err = json.Marshal(event.RunError{Code: "cancelled", Message: b.Reason, PartialAnswer: b.PartialAnswer})
	}
	if err != nil {
		l.agent.Logger.LogAttrs(ctx, slog.LevelError, "hook failed",
			slog.String("run_id", l.run.ID), slog.String("hook", string(webhook.RunEnd)), slog.String("error", err.Error()), help.Hooks.Attr())
		return
	}
	_, _ = l.askAboutRun(ctx, webhook.Call{Hook: webhook.RunEnd, End: &e}) // the reply cannot change the end
}

// writeEnd stores a terminal event that is not an answer. The same run could otherwise end in
// another way in the next process: a model that failed once may answer.
func (r *run) writeEnd(ctx context.Context, end event.Body) error {
	if _, ok := end.(event.FinalAnswer); ok || r.job == nil || r.replayed != nil && r.replayed.End != nil {
		return nil
	}
	e, err := event.Encode(r.ID, 0, 0, end)
	if err != nil {
		return err
	}
	return r.writeParts(ctx, e.JSON, replay.NoteEnd)
}

// restoredEnd returns how the run ends if another process knew that already, and died before the
// terminal event. Both results are nil if no process did.
func (l *loop) restoredEnd() (event.Body, error) {
	s := l.replayed
	switch {
	case s == nil:
		return nil, nil
	case s.End != nil:
		return s.End, nil
	case s.Abort != nil:
		return nil, &abortError{reason: s.Abort.Reason, withheld: s.Abort.Withheld}
	}
	return nil, nil
}
