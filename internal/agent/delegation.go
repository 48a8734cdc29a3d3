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

// isAsk reports whether a tool of that name asks another agent.
func (l *loop) isAsk(name string) bool {
	return slices.ContainsFunc(l.askTools, func(t askTool) bool { return t.Name == name })
}

// prepareAsk makes x a call that asks another agent, if its tool does that.
func (l *loop) prepareAsk(x *toolExecution) {
	for _, t := range l.askTools {
		if t.Name == x.Tool {
			x.tool, x.exists = catalog.Tool{Name: t.Name, Description: t.Description, InputSchema: t.Schema}, true
			x.asks, x.builtin = t.agent, l.askAgent
		}
	}
}

// askLimits returns why each of the calls must not be made because the turn asks too many agents; ""
// for the others. It sets how many children share the rest of the budget.
func (l *loop) askLimits(calls []*call) []string {
	refusals := make([]string, len(calls))
	l.askShare = 0
	for i, c := range calls {
		if !l.isAsk(c.Tool) {
			continue
		}
		if l.askShare == maxAsksPerTurn {
			refusals[i] = fmt.Sprintf(recorded.LimitOfTurn+"%d agents can be asked in one turn.", maxAsksPerTurn)
			continue
		}
		l.askShare++
	}
	return refusals
}

// askAgent executes a call that asks another agent.
func (l *loop) askAgent(ctx context.Context, x *toolExecution) (*content.Result, error) {
	var args struct{ Question string }
	if json.Unmarshal(x.args, &args) != nil || strings.TrimSpace(args.Question) == "" {
		return nil, x.failure(mcp.InvalidArguments, `the arguments must be {"question": "…"}`)
	}
	c := &childRun{loop: l, x: x}
	if err := c.open(ctx, args.Question); err != nil {
		return nil, err
	}
	defer l.run.suspension.awaitsChild(c.id, false)
	end, err := c.follow(ctx)
	if err != nil && l.run.relinquished() != nil {
		return nil, err // another process continues here; the child is not affected
	}
	if err != nil && ctx.Err() == nil {
		return nil, c.lostFailure(err)
	}
	if err != nil {
		c.cancel(ctx)
	}
	if spendErr := c.spend(context.WithoutCancel(ctx), end); spendErr != nil {
		return nil, spendErr
	}
	if err != nil {
		return nil, x.canceledFailure(ctx)
	}
	return c.result(end)
}

// childRun is the child run of a call, as the call sees it.
type childRun struct {
	loop *loop
	x    *toolExecution
	id   string

	attached bool              // another process started the child, so readers know of its first events
	progress float64           // how many events of the child have become tool_progress, in all processes
	waiting  []event.Interrupt // the questions that are open in the child, if it is suspended
	relayed  map[string]bool   // the ids of those that the owner of the parent was asked
	asking   sync.WaitGroup    // goroutines that ask them
	failed   chan error        // of capacity 1: the first error of these goroutines
}

// open starts the child, or finds the one that another process started.
func (c *childRun) open(ctx context.Context, question string) error {
	c.relayed, c.failed = make(map[string]bool), make(chan error, 1)
	if known := c.x.replayed; known.HasChild() {
		switch started, err := c.awaitStart(ctx, known.Child); {
		case err != nil:
			return err
		case started:
			c.id, c.attached = known.Child, true
			c.loop.run.suspension.awaitsChild(c.id, true)
			c.x.childID = c.id
			return nil
		}
	}
	return c.start(ctx, question)
}

// awaitStart reports whether the child of that id has begun, or begins soon. A child that was created and
// never began is deleted.
func (c *childRun) awaitStart(ctx context.Context, id string) (bool, error) {
	log := c.loop.agent.Log
	if _, err := log.Run(ctx, id); errors.Is(err, event.ErrNotFound) || errors.Is(err, event.ErrLost) {
		return false, nil // its process died before it created the child
	}
	over := time.NewTimer(childStartWait)
	defer over.Stop()
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
		case <-over.C:
			return false, log.Delete(ctx, id)
		case <-ctx.Done():
			return false, context.Cause(ctx)
		}
	}
}

