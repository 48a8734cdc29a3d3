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

// maxToolName bounds the name of a call, in bytes. Names of tools have at most 64.
const maxToolName = 128

// safeToolName returns the name of a call for events, metadata and the conversation. It escapes control and format
// characters, which include those that reorder text (Unicode Bidirectional Algorithm), and cuts the name at
// maxToolName bytes. The names of existing tools stay unchanged; only a name that the model invented can change.
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

// reserveStep is how many bytes of an answer arrive before reservePiece counts them together.
const reserveStep = 16 << 10

// errOutputCut ends an answer that exceeds its limit of tokens or repeats itself.
var errOutputCut = errors.New("the model's answer was cut")

// maxTrimTries bounds how often a model is asked in one step, each time with a shorter conversation than the
// provider has just refused as too long.
const maxTrimTries = 4

// modelTurn makes one model call and appends the parts of the answer as events while they arrive. It first trims the
// conversation to the model's context window, and trims it again if the provider refuses it as too long. final means
// that the model is offered no tools. If the log already has the step, modelTurn restores it instead.
//
// The event step_end decides whether the step has happened. A process that takes over a run without the event resets
// the step and asks the model again. So everything that later steps need of this step is stored before step_end, in
// events or in notes.
func (l *loop) modelTurn(ctx context.Context, turn int, final bool) (modelReply, error) {
	tools := l.offeredTools(final)
	if s := l.replayed.Step(l.step + 1); s != nil {
		return l.restoreStep(s, tools), nil
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

// endStep completes the reply after its last part, and appends step_end. Before that, it appends and stores what later
// steps need (modelTurn). modelBefore and upstreamBefore are as for writeModel.
func (s *modelStream) endStep(ctx context.Context, modelBefore, upstreamBefore string) error {
	if err := s.endText(ctx); err != nil {
		return err
	}
	s.text = s.run.threadTurn.StepText() // threadTurn observes the events of the run
	if s.finish == "tool_calls" && len(s.calls) == 0 {
		// The endpoint reports calls but sent none, for example because the model wrote them as text that was not
		// recognized. Then the text is the final answer, and callers must not wait for calls.
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
		usage := s.usage // a pointer to the field would keep s, and so the whole run, in memory with its events
		end.Usage = &usage
	}
	return s.run.out.Append(ctx, end)
}

// askTrimmed asks the model, and asks it again with less of the conversation while the provider
// refuses the conversation as too long, up to maxTrimTries times. It does not ask again once a part or a call of the
// answer was appended, because readers have that output already.
func (s *modelStream) askTrimmed(ctx context.Context, turn int) error {
	partsBefore := s.partCount
	for try := 1; ; try++ {
		err := s.readAnswer(ctx, turn)
		hasOutput := s.partCount > partsBefore || len(s.calls) > 0
		if err == nil || try == maxTrimTries || hasOutput {
			return err
		}
		retry, retryErr := s.retryTrimmed(ctx, err, s.finalTurn)
		if retryErr != nil {
			return retryErr
		}
		if !retry {
			return err
		}
	}
}

// readAnswer sends one request to the model, and appends the parts of the answer while they arrive. An answer that
// exceeds its limit of tokens or repeats itself is cut, which is not an error.
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
			err = context.Cause(ctx) // The rest of the answer may have arrived already, and would be read without this.
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
// arguments are not complete. If the endpoint has not reported usage, which usually comes at the end of an answer,
// finishCut counts an estimate.
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

// countCutAnswer counts an estimate of the tokens of an answer that failed or was cancelled after it had begun.
// Providers charge for such an answer, but report usage only at the end of an answer.
func (s *modelStream) countCutAnswer(ctx context.Context) {
	if s.usageSeen || s.output == nil || s.output.Tokens() == 0 {
		return
	}
	u := event.Usage{InputTokens: s.window.PromptTokens(), OutputTokens: s.output.Tokens()}
	u.TotalTokens = u.InputTokens + u.OutputTokens
	s.addUsage(u)
	s.countModelCall(context.WithoutCancel(ctx), u)
}

// reservePiece counts a piece of the answer as memory of the run (run.reserveMemory), once reserveStep bytes have
// come together.
func (s *modelStream) reservePiece(piece string) {
	s.uncounted += len(piece)
	if s.uncounted >= reserveStep {
		s.run.reserveMemory(s.uncounted)
		s.uncounted = 0
	}
}

// cutAfter returns err, or errOutputCut if err is nil and the answer must be cut after the piece just appended.
func cutAfter(cut bool, err error) error {
	if err == nil && cut {
		return errOutputCut
	}
	return err
}

// countUsage counts the usage that the provider reports: in the run's metadata, in metrics and towards the caller's
// budgets. It does not charge the run's budget. spendTokens does that after the step, for replayed steps too.
func (s *modelStream) countUsage(ctx context.Context, used llm.Usage) {
	s.usageSeen = true
	s.usage = event.Usage{InputTokens: used.Input, OutputTokens: used.Output, TotalTokens: used.Total}
	s.countModelCall(ctx, s.usage)
	s.addUsage(s.usage)
}

// appendPart appends the events for one part of the answer, or notes what the part says about the answer. It returns
// errOutputCut if the answer must be cut after the part.
func (s *modelStream) appendPart(ctx context.Context, part llm.Part) error {
	switch p := part.(type) {
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
		if p.Model != "" {
			s.metadata.UpstreamModel = p.Model
		}
	}
	return nil
}

// appendArgs appends a piece of the arguments of a call that has started. It ignores arguments of unknown calls.
func (s *modelStream) appendArgs(ctx context.Context, piece llm.ToolCallArgs) error {
	c := s.byIndex[piece.Index]
	if c == nil {
		return nil
	}
	delta, cut := s.output.Add(piece.Delta)
	s.reservePiece(delta)
	if unparsed := s.unparsed[piece.Index]; unparsed != nil {
		unparsed.WriteString(delta)
	}
	return cutAfter(cut, s.run.out.Append(ctx, event.ToolCallArgs{Call: c.Call, Delta: delta}))
}

// appendText appends a piece of text. It does nothing for an empty piece, which the fence returns while it holds text
// back.
func (s *modelStream) appendText(ctx context.Context, text string) error {
	if text == "" {
		return nil
	}
	return s.appendDelta(ctx, "text", text)
}

// endText appends the text that s.fence has held back as a possible code fence, if there is any.
func (s *modelStream) endText(ctx context.Context) error { return s.appendText(ctx, s.fence.End()) }

// appendDelta appends a piece of text or reasoning; kind is "text" or "reasoning". It opens a new part if the open
// part is of another kind or no part is open.
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

// openPart closes the open part, if there is one, and opens a part; kind is "text" or "reasoning". The id of a part
// is its kind and its number in the run.
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
	s.partEnd = nil
	s.partID = ""
	return s.run.out.Append(ctx, end)
}

// startCall appends the start of a call that the model begins to write, and adds the call to the reply. It closes
// the open part. Deltas and the complete call are found by index, the endpoint's number of the call.
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
	s.byIndex[index] = c
	s.unparsed[index] = new(strings.Builder)
	s.calls = append(s.calls, c)
	return s.run.out.Append(ctx, event.ToolCallStart{Call: c.Call, NeedsApproval: s.tools[name].NeedsApproval, Executor: c.executor()})
}

