package agent

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"answerd/internal/agent/replay"
	"answerd/internal/agent/toolsearch"
	"answerd/internal/agent/usage"
	"answerd/internal/event"
	"answerd/internal/llm"
	"answerd/internal/mcp"
	"answerd/internal/mcp/content"
)

// This file restores into a loop what the run did in other processes. The loop takes the same steps as it took there.
// For each step whose end is in the log, this file supplies the outcome.
//
// A decision that is in the log is repeated and not made again, even where this process would decide differently
// because its tools, rules, limits or time differ. Otherwise the conversation would differ from the one that the model
// has answered, or the budget would refuse a call that has a result. Accounting is repeated too: tokens, calls,
// children and results are charged to the run's budget in the same order, so that the run continues with what is left.
// They are not counted again for the caller or in metrics, because the process that used them has done that.

// callerLimitPrefix precedes the name of a caller's limit in the event budget.
const callerLimitPrefix = "caller_"

// restoreLoop sets what the loop must know before its first turn of what other processes did: the ids of calls and
// parts, and which budget events readers have. It does nothing if the run began here.
func (l *loop) restoreLoop() {
	state := l.replayed
	if state == nil {
		return
	}
	l.partCount = state.PartCount
	for id := range state.Calls {
		l.callIDs[id] = true
	}
	l.trimReported = state.Reported["context_tokens"] > 0
	l.budget.Restore(state.Reported, state.Raised)
	for limit := range state.Reported {
		if strings.HasPrefix(limit, callerLimitPrefix) {
			// A caller's limit is reported only when it is used up (spendTokens). Its details are not needed again.
			l.callerSpentReported = true
			l.callerSpent.Store(&usage.SpentError{})
		}
	}
}

// restoredEnd returns how the run ends if another process has stored that in notes and died before the terminal event:
// the event, or an *abortError if a hook ended the run. Both results are nil if no end is stored.
func (l *loop) restoredEnd() (event.Body, error) {
	state := l.replayed
	if state == nil {
		return nil, nil
	}
	if state.End != nil {
		return state.End, nil
	}
	if abort := state.Abort; abort != nil {
		return nil, &abortError{reason: abort.Reason, withheld: abort.Withheld}
	}
	return nil, nil
}

// restoreStep returns the model's answer of a step that is in the log, in place of a model call, and sets the state of
// the loop as the model call did. tools are those that the model was offered.
func (l *loop) restoreStep(s *replay.Step, tools []llm.Tool) modelReply {
	l.trimSilently(tools)
	l.step++
	l.preferredModel = cmp.Or(s.Model, l.preferredModel)
	l.usePriceOf(l.preferredModel)
	l.addUsage(s.Usage)
	l.metadata.UpstreamModel = cmp.Or(s.Upstream, l.metadata.UpstreamModel)
	reply := modelReply{text: s.Text, usage: s.Usage, finish: s.FinishReason, extensions: l.restoreExtensions(s.Extensions)}
	for _, c := range s.Calls {
		reply.calls = append(reply.calls, restoreCall(c))
	}
	return reply
}

// writeModel stores in notes which model has answered the step, unless it is modelBefore, and what its endpoint calls
// it, unless that is upstreamBefore. It is called before step_end is appended, so that a step with step_end has the
// notes.
func (l *loop) writeModel(ctx context.Context, modelBefore, upstreamBefore string) error {
	if l.preferredModel != "" && l.preferredModel != modelBefore {
		if err := l.run.writeNote(ctx, replay.NoteModel, l.preferredModel); err != nil {
			return err
		}
	}
	if l.metadata.UpstreamModel == upstreamBefore || l.run.job == nil {
		return nil
	}
	for _, part := range replay.Parts([]byte(l.metadata.UpstreamModel)) {
		// No Flush is needed: the append of step_end follows, and waits until what precedes it is stored.
		if err := l.agent.Log.AddNote(ctx, l.run.ID, []byte(replay.NoteUpstream+" "+part)); err != nil {
			return fmt.Errorf("store the name of a model: %w", err)
		}
	}
	return nil
}

// writeExtensions stores in notes the members that an endpoint requires in later requests, for a process that takes
// over the run; readers do not see notes. It does nothing if extensions is nil. It is called before step_end is
// appended, so that a step with step_end has the notes.
func (l *loop) writeExtensions(ctx context.Context, extensions *llm.Extensions) error {
	if extensions == nil {
		return nil
	}
	data, err := json.Marshal(extensions)
	if err != nil {
		return fmt.Errorf("encode the extensions of an answer: %w", err)
	}
	for piece := range slices.Chunk([]byte(base64.StdEncoding.EncodeToString(data)), maxExtensionPiece) {
		if err := l.run.writeNote(ctx, replay.NoteExtensions, string(piece)); err != nil {
			return err
		}
	}
	return nil
}