// start starts the child in this process. The note with its id comes first, so that a process that takes
// over the parent cannot start a second one.
func (c *childRun) start(ctx context.Context, question string) error {
	l, x := c.loop, c.x
	a, parent := l.agent, &l.run.req
	limits, callsLeft := l.budget.Remaining(max(l.askShare, 1))
	r := Request{
		Question: question, Agent: x.asks, Servers: parent.Servers, Tools: parent.Tools, Context: parent.Context, ThreadID: parent.ThreadID,
		Budget: limits, Background: true, Interactive: parent.Interactive, FormsDeclined: parent.FormsDeclined, ApprovalsDeclined: parent.ApprovalsDeclined,
		Hops: parent.Hops, parent: parentCall{Run: l.run.ID, Call: x.CallID, Level: parent.parent.Level + 1},
	}
	if !callsLeft {
		r.ToolChoice = ToolNone
	}
	if a.Repeat != nil {
		if recorded, choice, ok := a.Repeat.ChildBudget(l.run.ID, x.CallID); ok {
			r.Budget, r.ToolChoice = recorded, choice
		}
	}
	if err := a.validateRequest(l.run.caller, &r); err != nil {
		return x.failure(mcp.Denied, "The agent "+x.asks+" cannot be asked: "+err.Error()+".")
	}
	rec := event.Run{
		ID: a.Log.NewID(), ThreadID: r.ThreadID, TraceID: l.run.TraceID, Owner: l.run.Owner, Created: a.Log.Now(), Background: true,
		Agent: r.Agent, ParentID: l.run.ID,
	}
	if err := l.run.writeNote(ctx, replay.NoteChild, replay.CallKey(x.CallID), rec.ID); err != nil {
		return err
	}
	child := a.newRun(trace.ContextWithSpanContext(a.ctx, trace.SpanContextFromContext(ctx)), rec, l.run.caller, r)
	child.account = l.run.account
	if !a.registerChild(child) {
		child.cancel(nil)
		return errHandedOver
	}
	if err := a.beginRun(ctx, child); err != nil {
		a.discardRun(child)
		return fmt.Errorf("ask the agent %s: %w", x.asks, err)
	}
	c.id = rec.ID
	l.run.suspension.awaitsChild(c.id, true)
	x.childID = c.id
	a.runInBackground(child)
	return nil
}

// registerChild registers a run that needs no free slot, because its parent has one and waits. If children
// waited for slots, parents that hold all of them would wait for their children for ever. It reports
// false if this process is handing over its runs. A draining process accepts children, since a run that may
// still end here could not end without them.
func (a *Agent) registerChild(r *run) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.handedOver {
		return false
	}
	slot := a.gate.AcquireOverLimit(r.caller.Key(), memoryOf(r.req.size()))
	r.slot, r.memory, a.active[r.ID] = slot, slot.Memory, r
	a.runs.Add(1)
	return true
}

