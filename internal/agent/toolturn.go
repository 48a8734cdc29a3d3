package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
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

// Bounds of one turn.
const (
	maxCallsPerTurn = 32
)

// metadataParams returns the arguments for the metadata, in which every element is an object.
func (c *call) metadataParams() jsonText {
	if c.args != nil {
		return c.args
	}
	quoted, _ := json.Marshal(map[string]string{"args_text": c.argsText})
	return quoted
}

// editNote returns a line that tells the model that a person changed the arguments of the call.
func (c *call) editNote() string {
	if !c.edited {
		return ""
	}
	return "[A person changed the arguments of this call to " + string(c.args) + "]\n"
}

// toolTurn executes the calls of a turn. It adds their results to the conversation in call
// order, not in the order in which the calls ended.
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
			l.addClientCallMetadata(c)
			continue
		}
		outcome := outcomes[0]
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

// runCalls executes the calls of a turn at the same time, except for calls whose outcome is in
// the replayed log. Every call gets an outcome and its event, even if others fail. When a hook
// ends the run, or the time for tools is used up, the calls in flight are cancelled. An error
// ends the run. If the run was cancelled, the error is the cause of that, and not what it did to the calls.
//
// It returns when all goroutines of the calls have ended, so that no event of a call follows step_start of the
// next step. Each goroutine writes its own elements of outcomes and errs. When it ends, it releases what later
// calls of the turn may wait for: its place in the order of charges (SkipCall), and then its place among the
// calls in flight (endCall), which may suspend the run for the calls that are left.
func (l *loop) runCalls(ctx context.Context, calls []*call, final bool) ([]callOutcome, error) {
	outcomes := make([]callOutcome, len(calls))
	errs := make([]error, len(calls))
	turnCtx, endTurn := context.WithCancelCause(ctx)
	defer endTurn(nil)
	toolTime := l.run.clock.ToolContext()
	defer context.AfterFunc(toolTime, func() { endTurn(context.Cause(toolTime)) })() // the cause may also be the run's
	l.run.suspension.beginTurn(turnCtx, l.restoreCalls(ctx, calls, outcomes))

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
			defer l.budget.SkipCall(i) // otherwise later calls would wait for this one
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

// runCall executes the call at index of its turn and appends its tool_result or tool_error. refusal is why the
// call must not be made; "" if it may. An *abortError comes together with the outcome.
func (l *loop) runCall(ctx context.Context, c *call, index int, refusal string) (callOutcome, error) {
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
		if !exists { // this process may be unable to list the tools before the owner has signed in
			exec.tool, exec.toolExists = catalog.Tool{Name: c.Tool, Server: c.Server}, true
		}
	}
	if l.search != nil && c.Tool == l.search.Tool.Name {
		exec.tool = l.search.Tool
		exec.toolExists = true
		exec.builtin = l.searchTools
	}

	l.prepareAsk(&exec)
	outcome, err := l.agent.executeToolCall(ctx, exec)
	if err == nil {
		err = l.withdrawQuestions(ctx, exec.replayed)
	}
	if err != nil {
		return callOutcome{}, err
	}

	// The event is appended even if the turn has ended, because every opened call must be
	// closed.
	ended := event.Body(nil)
	if outcome.errorEvent != nil {
		ended = *outcome.errorEvent
	} else {
		ended = *outcome.resultEvent
	}
	if outcome.abort != nil {
		l.run.writeAbort(ctx, outcome.abort) // before the event: afterwards the call is not executed again
	}
	if err := l.run.awaitOrder(ctx, ended); err != nil {
		return callOutcome{}, err
	}
	err = l.run.suspension.appendOutcome(ctx, c.CallID, ended)
	if err == nil && outcome.abort != nil {
		err = outcome.abort
	}
	return outcome, err
}