// maxExtensionPiece bounds the part of the extensions in one note, in bytes.
const maxExtensionPiece = event.MaxNote - 64

// restoreExtensions decodes the text of the notes of writeExtensions, and sets preferredModel to the model whose
// endpoint requires them. It returns nil if text is "" or, with a warning, cannot be decoded; the endpoint may then
// refuse the next request.
func (l *loop) restoreExtensions(text string) *llm.Extensions {
	if text == "" {
		return nil
	}
	var extensions llm.Extensions
	data, err := base64.StdEncoding.DecodeString(text)
	if err == nil {
		err = json.Unmarshal(data, &extensions)
	}
	if err != nil {
		l.agent.Logger.Warn("stored extensions of an answer cannot be used", "run_id", l.run.ID, "error", err)
		return nil
	}
	l.preferredModel = extensions.Model
	return &extensions
}

// restoreCall returns a call of a replayed step as the model wrote it. If the log does not have its complete arguments,
// the call has none.
func restoreCall(replayedCall *replay.Call) *call {
	restored := &call{Call: replayedCall.Call, byClient: replayedCall.ByClient}
	if replayedCall.Args != "" {
		restored.parseArgs(replayedCall.Args)
	}
	return restored
}

// appendStepStart appends step_start for the step l.step. If another process began the step and did not end it,
// it appends step_reset instead: the output of the step so far is void, and the step runs again.
func (l *loop) appendStepStart(ctx context.Context) error {
	if l.replayed != nil && l.step == len(l.replayed.Steps) {
		// Steps includes the step that was begun and not ended; the steps before it ended and were restored.
		return l.run.out.Append(ctx, event.StepReset{Step: l.step, Reason: "takeover"})
	}
	start := event.StepStart{Step: l.step}
	if err := l.run.awaitOrder(ctx, start); err != nil {
		return err
	}
	return l.run.out.Append(ctx, start)
}

// restoreCalls sets the outcomes of the turn's calls that have ended in other processes, and charges the budget for the
// calls that were sent there. It returns the calls that remain to be made or refused. A call that was sent without an
// outcome is among them: executeToolCall refuses it, since its outcome is unknown, or continues it with its pending
// input or its child.
func (l *loop) restoreCalls(ctx context.Context, calls []*call, outcomes []callOutcome) (remaining []*call) {
	l.budget.BeginTurn(len(calls))
	for i, c := range calls {
		earlier := l.replayed.Call(c.CallID)
		if earlier == nil {
			remaining = append(remaining, c)
			continue
		}
		l.restoreCharge(i, c, earlier)
		if earlier.End == nil {
			remaining = append(remaining, c)
			continue
		}
		outcomes[i] = l.restoreOutcome(ctx, earlier)
		l.restoreArgs(c, earlier)
		if result, succeeded := earlier.End.(event.ToolResult); succeeded && l.isSearch(c) {
			c.foundTools = toolsearch.FoundNames(result.Structured)
		}
	}
	if s := l.replayed.Step(l.step); s != nil {
		l.budget.RestoreSampled(s.Sampled)
	}
	return remaining
}

// isSearch reports whether the call is one of the search tool.
func (l *loop) isSearch(c *call) bool { return l.search != nil && c.Tool == l.search.Tool.Name }

// restoreCharge charges the turn's call c, which has that index, and what its child has used, as the process of earlier
// has charged them. If the call has neither ended nor was sent nor has a child, chargeBudget will decide about it.
func (l *loop) restoreCharge(index int, c *call, earlier *replay.Call) {
	if earlier.Spent != nil {
		l.budget.RestoreChild(*earlier.Spent)
	}
	wasSent := earlier.Sent || earlier.HasChild()
	if earlier.End == nil && !wasSent {
		return
	}
	// Every call that was sent was charged. Calls of the agent's own tools are not sent: they were charged if their
	// tool was executed, that is, if it succeeded or refused its arguments itself.
	_, succeeded := earlier.End.(event.ToolResult)
	failed, _ := earlier.End.(event.ToolError) // the zero value for any other end
	searched := l.isSearch(c) && succeeded
	isOwn := l.isSearch(c) || hasAskTool(l.askTools, c.Tool)
	refusedArgs := isOwn && c.args != nil && failed.Kind == string(mcp.InvalidArguments)
	l.budget.RestoreCall(index, wasSent || searched || refusedArgs)
}