// follow reads the child to its end, and returns its terminal event.
func (c *childRun) follow(ctx context.Context) (end event.Event, err error) {
	asking, stop := context.WithCancel(ctx)
	defer c.asking.Wait()
	defer stop() // withdraws the questions that are still open
	log, known := c.loop.agent.Log, c.attached
	for pos := int64(0); ; {
		page, err := log.After(ctx, c.id, pos)
		if ctx.Err() != nil {
			return event.Event{}, context.Cause(ctx)
		}
		if err != nil {
			return event.Event{}, err
		}
		for _, e := range page.Events {
			if pos = e.Seq; e.Terminal() {
				return e, nil
			}
			if err := c.observe(ctx, e, known); err != nil {
				return event.Event{}, err
			}
		}
		if len(page.Events) > 0 {
			continue
		}
		if page.Ended {
			return event.Event{}, event.ErrGone
		}
		if known {
			known = false
			if err := c.loop.withdrawQuestions(ctx, c.x.replayed, interruptIDs(c.waiting)...); err != nil {
				return event.Event{}, err
			}
		}
		c.relay(asking)
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

// observe notes what the child waits for, and reports its progress unless readers know of it.
func (c *childRun) observe(ctx context.Context, e event.Event, known bool) error {
	if s, ok := e.Body.(event.Suspended); ok {
		c.waiting = s.Interrupts
	}
	if _, resolved := replay.InterruptOf(e); resolved != "" {
		c.waiting = slices.DeleteFunc(slices.Clone(c.waiting), func(i event.Interrupt) bool { return i.ID == resolved })
	}
	message := ""
	switch b := e.Body.(type) {
	case event.Start:
		message = "The agent " + c.x.asks + " was asked."
	case event.StepStart:
		message = fmt.Sprintf("The agent %s takes step %d.", c.x.asks, b.Step)
	case event.ToolCall:
		message = fmt.Sprintf("The agent %s calls %s.", c.x.asks, b.Tool)
	case event.ToolProgress:
		message = b.Message
	}
	if message == "" {
		return nil
	}
	c.progress++
	if known {
		return nil
	}
	message, _ = content.TruncateText(message, maxProgress, "")
	c.x.notifications.appendEvent(ctx, event.ToolProgress{Call: c.x.Call, Progress: c.progress, Message: message, ChildRunID: c.id})
	return c.x.notifications.err
}

// relay asks the owner of the parent what the child waits for and was not asked before.
func (c *childRun) relay(ctx context.Context) {
	var recs []event.Interrupt
	for _, i := range c.waiting {
		if c.relayed[i.ID] {
			continue
		}
		c.relayed[i.ID] = true
		i.CallID, i.ChildRunID = c.x.CallID, cmp.Or(i.ChildRunID, c.id)
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
			_, err = c.loop.askOwnerAll(ctx, recs, func(n int, v resolution) error { return c.passOn(ctx, recs[n].ID, v) })
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

// passOn gives the child the answer to one of its questions. A question that was not answered expires in
// the child, or was withdrawn there.
func (c *childRun) passOn(ctx context.Context, id string, v resolution) error {
	if v.unanswered != nil {
		return nil
	}
	err := c.loop.agent.Log.AddInput(context.WithoutCancel(ctx), c.id, id, encodeInput(v.Input, v.by))
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

// cancelChildren cancels the child runs of a run that ends, if another process started them and no call
// of this process has waited for their end.
func (a *Agent) cancelChildren(ctx context.Context, l *loop) {
	if l.replayed == nil {
		return
	}
	for _, c := range l.replayed.Calls {
		if !c.HasChild() || c.End != nil || c.Spent != nil {
			continue
		}
		if err := a.Cancel(ctx, c.Child); err != nil && !errors.Is(err, event.ErrNotFound) && !errors.Is(err, event.ErrGone) {
			a.Logger.WarnContext(ctx, "a child run could not be cancelled", "run_id", l.run.ID, "child_run_id", c.Child, "error", err)
		}
	}
}

// spend counts what the child has used, once: a note says that it is counted. The note comes before the budget.
// A process that takes over charges what the note has (restoreCalls), and calls spend only if there is none.
func (c *childRun) spend(ctx context.Context, end event.Event) error {
	l := c.loop
	if known := c.x.replayed; known != nil && known.Spent != nil {
		c.x.spent = known.Spent
		return nil
	}
	if err := l.run.awaitCharge(c.x.CallID, c.id); err != nil {
		return err
	}
	spent := l.agent.spentBy(ctx, c.id, 0)
	data, err := json.Marshal(spent)
	if err != nil {
		return fmt.Errorf("encode what a child run has used: %w", err)
	}
	if err := l.run.writeNote(ctx, replay.NoteSpent, replay.CallKey(c.x.CallID), string(data)); err != nil {
		return err
	}
	c.x.spent = &spent
	if err := l.budget.SpendChild(ctx, l.run.out, spent); err != nil {
		return err
	}
	return l.run.suspension.recheck()
}

// spentBy returns what a run has used, with its children, as far as its log still says. The cost is nil if a
// price is unknown or the events cannot be read. Only the end of a run with an answer has its sums; for other
// runs they are computed from its steps and calls.
func (a *Agent) spentBy(ctx context.Context, id string, level int) (s event.Spent) {
	zero := 0.0
	s.Cost = &zero
	events, err := a.allEvents(ctx, id)
	if err != nil || level > definition.MaxLevels {
		return event.Spent{}
	}
	model, children := "", event.Spent{Cost: &zero}
	for _, e := range events {
		child := ""
		switch b := e.Body.(type) {
		case event.Start:
			model = b.Model
		case event.StepEnd:
			if b.Usage != nil {
				s.Usage = s.Usage.Plus(*b.Usage)
			}
		case event.ToolResult:
			s.Calls++
			child = b.ChildRunID
		case event.ToolError:
			if kind := mcp.ErrorKind(b.Kind); kind != mcp.Denied && kind != mcp.UnknownTool && kind != mcp.InvalidArguments {
				s.Calls++
			}
			child = b.ChildRunID
		case event.FinalAnswer: // it includes what servers and children have used
			return event.Spent{Usage: b.Metadata.Usage, Cost: b.Metadata.Cost, Calls: s.Calls + children.Calls}
		}
		if child != "" {
			children = children.Plus(a.spentBy(ctx, child, level+1))
		}
	}
	s.Cost = a.priceOf(model).CostOf(s.Usage.InputTokens, s.Usage.OutputTokens)
	return s.Plus(children)
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
		return nil, c.x.failure(mcp.Execution, strings.TrimSpace(fmt.Sprintf("The agent %s failed (%s): %s\n%s", c.x.asks, b.Code, b.Message, b.PartialAnswer)))
	}
	return nil, c.x.failure(mcp.Cancelled, "The agent "+c.x.asks+" was cancelled.")
}

// lostFailure returns the failure of a call whose child cannot be read any more, or the error of the log.
func (c *childRun) lostFailure(err error) error {
	if errors.Is(err, event.ErrGone) || errors.Is(err, event.ErrNotFound) {
		return c.x.failure(mcp.UnknownOutcome, "What the agent "+c.x.asks+" did is no longer kept.")
	}
	return err
}