// completeCall appends a call with all of its arguments. It starts the call first if the endpoint sends it as a whole.
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

// uniqueCallID returns the provider's call id, with a suffix if the id is empty or an earlier call of the conversation
// has it: some providers number their calls from 0 in every answer. It reserves the id that it returns.
func (l *loop) uniqueCallID(id string) string {
	unique := id
	for n := 2; l.callIDs[unique] || unique == ""; n++ {
		unique = fmt.Sprintf("%s_%d", id, n)
	}
	l.callIDs[unique] = true
	return unique
}

// recordFirstOutput records the time from the start of the run to the model's first output, in the metric
// time_to_first_event. It does nothing after that output.
func (s *modelStream) recordFirstOutput(ctx context.Context) {
	if s.step == 1 && s.partCount == 0 && len(s.calls) == 0 {
		s.agent.metrics.firstEvent.Record(ctx, time.Since(s.started).Seconds())
	}
}

// trimToWindow shortens the conversation to the model's context window before a request with tools, so that the
// provider does not refuse the request. It appends a budget event the first time that it leaves something out. It
// returns an *llm.Error if what cannot be left out does not fit.
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

// trimSilently shortens the conversation to the model's context window without an event. A replayed step calls it
// directly, because its events are in the log already.
func (l *loop) trimSilently(tools []llm.Tool) window.Result {
	conversation := l.windowConversation(tools)
	trimmed := l.window.Trim(conversation)
	l.messages = conversation.Messages
	l.historyLen = conversation.History
	return trimmed
}

// reportTrimmed appends a budget event that informs readers that the model no longer sees the whole conversation. It
// does so once per run.
func (l *loop) reportTrimmed(ctx context.Context, trimmed window.Result) error {
	if l.trimReported {
		return nil
	}
	l.trimReported = true
	return l.run.out.Append(ctx, event.Budget{Limit: "context_tokens", Used: float64(trimmed.Before), Max: float64(max(trimmed.Limit, 1))})
}

// retryTrimmed shortens the conversation, the answer or the list of tools after the provider refused the request as
// too long. retry is true if the next request is shorter. It is false if nothing can be shortened, or if refused is
// another error. final means that the model is offered no tools.
func (l *loop) retryTrimmed(ctx context.Context, refused error, final bool) (retry bool, _ error) {
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
		// The provider did not name the size of the prompt. Perhaps the prompt fits together with the answer, which
		// is shorter now that the window's size is known, so try that before messages are left out.
		return true, nil
	}
	conversation := l.windowConversation(l.offeredTools(final))
	refusal := window.Refusal{Window: modelErr.ContextTokens, Prompt: modelErr.PromptTokens}
	trimmed := l.window.TrimRefused(conversation, refusal)
	if !trimmed.Trimmed { // no message can be left out
		changed := l.answerTokens(final) != answerBefore || len(l.offeredTools(final)) != toolsBefore
		return changed && !trimmed.TooLarge, nil
	}
	l.messages = conversation.Messages
	l.historyLen = conversation.History
	return true, l.reportTrimmed(ctx, trimmed)
}

// learnSizes remembers what the provider has said when it refused a prompt as too long: the size of the model's window,
// also for other runs, and whether only prompt and answer together were too long (answerRefused).
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

// windowConversation returns the conversation and tools of a request for package window.
func (l *loop) windowConversation(tools []llm.Tool) *window.Conversation {
	storedAt := func(callID string) string {
		if l.requestCallIDs[callID] {
			return "" // the log has no results that came with the run's own request
		}
		return l.agent.resultPath(l.run.ID, callID)
	}
	return &window.Conversation{Messages: l.messages, History: l.historyLen, Tools: tools, StoredAt: storedAt}
}
