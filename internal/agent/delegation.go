package agent

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"go.opentelemetry.io/otel/trace"

	"answerd/internal/agent/definition"
	"answerd/internal/agent/replay"
	"answerd/internal/agent/thread"
	"answerd/internal/event"
	"answerd/internal/mcp"
	"answerd/internal/mcp/content"
)

// Delegation: an agent asks another agent by calling the tool ask_<id>. The call starts a child run. The child run has
// its own events and its own job in the log, so it may run in another process than its parent. The call reads the
// child's events like any other reader:
//
//   - The child's steps and calls become tool_progress events of the call.
//   - When the child is suspended, the call asks the parent's owner the same questions, under the same ids, and
//     forwards each answer to the child. The parent is then suspended too, and may be parked.
//   - The child's end becomes the call's result.
//
// A parked parent does not read its child's events. So the process that executes the child stores an input in the
// parent whenever one of the child's questions is resolved, and when the child ends (wakeParent). A process that takes
// over the parent finds the child through a note (replay.NoteChild), and reads the child's events from the beginning.

const (
	// maxAsksPerTurn is how many child runs one turn may start. Together with definition.MaxLevels, it limits how many
	// runs one question can cause.
	maxAsksPerTurn = 8
	// childStartWait is how long a process that took over a parent waits for the child's first event. The process that
	// created the child may have died before it appended that event.
	childStartWait = 15 * time.Second
	maxProgress    = 500 // bytes of a tool_progress event's message
)

// askAgent executes a call that asks another agent. It starts the child run, or finds the one that an earlier process
// started, waits until it ends, and charges the parent for what the child has used. It has the type of
// toolExecution.builtin. A failure of the call is a *mcp.CallError; any other error ends the run.
func (l *loop) askAgent(ctx context.Context, exec *toolExecution) (*content.Result, error) {
	child := &childRun{loop: l, exec: exec, askedIDs: make(map[string]bool), failed: make(chan error, 1)}
	err := child.open(ctx)
	if err != nil && ctx.Err() != nil && l.run.relinquished() == nil {
		return nil, exec.canceledFailure(ctx)
	}
	if err != nil || exec.hookResult != nil { // a hook supplied the result, so no child was started
		return nil, err
	}
	defer l.run.suspension.endChildWait(child.id)
	end, err := child.readToEnd(ctx)
	if err != nil {
		return nil, child.abandon(ctx, err)
	}
	if err := child.chargeParent(ctx); err != nil {
		return nil, err
	}
	return child.resultOf(end)
}

// childRun is what a call knows about the child run that it started.
type childRun struct {
	loop *loop
	exec *toolExecution
	id   string

	catchingUp bool              // readToEnd has not yet read all events that the child had when this process opened it
	reported   float64           // progress that an earlier process has reported
	progress   float64           // how many of the child's events have become tool_progress, in all processes
	waiting    []event.Interrupt // the child's open questions, if it is suspended
	askedIDs   map[string]bool   // the ids of the child's questions that the parent's owner was already asked
	asking     sync.WaitGroup    // goroutines that forward the child's questions
	failed     chan error        // the first error from these goroutines; capacity 1
}

// open starts the child, or finds the child that an earlier process started, and sets c.id and exec.childID. If the
// earlier child never began, open starts another one. Before that, it calls the pre_tool_call hook for this call again,
// because the hook's decision is not stored. If the hook supplies a result (exec.hookResult), open starts no child.
func (c *childRun) open(ctx context.Context) error {
	earlier := c.exec.replayed
	if !earlier.HasChild() {
		return c.start(ctx)
	}
	hasBegun := false
	err := awaitLog(ctx, func() (err error) { hasBegun, err = c.awaitStart(ctx, earlier.Child); return err })
	if err != nil {
		return err
	}
	if hasBegun {
		c.id = earlier.Child
		c.catchingUp = true
		if progress := earlier.Progress; progress.ChildRunID == c.id {
			c.reported = progress.Progress
		}
		c.loop.run.suspension.beginChildWait(c.id)
		c.exec.childID = c.id
		return nil
	}
	if err := c.loop.agent.callPreHook(ctx, c.exec); err != nil || c.exec.hookResult != nil {
		return err
	}
	return c.start(ctx)
}

