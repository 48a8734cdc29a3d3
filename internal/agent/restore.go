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

// This file restores into a loop what the run did in other processes. The loop takes the same
// steps as the first time. For a step whose end is in the log, this file supplies the outcome.
//
// A decision that the log has is repeated and never made again, even where this process would decide
// differently: its tools, rules, limits and time are other ones. Otherwise the conversation would not be the one
// that the model has answered, or the budget would refuse a call that has a result. Accounting is part of that.
// Tokens, calls, children and results are charged to the run's budget again in the same order, so that the
// run continues with what is really left. They are not counted again for the caller or in metrics, because the
// process that spent them did that (countModelCall).

// callerLimitPrefix precedes the name of a caller's limit in the event budget.
const callerLimitPrefix = "caller_"

// restoreLoop sets the loop's initial state: the ids and parts that the run has used, and what
// its readers already know.
func (l *loop) restoreLoop() {
	s := l.replayed
	if s == nil {
		return
	}
	l.partCount = s.Parts
	for id := range s.Calls {
		l.callIDs[id] = true
	}
	l.trimReported = s.Reported["context_tokens"] > 0
	l.budget.Restore(s.Reported, s.Raised)
	for limit := range s.Reported {
		if strings.HasPrefix(limit, callerLimitPrefix) { // it was reported because it was used up
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

// restoreStep replaces a model turn that is already in the log.
func (l *loop) restoreStep(s *replay.Step, tools []llm.Tool) modelReply {
	l.trimSilently(tools)
	l.step++
	l.addUsage(s.Usage)
	l.preferredModel = cmp.Or(s.Model, l.preferredModel)
	l.metadata.UpstreamModel = cmp.Or(s.Upstream, l.metadata.UpstreamModel)
	reply := modelReply{text: s.Text, usage: s.Usage, finish: s.FinishReason, extensions: l.restoreExtensions(s.Extensions)}
	for _, c := range s.Calls {
		reply.calls = append(reply.calls, restoreCall(c))
	}
	return reply
}

// writeModel stores which model has answered the step, and how its endpoint calls it, if they are not those before. It
// writes them before step_end, as writeExtensions does.
func (l *loop) writeModel(ctx context.Context, before, upstream string) error {
	if l.preferredModel != "" && l.preferredModel != before {
		if err := l.run.writeNote(ctx, replay.NoteModel, l.preferredModel); err != nil {
			return err
		}
	}
	if l.metadata.UpstreamModel == upstream || l.run.job == nil {
		return nil
	}
	for _, part := range replay.Parts([]byte(l.metadata.UpstreamModel)) {
		// Without Flush: step_end follows, which waits for what precedes it.
		if err := l.agent.Log.AddNote(ctx, l.run.ID, []byte(replay.NoteUpstream+" "+part)); err != nil {
			return fmt.Errorf("store the name of a model: %w", err)
		}
	}
	return nil
}

// writeExtensions stores the members that an endpoint requires in later requests, for a process
// that takes over the run. It writes them before step_end, so that a step with step_end always
// has them. Readers of the run do not see notes.
func (l *loop) writeExtensions(ctx context.Context, x *llm.Extensions) error {
	if x == nil {
		return nil
	}
	data, err := json.Marshal(x)
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

// restoreExtensions decodes the notes of writeExtensions. If they are missing, the endpoint may
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

// restoreCall returns a call as the model wrote it.
func restoreCall(c *replay.Call) *call {
	restored := &call{Call: c.Call, byClient: c.ByClient}
	if c.Args != "" {
		restored.parseArgs(c.Args)
	}
	return restored
}

// appendStepStart opens the next step. If another process began a step and did not end it, the
// step is reset: its output so far is void, and it runs again.
func (l *loop) appendStepStart(ctx context.Context) error {
	if l.replayed != nil && l.step == len(l.replayed.Steps) {
		return l.run.out.Append(ctx, event.StepReset{Step: l.step, Reason: "takeover"})
	}
	start := event.StepStart{Step: l.step}
	if err := l.run.awaitOrder(ctx, start); err != nil {
		return err
	}
	return l.run.out.Append(ctx, start)
}

// restoreCalls sets the outcomes of the turn's calls that are in the log, and charges the budget
// as it was charged then. It returns the calls that remain to be made or refused. What the log has of a call
// decides:
//
//   - It has ended: its outcome is set, and it is not executed. It is charged if it was sent.
//   - It was sent, or its child was started: it is charged here, and executeToolCall decides what follows. The
//     call is refused, since its outcome is unknown, or it continues with its pending input or its child.
//   - Neither: it is not charged, and takes all the steps of a new call, except that questions which were asked
//     about it are not asked again.
func (l *loop) restoreCalls(ctx context.Context, calls []*call, outcomes []callOutcome) (remaining []*call) {
	l.budget.BeginTurn(len(calls))
	for i, c := range calls {
		known := l.replayed.Call(c.CallID)
		if known == nil {
			remaining = append(remaining, c)
			continue
		}
		result, succeeded := known.End.(event.ToolResult)
		failed, _ := known.End.(event.ToolError)
		isSearch := l.search != nil && c.Tool == l.search.Tool.Name
		if known.Spent != nil {
			l.budget.RestoreChild(*known.Spent)
		}
		if known.End != nil || known.Sent || known.HasChild() {
			// Every call that was sent was charged. The agent's own tools are executed here, so their
			// calls are never sent. They check their arguments themselves, after the call is charged.
			isOwn := isSearch || hasAskTool(l.askTools, c.Tool)
			refusedItself := isOwn && c.args != nil && failed.Kind == string(mcp.InvalidArguments)
			searched := isSearch && succeeded
			l.budget.RestoreCall(i, known.Sent || known.HasChild() || searched || refusedItself)
		}
		if known.End == nil {
			remaining = append(remaining, c)
			continue
		}
		outcomes[i] = l.restoreOutcome(ctx, known)
		args, edited := l.approvedArgs(known)
		switch {
		case succeeded:
			c.args, c.edited = result.Args, edited
		case failed.Args != nil:
			c.args, c.edited = failed.Args, edited
		case edited:
			c.args, c.edited = args, true
		}
		if isSearch {
			c.foundTools = toolsearch.FoundNames(result.Structured)
		}
	}
	if s := l.replayed.Step(l.step); s != nil {
		l.budget.RestoreSampled(s.Sampled)
	}
	return remaining
}

// restoreOutcome returns how a call ended, as far as the log still has it. A full log drops stored results
// before events. The model then gets the part in the event, although it may have answered the whole result.
func (l *loop) restoreOutcome(ctx context.Context, c *replay.Call) callOutcome {
	end := callOutcome{resultURL: l.agent.resultPath(l.run.ID, c.CallID), spent: c.Spent}
	if failed, ok := c.End.(event.ToolError); ok {
		end.errorEvent = &failed
		if failed.Truncated != nil && failed.Truncated.URL == "" {
			end.resultURL = ""
		}
		return end
	}
	result := c.End.(event.ToolResult)
	end.resultEvent = &result
	end.fullResult = &content.Result{Content: result.Content, Structured: result.Structured}
	if result.Truncated == nil {
		return end
	}
	end.resultURL = result.Truncated.URL
	if stored, err := l.agent.Result(ctx, l.run.ID, c.CallID); err == nil {
		end.fullResult = &content.Result{Content: stored.Content, Structured: stored.Structured}
	} else if end.resultURL != "" {
		l.agent.Logger.WarnContext(ctx, "stored tool result is no longer available", "run_id", l.run.ID, "call_id", c.CallID, "error", err)
	}
	return end
}

// approvalResolution returns the resolution of a call's approval, or nil while it is open.
func (l *loop) approvalResolution(c *replay.Call) *resolution {
	if c.Resolution == nil {
		return nil
	}
	b := c.Resolution
	var res resolution
	if data, given := l.replayed.Inputs[b.InterruptID]; given {
		res = decodeInput(b.InterruptID, data)
	}
	res.Approved = &b.Approved
	res.Reason = b.Reason
	res.by.Subject = b.By
	res.unanswered = unansweredReason(*b)
	return &res
}

// unansweredReason returns why no person decided, or nil if a person did. Events have only the text of the
// reason, so the texts of these errors must not change while runs of older processes may be taken over.
func unansweredReason(b event.ApprovalResolved) error {
	if b.Approved {
		return nil
	}
	for _, why := range []error{ErrExpired, errNobodyToAsk, errWithdrawn, errTooManyOpen} {
		if b.By == "" && b.Reason == why.Error() {
			return why
		}
	}
	return nil
}

// approvedArgs returns the arguments that a person approved, and whether they differ from the
// model's.
func (l *loop) approvedArgs(c *replay.Call) (args jsonText, edited bool) {
	v := l.approvalResolution(c)
	if v == nil || !v.isApproved() || v.Args == nil {
		return nil, false
	}
	return v.Args, string(v.Args) != string(c.Approval.Args)
}

// replayedQuestion returns the question of rec if the run asked it before the takeover: i if it
// is still open, res if it was resolved. Both are nil if it was not asked, or was asked about
// arguments that the call no longer has. It gives each open question back once, and removes it from the
// replayed state: what is left there at the end of the call is withdrawn (withdrawQuestions).
func (l *loop) replayedQuestion(ctx context.Context, rec event.Interrupt) (i *interrupt, res *resolution, _ error) {
	if rec.Kind == event.KindBudget {
		i, res = l.replayedBudgetQuestion(rec.Limit)
		return i, res, nil
	}
	c := l.replayed.Call(rec.CallID)
	if c == nil {
		return nil, nil, nil
	}
	if rec.ChildRunID != "" {
		i, res = l.replayedRelay(c, rec.ID)
		return i, res, nil
	}
	if rec.Kind == event.KindElicitation {
		i, res = l.replayedElicitation(c, rec.ID)
		return i, res, nil
	}
	if c.Approval == nil {
		return nil, nil, nil
	}
	if c.Approval.ArgsSHA256 != rec.ArgsSHA256 {
		return nil, nil, l.withdrawQuestions(ctx, c)
	}
	if v := l.approvalResolution(c); v != nil {
		return nil, v, nil
	}
	i, c.Approval = reopenedInterrupt(*c.Approval), nil
	return i, nil, nil
}

// reopenedInterrupt returns a question that another process asked.
func reopenedInterrupt(rec event.Interrupt) *interrupt {
	i := newInterrupt(rec)
	i.isAsked = true
	return i
}

// replayedElicitation is replayedQuestion for a question of a call's server.
func (l *loop) replayedElicitation(c *replay.Call, id string) (*interrupt, *resolution) {
	if elicited, resolved := c.Elicited[id]; resolved {
		answer := decodeInput(id, l.replayed.Inputs[id])
		answer.Action = elicited.Action
		answer.unanswered = nil
		return nil, &answer
	}
	for n, open := range c.Elicitations {
		if open.ID == id {
			c.Elicitations = slices.Delete(c.Elicitations, n, n+1)
			return reopenedInterrupt(open), nil
		}
	}
	return nil, nil
}

// replayedBudgetQuestion is replayedQuestion for the question whether a budget limit may be raised.
func (l *loop) replayedBudgetQuestion(limit string) (*interrupt, *resolution) {
	if l.replayed == nil {
		return nil, nil
	}
	if asked := l.replayed.Asked; asked != nil {
		l.replayed.Asked = nil
		return reopenedInterrupt(*asked), nil
	}
	if s := l.replayed.Step(l.step); s != nil && s.Refused == limit {
		return nil, &resolution{unanswered: errWithdrawn}
	}
	return nil, nil
}

// withdrawQuestions closes the open questions of a replayed call that no goroutine waits for:
// those that its server sent on a connection that has ended, and an approval of arguments that
// the call no longer has. keep lists the ids of questions that the call still waits for.
func (l *loop) withdrawQuestions(ctx context.Context, c *replay.Call, keep ...string) error {
	if c == nil {
		return nil
	}

	var open, kept []event.Interrupt
	for _, i := range c.Elicitations {
		if slices.Contains(keep, i.ID) {
			kept = append(kept, i)
		} else {
			open = append(open, i)
		}
	}

	for _, q := range c.Relayed {
		if !q.Resolved && !q.Reopened && !slices.Contains(keep, q.ID) {
			open = append(open, q.Interrupt)
			q.Resolved = true
		}
	}

	c.Elicitations = kept
	if c.Approval != nil && c.Resolution == nil {
		open = append(open, *c.Approval)
		c.Approval = nil
	}
	ctx = context.WithoutCancel(ctx)

	for _, rec := range open {
		// Close the input first, so that no person is told that their answer counts.
		if err := l.agent.Log.AddInput(ctx, l.run.ID, rec.ID, closedInput); err != nil && !errors.Is(err, event.ErrDuplicateInput) {
			return err
		}
		if err := l.run.suspension.withdrawRestored(ctx, rec); err != nil {
			return err
		}
		l.agent.wakeParent(l.run, rec.ID) // which may ask the same question, and would wait until it expires
	}
	return nil
}

// replayedRelay returns what became of a question of a child that another process has relayed, as
// replayedQuestion does.
func (l *loop) replayedRelay(c *replay.Call, id string) (*interrupt, *resolution) {
	q := c.RelayedQuestion(id)
	switch {
	case q == nil:
		return nil, nil
	case !q.Resolved:
		q.Reopened = true
		return reopenedInterrupt(q.Interrupt), nil
	}
	v := resolution{unanswered: ErrExpired}
	if data, given := l.replayed.Inputs[id]; given {
		v = decodeInput(id, data)
	}
	return nil, &v
}
