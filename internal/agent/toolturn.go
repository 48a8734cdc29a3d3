package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"answerd/internal/agent/definition"
	"answerd/internal/agent/recorded"
	"answerd/internal/agent/toolsearch"
	"answerd/internal/event"
	"answerd/internal/llm"
	"answerd/internal/mcp"
	"answerd/internal/mcp/catalog"
	"answerd/internal/mcp/content"
)

// maxCallsPerTurn is how many calls of one turn are executed; calls beyond it are refused.
const maxCallsPerTurn = 32

// changedArgsNote returns a line that shows the model the arguments as a person changed them, or "" if they were not
// changed.
func (c *call) changedArgsNote() string {
	if !c.edited {
		return ""
	}
	return "[A person changed the arguments of this call to " + string(c.args) + "]\n"
}

// conversationCalls returns the reply's calls in the form of the conversation, with the arguments as the model wrote
// them.
func (r modelReply) conversationCalls() []llm.ToolCall {
	out := make([]llm.ToolCall, len(r.calls))
	for i, c := range r.calls {
		out[i] = llm.ToolCall{Index: i, ID: c.CallID, Name: c.Tool, Arguments: c.argsAsWritten()}
	}
	return out
}

// ownCalls returns the calls that the agent executes, which excludes calls of the API client's tools.
func (r modelReply) ownCalls() []*call {
	return slices.DeleteFunc(slices.Clone(r.calls), func(c *call) bool { return c.byClient })
}

// hasClientCalls reports whether the model called a tool of the API client, which ends the run.
func (r modelReply) hasClientCalls() bool {
	return slices.ContainsFunc(r.calls, func(c *call) bool { return c.byClient })
}

// toolTurn executes a turn's calls, and blocks until all of them have ended. It adds the model's answer and the results
// to the conversation and the metadata, in call order. A call of the API client's tools is added only to the metadata.
// In the final turn, all calls are refused.
func (l *loop) toolTurn(ctx context.Context, reply modelReply, final bool) error {
	l.messages = append(l.messages, llm.Message{
		Role:       llm.Assistant,
		Text:       reply.text,
		Calls:      reply.conversationCalls(),
		Extensions: reply.extensions,
	})
	outcomes, err := l.runCalls(ctx, reply.ownCalls(), final)
	l.addUsage(l.budget.TakeSampled())
	if err != nil {
		return err
	}
	l.media.shownInTurn = 0
	ownCount := 0 // how many calls of the agent's own tools the loop has passed
	for _, c := range reply.calls {
		if c.byClient {
			l.appendMetadata(c, l.chargeParams(c), jsonText("null")) // the client sends the result with its next request
			continue
		}
		outcome := outcomes[ownCount]
		ownCount++
		if outcome.spent != nil {
			l.countChild(*outcome.spent)
		}
		l.messages = append(l.messages, l.chargeResult(c, outcome))
		l.addMetadata(c, outcome)
	}
	l.reserveConversation()
	if l.search != nil && l.search.Offer(calledAndFound(reply.calls)...) {
		l.updateOffered()
	}
	if final {
		return nil
	}
	return l.budget.EndTurn(ctx, l.run.out)
}