// awaitStart reports whether the child run childID has begun. It waits at most childStartWait for the child's first
// event; if none arrives, it deletes the child and returns false. If the child's events cannot be read, it returns
// true, because readToEnd then reports the error, except that it returns event.ErrUnavailable.
func (c *childRun) awaitStart(ctx context.Context, childID string) (hasBegun bool, _ error) {
	log := c.loop.agent.Log
	if _, err := log.Run(ctx, childID); errors.Is(err, event.ErrNotFound) || errors.Is(err, event.ErrLost) {
		return false, nil // the other process died before it created the child
	}
	timeout := time.NewTimer(childStartWait)
	defer timeout.Stop()
	for {
		page, err := log.After(ctx, childID, 0)
		switch {
		case ctx.Err() != nil:
			return false, context.Cause(ctx)
		case errors.Is(err, event.ErrUnavailable):
			return false, err
		case err != nil || len(page.Events) > 0 || page.Ended:
			return true, nil // readToEnd gets the same error, and returns it
		}
		select {
		case <-page.More:
		case <-timeout.C:
			return false, log.Delete(ctx, childID)
		case <-ctx.Done():
			return false, context.Cause(ctx)
		}
	}
}

// newRequest returns the child's request. The child is restricted like its parent. Its budget is the rest of the
// parent's, divided equally among the children of this turn. In a rerun, the child gets the recorded budget.
func (c *childRun) newRequest(question string) Request {
	l, parent := c.loop, &c.loop.run.req
	limits, callsLeft := l.budget.Remaining(max(l.askCount, 1))
	request := Request{
		Question: question, Agent: c.exec.askedAgent, ThreadID: parent.ThreadID,
		Servers: parent.Servers, Tools: parent.Tools, ServerTools: parent.ServerTools,
		Context: parent.Context, Hops: parent.Hops, Budget: limits,
		Interactive: parent.Interactive, FormsDeclined: parent.FormsDeclined, ApprovalsDeclined: parent.ApprovalsDeclined,
		Background: true,
		parent:     parentCall{Run: l.run.ID, Call: c.exec.CallID, Level: parent.parent.Level + 1},
	}
	if !callsLeft {
		request.ToolChoice = ToolNone
	}
	if l.agent.Repeat != nil {
		if limits, choice, ok := l.agent.Repeat.ChildBudget(l.run.ID, c.exec.CallID); ok {
			request.Budget = limits
			request.ToolChoice = choice
		}
	}
	return request
}

// start starts the child in this process. While the log is unavailable, it retries with a new child for some time
// (awaitLog), and deletes what the log may have stored of the previous one. Invalid arguments, and an agent that cannot
// be asked, are failures of the call (*mcp.CallError). If this process is handing over its runs, start relinquishes the
// parent and returns errHandedOver.
func (c *childRun) start(ctx context.Context) error {
	exec, agent := c.exec, c.loop.agent
	var args struct{ Question string }
	if json.Unmarshal(exec.args, &args) != nil || strings.TrimSpace(args.Question) == "" {
		return exec.failure(mcp.InvalidArguments, `the arguments must be {"question": "…"}`)
	}
	request := c.newRequest(args.Question)
	if err := agent.validateRequest(c.loop.run.caller, &request); err != nil {
		return exec.failure(mcp.Denied, "The agent "+exec.askedAgent+" cannot be asked: "+err.Error()+".")
	}
	err := awaitLog(ctx, func() error {
		if c.id != "" { // left over from the previous try
			if err := agent.Log.Delete(ctx, c.id); errors.Is(err, event.ErrUnavailable) {
				return err
			}
		}
		return c.begin(ctx, request)
	})
	if errors.Is(err, ErrDraining) {
		// This process is handing over its runs. Drain relinquishes the parent too, but the call might fail before that.
		c.loop.run.relinquish(errHandedOver)
		return errHandedOver
	}
	return err
}

