package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"answerd/internal/agent/budget"
	"answerd/internal/agent/window"
	"answerd/internal/event"
	"answerd/internal/help"
	"answerd/internal/llm"
)

// maxToolName is the maximum length of a call's tool name, in bytes. Names of real tools have at most 64.
const maxToolName = 128

// safeToolName returns the tool name for a call's events, metadata and conversation. It escapes control and format
// characters, including those that reorder text (Unicode Bidirectional Algorithm), and cuts the name at maxToolName
// bytes. It never changes the name of an existing tool, only a name that the model made up.
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

// reserveBatch is how many bytes of an answer reserveText collects before it counts them as memory.
const reserveBatch = 16 << 10

// errOutputCut ends an answer that exceeds its token limit or repeats itself.
var errOutputCut = errors.New("the model's answer was cut")

// maxTrimTries is how often a model is asked in one step. Each retry sends a shorter conversation than the one that the
// provider refused as too long.
const maxTrimTries = 4

// modelTurn makes one model call and appends the parts of the answer as events while they arrive. It first trims the
// conversation to the model's context window, and trims it further if the provider refuses it as too long. If final is
// true, the model is offered no tools. If the log already has the step, modelTurn restores the step instead.
//
// The step_end event decides whether the step happened. A process that takes over the run and finds no step_end resets
// the step and asks the model again. So everything that later steps need from this one is stored before step_end, in
// events or notes.
func (l *loop) modelTurn(ctx context.Context, turn int, final bool) (modelReply, error) {
	tools := l.offeredTools(final)
	if step := l.replayed.Step(l.step + 1); step != nil {
		return l.restoreStep(step, tools), nil
	}
	if err := l.trimToWindow(ctx, tools); err != nil {
		return modelReply{}, err
	}
	addition, err := l.callPreModelHook(ctx, turn, final)
	if err != nil {
		return modelReply{}, err
	}
	l.step++
	modelBefore := cmp.Or(l.preferredModel, l.run.req.Model)
	upstreamBefore := l.metadata.UpstreamModel
	stream := &modelStream{loop: l, finalTurn: final, byIndex: make(map[int]*call), addition: addition}
	if err := l.appendStepStart(ctx); err != nil {
		return modelReply{}, err
	}
	if err := l.writeHookAddition(ctx, addition); err != nil {
		return modelReply{}, err
	}
	if err := stream.askTrimmed(ctx, turn); err != nil {
		stream.countCutAnswer(ctx)
		return modelReply{}, err
	}
	if stream.finish == "" {
		// The stream broke the contract of llm.Model, so its content must not become the answer.
		return modelReply{}, errors.New("the model's stream ended without a finish")
	}
	err = stream.endStep(ctx, modelBefore, upstreamBefore) // completes stream.modelReply
	return stream.modelReply, err
}

// endStep completes the reply after its last part. It appends and stores what later steps need, and then step_end (see
// modelTurn). modelBefore and upstreamBefore are as for writeModel.
func (s *modelStream) endStep(ctx context.Context, modelBefore, upstreamBefore string) error {
	if err := s.endText(ctx); err != nil {
		return err
	}
	s.text = s.run.threadTurn.StepText() // threadTurn observes all events of the run
	if s.finish == "tool_calls" && len(s.calls) == 0 {
		// The endpoint reports calls but sent none, for example because the model wrote them as text that was not
		// recognized. The text is then the final answer, and the API client must not wait for calls.
		s.finish = "stop"
	}
	if err := s.closePart(ctx); err != nil {
		return err
	}
	if err := s.callModelResultHook(ctx); err != nil {
		return err
	}
	if err := s.writeModel(ctx, modelBefore, upstreamBefore); err != nil {
		return err
	}
	if err := s.writeExtensions(ctx, s.extensions); err != nil {
		return err
	}
	end := event.StepEnd{Step: s.step, FinishReason: s.finish}
	if s.usageSeen {
		usage := s.usage // a pointer into s would keep s, and so the whole run, in memory as long as the event
		end.Usage = &usage
	}
	return s.run.out.Append(ctx, end)
}

