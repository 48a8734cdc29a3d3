package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"answerd/internal/agent/recorded"
	"answerd/internal/agent/toolsearch"
	"answerd/internal/event"
	"answerd/internal/llm"
	"answerd/internal/mcp"
	"answerd/internal/mcp/catalog"
	"answerd/internal/mcp/content"
)

// maxCallsPerTurn bounds the calls of a turn that are executed; further calls are refused.
const maxCallsPerTurn = 32

// metadataParams returns the arguments for tool_params in the metadata, which is always a JSON object: if the model's
// text is not one, it becomes the member args_text.
func (c *call) metadataParams() jsonText {
	if c.args != nil {
		return c.args
	}
	quoted, _ := json.Marshal(map[string]string{"args_text": c.argsText}) // strings always marshal
	return quoted
}

// changedArgsNote returns a line for the model with the arguments to which a person changed those of the call; "" if no
// person changed them.
func (c *call) changedArgsNote() string {
	if !c.edited {
		return ""
	}
	return "[A person changed the arguments of this call to " + string(c.args) + "]\n"
}

// conversationCalls returns the calls of the answer as the conversation has them, with the arguments as the model
// wrote them.
func (r modelReply) conversationCalls() []llm.ToolCall {
	out := make([]llm.ToolCall, len(r.calls))
	for i, c := range r.calls {
		out[i] = llm.ToolCall{Index: i, ID: c.CallID, Name: c.Tool, Arguments: c.argsAsWritten()}
	}
	return out
}

// ownCalls returns the calls that the agent executes, without those that the caller executes.
func (r modelReply) ownCalls() []*call {
	return slices.DeleteFunc(slices.Clone(r.calls), func(c *call) bool { return c.byClient })
}

// hasClientCalls reports whether the model called the caller's tools, which ends the run.
func (r modelReply) hasClientCalls() bool {
	return slices.ContainsFunc(r.calls, func(c *call) bool { return c.byClient })
}