// begin tries once to start a child, under a new id. It first stores the id in a note, so that a process that takes
// over the parent finds the child instead of starting a second one. The error is ErrDraining if this process is handing
// over its runs.
func (c *childRun) begin(ctx context.Context, request Request) error {
	l, exec, agent := c.loop, c.exec, c.loop.agent
	rec := event.Run{
		ID: agent.Log.NewID(), ThreadID: request.ThreadID, TraceID: l.run.TraceID, Owner: l.run.Owner, Created: agent.Log.Now(),
		Background: true, Agent: request.Agent, ParentID: l.run.ID,
	}
	if err := l.run.writeNote(ctx, replay.NoteChild, replay.CallKey(exec.CallID), rec.ID); err != nil {
		return err
	}
	c.id = rec.ID
	childCtx := trace.ContextWithSpanContext(agent.ctx, trace.SpanContextFromContext(ctx))
	child := agent.newRun(childCtx, rec, l.run.caller, request)
	child.account = l.run.account
	if !agent.registerChild(child) {
		child.cancel(nil)
		return ErrDraining
	}
	if err := agent.beginRun(ctx, child); err != nil {
		agent.discardRun(child)
		return fmt.Errorf("ask the agent %s: %w", exec.askedAgent, err)
	}

	l.run.suspension.beginChildWait(c.id)
	exec.childID = c.id
	agent.runInBackground(child)
	return nil
}

// readToEnd reads the child's events until the child ends, reports its progress, forwards its questions, and returns
// its terminal event. The error is the cause of ctx, an error of the log, or event.ErrGone if the events are deleted.
func (c *childRun) readToEnd(ctx context.Context) (event.Event, error) {
	asking, stop := context.WithCancel(ctx)
	defer c.asking.Wait()
	defer stop() // withdraws questions that are still open

	log := c.loop.agent.Log
	pos := int64(0) // the sequence number of the last event that was read
	for {
		var page event.Page
		err := awaitLog(ctx, func() (err error) { page, err = log.After(ctx, c.id, pos); return err })
		if ctx.Err() != nil {
			return event.Event{}, context.Cause(ctx)
		}
		if err != nil {
			return event.Event{}, err
		}
		for _, e := range page.Events {
			pos = e.Seq
			if e.Terminal() {
				return e, nil
			}
			if err := c.relayEvent(ctx, e); err != nil {
				return event.Event{}, err
			}
		}
		if len(page.Events) > 0 {
			continue
		}
		if page.Ended {
			return event.Event{}, event.ErrGone
		}
		if c.catchingUp {
			c.catchingUp = false
			// Close the questions that the earlier process forwarded and that are no longer open in the child.
			if err := c.loop.withdrawQuestions(ctx, c.exec.replayed, interruptIDs(c.waiting)...); err != nil {
				return event.Event{}, err
			}
		}
		c.relayQuestions(asking)
		select {
		case <-page.More:
		case err := <-c.failed:
			return event.Event{}, err
		case <-ctx.Done():
			return event.Event{}, context.Cause(ctx)
		}
	}
}

// interruptIDs returns the ids of questions, in the same order.
func interruptIDs(questions []event.Interrupt) (ids []string) {
	for _, question := range questions {
		ids = append(ids, question.ID)
	}
	return ids
}

// relayEvent updates c.waiting, the child's open questions, and reports the child's progress as tool_progress of the
// parent's call. It only counts what an earlier process has reported.
func (c *childRun) relayEvent(ctx context.Context, e event.Event) error {
	if s, ok := e.Body.(event.Suspended); ok {
		c.waiting = s.Interrupts
	}
	if _, resolved := replay.InterruptOf(e); resolved != "" {
		c.waiting = slices.DeleteFunc(slices.Clone(c.waiting), func(i event.Interrupt) bool { return i.ID == resolved })
	}
	message := c.progressMessage(e.Body)
	if message == "" {
		return nil
	}
	c.progress++
	if c.progress <= c.reported {
		return nil
	}
	message, _ = content.TruncateText(message, maxProgress, "")
	c.exec.notifications.appendEvent(ctx, event.ToolProgress{Call: c.exec.Call, Progress: c.progress, Message: message, ChildRunID: c.id})
	return c.exec.notifications.err
}