// runCalls executes a turn's calls concurrently, except those that ended in another process. It returns one outcome for
// each call, in the order of calls. A failed call does not affect the others. If a hook ends the run or the time for
// tools is used up, runCalls cancels the calls in flight. An error ends the run; if ctx has ended, it is the cause of
// ctx.
//
// runCalls returns only after the goroutines of all calls have ended, so that no event of a call comes after the next
// step's step_start. Each goroutine writes only its own elements of outcomes and errs.
func (l *loop) runCalls(ctx context.Context, calls []*call, final bool) ([]callOutcome, error) {
	outcomes := make([]callOutcome, len(calls))
	errs := make([]error, len(calls))
	turnCtx, cancelTurn := context.WithCancelCause(ctx)
	defer cancelTurn(nil)
	// toolTime ends when the time for tools is used up or when the run ends; then its cause is the run's.
	toolTime := l.run.clock.ToolContext()
	stopAfterFunc := context.AfterFunc(toolTime, func() { cancelTurn(context.Cause(toolTime)) })
	defer stopAfterFunc()
	remaining := l.restoreCalls(ctx, calls, outcomes)
	l.run.suspension.beginCalls(turnCtx, remaining...)

	var wg sync.WaitGroup
	refusals := l.applyTurnLimits(calls, final)
	for i, c := range calls {
		if outcomes[i].isSet() {
			continue
		}
		wg.Go(func() {
			defer recoverTo(&errs[i])
			defer func() { errs[i] = errors.Join(errs[i], l.run.suspension.endCall(c.CallID)) }()
			defer l.budget.SkipCall(i) // if this call was not charged, later calls must not wait for it
			outcomes[i], errs[i] = l.runCall(turnCtx, c, i, refusals[i])
			if abort, ok := errors.AsType[*abortError](errs[i]); ok {
				cancelTurn(abort)
			}
		})
	}

	wg.Wait()
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}
	return outcomes, errors.Join(errs...)
}

// newExecution prepares the execution of one of the turn's calls. index and refusal are as for runCall. If another
// process sent the call and its server then required input, the call gets the arguments and the approval with which it
// was sent.
func (l *loop) newExecution(c *call, index int, refusal string) toolExecution {
	tool, exists := l.catalog.ByName[c.Tool]
	if !exists || tool.Server != c.Server {
		// After a takeover, the tool may have another name here, and its name may be another tool's.
		tool, exists = l.catalog.ByName[l.agent.Tools.NameOf(c.Server, c.Tool)]
	}
	exec := toolExecution{
		call: c, tool: tool, toolExists: exists, refusal: refusal, contextParams: l.run.req.Context, runID: l.run.ID, caller: l.run.caller,
		notifications: &notificationSink{run: l.run, call: c.Call}, loop: l, index: index, replayed: l.replayed.Call(c.CallID),
	}
	exec.pending = l.restorePending(exec.replayed)
	if exec.pending != nil {
		c.args = exec.pending.Args
		c.edited = exec.pending.Edited
		exec.approvedVersion = exec.pending.ApprovedVersion
		if !exists { // the server may not list its tools to this process before the owner has signed in
			exec.tool, exec.toolExists = catalog.Tool{Name: c.Tool, Server: c.Server}, true
		}
	}
	l.setBuiltin(&exec)
	return exec
}

// setBuiltin completes exec if the called tool is one of the agent's own: the tool search, one of l.askTools, or the
// tool with which an earlier process started a child run.
func (l *loop) setBuiltin(exec *toolExecution) {
	if l.isSearch(exec.call) {
		exec.tool = l.search.Tool
		exec.toolExists = true
		exec.builtin = l.searchTools
	}
	for _, t := range l.askTools {
		if t.Name == exec.Tool {
			exec.tool = catalog.Tool{Name: t.Name, Description: t.Description, InputSchema: t.Schema}
			exec.toolExists = true
			exec.askedAgent = t.agent
			exec.builtin = l.askAgent
		}
	}
	if exec.replayed.HasChild() && !exec.toolExists { // the agents were replaced after the child began
		exec.tool = catalog.Tool{Name: exec.Tool}
		exec.toolExists = true
		exec.askedAgent = strings.TrimPrefix(exec.Tool, definition.AskPrefix)
		exec.builtin = l.askAgent
	}
}

// applyTurnLimits returns one text per call. The text is "" if the call may be made. Otherwise it tells the model why
// the call is refused: the turn is the final one, or the call is beyond maxCallsPerTurn or maxAsksPerTurn.
// applyTurnLimits also sets l.askCount, the number of child runs that share the rest of the budget.
func (l *loop) applyTurnLimits(calls []*call, final bool) (refusals []string) {
	refusals = make([]string, len(calls))
	l.askCount = 0
	for i, c := range calls {
		isAsk := hasAskTool(l.askTools, c.Tool)
		isExcessAsk := isAsk && l.askCount == maxAsksPerTurn
		if isAsk && !isExcessAsk {
			l.askCount++
		}
		switch {
		case final:
			refusals[i] = recorded.NoMoreCalls
		case i >= maxCallsPerTurn:
			refusals[i] = fmt.Sprintf(recorded.LimitOfTurn+"%d calls can be made in one turn.", maxCallsPerTurn)
		case isExcessAsk:
			refusals[i] = fmt.Sprintf(recorded.LimitOfTurn+"%d agents can be asked in one turn.", maxAsksPerTurn)
		}
	}
	return refusals
}

