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

// This file restores into a loop what a run did in earlier processes. The loop takes the same steps as it took there,
// and this file supplies the outcome of each step whose end is in the log.
//
// A decision that is in the log is repeated, even if this process would decide differently because its tools, rules,
// limits or time differ. Otherwise the model would see another conversation than the one it answered, or the budget
// would refuse a call that has a result. Charges to the run's budget are repeated too, in the same order, for tokens,
// calls, children and results, so that the run continues with what is left. Tokens and calls are not counted again for
// the caller or in metrics, because the process that used them has done that.

// callerLimitPrefix precedes the name of a caller's limit in budget events.
const callerLimitPrefix = "caller_"

// restoreLoop gives the loop what it must know about earlier processes before its first turn: the ids of calls, the
// number of parts, and which budget events readers already have. It does nothing if the run began here.
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
			// spendTokens reports a caller's limit only when it is used up. Its details are not needed again.
			l.callerSpentReported = true
			l.callerSpent.Store(&usage.SpentError{})
		}
	}
}

// restoredEnd returns the run's end if an earlier process stored it in notes but died before the terminal event: the
// event, or an *abortError if a hook ended the run. Both results are nil if no end is stored.
func (l *loop) restoredEnd() (event.Body, error) {
	state := l.replayed
	if state == nil {
		return nil, nil
	}
	if state.End == nil && state.Abort != nil {
		return nil, &abortError{reason: state.Abort.Reason, withheld: state.Abort.Withheld}
	}
	return state.End, nil
}

// restoreStep returns the model's answer for a step that is in the log, without a model call, and updates the loop as
// the model call did. tools are the tools that the model was offered.
func (l *loop) restoreStep(step *replay.Step, tools []llm.Tool) modelReply {
	l.trimSilently(tools)
	l.step++
	l.preferredModel = cmp.Or(step.Model, l.preferredModel)
	l.usePriceOf(l.preferredModel)
	l.addUsage(step.Usage)
	l.metadata.UpstreamModel = cmp.Or(step.Upstream, l.metadata.UpstreamModel)
	reply := modelReply{text: step.Text, usage: step.Usage, finish: step.FinishReason, extensions: l.restoreExtensions(step.Extensions)}
	for _, c := range step.Calls {
		reply.calls = append(reply.calls, restoreCall(c))
	}
	return reply
}

// writeModel stores in notes which model answered the step, unless it is modelBefore, and what the model's endpoint
// calls it, unless that is upstreamBefore. Call it before step_end is appended, so that a step with a step_end always
// has these notes.
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
		// No Flush is needed: step_end follows, and its append waits until everything before it is stored.
		if err := l.agent.Log.AddNote(ctx, l.run.ID, []byte(replay.NoteUpstream+" "+part)); err != nil {
			return fmt.Errorf("store the name of a model: %w", err)
		}
	}
	return nil
}

// writeExtensions stores in notes the members of an answer that its endpoint requires in later requests, for a process
// that takes over the run. They are in notes because readers do not see notes. It does nothing if extensions is nil.
// Call it before step_end is appended, so that a step with a step_end always has these notes.
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

// maxExtensionPiece is how many bytes of the extensions one note has. It leaves 64 bytes for the word before.
const maxExtensionPiece = event.MaxNote - 64

// restoreExtensions decodes text, which writeExtensions stored in notes, and sets preferredModel to the model whose
// endpoint requires the extensions. It returns nil if text is "". It also returns nil, and logs a warning, if text
// cannot be decoded; the endpoint may then refuse the next request.
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

// restoreCall returns a call of a replayed step as the model wrote it. The call has no arguments if the log does not
// have all of them.
func restoreCall(replayedCall *replay.Call) *call {
	restored := &call{Call: replayedCall.Call, byClient: replayedCall.ByClient}
	if replayedCall.Args != "" {
		restored.parseArgs(replayedCall.Args)
	}
	return restored
}

// appendStepStart appends step_start for the step l.step. If another process began the step without ending it,
// appendStepStart appends step_reset instead, which tells readers to discard the step's output so far; the step then
// runs again.
func (l *loop) appendStepStart(ctx context.Context) error {
	// Steps includes the step that was begun but not ended; all steps before it have been restored.
	wasBegun := l.replayed != nil && l.step == len(l.replayed.Steps)
	if wasBegun {
		return l.run.out.Append(ctx, event.StepReset{Step: l.step, Reason: "takeover"})
	}
	start := event.StepStart{Step: l.step}
	if err := l.run.awaitOrder(ctx, start); err != nil {
		return err
	}
	return l.run.out.Append(ctx, start)
}

