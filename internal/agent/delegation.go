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
	"answerd/internal/agent/recorded"
	"answerd/internal/agent/replay"
	"answerd/internal/agent/thread"
	"answerd/internal/event"
	"answerd/internal/mcp"
	"answerd/internal/mcp/catalog"
	"answerd/internal/mcp/content"
)

// Delegation: an agent asks another one with a tool, ask_<id>. The call starts a child run, which is a
// run of its own in the log: it has its own job, so any process may execute it, also another one than
// the parent's. The call reads the child's events like any reader:
//
//   - What the child does becomes tool_progress of the call.
//   - When the child is suspended, the call asks the owner of the parent the same questions, under the
//     same ids, and passes each answer on. Then the parent is suspended too, and may be parked.
//   - The child's end becomes the result of the call.
//
// The child's executor stores an input in the parent whenever a question is resolved and at its end
// (wakeParent), because a parked parent reads nothing. A process that takes over the parent finds the
// child by a note (replay.NoteChild), and reads on.

const (
	// maxAsksPerTurn bounds the child runs of a turn. With definition.MaxLevels it bounds the runs that
	// one question can cause.
	maxAsksPerTurn = 8
	// childStartWait bounds how long a process that took over a parent waits for the first event of the
	// child. The process that created the child may have died before that.
	childStartWait = 15 * time.Second
	maxProgress    = 500 // bytes of the message of a tool_progress event
)

// prepareAsk makes exec a call that asks another agent, if its tool does that.
func (l *loop) prepareAsk(exec *toolExecution) {
	for _, t := range l.askTools {
		if t.Name == exec.Tool {
			exec.tool = catalog.Tool{Name: t.Name, Description: t.Description, InputSchema: t.Schema}
			exec.toolExists = true
			exec.askedAgent, exec.builtin = t.agent, l.askAgent
		}
	}
}

// refuseExcessAsks returns why each of the calls must not be made because the turn asks too many agents; ""
// for the others. It sets how many children share the rest of the budget.
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

// askAgent executes a call that asks another agent.
func (l *loop) askAgent(ctx context.Context, exec *toolExecution) (*content.Result, error) {
	child := &childRun{loop: l, exec: exec}
	if err := child.open(ctx); err != nil && ctx.Err() != nil && l.run.relinquished() == nil {
		return nil, exec.canceledFailure(ctx)
	} else if err != nil || exec.hookResult != nil {
		return nil, err
	}
	defer l.run.suspension.setAwaitsChild(child.id, false)
	end, err := child.readToEnd(ctx)
	if err != nil && l.run.relinquished() != nil {
		return nil, err // another process continues here; the child is not affected
	}
	if err != nil && ctx.Err() == nil {
		return nil, child.lostFailure(err)
	}
	if err != nil {
		child.cancel(ctx)
	}
	if spendErr := child.chargeParent(context.WithoutCancel(ctx), end); spendErr != nil {
		return nil, spendErr
	}
	if err != nil {
		return nil, exec.canceledFailure(ctx)
	}
	return child.result(end)
}

// childRun is the child run of a call, as the call sees it.
type childRun struct {
	loop *loop
	exec *toolExecution
	id   string

	attached bool              // another process started the child, so readers know of its first events
	progress float64           // how many events of the child have become tool_progress, in all processes
	waiting  []event.Interrupt // the questions that are open in the child, if it is suspended
	relayed  map[string]bool   // the ids of those that the owner of the parent was asked
	asking   sync.WaitGroup    // goroutines that ask them
	failed   chan error        // of capacity 1: the first error of these goroutines
}

// open starts the child, or finds the one that another process started. If that one never began, the hook
// pre_tool_call is asked about the call again, since nothing has stored what it decided. Its answer may replace the child.
func (c *childRun) open(ctx context.Context) error {
	c.relayed, c.failed = make(map[string]bool), make(chan error, 1)
	if known := c.exec.replayed; known.HasChild() {
		started := false
		err := awaitLog(ctx, func() (err error) { started, err = c.awaitStart(ctx, known.Child); return err })
		switch {
		case err != nil:
			return err
		case started:
			c.id, c.attached = known.Child, true
			c.loop.run.suspension.setAwaitsChild(c.id, true)
			c.exec.childID = c.id
			return nil
		}
		if err := c.loop.agent.callPreHook(ctx, c.exec); err != nil || c.exec.hookResult != nil {
			return err
		}
	}
	return c.start(ctx)
}