// restoreArgs sets the arguments with which a call that has ended was made, and whether a person had changed them.
func (l *loop) restoreArgs(c *call, earlier *replay.Call) {
	approved, edited := l.approvedArgs(earlier)
	switch end := earlier.End.(type) {
	case event.ToolResult:
		c.args, c.edited = end.Args, edited
	case event.ToolError:
		if end.Args != nil {
			c.args, c.edited = end.Args, edited
		} else if edited {
			c.args, c.edited = approved, true
		}
	}
}

// restoreOutcome returns how a call ended in another process, as far as the log still has it. A full log drops stored
// results before events. The model then gets only the part of the result in the event, although the answers that
// follow may be based on the whole result. resultURL is "" if the event is truncated and has no URL.
func (l *loop) restoreOutcome(ctx context.Context, replayedCall *replay.Call) callOutcome {
	outcome := callOutcome{resultURL: l.agent.resultPath(l.run.ID, replayedCall.CallID), spent: replayedCall.Spent}
	if failed, ok := replayedCall.End.(event.ToolError); ok {
		outcome.errorEvent = &failed
		if failed.Truncated != nil && failed.Truncated.URL == "" {
			outcome.resultURL = ""
		}
		return outcome
	}
	result := replayedCall.End.(event.ToolResult)
	outcome.resultEvent = &result
	outcome.fullResult = &content.Result{Content: result.Content, Structured: result.Structured}
	if result.Truncated == nil {
		return outcome
	}
	outcome.resultURL = result.Truncated.URL
	if stored, err := l.agent.Result(ctx, l.run.ID, replayedCall.CallID); err == nil {
		outcome.fullResult = &content.Result{Content: stored.Content, Structured: stored.Structured}
	} else if outcome.resultURL != "" {
		l.agent.Logger.WarnContext(ctx, "stored tool result is no longer available", "run_id", l.run.ID, "call_id", replayedCall.CallID, "error", err)
	}
	return outcome
}

// approvalResolution returns the resolution of a call's approval; nil if none was asked for or it is still open. The
// arguments that the person wrote come from the stored input, the rest from the event.
func (l *loop) approvalResolution(replayedCall *replay.Call) *resolution {
	resolved := replayedCall.Resolution
	if resolved == nil {
		return nil
	}
	var res resolution
	if data, given := l.replayed.Inputs[resolved.InterruptID]; given {
		res = decodeInput(resolved.InterruptID, data)
	}
	res.Approved = &resolved.Approved
	res.Reason = resolved.Reason
	res.by.Subject = resolved.By
	res.unanswered = unansweredReason(*resolved)
	return &res
}

// unansweredReason returns the error that says why no person decided; nil if a person did. Events have only the text of
// the error, so the texts must not change while runs of older processes may be taken over.
func unansweredReason(resolved event.ApprovalResolved) error {
	if resolved.Approved || resolved.By != "" {
		return nil
	}
	for _, reason := range []error{ErrExpired, errNobodyToAsk, errWithdrawn, errTooManyOpen} {
		if resolved.Reason == reason.Error() {
			return reason
		}
	}
	return nil
}

// approvedArgs returns the arguments that a person wrote for an approved call; edited is whether they differ from those
// that the person was shown. It returns nil if the person wrote none or did not approve the call.
func (l *loop) approvedArgs(replayedCall *replay.Call) (args jsonText, edited bool) {
	res := l.approvalResolution(replayedCall)
	if res == nil || !res.isApproved() || res.Args == nil {
		return nil, false
	}
	return res.Args, string(res.Args) != string(replayedCall.Approval.Args)
}

// replayedQuestion looks in the replayed state for wanted, a question that this process is about to ask, because another
// process may have asked it before. It returns open if the question still waits for an answer, and resolved if it was
// resolved. Both are nil if this process has to ask it. An approval that was asked for other arguments than the call has
// now is withdrawn first.
//
// Each open question is returned only once, and marked or removed in the replayed state. The questions of a call that are
// still there when the call ends are withdrawn by withdrawQuestions.
func (l *loop) replayedQuestion(ctx context.Context, wanted event.Interrupt) (open *interrupt, resolved *resolution, _ error) {
	if wanted.Kind == event.KindBudget {
		open, resolved = l.replayedBudgetQuestion(wanted.Limit)
		return open, resolved, nil
	}
	call := l.replayed.Call(wanted.CallID)
	if call == nil {
		return nil, nil, nil // the process before this one did not begin the call
	}
	if wanted.ChildRunID != "" {
		open, resolved = l.replayedRelay(call, wanted.ID)
		return open, resolved, nil
	}
	if wanted.Kind == event.KindElicitation {
		open, resolved = l.replayedElicitation(call, wanted.ID)
		return open, resolved, nil
	}
	approval := call.Approval
	if approval == nil {
		return nil, nil, nil // the process before this one did not ask for the approval
	}
	if approval.ArgsSHA256 != wanted.ArgsSHA256 {
		return nil, nil, l.withdrawQuestions(ctx, call)
	}
	if resolved = l.approvalResolution(call); resolved != nil {
		return nil, resolved, nil
	}
	call.Approval = nil
	return reopenedInterrupt(*approval), nil, nil
}