// restoreCalls sets the outcomes of the turn's calls that ended in earlier processes, and charges the budget for calls
// that were sent there. It returns the ids of the other calls, which must still be made or refused. They include calls
// that were sent but have no outcome: executeToolCall refuses those, since it is unknown whether they were executed, or
// continues them with their pending input or child.
func (l *loop) restoreCalls(ctx context.Context, calls []*call, outcomes []callOutcome) (remaining []string) {
	l.budget.BeginTurn(len(calls))
	for i, c := range calls {
		earlier := l.replayed.Call(c.CallID)
		if earlier != nil {
			l.restoreCharge(i, c, earlier)
		}
		if earlier == nil || earlier.End == nil {
			remaining = append(remaining, c.CallID)
			continue
		}
		outcomes[i] = l.restoreOutcome(ctx, earlier)
		l.restoreArgs(c, earlier)
		if result, succeeded := earlier.End.(event.ToolResult); succeeded && l.isSearch(c) {
			c.foundTools = toolsearch.FoundNames(result.Structured)
		}
	}
	if step := l.replayed.Step(l.step); step != nil {
		l.budget.RestoreSampled(step.Sampled)
	}
	return remaining
}

// isSearch reports whether c calls the search tool.
func (l *loop) isSearch(c *call) bool { return l.search != nil && c.Tool == l.search.Tool.Name }

// restoreCharge charges the budget for the call c, which has this index in its turn, and for its child, as the earlier
// process did. If the call was neither ended nor sent and has no child, restoreCharge leaves the decision to
// chargeBudget.
func (l *loop) restoreCharge(index int, c *call, earlier *replay.Call) {
	if earlier.Spent != nil {
		l.budget.RestoreChild(*earlier.Spent)
	}
	wasSent := earlier.Sent || earlier.HasChild()
	if earlier.End == nil && !wasSent {
		return
	}
	// Every call that was sent was charged. Calls of the agent's built-in tools are not sent. They were charged if the
	// tool was executed, which means that it succeeded or refused its arguments itself.
	_, succeeded := earlier.End.(event.ToolResult)
	failed, _ := earlier.End.(event.ToolError) // the zero value for any other end
	searchSucceeded := l.isSearch(c) && succeeded
	isBuiltin := l.isSearch(c) || hasAskTool(l.askTools, c.Tool)
	builtinRefusedArgs := isBuiltin && c.args != nil && failed.Kind == string(mcp.InvalidArguments)
	wasCharged := wasSent || searchSucceeded || builtinRefusedArgs
	l.budget.RestoreCall(index, wasCharged)
}

// restoreArgs sets the arguments that an ended call was made with, and whether a person had changed them. The event of
// a failed call may lack the arguments. Then they are those that the person entered, or else those that the model
// wrote.
func (l *loop) restoreArgs(c *call, earlier *replay.Call) {
	approved, edited := l.approvedArgs(earlier)
	switch end := earlier.End.(type) {
	case event.ToolResult:
		c.args = end.Args
		c.edited = edited
	case event.ToolError:
		c.edited = edited
		switch {
		case end.Args != nil:
			c.args = end.Args
		case edited:
			c.args = approved
		}
	}
}

// restoreOutcome returns how a call ended in an earlier process, as far as the log still knows. A full log deletes
// stored results before events. The model then gets only the part of the result that is in the event, although its
// later answers may be based on the whole result. resultURL is "" if the event is truncated and has no URL.
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

// approvalResolution returns how a call's approval was resolved, or nil if no approval was asked for or it is still
// open. Arguments that the person entered come from the stored input, everything else from the event.
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

// unansweredReason returns the error that says why no person decided, or nil if a person did. Events contain only the
// error's text, so these texts must not change while runs of older processes may be taken over.
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

// approvedArgs returns the arguments that a person entered when they approved a call. edited says whether these differ
// from the arguments that the person was shown. It returns nil if the person entered none or did not approve.
func (l *loop) approvedArgs(replayedCall *replay.Call) (args jsonText, edited bool) {
	res := l.approvalResolution(replayedCall)
	if res == nil || !res.isApproved() || res.Args == nil {
		return nil, false
	}
	return res.Args, replay.ArgsDigest(res.Args) != replay.ArgsDigest(replayedCall.Approval.Args)
}