// runCall executes one of a turn's calls and appends its tool_result or tool_error. index is the call's position in the
// calls that runCalls got. refusal says why the call must not be made; "" means that it may be made. If a hook ends the
// run because of the call, the error is an *abortError. With an error, the outcome is zero.
func (l *loop) runCall(ctx context.Context, c *call, index int, refusal string) (callOutcome, error) {
	exec := l.newExecution(c, index, refusal)
	outcome, err := l.agent.executeToolCall(ctx, exec)
	if err == nil {
		err = l.withdrawQuestions(ctx, exec.replayed)
	}
	if err != nil {
		return callOutcome{}, err
	}

	var end event.Body
	if outcome.errorEvent != nil {
		end = *outcome.errorEvent
	} else {
		end = *outcome.resultEvent
	}
	if outcome.abort != nil {
		// Store the decision before the event. Once the log has the event, a process that takes over does not execute
		// the call again, and so would not learn the decision.
		l.run.writeAbort(ctx, outcome.abort)
	}
	if err := l.run.awaitOrder(ctx, end); err != nil {
		return callOutcome{}, err
	}
	if err := l.run.suspension.appendOutcome(ctx, c.CallID, end); err != nil {
		return callOutcome{}, err
	}
	if outcome.abort != nil {
		return callOutcome{}, outcome.abort
	}
	return outcome, nil
}

// chargeResult returns the message that tells the model a call's outcome, and charges the run's budget of result bytes
// for its text. It limits the text to maxForModel and to the remainder of that budget. Call it once for each call, in
// call order.
func (l *loop) chargeResult(c *call, outcome callOutcome) llm.Message {
	m := llm.Message{Role: llm.ToolRole, CallID: c.CallID, Tool: c.Tool}
	if failure := outcome.errorEvent; failure != nil {
		text := c.changedArgsNote() + string(textObject("error", failure.Payload))
		m.Text = l.budget.ChargeResult(text, outcome.resultURL)
		m.Failed = true
		return m
	}
	text, media := l.media.attachMedia(c, outcome.fullResult)
	text, _ = content.TruncateText(text, maxForModel, outcome.resultURL)
	m.Text = l.budget.ChargeResult(c.changedArgsNote()+text, outcome.resultURL)
	m.Media = media
	return m
}

// textObject returns a JSON object with one member. The member "error" represents a failure in the conversation and the
// metadata. The member "args_text" represents arguments in the metadata that are not a JSON object or are cut.
func textObject(name, text string) jsonText {
	object, _ := json.Marshal(map[string]string{name: text}) // strings always marshal
	return object
}

// addMetadata adds a call to the answer's metadata. A run's calls share maxMetadata bytes. Once these are used up, the
// metadata gets only the first minMetadata bytes of a call's arguments and of its result.
func (l *loop) addMetadata(c *call, outcome callOutcome) {
	params := l.chargeParams(c)
	var result jsonText
	if failure := outcome.errorEvent; failure != nil {
		text, _ := content.TruncateText(failure.Payload, l.metadataLeft(), outcome.resultURL)
		result = textObject("error", text)
	} else {
		result = content.TruncateValue(outcome.resultEvent.Payload, l.metadataLeft(), outcome.resultURL)
	}
	l.appendMetadata(c, params, result)
}

// chargeParams returns a call's arguments for the metadata, and adds their length to l.metadataSize. If they exceed
// the remainder of maxMetadata, it returns only their first minMetadata bytes, as text.
func (l *loop) chargeParams(c *call) jsonText {
	params := c.args
	if params == nil {
		params = textObject("args_text", c.argsText)
	}
	if len(params) > l.metadataLeft() {
		text, _ := content.TruncateText(string(params), minMetadata, "")
		params = textObject("args_text", text)
	}
	l.metadataSize += len(params)
	return params
}