// progressMessage describes an event of the child, for tool_progress. It returns "" for an event that is not reported.
func (c *childRun) progressMessage(body event.Body) string {
	switch b := body.(type) {
	case event.Start:
		return "The agent " + c.exec.askedAgent + " was asked."
	case event.StepStart:
		return fmt.Sprintf("The agent %s takes step %d.", c.exec.askedAgent, b.Step)
	case event.ToolCall:
		return fmt.Sprintf("The agent %s calls %s.", c.exec.askedAgent, b.Tool)
	case event.ToolProgress:
		return b.Message
	}
	return ""
}

// relayQuestions asks the parent's owner those of the child's open questions that are not in c.askedIDs yet, and adds
// their ids to it. It does not wait for the answers.
func (c *childRun) relayQuestions(ctx context.Context) {
	var questions []event.Interrupt
	for _, question := range c.waiting {
		if c.askedIDs[question.ID] {
			continue
		}
		c.askedIDs[question.ID] = true
		question.CallID = c.exec.CallID
		question.ChildRunID = cmp.Or(question.ChildRunID, c.id) // a grandchild's question keeps the grandchild's id
		questions = append(questions, question)
	}
	if c.loop.agent.Repeat != nil {
		// Ask one question at a time, because the recording determines the order of their events.
		for _, question := range questions {
			c.askOwner(ctx, []event.Interrupt{question})
		}
	} else if len(questions) > 0 {
		c.askOwner(ctx, questions)
	}
}

// askOwner forwards the child's questions to the parent's owner, and each answer back to the child, in a new goroutine.
// It sends the first error to c.failed.
func (c *childRun) askOwner(ctx context.Context, questions []event.Interrupt) {
	c.asking.Go(func() {
		err := catchPanic(func() error {
			_, err := c.loop.askOwnerAll(ctx, questions, func(n int, answer resolution) error {
				return c.forwardAnswer(ctx, questions[n].ID, answer)
			})
			return err
		})
		if err == nil {
			return
		}
		select {
		case c.failed <- err:
		default: // c.failed already holds an error
		}
	})
}

// forwardAnswer stores the answer to the question with this id as an input of the child. It does nothing if the
// question expired or was withdrawn, because the child's own question then ends in the same way. An answer that comes
// too late for the child is not an error.
func (c *childRun) forwardAnswer(ctx context.Context, id string, answer resolution) error {
	if answer.unanswered != nil {
		return nil
	}
	input := encodeInput(answer.Input, answer.by)
	err := awaitLog(ctx, func() error { return c.loop.agent.Log.AddInput(context.WithoutCancel(ctx), c.id, id, input) })
	if err != nil && !isTooLate(err) {
		return fmt.Errorf("pass an answer on to a child run: %w", err)
	}
	return nil
}

// cancel cancels the child and waits at most endWait for it to end, so that the child ends before its parent. It only
// logs errors, because the parent must end anyway.
func (c *childRun) cancel(ctx context.Context) {
	a := c.loop.agent
	ctx, stop := context.WithTimeout(context.WithoutCancel(ctx), endWait)
	defer stop()
	if err := a.Cancel(ctx, c.id); err != nil {
		a.Logger.WarnContext(ctx, "a child run could not be cancelled", "run_id", c.loop.run.ID, "child_run_id", c.id, "error", err)
		return
	}
	_ = thread.AwaitEnd(ctx, a.Log, c.id, nil) // the parent ends in any case
}

// chargeParent charges the parent's budget for what the child has used, exactly once and even if ctx has ended, and
// sets exec.spent. It stores the amount in a note before it charges it. If an earlier process wrote that note,
// restoreCalls has already charged the amount, and chargeParent does not charge it again. An error comes from the log.
func (c *childRun) chargeParent(ctx context.Context) error {
	ctx = context.WithoutCancel(ctx)
	parent := c.loop
	if earlier := c.exec.replayed; earlier != nil && earlier.Spent != nil {
		c.exec.spent = earlier.Spent
		return nil
	}
	if err := parent.run.awaitCharge(c.exec.CallID, c.id); err != nil {
		return err
	}
	spent := parent.agent.spentBy(ctx, c.id, 0)
	data, err := json.Marshal(spent)
	if err != nil {
		return fmt.Errorf("encode what a child run has used: %w", err)
	}
	if err := parent.run.writeNote(ctx, replay.NoteSpent, replay.CallKey(c.exec.CallID), string(data)); err != nil {
		return err
	}
	c.exec.spent = &spent
	if err := parent.budget.SpendChild(ctx, parent.run.out, spent); err != nil {
		return err
	}
	return parent.run.suspension.suspendAsRecorded()
}