// toolTurn executes the calls of a turn, and blocks until all have ended. It adds the model's answer and the results
// to the conversation and to the metadata, in call order. Calls of the caller's tools are only added to the metadata.
// In the final turn all calls are refused.
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
	l.media.startTurn()
	for _, c := range reply.calls {
		if c.byClient {
			l.appendMetadata(c, l.boundedParams(c), jsonText("null")) // the caller sends the result with the next request
			continue
		}
		outcome := outcomes[0] // outcomes has only the calls that the agent executes
		outcomes = outcomes[1:]
		if outcome.spent != nil {
			l.countChild(*outcome.spent)
		}
		l.messages = append(l.messages, l.resultMessage(c, outcome))
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

// runCalls executes the calls of a turn at the same time, except for calls that have ended in another process. It
// returns one outcome for each call, in the order of calls. One call's failure does not affect the others. When a hook
// ends the run, or the time for tools is used up, the calls in flight are cancelled. An error ends the run; if the
// run's context has ended, it is the cause of the context.
//
// It returns when the goroutines of all calls have ended, so that no event of a call follows step_start of the next
// step. Each goroutine writes only its own elements of outcomes and errs.
func (l *loop) runCalls(ctx context.Context, calls []*call, final bool) ([]callOutcome, error) {
	outcomes := make([]callOutcome, len(calls))
	errs := make([]error, len(calls))
	turnCtx, endTurn := context.WithCancelCause(ctx)
	defer endTurn(nil)
	// toolTime ends when the time for tools is used up, or with the run. Its cause is then that of the run.
	toolTime := l.run.clock.ToolContext()
	stopAfterFunc := context.AfterFunc(toolTime, func() { endTurn(context.Cause(toolTime)) })
	defer stopAfterFunc()
	remaining := l.restoreCalls(ctx, calls, outcomes)
	l.run.suspension.beginTurn(turnCtx, remaining)

	var wg sync.WaitGroup
	refusals := l.refuseExcessAsks(calls)
	for i, c := range calls {
		if outcomes[i].isSet() {
			continue
		}
		refusal := refusals[i]
		switch {
		case final:
			refusal = recorded.NoMoreCalls
		case i >= maxCallsPerTurn:
			refusal = fmt.Sprintf(recorded.LimitOfTurn+"%d calls can be made in one turn.", maxCallsPerTurn)
		}
		wg.Go(func() {
			defer recoverTo(&errs[i])
			defer func() { errs[i] = errors.Join(errs[i], l.run.suspension.endCall(c.CallID)) }()
			defer l.budget.SkipCall(i) // a call that was not charged must not keep later calls waiting
			outcomes[i], errs[i] = l.runCall(turnCtx, c, i, refusal)
			if abort, ok := errors.AsType[*abortError](errs[i]); ok {
				endTurn(abort)
			}
		})
	}

	wg.Wait()
	if err := context.Cause(ctx); err != nil {
		return outcomes, err
	}
	return outcomes, errors.Join(errs...)
}

// newExecution returns the execution of a call of the turn; index and refusal are as for runCall. If another process
// has sent the call and its server requires input, the call gets the arguments and the approval that were sent.
func (l *loop) newExecution(c *call, index int, refusal string) toolExecution {
	tool, exists := l.tools[c.Tool]
	exec := toolExecution{
		call: c, tool: tool, toolExists: exists, refusal: refusal, contextParams: l.run.req.Context, runID: l.run.ID, caller: l.run.caller,
		notifications: &notificationSink{run: l.run, call: c.Call}, loop: l, index: index, replayed: l.replayed.Call(c.CallID),
	}
	exec.pending = l.replayedPending(exec.replayed)
	if exec.pending != nil {
		c.args = exec.pending.Args
		c.edited = exec.pending.Edited
		exec.approvedVersion = exec.pending.ApprovedVersion
		if !exists { // this process may not be able to list the server's tools before the owner has signed in
			exec.tool, exec.toolExists = catalog.Tool{Name: c.Tool, Server: c.Server}, true
		}
	}
	if l.isSearch(c) {
		exec.tool = l.search.Tool
		exec.toolExists = true
		exec.builtin = l.searchTools
	}
	l.prepareAsk(&exec)
	return exec
}

// prepareAsk completes exec so that execute asks another agent, if the called tool is one of l.askTools.
func (l *loop) prepareAsk(exec *toolExecution) {
	for _, t := range l.askTools {
		if t.Name == exec.Tool {
			exec.tool = catalog.Tool{Name: t.Name, Description: t.Description, InputSchema: t.Schema}
			exec.toolExists = true
			exec.askedAgent = t.agent
			exec.builtin = l.askAgent
		}
	}
}

// refuseExcessAsks returns one text for each call: why the call must not be made because the turn asks more than
// maxAsksPerTurn agents; "" for all calls that may be made. It sets l.askCount, the number of children that share the
// rest of the budget.
func (l *loop) refuseExcessAsks(calls []*call) []string {
	refusals := make([]string, len(calls))
	l.askCount = 0
	for i, c := range calls {
		if !hasAskTool(l.askTools, c.Tool) {
			continue
		}
		if l.askCount == maxAsksPerTurn {
			refusals[i] = fmt.Sprintf(recorded.LimitOfTurn+"%d agents can be asked in one turn.", maxAsksPerTurn)
			continue
		}
		l.askCount++
	}
	return refusals
}

// runCall executes one call of a turn and appends its tool_result or tool_error. index is the position of the call in
// the list of runCalls. refusal says why the call must not be made; "" if it may be made. If a hook ends the run with
// the call, runCall returns the outcome together with an *abortError. With any other error there is no outcome.
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
		// Store the decision before the event. Once the log has the event, the next process does not execute the
		// call again, and would not learn the decision.
		l.run.writeAbort(ctx, outcome.abort)
	}
	if err := l.run.awaitOrder(ctx, end); err != nil {
		return callOutcome{}, err
	}
	err = l.run.suspension.appendOutcome(ctx, c.CallID, end)
	if err == nil && outcome.abort != nil {
		err = outcome.abort
	}
	return outcome, err
}