// appendMetadata adds one element to each of the metadata's three lists, which must stay equally long.
func (l *loop) appendMetadata(c *call, params, result jsonText) {
	l.metadataSize += len(result)
	l.metadata.ToolNames = append(l.metadata.ToolNames, c.Tool)
	l.metadata.ToolParams = append(l.metadata.ToolParams, params)
	l.metadata.ToolResults = append(l.metadata.ToolResults, result)
}

// metadataLeft returns how many bytes the next entry of the metadata may have. It is never less than minMetadata.
func (l *loop) metadataLeft() int { return max(maxMetadata-l.metadataSize, minMetadata) }

// Limits on images and audio in the conversation.
const (
	maxShownPerTurn = 8        // images and sounds
	maxShownPerRun  = 16 << 20 // base64 characters, which every later request sends again
)

// admitMedia counts an image or sound towards the limits, and returns it in a form that the model accepts. If it must
// be left out, admitMedia returns nil and the reason. The reason is "" if media is nil or the model does not accept
// this kind of media, because the result's text then already has a placeholder.
func (g *mediaBudget) admitMedia(media *content.Media) (_ *content.Media, refusal string) {
	takesMedia := g.profile.Images || g.profile.Audio
	if media == nil || !takesMedia {
		return nil, ""
	}
	checked, err := media.Normalize()
	switch {
	case err != nil:
		return nil, err.Error()
	case checked.IsImage() && !g.profile.Images, !checked.IsImage() && !g.profile.Audio:
		return nil, ""
	case g.shownInTurn == maxShownPerTurn:
		return nil, fmt.Sprintf("only %d can be shown in one turn", maxShownPerTurn)
	case g.shownInRun+len(checked.Data) > maxShownPerRun:
		return nil, "too much has been shown already"
	case !g.budget.ChargeMedia(len(checked.Data)):
		return nil, "the run's budget of result bytes is used up"
	}
	g.shownInTurn++
	g.shownInRun += len(checked.Data)
	return checked, ""
}

// attachMedia returns a result's text and the media to show to the model. Where the result has an image or sound, the
// text gives the name under which it follows, or says why it is not shown.
func (g *mediaBudget) attachMedia(c *call, res *content.Result) (text string, media []llm.Media) {
	var parts []string
	for _, part := range res.Parts() {
		admitted, refusal := g.admitMedia(part.Media)
		switch {
		case admitted != nil:
			kind := "Sound"
			if admitted.IsImage() {
				kind = "Image"
			}
			name := fmt.Sprintf("%s %d", kind, len(media)+1)
			media = append(media, llm.Media{
				Label: fmt.Sprintf("%s of the result of %s (call %s):", name, c.Tool, c.CallID),
				MIME:  admitted.MIME,
				Data:  admitted.Data,
			})
			part.Text += fmt.Sprintf(" (follows as %s of this result)", name)
		case refusal != "":
			part.Text += fmt.Sprintf(" (not shown: %s)", refusal)
		}
		parts = append(parts, part.Text)
	}
	return strings.Join(parts, "\n"), media
}

// searchTools executes one call of the search tool and sets exec.foundTools. It has the type of toolExecution.builtin.
func (l *loop) searchTools(_ context.Context, exec *toolExecution) (*content.Result, error) {
	result, found, err := l.search.Find(exec.args)
	if errors.Is(err, toolsearch.ErrArguments) {
		return nil, exec.failure(mcp.InvalidArguments, err.Error())
	}
	exec.foundTools = found
	return result, err
}

// calledAndFound returns the names of the tools that a turn's calls used or found by a search, in call order. The
// called tools are included because the model may call a tool by name without having searched for it.
func calledAndFound(calls []*call) (names []string) {
	for _, c := range calls {
		names = append(append(names, c.Tool), c.foundTools...)
	}
	return names
}