// askTrimmed asks the model. While the provider refuses the conversation as too long, it asks again with a shorter one,
// up to maxTrimTries times in all. Once a part or a call of the answer was appended, it does not ask again, because
// readers already have that output.
func (s *modelStream) askTrimmed(ctx context.Context, turn int) error {
	partsBefore := s.partCount
	for try := 1; ; try++ {
		err := s.readAnswer(ctx, turn)
		hasOutput := s.partCount > partsBefore || len(s.calls) > 0
		if err == nil || try == maxTrimTries || hasOutput {
			return err
		}
		mayRetry, trimErr := s.shortenRefused(ctx, err, s.finalTurn)
		if trimErr != nil {
			return trimErr
		}
		if !mayRetry {
			return err
		}
	}
}

// readAnswer sends one request to the model and appends the parts of the answer while they arrive. It cuts an answer
// that exceeds its token limit or repeats itself, and returns nil for it.
func (s *modelStream) readAnswer(ctx context.Context, turn int) error {
	request := s.modelRequest(turn, s.finalTurn)
	messages, err := s.extendMessages(ctx, request.Messages)
	if err != nil {
		return err
	}
	request.Messages = messages
	s.recordRequest(ctx, request)
	s.output = budget.NewOutput(request.MaxTokens)
	s.unparsed = make(map[int]*strings.Builder)
	for part, err := range s.agent.Model.Stream(ctx, request) {
		if err == nil {
			err = s.appendPart(ctx, part)
		}
		if err == nil && ctx.Err() != nil {
			err = context.Cause(ctx) // the rest of the answer may already be buffered, and would still be read
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

// finishCut completes an answer that was cut: it sets the finish reason to length, and appends the calls whose
// arguments are still incomplete. If the endpoint has not reported usage, which usually comes last, finishCut counts an
// estimate.
func (s *modelStream) finishCut(ctx context.Context) error {
	s.agent.Logger.LogAttrs(ctx, slog.LevelWarn, "model answer cut: it exceeds its limit or repeats itself",
		slog.String("run_id", s.run.ID), slog.Int("step", s.step), slog.Int64("tokens", s.output.Tokens()), help.CutAnswer.Attr())
	s.finish = "length"
	if !s.usageSeen {
		prompt := s.window.PromptTokens()
		s.countUsage(ctx, llm.Usage{Input: prompt, Output: s.output.Tokens(), Total: prompt + s.output.Tokens()})
	}
	for _, index := range slices.Sorted(maps.Keys(s.unparsed)) {
		c := s.byIndex[index]
		c.parseArgs(s.unparsed[index].String())
		if err := s.run.out.Append(ctx, event.ToolCall{Call: c.Call, Args: c.args, ArgsText: c.argsText, Executor: c.executor()}); err != nil {
			return err
		}
	}
	return nil
}

// countCutAnswer counts estimated tokens for an answer that began but then failed or was cancelled. Providers charge
// for such an answer, but report usage only at the end of a complete one.
func (s *modelStream) countCutAnswer(ctx context.Context) {
	if s.usageSeen || s.output == nil || s.output.Tokens() == 0 {
		return
	}
	estimate := event.Usage{InputTokens: s.window.PromptTokens(), OutputTokens: s.output.Tokens()}
	estimate.TotalTokens = estimate.InputTokens + estimate.OutputTokens
	s.addUsage(estimate)
	s.countModelCall(context.WithoutCancel(ctx), estimate)
}

// reserveText counts a piece of the answer as memory of the run. It does so in batches of reserveBatch bytes.
func (s *modelStream) reserveText(piece string) {
	s.uncounted += len(piece)
	if s.uncounted >= reserveBatch {
		s.run.reserveMemory(s.uncounted)
		s.uncounted = 0
	}
}

// errorOrCut returns the result of appending a piece of an answer: appendErr or, if that is nil and the answer must be
// cut after this piece, errOutputCut.
func errorOrCut(appendErr error, mustCut bool) error {
	if appendErr == nil && mustCut {
		return errOutputCut
	}
	return appendErr
}

// countUsage adds the usage that the provider reports to the run's metadata, the metrics and the use of the caller's
// budgets. It does not charge the run's own budget: spendTokens does that after the step, also for replayed steps.
func (s *modelStream) countUsage(ctx context.Context, used llm.Usage) {
	s.usageSeen = true
	s.usage = event.Usage{InputTokens: used.Input, OutputTokens: used.Output, TotalTokens: used.Total}
	s.countModelCall(ctx, s.usage)
	s.addUsage(s.usage)
}

// appendPart appends the events for one part of the answer, or stores in s what the part says about the answer. It
// returns errOutputCut if the answer must be cut after this part.
func (s *modelStream) appendPart(ctx context.Context, part llm.Part) error {
	switch p := part.(type) {
	case llm.Text:
		delta, mustCut := s.output.Add(p.Delta)
		s.reserveText(delta)
		if s.loop.output != nil {
			delta = s.fence.Add(delta)
		}
		return errorOrCut(s.appendText(ctx, delta), mustCut)
	case llm.Reasoning:
		if err := s.endText(ctx); err != nil {
			return err
		}
		delta, mustCut := s.output.Add(p.Delta)
		s.reserveText(delta)
		return errorOrCut(s.appendDelta(ctx, "reasoning", delta), mustCut)
	case llm.ToolCallStart:
		return s.startCall(ctx, p.Index, p.ID, p.Name)
	case llm.ToolCallArgs:
		return s.appendArgs(ctx, p)
	case llm.ToolCall:
		return s.completeCall(ctx, p)
	case llm.Extensions:
		s.extensions = &p
	case llm.Usage:
		s.usePriceOf(p.Asked)
		s.countUsage(ctx, p)
	case llm.Finish:
		s.finish = p.Reason
		s.preferredModel = p.Asked
		s.metadata.UpstreamModel = cmp.Or(p.Model, s.metadata.UpstreamModel)
	}
	return nil
}

// appendArgs appends an event with a piece of a call's arguments. It ignores pieces for a call that has not started. It
// returns errOutputCut if piece reaches the limit of the output, so that the answer ends here, and otherwise an error
// of the log.
func (s *modelStream) appendArgs(ctx context.Context, piece llm.ToolCallArgs) error {
	c := s.byIndex[piece.Index]
	if c == nil {
		return nil
	}
	delta, mustCut := s.output.Add(piece.Delta)
	s.reserveText(delta)
	if unparsed := s.unparsed[piece.Index]; unparsed != nil {
		unparsed.WriteString(delta)
	}
	return errorOrCut(s.run.out.Append(ctx, event.ToolCallArgs{Call: c.Call, Delta: delta}), mustCut)
}

// appendText appends a piece of the answer's text. It ignores "", which the fence returns while it holds back text.
func (s *modelStream) appendText(ctx context.Context, text string) error {
	if text == "" {
		return nil
	}
	return s.appendDelta(ctx, "text", text)
}

// endText appends the text that s.fence has held back because it might be a code fence, if any.
func (s *modelStream) endText(ctx context.Context) error { return s.appendText(ctx, s.fence.End()) }

// appendDelta appends a piece of text or reasoning. kind is "text" or "reasoning". If no part of this kind is open, it
// first closes the open part, if any, and opens a new one.
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

// openPart closes the open part, if any, and opens a new one. kind is "text" or "reasoning". A part's id consists of
// its kind and its number within the run.
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

// closePart appends the end event of the open part, if any.
func (s *modelStream) closePart(ctx context.Context) error {
	if s.partEnd == nil {
		return nil
	}
	end := s.partEnd
	s.partEnd = nil
	s.partID = ""
	return s.run.out.Append(ctx, end)
}

// startCall closes the open part, adds a call that the model has begun to write to the reply, and appends its start
// event. index is the endpoint's number for the call; later deltas and the complete call refer to it.
func (s *modelStream) startCall(ctx context.Context, index int, id, name string) error {
	if err := s.endText(ctx); err != nil {
		return err
	}
	if err := s.closePart(ctx); err != nil {
		return err
	}
	s.recordFirstOutput(ctx)
	name = safeToolName(name)
	tool := s.catalog.ByName[name] // the zero value for other tools than those of MCP servers
	c := &call{Call: event.Call{CallID: s.reserveCallID(id), Tool: name, Server: tool.Server}}
	c.byClient = !s.finalTurn && s.isClientTool(name)
	s.byIndex[index] = c
	s.unparsed[index] = new(strings.Builder)
	s.calls = append(s.calls, c)
	return s.run.out.Append(ctx, event.ToolCallStart{Call: c.Call, NeedsApproval: tool.NeedsApproval, Executor: c.executor()})
}

// completeCall appends a call with its complete arguments. If the endpoint sent the call in one piece, it starts it
// first.
func (s *modelStream) completeCall(ctx context.Context, call llm.ToolCall) error {
	if s.byIndex[call.Index] == nil {
		if err := s.startCall(ctx, call.Index, call.ID, call.Name); err != nil {
			return err
		}
	}
	c := s.byIndex[call.Index]
	delete(s.unparsed, call.Index)
	c.parseArgs(call.Arguments)
	return s.run.out.Append(ctx, event.ToolCall{Call: c.Call, Args: c.args, ArgsText: c.argsText, Executor: c.executor()})
}

// reserveCallID returns a unique id for a call, and adds it to l.callIDs. The id is the provider's, with a suffix if
// that is empty or an earlier call of the conversation has it, since some providers count their calls from 0 in every
// answer.
func (l *loop) reserveCallID(id string) string {
	unique := id
	for n := 2; unique == "" || l.callIDs[unique]; n++ {
		unique = fmt.Sprintf("%s_%d", id, n)
	}
	l.callIDs[unique] = true
	return unique
}

// recordFirstOutput records in the metric time_to_first_event how long the model's first output took from the start of
// the run. It does nothing for later output.
func (s *modelStream) recordFirstOutput(ctx context.Context) {
	if s.step == 1 && s.partCount == 0 && len(s.calls) == 0 {
		s.agent.metrics.firstEvent.Record(ctx, time.Since(s.started).Seconds())
	}
}

// trimToWindow shortens the conversation before a request that offers tools, so that it fits the model's context window
// and the provider does not refuse it. The first time in the run that it removes something, it appends a budget event.
// It returns an *llm.Error if the conversation does not fit even with everything removed that may be.
func (l *loop) trimToWindow(ctx context.Context, tools []llm.Tool) error {
	trimmed := l.trimSilently(tools)
	if !trimmed.Trimmed {
		return nil
	}
	if err := l.reportTrimmed(ctx, trimmed); err != nil {
		return err
	}
	l.agent.Logger.LogAttrs(ctx, slog.LevelDebug, "conversation trimmed to the model's window",
		slog.String("run_id", l.run.ID), slog.Int("step", l.step+1),
		slog.Int64("tokens_before", trimmed.Before), slog.Int64("tokens", trimmed.After), slog.Int64("limit", trimmed.Limit))
	if trimmed.TooLarge {
		return &llm.Error{Kind: llm.TooLarge, Public: "The question, and what belongs to it, does not fit the model's context window.",
			Err: fmt.Errorf("some %d tokens where %d are possible", trimmed.After, trimmed.Limit)}
	}
	return nil
}

// trimSilently shortens the conversation to the model's context window without appending an event. Replayed steps call
// it directly, because the log already has their events.
func (l *loop) trimSilently(tools []llm.Tool) window.Result {
	conversation := l.windowConversation(tools)
	trimmed := l.window.Trim(conversation)
	l.messages = conversation.Messages
	l.historyLen = conversation.History
	return trimmed
}

// reportTrimmed appends a budget event, once per run, which says that the model no longer sees the whole conversation.
func (l *loop) reportTrimmed(ctx context.Context, trimmed window.Result) error {
	if l.trimReported {
		return nil
	}
	l.trimReported = true
	return l.run.out.Append(ctx, event.Budget{Limit: "context_tokens", Used: float64(trimmed.Before), Max: float64(max(trimmed.Limit, 1))})
}

// shortenRefused shortens the conversation, the answer or the list of tools after the provider refused a request as too
// long. mayRetry is true if the next request will be shorter, and false if nothing can be shortened or refused is
// another error. final means that the model is offered no tools. The error comes from the system prompt or the log.
func (l *loop) shortenRefused(ctx context.Context, refused error, final bool) (mayRetry bool, _ error) {
	modelErr, isModelErr := errors.AsType[*llm.Error](refused)
	if !isModelErr || modelErr.Kind != llm.TooLarge {
		return false, nil
	}
	answerBefore := l.answerTokens(final)
	toolsBefore := len(l.offeredTools(final))
	l.learnSizes(ctx, modelErr)
	if err := l.fitTools(ctx); err != nil {
		return false, err
	}
	if modelErr.PromptTokens == 0 && l.answerTokens(final) < answerBefore {
		// The provider did not say how long the prompt is. The prompt may fit together with the answer, which is
		// shorter now that the window's size is known. Try that before removing messages.
		return true, nil
	}
	conversation := l.windowConversation(l.offeredTools(final))
	refusal := window.Refusal{Window: modelErr.ContextTokens, Prompt: modelErr.PromptTokens}
	trimmed := l.window.TrimRefused(conversation, refusal)
	if trimmed.Trimmed {
		l.messages = conversation.Messages
		l.historyLen = conversation.History
		return true, l.reportTrimmed(ctx, trimmed)
	}
	isAnswerChanged := l.answerTokens(final) != answerBefore // no message can be left out, but the answer may be shorter
	areToolsChanged := len(l.offeredTools(final)) != toolsBefore
	return (isAnswerChanged || areToolsChanged) && !trimmed.TooLarge, nil
}

// learnSizes stores what the provider said when it refused a prompt as too long. The size of the model's window is kept
// for other runs too. If only prompt and answer together were too long, it sets answerRefused.
func (l *loop) learnSizes(ctx context.Context, refused *llm.Error) {
	model := cmp.Or(refused.Asked, l.run.req.Model)
	if l.agent.windowSizes.Learn(model, refused.ContextTokens) {
		l.agent.Logger.LogAttrs(ctx, slog.LevelInfo, "the endpoint named the model's context window",
			slog.String("run_id", l.run.ID), slog.String("model", model),
			slog.Int64("tokens", refused.ContextTokens), slog.Int64("prompt_tokens", refused.PromptTokens))
	}
	l.window.LearnSize(refused.ContextTokens)
	if prompt := refused.PromptTokens; prompt > 0 && prompt < l.window.Size() {
		l.answerRefused = true
	}
}

// windowConversation describes the conversation, with the tools of the next request, for package window.
func (l *loop) windowConversation(tools []llm.Tool) *window.Conversation {
	storedAt := func(callID string) string {
		if l.requestCallIDs[callID] {
			return "" // the log does not store results that came with the run's own request
		}
		return l.agent.resultPath(l.run.ID, callID)
	}
	return &window.Conversation{Messages: l.messages, History: l.historyLen, Tools: tools, StoredAt: storedAt}
}