// awaitStart reports whether the child with that id has begun, or begins soon. A child that was created and
// never began is deleted.
func (c *childRun) awaitStart(ctx context.Context, id string) (bool, error) {
	log := c.loop.agent.Log
	if _, err := log.Run(ctx, id); errors.Is(err, event.ErrNotFound) || errors.Is(err, event.ErrLost) {
		return false, nil // its process died before it created the child
	}
	timeout := time.NewTimer(childStartWait)
	defer timeout.Stop()
	for {
		page, err := log.After(ctx, id, 0)
		switch {
		case ctx.Err() != nil:
			return false, context.Cause(ctx)
		case errors.Is(err, event.ErrUnavailable):
			return false, err
		case err != nil || len(page.Events) > 0 || page.Ended:
			return true, nil // follow reports the error
		}
		select {
		case <-page.More:
		case <-timeout.C:
			return false, log.Delete(ctx, id)
		case <-ctx.Done():
			return false, context.Cause(ctx)
		}
	}
}

// newRequest returns the request of the child: the question, what the parent's request allows, and the child's share of
// what is left of the parent's budget. A rerun gets the share that was recorded.
func (c *childRun) newRequest(question string) Request {
	l, parent := c.loop, &c.loop.run.req
	limits, callsLeft := l.budget.Remaining(max(l.askCount, 1))
	request := Request{
		Question: question, Agent: c.exec.askedAgent, Servers: parent.Servers, Tools: parent.Tools, Context: parent.Context, ThreadID: parent.ThreadID,
		Budget: limits, Background: true, Interactive: parent.Interactive, FormsDeclined: parent.FormsDeclined, ApprovalsDeclined: parent.ApprovalsDeclined,
		Hops: parent.Hops, parent: parentCall{Run: l.run.ID, Call: c.exec.CallID, Level: parent.parent.Level + 1},
	}
	if !callsLeft {
		request.ToolChoice = ToolNone
	}
	if l.agent.Repeat != nil {
		if recorded, choice, ok := l.agent.Repeat.ChildBudget(l.run.ID, c.exec.CallID); ok {
			request.Budget, request.ToolChoice = recorded, choice
		}
	}
	return request
}

// start starts the child in this process. If the log does not answer, it deletes what may have been stored of the
// child, and starts another one.
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
	return awaitLog(ctx, func() error {
		if c.id != "" {
			if err := agent.Log.Delete(ctx, c.id); errors.Is(err, event.ErrUnavailable) {
				return err
			}
		}
		return c.begin(ctx, request)
	})
}

// begin starts a child once. The note with its id comes first, so that a process that takes over the parent
// cannot start a second one.
func (c *childRun) begin(ctx context.Context, request Request) error {
	l, exec, agent := c.loop, c.exec, c.loop.agent
	rec := event.Run{
		ID: agent.Log.NewID(), ThreadID: request.ThreadID, TraceID: l.run.TraceID, Owner: l.run.Owner, Created: agent.Log.Now(), Background: true,
		Agent: request.Agent, ParentID: l.run.ID,
	}
	if err := l.run.writeNote(ctx, replay.NoteChild, replay.CallKey(exec.CallID), rec.ID); err != nil {
		return err
	}
	c.id = rec.ID
	child := agent.newRun(trace.ContextWithSpanContext(agent.ctx, trace.SpanContextFromContext(ctx)), rec, l.run.caller, request)
	child.account = l.run.account
	if !agent.registerChild(child) {
		child.cancel(nil)
		return c.handOver()
	}
	if err := agent.beginRun(ctx, child); err != nil {
		agent.discardRun(child)
		if errors.Is(err, ErrDraining) {
			return c.handOver()
		}
		return fmt.Errorf("ask the agent %s: %w", exec.askedAgent, err)
	}

	l.run.suspension.setAwaitsChild(c.id, true)
	exec.childID = c.id
	agent.runInBackground(child)
	return nil
}