// takeReplayedQuestion looks for wanted, a question that this process is about to ask, among the questions that earlier
// processes asked. It returns open if the question still waits for an answer, and resolved if it was resolved. Both are
// nil if this process must ask it. If an approval was asked for other arguments than the call has now,
// takeReplayedQuestion withdraws it.
//
// Each open question is returned only once: it is then removed from the replayed state, or marked there.
// withdrawQuestions withdraws the questions of a call that are still there when the call ends.
func (l *loop) takeReplayedQuestion(ctx context.Context, wanted event.Interrupt) (open *interrupt, resolved *resolution, _ error) {
	if wanted.Kind == event.KindBudget {
		open, resolved = l.takeBudgetQuestion(wanted.Limit)
		return open, resolved, nil
	}
	call := l.replayed.Call(wanted.CallID)
	if call == nil {
		return nil, nil, nil // the earlier process did not begin the call
	}
	if wanted.ChildRunID != "" {
		open, resolved = l.takeRelayedQuestion(call, wanted.ID)
		return open, resolved, nil
	}
	if wanted.Kind == event.KindElicitation {
		open, resolved = l.takeElicitation(call, wanted.ID)
		return open, resolved, nil
	}
	approval := call.Approval
	if approval == nil {
		return nil, nil, nil // the earlier process did not ask for the approval
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

// reopenedInterrupt returns a question that an earlier process asked, marked as asked.
func reopenedInterrupt(asked event.Interrupt) *interrupt {
	question := newInterrupt(asked)
	question.isAsked = true
	return question
}

// takeElicitation looks for a question that an earlier process asked on behalf of the call's server. Its results
// are as for takeReplayedQuestion. A resolution has the action from the event and the content from the stored input.
func (l *loop) takeElicitation(replayedCall *replay.Call, id string) (*interrupt, *resolution) {
	if elicited, resolved := replayedCall.Elicited[id]; resolved {
		answer := decodeInput(id, l.replayed.Inputs[id])
		answer.Action = elicited.Action
		answer.unanswered = nil
		return nil, &answer
	}
	for i, open := range replayedCall.Elicitations {
		if open.ID == id {
			replayedCall.Elicitations = slices.Delete(replayedCall.Elicitations, i, i+1)
			return reopenedInterrupt(open), nil
		}
	}
	return nil, nil
}

// takeBudgetQuestion looks for an earlier question about raising limit after the current step. Its results are as
// for takeReplayedQuestion. If the limit was not raised, the question counts as withdrawn, so that the run does not ask
// again.
func (l *loop) takeBudgetQuestion(limit string) (*interrupt, *resolution) {
	if l.replayed == nil {
		return nil, nil
	}
	if asked := l.replayed.BudgetQuestion; asked != nil {
		l.replayed.BudgetQuestion = nil
		return reopenedInterrupt(*asked), nil
	}
	if step := l.replayed.Step(l.step); step != nil && step.RefusedLimit == limit {
		return nil, &resolution{unanswered: errWithdrawn}
	}
	return nil, nil
}

// withdrawQuestions withdraws a replayed call's open questions that this process does not wait for: questions that its
// server sent on a connection that has ended, questions that a child run no longer has open, and an approval for
// arguments that the call no longer has. keep lists the ids of questions that the call still waits for. replayedCall
// may be nil. It works even if ctx has ended.
func (l *loop) withdrawQuestions(ctx context.Context, replayedCall *replay.Call, keep ...string) error {
	if replayedCall == nil {
		return nil
	}
	ctx = context.WithoutCancel(ctx)
	for _, question := range takeOpenQuestions(replayedCall, keep) {
		// Close the input first. Otherwise a person could answer, and be informed that the answer was accepted, after
		// the question was withdrawn.
		err := l.agent.Log.AddInput(ctx, l.run.ID, question.ID, closedInput)
		if err != nil && !errors.Is(err, event.ErrDuplicateInput) {
			return err
		}
		if err := l.run.suspension.withdrawRestored(ctx, question); err != nil {
			return err
		}
		// The parent may ask the same question, and would wait until it expires.
		l.agent.wakeParent(l.run, question.ID, closedInput)
	}
	return nil
}

// withdrawRestored appends the event that withdraws a question which another process asked and this one did not open
// again. If the run is suspended, it then resumes the run. An error comes from the log.
func (s *suspension) withdrawRestored(ctx context.Context, question event.Interrupt) error {
	withdrawn := newInterrupt(question).resolvedEvent(resolution{unanswered: errWithdrawn})
	if err := s.run.awaitOrder(ctx, withdrawn); err != nil {
		return err
	}
	return s.appendAndResume(ctx, withdrawn)
}

// takeOpenQuestions removes the open questions from replayedCall, or marks them as resolved there, and returns them. It
// leaves elicitations and the child's questions alone if keep lists their ids.
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

// takeRelayedQuestion looks for a child run's question that an earlier process forwarded. Its results are as for
// takeReplayedQuestion. A resolved question without a stored input counts as expired.
func (l *loop) takeRelayedQuestion(replayedCall *replay.Call, id string) (*interrupt, *resolution) {
	question := replayedCall.RelayedQuestion(id)
	if question == nil {
		return nil, nil
	}
	if !question.Resolved {
		question.Reopened = true
		return reopenedInterrupt(question.Interrupt), nil
	}
	answer := decodeInput(id, l.replayed.Inputs[id])
	return nil, &answer
}
