package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"answerd/internal/agent/budget"
	"answerd/internal/agent/toolsearch"
	"answerd/internal/agent/window"
	"answerd/internal/event"
	"answerd/internal/help"
	"answerd/internal/llm"
	"answerd/internal/mcp/catalog"
)

// conversationCalls returns the calls in the form of the conversation.
func (r modelReply) conversationCalls() []llm.ToolCall {
	out := make([]llm.ToolCall, len(r.calls))
	for i, c := range r.calls {
		out[i] = llm.ToolCall{Index: i, ID: c.CallID, Name: c.Tool, Arguments: c.argsAsWritten()}
	}
	return out
}

// ownCalls returns the calls that the agent executes.
func (r modelReply) ownCalls() []*call {
	return slices.DeleteFunc(slices.Clone(r.calls), func(c *call) bool { return c.byClient })
}

// hasClientCalls reports whether the model called the caller's tools, which ends the run.
func (r modelReply) hasClientCalls() bool {
	return slices.ContainsFunc(r.calls, func(c *call) bool { return c.byClient })
}

// maxToolName bounds the name of a call, in bytes. Names of tools have at most 64.
const maxToolName = 128

// safeToolName returns the name of a call for events, metadata and the conversation. It escapes control and format
// characters, which include those that reorder text (Unicode Bidirectional Algorithm), and cuts the name at
// maxToolName. No tool's own name is changed by this, so a changed name was invented.
func safeToolName(name string) string {
	if IsToolName(name) {
		return name
	}
	var b strings.Builder
	for _, r := range name { // invalid UTF-8 becomes U+FFFD
		text := string(r)
		if unicode.In(r, unicode.Cc, unicode.Cf, unicode.Zl, unicode.Zp) {
			text = strings.Trim(strconv.QuoteRuneToASCII(r), "'")
		}
		if b.Len()+len(text) > maxToolName {
			break
		}
		b.WriteString(text)
	}
	return b.String()
}

// reserveStep is how many bytes of an answer are counted together as held.
const reserveStep = 16 << 10

// errOutputCut ends an answer that exceeds its limit of tokens or repeats itself.
var errOutputCut = errors.New("the model's answer was cut")

// maxTrimTries bounds how often a model is asked in one step, each time with less than the
// provider has just refused as too long.
const maxTrimTries = 4

// modelTurn makes one model call and appends the parts of the answer as events while they arrive. It first trims the
// conversation to the model's context window, and trims it again if the provider refuses it as too long. If the log
// already has the step, modelTurn restores it instead.
//
// The event step_end decides whether the step has happened. Without it, a process that takes over resets the
// step and asks the model again. With it, the model is not asked again, so whatever later steps need is stored
// before it: the text and the calls as events, the additions of the hook pre_model_call, the decision of the
// hook model_result, which model answered, and the members that the endpoint wants back (writeExtensions).
func (l *loop) modelTurn(ctx context.Context, turn int, last bool) (modelReply, error) {
	tools := l.offeredTools(last)
	if s := l.replayed.Step(l.step + 1); s != nil {
		return l.restoreStep(s, tools), nil
	}
	if err := l.trimToWindow(ctx, tools); err != nil {
		return modelReply{}, err
	}
	added, err := l.callPreModelHook(ctx, turn, last)
	if err != nil {
		return modelReply{}, err
	}
	l.step++
	before, upstream := cmp.Or(l.preferredModel, l.run.req.Model), l.metadata.UpstreamModel
	stream := &modelStream{loop: l, finalTurn: last, byIndex: make(map[int]*call), addition: added}
	if err := l.appendStepStart(ctx); err != nil {
		return modelReply{}, err
	}
	if err := l.writeHookAddition(ctx, added); err != nil {
		return modelReply{}, err
	}
	if err := stream.askTrimmed(ctx, turn); err != nil {
		stream.countCutAnswer(ctx)
		return modelReply{}, err
	}
	if stream.finish == "" {
		// The stream broke the contract of llm.Model, so its content must not become the answer.
		return modelReply{}, fmt.Errorf("the model's stream ended without a finish")
	}
	if err := stream.endText(ctx); err != nil {
		return modelReply{}, err
	}
	stream.text = l.run.threadTurn.StepText()

	if stream.finish == "tool_calls" && len(stream.calls) == 0 {
		// The endpoint reports calls but sent none, for example because the model wrote them as text that was not
		// recognized. Then the text is the final answer, and callers must not wait for calls.
		stream.finish = "stop"
	}
	if err := stream.closePart(ctx); err != nil {
		return modelReply{}, err
	}
	if err := stream.callModelResultHook(ctx); err != nil {
		return modelReply{}, err
	}
	if err := l.writeModel(ctx, before, upstream); err != nil {
		return modelReply{}, err
	}
	if err := l.writeExtensions(ctx, stream.extensions); err != nil {
		return modelReply{}, err
	}
	end := event.StepEnd{Step: l.step, FinishReason: stream.finish}
	if stream.usageSeen {
		usage := stream.usage // a pointer into s would keep the whole run in memory as long as its events
		end.Usage = &usage
	}
	return stream.modelReply, l.run.out.Append(ctx, end)
}