// resultMessage returns the message of the conversation with the outcome of a call. Its text is bounded by maxForModel
// and by what is left of the run's budget of result bytes. It charges that budget, so it must be called once for
// each call, in call order.
func (l *loop) resultMessage(c *call, outcome callOutcome) llm.Message {
	m := llm.Message{Role: llm.ToolRole, CallID: c.CallID, Tool: c.Tool}
	if failure := outcome.errorEvent; failure != nil {
		text := c.changedArgsNote() + string(errorObject(failure.Payload))
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

// errorObject returns the JSON object with which the conversation and the metadata show a failure.
func errorObject(text string) jsonText {
	quoted, _ := json.Marshal(map[string]string{"error": text}) // strings always marshal
	return quoted
}

// addMetadata adds a call to the metadata of the answer. The calls of a run share maxMetadata bytes; once these are
// used up, only the first minMetadata bytes of a call's arguments and of its result are included.
func (l *loop) addMetadata(c *call, outcome callOutcome) {
	params := l.boundedParams(c)
	if failure := outcome.errorEvent; failure != nil {
		text, _ := content.TruncateText(failure.Payload, l.metadataLeft(), outcome.resultURL)
		l.appendMetadata(c, params, errorObject(text))
		return
	}
	result := content.TruncateValue(outcome.resultEvent.Payload, l.metadataLeft(), outcome.resultURL)
	l.appendMetadata(c, params, result)
}

// boundedParams returns the arguments of a call for the metadata. If they exceed what is left of maxMetadata, it
// returns only their first minMetadata bytes, as a text. It adds the bytes of its result to l.metadataSize.
func (l *loop) boundedParams(c *call) jsonText {
	params := c.metadataParams()
	if len(params) > l.metadataLeft() {
		text, _ := content.TruncateText(string(params), minMetadata, "")
		params, _ = json.Marshal(map[string]string{"args_text": text})
	}
	l.metadataSize += len(params)
	return params
}

// appendMetadata adds one element to each of the three lists of the metadata, which have the same length.
func (l *loop) appendMetadata(c *call, params, result jsonText) {
	l.metadataSize += len(result)
	l.metadata.ToolNames = append(l.metadata.ToolNames, c.Tool)
	l.metadata.ToolParams = append(l.metadata.ToolParams, params)
	l.metadata.ToolResults = append(l.metadata.ToolResults, result)
}

// metadataLeft returns how many bytes the next entry of the metadata may have, at least minMetadata.
func (l *loop) metadataLeft() int { return max(maxMetadata-l.metadataSize, minMetadata) }

// Bounds of images and audio in the conversation.
const (
	maxShownPerTurn = 8        // images and sounds
	maxShownPerRun  = 16 << 20 // characters of base64, which every later request repeats
)

// startTurn sets the count that maxShownPerTurn limits to 0.
func (g *mediaBudget) startTurn() { g.shownInTurn = 0 }

// admitMedia counts an image or sound towards the limits, and returns it in a form that the model accepts. It returns
// nil and the reason if the media is omitted. The reason is "" if media is nil or the model accepts no media of its
// kind: the text of the result then has a placeholder.
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

// attachMedia returns the text of a result and the media that the model is shown. The text says at the position of
// each media under which name it follows, or why it is not shown.
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

// searchTools executes one call of the search tool, and sets exec.foundTools. It is a toolExecution.builtin.
func (l *loop) searchTools(_ context.Context, exec *toolExecution) (*content.Result, error) {
	result, found, err := l.search.Find(exec.args)
	if errors.Is(err, toolsearch.ErrArguments) {
		return nil, exec.failure(mcp.InvalidArguments, err.Error())
	}
	exec.foundTools = found
	return result, err
}

// calledAndFound returns the names of the tools that the calls of a turn called or found with a search, in call order.
// The model may call a tool by name that no search has found.
func calledAndFound(calls []*call) (names []string) {
	for _, c := range calls {
		names = append(append(names, c.Tool), c.foundTools...)
	}
	return names
}