// reopenedInterrupt returns a question that another process has asked, marked as asked.
func reopenedInterrupt(rec event.Interrupt) *interrupt {
	question := newInterrupt(rec)
	question.isAsked = true
	return question
}

// replayedElicitation looks for a question of the server of a call that another process has asked, and returns the same
// as replayedQuestion. The resolution has the action of its event, and the content of the stored input.
func (l *loop) replayedElicitation(replayedCall *replay.Call, id string) (*interrupt, *resolution) {
	if elicited, resolved := replayedCall.Elicited[id]; resolved {
		answer := decodeInput(id, l.replayed.Inputs[id])
		answer.Action = elicited.Action
		answer.unanswered = nil
		return nil, &answer
	}
	for n, open := range replayedCall.Elicitations {
		if open.ID == id {
			replayedCall.Elicitations = slices.Delete(replayedCall.Elicitations, n, n+1)
			return reopenedInterrupt(open), nil
		}
	}
	return nil, nil
}

// replayedBudgetQuestion looks for the question whether to raise a limit after the current step, and returns the same
// as replayedQuestion. A limit that was not raised counts as withdrawn, so that the run does not ask again.
func (l *loop) replayedBudgetQuestion(limit string) (*interrupt, *resolution) {
	if l.replayed == nil {
		return nil, nil
	}
	if asked := l.replayed.BudgetQuestion; asked != nil {
		l.replayed.BudgetQuestion = nil
		return reopenedInterrupt(*asked), nil
	}
	if s := l.replayed.Step(l.step); s != nil && s.RefusedLimit == limit {
		return nil, &resolution{unanswered: errWithdrawn}
	}
	return nil, nil
}

// withdrawQuestions withdraws the questions of a replayed call that are still open and that no goroutine waits for:
// those that its server sent on a connection that has ended, those of a child run that are not open there any more, and
// an approval of arguments that the call no longer has. keep lists the ids of questions that the call still waits for.
// replayedCall may be nil. It stores and appends even if ctx has ended.
func (l *loop) withdrawQuestions(ctx context.Context, replayedCall *replay.Call, keep ...string) error {
	if replayedCall == nil {
		return nil
	}
	ctx = context.WithoutCancel(ctx)
	for _, question := range takeOpenQuestions(replayedCall, keep) {
		// Close the input first: otherwise an answer could be stored, and the person informed that it counts, after
		// the event has withdrawn the question.
		err := l.agent.Log.AddInput(ctx, l.run.ID, question.ID, closedInput)
		if err != nil && !errors.Is(err, event.ErrDuplicateInput) {
			return err
		}
		if err := l.run.suspension.withdrawRestored(ctx, question); err != nil {
			return err
		}
		l.agent.wakeParent(l.run, question.ID) // the parent may ask the same question, and would wait until it expires
	}
	return nil
}

// takeOpenQuestions removes the open questions from replayedCall, or marks them as resolved there, and returns
// them. It leaves the elicitations and the child's questions whose ids keep lists.
func takeOpenQuestions(replayedCall *replay.Call, keep []string) (taken []event.Interrupt) {
	var kept []event.Interrupt
	for _, question := range replayedCall.Elicitations {
		if slices.Contains(keep, question.ID) {
			kept = append(kept, question)
		} else {
			taken = append(taken, question)
		}
	}
	replayedCall.Elicitations = kept
	for _, relayed := range replayedCall.Relayed {
		if !relayed.Resolved && !relayed.Reopened && !slices.Contains(keep, relayed.ID) {
			taken = append(taken, relayed.Interrupt)
			relayed.Resolved = true
		}
	}
	if replayedCall.Approval != nil && replayedCall.Resolution == nil {
		taken = append(taken, *replayedCall.Approval)
		replayedCall.Approval = nil
	}
	return taken
}

// replayedRelay looks for a question of a child run that another process has relayed, and returns the same as
// replayedQuestion. A resolved question without a stored input counts as expired.
func (l *loop) replayedRelay(replayedCall *replay.Call, id string) (*interrupt, *resolution) {
	q := replayedCall.RelayedQuestion(id)
	switch {
	case q == nil:
		return nil, nil
	case !q.Resolved:
		q.Reopened = true
		return reopenedInterrupt(q.Interrupt), nil
	}
	res := resolution{unanswered: ErrExpired}
	if data, given := l.replayed.Inputs[id]; given {
		res = decodeInput(id, data)
	}
	return nil, &res
}