// askTrimmed asks the model, and asks it again with less of the conversation while the provider
// refuses the conversation as too long. It does not ask again once a part or a call of the answer was appended,
// because readers have it already.
func (s *modelStream) askTrimmed(ctx context.Context, turn int) error {
	parts := s.partCount
	for try := 1; ; try++ {
		err := s.readAnswer(ctx, turn)
		hasOutput := s.partCount > parts || len(s.calls) > 0
		if err == nil || try == maxTrimTries || hasOutput {
			return err
		}
		if again, failed := s.retryTrimmed(ctx, err, s.finalTurn); failed != nil || !again {
			return cmp.Or(failed, err)
		}
	}
}

// readAnswer reads one answer of the model and appends its parts.
func (s *modelStream) readAnswer(ctx context.Context, turn int) error {
	request := s.modelRequest(turn, s.finalTurn)
	var err error
	if request.Messages, err = s.extendMessages(ctx, request.Messages); err != nil {
		return err
	}
	s.recordRequest(ctx, request)
	s.output, s.unparsed = budget.NewOutput(request.MaxTokens), make(map[int]*strings.Builder)
	for part, err := range s.agent.Model.Stream(ctx, request) {
		if err == nil {
			err = s.appendPart(ctx, part)
		}
		if errors.Is(err, errOutputCut) {
			return s.finishCut(ctx)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// finishCut completes an answer that was cut. Its usage is an estimate, since endpoints report
// usage only at the end of an answer.
func (s *modelStream) finishCut(ctx context.Context) error {
	s.agent.Logger.LogAttrs(ctx, slog.LevelWarn, "model answer cut: it exceeds its limit or repeats itself",
		slog.String("run_id", s.run.ID), slog.Int("step", s.step), slog.Int64("tokens", s.output.Tokens()), help.CutAnswer.Attr())
	s.finish = "length"
	if !s.usageSeen {
		prompt := s.window.PromptTokens()
		s.countUsage(ctx, llm.Usage{Input: prompt, Output: s.output.Tokens(), Total: prompt + s.output.Tokens()})
	}
	for index, arguments := range s.unparsed {
		c := s.byIndex[index]
		c.parseArgs(arguments.String())
		if err := s.run.out.Append(ctx, event.ToolCall{Call: c.Call, Args: c.args, ArgsText: c.argsText, Executor: c.executor()}); err != nil {
			return err
		}
	}
	return nil
}

// countCutAnswer counts an answer that failed or was cancelled after it had begun, by an estimate:
// providers charge for it, and report its usage only at the end of an answer.
func (s *modelStream) countCutAnswer(ctx context.Context) {
	if s.usageSeen || s.output == nil || s.output.Tokens() == 0 {
		return
	}
	u := event.Usage{InputTokens: s.window.PromptTokens(), OutputTokens: s.output.Tokens()}
	u.TotalTokens = u.InputTokens + u.OutputTokens
	s.addUsage(u)
	s.countModelCall(context.WithoutCancel(ctx), u)
}

// reservePiece counts a piece of the answer as memory that the run holds.
func (s *modelStream) reservePiece(piece string) {
	s.uncounted += len(piece)
	if s.uncounted >= reserveStep {
		s.run.reserveMemory(s.uncounted)
		s.uncounted = 0
	}
}

// cutAfter returns err, or errOutputCut if the answer must be cut.
func cutAfter(cut bool, err error) error {
	if err == nil && cut {
		return errOutputCut
	}
	return err
}

// countUsage counts what the provider reports of the answer: in the answer's metadata, in metrics and for the
// caller. The run's budget is charged later, by spendTokens, which replayed steps go through too.
func (s *modelStream) countUsage(ctx context.Context, u llm.Usage) {
	s.usageSeen = true
	s.usage = event.Usage{InputTokens: u.Input, OutputTokens: u.Output, TotalTokens: u.Total}
	s.countModelCall(ctx, s.usage)
	s.metadata.Usage.InputTokens += u.Input
	s.metadata.Usage.OutputTokens += u.Output
	s.metadata.Usage.TotalTokens += u.Total
}

// appendPart appends one part of the answer.
func (s *modelStream) appendPart(ctx context.Context, p llm.Part) error {
	switch p := p.(type) {
	case llm.Text:
		delta, cut := s.output.Add(p.Delta)
		s.reservePiece(delta)
		if s.loop.output != nil {
			delta = s.fence.Add(delta)
		}
		return cutAfter(cut, s.appendText(ctx, delta))
	case llm.Reasoning:
		if err := s.endText(ctx); err != nil {
			return err
		}
		delta, cut := s.output.Add(p.Delta)
		s.reservePiece(delta)
		return cutAfter(cut, s.appendDelta(ctx, "reasoning", delta))
	case llm.ToolCallStart:
		return s.startCall(ctx, p.Index, p.ID, p.Name)
	case llm.ToolCallArgs:
		if c := s.byIndex[p.Index]; c != nil {
			delta, cut := s.output.Add(p.Delta)
			s.reservePiece(delta)
			if s.unparsed[p.Index] != nil {
				s.unparsed[p.Index].WriteString(delta)
			}
			return cutAfter(cut, s.run.out.Append(ctx, event.ToolCallArgs{Call: c.Call, Delta: delta}))
		}
	case llm.ToolCall:
		return s.completeCall(ctx, p)
	case llm.Extensions:
		s.extensions = &p
	case llm.Usage:
		s.countUsage(ctx, p)
	case llm.Finish:
		s.finish, s.preferredModel = p.Reason, p.Asked
		if p.Model != "" {
			s.metadata.UpstreamModel = p.Model
		}
	}
	return nil
}

// appendText appends a piece of text, which may be empty.
func (s *modelStream) appendText(ctx context.Context, text string) error {
	if text == "" {
		return nil
	}
	return s.appendDelta(ctx, "text", text)
}

// endText appends the end of a text that was held back because it could have been a code fence.
func (s *modelStream) endText(ctx context.Context) error { return s.appendText(ctx, s.fence.End()) }

// appendDelta appends text or reasoning, and opens a new part when the kind changes.
func (s *modelStream) appendDelta(ctx context.Context, kind, delta string) error {
	if !strings.HasPrefix(s.partID, kind) {
		if err := s.openPart(ctx, kind); err != nil {
			return err
		}
	}
	if kind == "text" {
		return s.run.out.Append(ctx, event.TextDelta{PartID: s.partID, Delta: delta})
	}
	return s.run.out.Append(ctx, event.ReasoningDelta{PartID: s.partID, Delta: delta})
}

// openPart closes the open part and opens one of a kind, text or reasoning. Ids of parts begin with the kind, and
// are numbered through the whole run.
func (s *modelStream) openPart(ctx context.Context, kind string) error {
	if err := s.closePart(ctx); err != nil {
		return err
	}
	s.recordFirstOutput(ctx)
	s.partCount++
	s.partID = fmt.Sprintf("%s_%d", kind, s.partCount)
	if kind == "text" {
		s.partEnd = event.TextEnd{PartID: s.partID}
		return s.run.out.Append(ctx, event.TextStart{PartID: s.partID})
	}
	s.partEnd = event.ReasoningEnd{PartID: s.partID}
	return s.run.out.Append(ctx, event.ReasoningStart{PartID: s.partID})
}

// closePart appends the end of the open part. It does nothing if none is open.
func (s *modelStream) closePart(ctx context.Context) error {
	if s.partEnd == nil {
		return nil
	}
	end := s.partEnd
	s.partEnd, s.partID = nil, ""
	return s.run.out.Append(ctx, end)
}

// startCall appends the start of a call that the model begins to write.
func (s *modelStream) startCall(ctx context.Context, index int, id, name string) error {
	if err := s.endText(ctx); err != nil {
		return err
	}
	if err := s.closePart(ctx); err != nil {
		return err
	}
	s.recordFirstOutput(ctx)
	name = safeToolName(name)
	c := &call{Call: event.Call{CallID: s.uniqueCallID(id), Tool: name, Server: s.tools[name].Server}}
	c.byClient = !s.finalTurn && s.isClientTool(name)
	s.byIndex[index], s.unparsed[index] = c, new(strings.Builder)
	s.calls = append(s.calls, c)
	return s.run.out.Append(ctx, event.ToolCallStart{Call: c.Call, NeedsApproval: s.tools[name].NeedsApproval, Executor: c.executor()})
}

// completeCall appends a call with all of its arguments.
func (s *modelStream) completeCall(ctx context.Context, p llm.ToolCall) error {
	if s.byIndex[p.Index] == nil {
		if err := s.startCall(ctx, p.Index, p.ID, p.Name); err != nil {
			return err
		}
	}
	c := s.byIndex[p.Index]
	delete(s.unparsed, p.Index)
	c.parseArgs(p.Arguments)
	return s.run.out.Append(ctx, event.ToolCall{Call: c.Call, Args: c.args, ArgsText: c.argsText, Executor: c.executor()})
}

// uniqueCallID returns the provider's call id, with a suffix if an earlier step used it: some
// providers number their calls from 0 in every answer.
func (l *loop) uniqueCallID(id string) string {
	unique := id
	for n := 2; l.callIDs[unique] || unique == ""; n++ {
		unique = fmt.Sprintf("%s_%d", id, n)
	}
	l.callIDs[unique] = true
	return unique
}

// recordFirstOutput measures the time from the start of the run to the model's first output.
func (s *modelStream) recordFirstOutput(ctx context.Context) {
	if s.step == 1 && s.partCount == 0 && len(s.calls) == 0 {
		s.agent.metrics.firstEvent.Record(ctx, time.Since(s.started).Seconds())
	}
}

// trimToWindow shortens the conversation to the model's context window before a request, so that
// the provider does not refuse the request.
func (l *loop) trimToWindow(ctx context.Context, tools []llm.Tool) error {
	r := l.trimNow(tools)
	if !r.Trimmed {
		return nil
	}
	if err := l.reportTrimmed(ctx, r); err != nil {
		return err
	}
	l.agent.Logger.LogAttrs(ctx, slog.LevelDebug, "conversation trimmed to the model's window",
		slog.String("run_id", l.run.ID), slog.Int("step", l.step+1), slog.Int64("tokens_before", r.Before), slog.Int64("tokens", r.After), slog.Int64("limit", r.Limit))
	if r.TooLarge {
		return &llm.Error{Kind: llm.TooLarge, Public: "The question, and what belongs to it, does not fit the model's context window.",
			Err: fmt.Errorf("some %d tokens where %d are possible", r.After, r.Limit)}
	}
	return nil
}

// trimNow trims like trimToWindow but appends no event, for a replayed step, whose events are in
// the log.
func (l *loop) trimNow(tools []llm.Tool) window.Result {
	c := l.windowConversation(tools)
	r := l.window.Trim(c)
	l.messages, l.historyLen = c.Messages, c.History
	return r
}

// reportTrimmed informs readers, once per run, that the model no longer sees everything.
func (l *loop) reportTrimmed(ctx context.Context, r window.Result) error {
	if l.trimReported {
		return nil
	}
	l.trimReported = true
	return l.run.out.Append(ctx, event.Budget{Limit: "context_tokens", Used: float64(r.Before), Max: float64(max(r.Limit, 1))})
}

// retryTrimmed shortens the conversation after the provider refused it as too long, and reports whether another try
// makes sense. If the provider named the window, its size is remembered for the model.
func (l *loop) retryTrimmed(ctx context.Context, refused error, final bool) (retry bool, _ error) {
	var modelErr *llm.Error
	if !errors.As(refused, &modelErr) || modelErr.Kind != llm.TooLarge {
		return false, nil
	}
	model := cmp.Or(modelErr.Asked, l.run.req.Model)
	if l.agent.windowSizes.Learn(model, modelErr.ContextTokens) {
		l.agent.Logger.LogAttrs(ctx, slog.LevelInfo, "the endpoint named the model's context window",
			slog.String("run_id", l.run.ID), slog.String("model", model), slog.Int64("tokens", modelErr.ContextTokens), slog.Int64("prompt_tokens", modelErr.PromptTokens))
	}
	answer, offered := l.answerTokens(final), len(l.offeredTools(final))
	l.window.LearnSize(modelErr.ContextTokens)
	if prompt := modelErr.PromptTokens; prompt > 0 && prompt < l.window.Size() {
		l.answerRefused = true // the prompt alone fits
	}
	if err := l.fitTools(ctx); err != nil {
		return false, err
	}
	if modelErr.PromptTokens == 0 && l.answerTokens(final) < answer {
		return true, nil // perhaps the prompt fits, and only the answer was too long
	}
	c := l.windowConversation(l.offeredTools(final))
	r := l.window.TrimRefused(c, window.Refusal{Window: modelErr.ContextTokens, Prompt: modelErr.PromptTokens})
	if !r.Trimmed {
		changed := l.answerTokens(final) != answer || len(l.offeredTools(final)) != offered
		return changed && !r.TooLarge, nil
	}
	l.messages, l.historyLen = c.Messages, c.History
	return true, l.reportTrimmed(ctx, r)
}

// windowConversation returns the content of a request for package window. Results that came with
// the run's own request are not stored in the log.
func (l *loop) windowConversation(tools []llm.Tool) *window.Conversation {
	return &window.Conversation{Messages: l.messages, History: l.historyLen, Tools: tools, StoredAt: func(callID string) string {
		if l.requestCallIDs[callID] {
			return ""
		}
		return l.agent.resultPath(l.run.ID, callID)
	}}
}

// newToolSearch returns nil if the model is offered all of its tools, because they are few, or
// because the request names its tools or requires a call.
func (l *loop) newToolSearch() *toolsearch.Search {
	if l.run.req.restrictsTools() || l.run.req.ToolChoice == ToolRequired {
		return nil
	}
	return l.agent.ToolSearch.Search(l.catalog.Catalog, l.window.Size())
}

// fitTools adapts the offered tools to the model's window after its size was learned: it starts the
// tool search if they take too much of the window. Tools that the run has called stay offered.
func (l *loop) fitTools(ctx context.Context) (err error) {
	if l.search == nil {
		l.search = l.newToolSearch()
		if l.search == nil {
			return nil
		}
		var called []string
		for _, m := range l.messages {
			for _, c := range m.Calls {
				called = append(called, c.Name)
			}
		}
		l.search.Offer(called...)
		l.clientTools = l.run.req.clientTools(l.catalog, l.search, l.askTools)
		l.messages[0].Text, err = l.systemPrompt(ctx, []catalog.Tool{l.search.Tool})
	}
	l.search.Fit(l.window.Size())
	l.updateOffered()
	return err
}