// spentBy returns what a run and its children have used, according to the run's events. A final answer contains the
// sums; for a run without one, spentBy adds up the steps, the calls and the children. The cost is nil if a price is
// unknown. level is 0 for the run itself and increases by 1 for each level of children. If the events cannot be read,
// or level exceeds definition.MaxLevels, spentBy returns the zero value.
func (a *Agent) spentBy(ctx context.Context, id string, level int) (spent event.Spent) {
	var events []event.Event
	err := awaitLog(ctx, func() (err error) { events, err = event.ReadAll(ctx, a.Log, id); return err })
	if err != nil || level > definition.MaxLevels {
		return event.Spent{}
	}
	model := ""
	children := event.Spent{Cost: new(float64)} // 0, since nil means an unknown cost
	for _, e := range events {
		childID := ""
		switch body := e.Body.(type) {
		case event.Start:
			model = body.Model
		case event.StepEnd:
			if body.Usage != nil {
				spent.Usage = spent.Usage.Plus(*body.Usage)
			}
		case event.ToolResult:
			spent.Calls++
			childID = body.ChildRunID
		case event.ToolError:
			isRefused := slices.Contains([]mcp.ErrorKind{mcp.Denied, mcp.UnknownTool, mcp.InvalidArguments}, mcp.ErrorKind(body.Kind))
			if !isRefused {
				spent.Calls++
			}
			childID = body.ChildRunID
		case event.FinalAnswer: // its sums include what servers and children used, except the number of calls
			cost := costOfUsage(body.Metadata.Usage, body.Metadata.Cost)
			return event.Spent{Usage: body.Metadata.Usage, Cost: cost, Calls: spent.Calls + children.Calls}
		}
		if childID != "" {
			children = children.Plus(a.spentBy(ctx, childID, level+1))
		}
	}
	spent.Cost = costOfUsage(spent.Usage, a.priceOf(model).CostOf(spent.Usage.InputTokens, spent.Usage.OutputTokens))
	return spent.Plus(children)
}

// resultOf returns the call's result for the child's terminal event: the child's answer, or the failure that ended the
// child.
func (c *childRun) resultOf(end event.Event) (*content.Result, error) {
	switch b := end.Body.(type) {
	case event.FinalAnswer:
		block, _ := json.Marshal(map[string]string{"type": "text", "text": b.Answer}) // strings always marshal
		return &content.Result{Content: []json.RawMessage{block}}, nil
	case event.RunError:
		message := fmt.Sprintf("The agent %s failed (%s): %s\n%s", c.exec.askedAgent, b.Code, b.Message, b.PartialAnswer)
		return nil, c.exec.failure(mcp.Execution, strings.TrimSpace(message))
	}
	return nil, c.exec.failure(mcp.Cancelled, "The agent "+c.exec.askedAgent+" was cancelled.")
}

// abandon returns the error of a call whose child was not read to its end because of err. If the log has deleted the
// child's events, that is a failure of the call. If ctx has ended, abandon first cancels the child and charges the
// parent for what the child has used, unless the parent was relinquished.
func (c *childRun) abandon(ctx context.Context, err error) error {
	isDeleted := errors.Is(err, event.ErrGone) || errors.Is(err, event.ErrNotFound)
	switch {
	case c.loop.run.relinquished() != nil: // another process continues to wait for the child
		return err
	case ctx.Err() == nil && isDeleted:
		return c.exec.failure(mcp.UnknownOutcome, "What the agent "+c.exec.askedAgent+" did is no longer kept.")
	case ctx.Err() == nil:
		return err
	}
	c.cancel(ctx) // a child that was cancelled has used tokens too
	if err := c.chargeParent(ctx); err != nil {
		return err
	}
	return c.exec.canceledFailure(ctx)
}