// handOver relinquishes the parent, since this process hands over its runs and the child cannot begin here. Drain
// does the same, but perhaps only after the parent has failed for lack of its child.
func (c *childRun) handOver() error {
	c.loop.run.relinquish(errHandedOver)
	return errHandedOver
}

// readToEnd reads the child to its end, and returns its terminal event.
func (c *childRun) readToEnd(ctx context.Context) (end event.Event, err error) {
	asking, stop := context.WithCancel(ctx)
	defer c.asking.Wait()
	defer stop() // withdraws the questions that are still open

	log, reported := c.loop.agent.Log, c.attached
	for pos := int64(0); ; {
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
			if err := c.relayEvent(ctx, e, reported); err != nil {
				return event.Event{}, err
			}
		}
		if len(page.Events) > 0 {
			continue
		}
		if page.Ended {
			return event.Event{}, event.ErrGone
		}
		if reported {
			reported = false
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

func interruptIDs(all []event.Interrupt) (ids []string) {
	for _, i := range all {
		ids = append(ids, i.ID)
	}
	return ids
}

// relayEvent notes the questions that the child waits for, and reports its progress as an event of the parent. If
// reported is true, it only counts the progress, because an earlier process has reported it.
func (c *childRun) relayEvent(ctx context.Context, e event.Event, reported bool) error {
	if s, ok := e.Body.(event.Suspended); ok {
		c.waiting = s.Interrupts
	}
	if _, resolved := replay.InterruptOf(e); resolved != "" {
		c.waiting = slices.DeleteFunc(slices.Clone(c.waiting), func(i event.Interrupt) bool { return i.ID == resolved })
	}
	message := ""
	switch b := e.Body.(type) {
	case event.Start:
		message = "The agent " + c.exec.askedAgent + " was asked."
	case event.StepStart:
		message = fmt.Sprintf("The agent %s takes step %d.", c.exec.askedAgent, b.Step)
	case event.ToolCall:
		message = fmt.Sprintf("The agent %s calls %s.", c.exec.askedAgent, b.Tool)
	case event.ToolProgress:
		message = b.Message
	}
	if message == "" {
		return nil
	}
	c.progress++
	if reported {
		return nil
	}
	message, _ = content.TruncateText(message, maxProgress, "")
	c.exec.notifications.appendEvent(ctx, event.ToolProgress{Call: c.exec.Call, Progress: c.progress, Message: message, ChildRunID: c.id})
	return c.exec.notifications.err
}

// relay asks the owner of the parent what the child waits for and was not asked before.
func (c *childRun) relayQuestions(ctx context.Context) {
	var recs []event.Interrupt
	for _, i := range c.waiting {
		if c.relayed[i.ID] {
			continue
		}
		c.relayed[i.ID] = true
		i.CallID, i.ChildRunID = c.exec.CallID, cmp.Or(i.ChildRunID, c.id)
		recs = append(recs, i)
	}
	if c.loop.agent.Repeat != nil { // the recording has the order of the questions
		for _, rec := range recs {
			c.ask(ctx, []event.Interrupt{rec})
		}
	} else if len(recs) > 0 {
		c.ask(ctx, recs)
	}
}

// ask asks the owner of the parent questions of the child, and passes the answers on.
func (c *childRun) ask(ctx context.Context, recs []event.Interrupt) {
	c.asking.Go(func() {
		err := func() (err error) {
			defer recoverTo(&err)
			_, err = c.loop.askOwnerAll(ctx, recs, func(n int, v resolution) error { return c.forwardAnswer(ctx, recs[n].ID, v) })
			return err
		}()
		if err != nil {
			select {
			case c.failed <- err:
			default:
			}
		}
	})
}

// forwardAnswer gives the child the answer to one of its questions. A question that was not answered expires in
// the child, or was withdrawn there.
func (c *childRun) forwardAnswer(ctx context.Context, id string, v resolution) error {
	if v.unanswered != nil {
		return nil
	}
	log, input := c.loop.agent.Log, encodeInput(v.Input, v.by)
	err := awaitLog(ctx, func() error { return log.AddInput(context.WithoutCancel(ctx), c.id, id, input) })
	switch {
	case err == nil, errors.Is(err, event.ErrDuplicateInput), errors.Is(err, event.ErrEnded), errors.Is(err, event.ErrGone), errors.Is(err, event.ErrNotFound):
		return nil
	}
	return fmt.Errorf("pass an answer on to a child run: %w", err)
}

// cancel cancels the child and waits for its end.
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

// spend counts what the child has used, once: a note says that it is counted. The note comes before the budget.
// A process that takes over charges what the note has (restoreCalls), and calls spend only if there is none.
func (c *childRun) chargeParent(ctx context.Context, end event.Event) error {
	parent := c.loop
	if known := c.exec.replayed; known != nil && known.Spent != nil {
		c.exec.spent = known.Spent
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
	return parent.run.suspension.recheck()
}

// spentBy returns what a run has used, with its children, as far as its log still says. The cost is nil if a
// price is unknown or the events cannot be read. Only the end of a run with an answer has its sums; for other
// runs they are computed from its steps and calls.
func (a *Agent) spentBy(ctx context.Context, id string, level int) (spent event.Spent) {
	zero := 0.0
	spent.Cost = &zero
	var events []event.Event
	err := awaitLog(ctx, func() (err error) { events, err = a.allEvents(ctx, id); return err })
	if err != nil || level > definition.MaxLevels {
		return event.Spent{}
	}

	model, children := "", event.Spent{Cost: &zero}
	for _, e := range events {
		child := ""
		switch body := e.Body.(type) {
		case event.Start:
			model = body.Model
		case event.StepEnd:
			if body.Usage != nil {
				spent.Usage = spent.Usage.Plus(*body.Usage)
			}
		case event.ToolResult:
			spent.Calls++
			child = body.ChildRunID
		case event.ToolError:
			if kind := mcp.ErrorKind(body.Kind); kind != mcp.Denied && kind != mcp.UnknownTool && kind != mcp.InvalidArguments {
				spent.Calls++
			}
			child = body.ChildRunID
		case event.FinalAnswer: // it includes what servers and children have used
			return event.Spent{Usage: body.Metadata.Usage, Cost: body.Metadata.Cost, Calls: spent.Calls + children.Calls}
		}
		if child != "" {
			children = children.Plus(a.spentBy(ctx, child, level+1))
		}
	}

	spent.Cost = a.priceOf(model).CostOf(spent.Usage.InputTokens, spent.Usage.OutputTokens)
	return spent.Plus(children)
}

// result returns the result of the call, or its failure, for the end of the child.
func (c *childRun) result(end event.Event) (*content.Result, error) {
	switch b := end.Body.(type) {
	case event.FinalAnswer:
		block, err := json.Marshal(map[string]string{"type": "text", "text": b.Answer})
		if err != nil {
			return nil, fmt.Errorf("encode the answer of a child run: %w", err)
		}
		return &content.Result{Content: []json.RawMessage{block}}, nil
	case event.RunError:
		return nil, c.exec.failure(mcp.Execution, strings.TrimSpace(fmt.Sprintf("The agent %s failed (%s): %s\n%s", c.exec.askedAgent, b.Code, b.Message, b.PartialAnswer)))
	}
	return nil, c.exec.failure(mcp.Cancelled, "The agent "+c.exec.askedAgent+" was cancelled.")
}

// lostFailure returns the failure of a call whose child cannot be read any more, or the error of the log.
func (c *childRun) lostFailure(err error) error {
	if errors.Is(err, event.ErrGone) || errors.Is(err, event.ErrNotFound) {
		return c.exec.failure(mcp.UnknownOutcome, "What the agent "+c.exec.askedAgent+" did is no longer kept.")
	}
	return err
}