// resultMessage returns the message with the outcome of a call, within the bounds of one result and
// of the run's budget. It charges the budget, so it must be called once for each call, in call order.
func (l *loop) resultMessage(c *call, end callOutcome) llm.Message {
	m := llm.Message{Role: llm.ToolRole, CallID: c.CallID, Tool: c.Tool}
	if end.errorEvent != nil {
		m.Text = l.budget.ChargeResult(c.editNote()+string(errorObject(end.errorEvent.Payload)), end.resultURL)
		m.Failed = true
		return m
	}
	text, media := l.media.attachMedia(c, end.fullResult)
	text, _ = content.TruncateText(text, maxForModel, end.resultURL)
	m.Text, m.Media = l.budget.ChargeResult(c.editNote()+text, end.resultURL), media
	return m
}

// errorObject returns a failure in the form of the conversation and the metadata.
func errorObject(text string) jsonText {
	quoted, _ := json.Marshal(map[string]string{"error": text}) // strings always marshal
	return quoted
}

// addMetadata adds a call to the metadata of the answer. The calls of a run share one bound;
// beyond it, only the beginning of each further call is included.
func (l *loop) addMetadata(c *call, end callOutcome) {
	params := l.boundedParams(c)
	if end.errorEvent != nil {
		text, _ := content.TruncateText(end.errorEvent.Payload, l.metadataLeft(), end.resultURL)
		l.appendMetadata(c, params, errorObject(text))
		return
	}
	l.appendMetadata(c, params, content.TruncateValue(end.resultEvent.Payload, l.metadataLeft(), end.resultURL))
}

// addClientCallMetadata adds a call that the caller executes, so its result is unknown here.
func (l *loop) addClientCallMetadata(c *call) {
	l.appendMetadata(c, l.boundedParams(c), jsonText("null"))
}

// boundedParams returns the arguments of a call for the metadata, or their beginning as a text if the calls
// before have used up the bound. It counts their bytes.
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

// metadataLeft returns how many bytes the next entry may have.
func (l *loop) metadataLeft() int { return max(maxMetadata-l.metadataSize, minMetadata) }

// Bounds of images and audio in the conversation.
const (
	maxShownPerTurn = 8        // images and audio
	maxShownPerRun  = 16 << 20 // characters of base64, which every later request repeats
)

// startTurn starts the count of maxShownPerTurn again.
func (g *mediaBudget) startTurn() { g.shownInTurn = 0 }

// admitMedia counts an image or audio and returns it in the form for the model, or explains why it is omitted.
// If the model does not accept such media, no reason is needed: the text has a placeholder.
func (g *mediaBudget) admitMedia(m *content.Media) (_ *content.Media, refusal string) {
	takesMedia := g.profile.Images || g.profile.Audio
	if m == nil || !takesMedia {
		return nil, ""
	}
	checked, err := m.Normalize()
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

// attachMedia returns the text of a result and its media. The text marks the position of each.
func (g *mediaBudget) attachMedia(c *call, res *content.Result) (text string, media []llm.Media) {
	var parts []string
	for _, part := range res.Parts() {
		taken, refusal := g.admitMedia(part.Media)
		switch {
		case taken != nil:
			kind := "Sound"
			if taken.IsImage() {
				kind = "Image"
			}
			name := fmt.Sprintf("%s %d", kind, len(media)+1)
			media = append(media, llm.Media{
				Label: fmt.Sprintf("%s of the result of %s (call %s):", name, c.Tool, c.CallID),
				MIME:  taken.MIME, Data: taken.Data,
			})
			part.Text += fmt.Sprintf(" (follows as %s of this result)", name)
		case refusal != "":
			part.Text += fmt.Sprintf(" (not shown: %s)", refusal)
		}
		parts = append(parts, part.Text)
	}
	return strings.Join(parts, "\n"), media
}

// searchTools executes one call of the search tool.
func (l *loop) searchTools(_ context.Context, exec *toolExecution) (*content.Result, error) {
	result, found, err := l.search.Find(exec.args)
	if errors.Is(err, toolsearch.ErrArguments) {
		return nil, exec.failure(mcp.InvalidArguments, err.Error())
	}
	exec.foundTools = found
	return result, err
}

// calledAndFound returns the names of the tools that the calls of a turn found, in call order, and of tools that the
// model called by name without a search.
func calledAndFound(calls []*call) (names []string) {
	for _, c := range calls {
		names = append(append(names, c.Tool), c.foundTools...)
	}
	return names
}
