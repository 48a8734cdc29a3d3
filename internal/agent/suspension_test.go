package agent

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"answerd/internal/agent/budget"
	"answerd/internal/auth"
	"answerd/internal/event"
	"answerd/internal/event/memory"
	"answerd/internal/llm"
	"answerd/internal/mcp"
)

// newLoopWithCall returns a loop of a run with one call under way, in memory and in a bubble's time.
func newLoopWithCall(t *testing.T, r Request) (*loop, event.Call) {
	t.Helper()
	a, err := New(Options{Log: memory.New(memory.Options{})})
	if err != nil {
		t.Fatal(err)
	}
	rec := event.Run{ID: "run_a"}
	if err := a.Log.Create(t.Context(), rec); err != nil {
		t.Fatal(err)
	}
	r.Interactive = true
	l := &loop{agent: a, run: a.newRun(t.Context(), rec, auth.Identity{}, r)}
	a.active[rec.ID] = l.run
	a.readers[rec.ID] = 1
	t.Cleanup(l.run.inbox.stopListening)
	c := event.Call{CallID: "c1", Tool: "t", Server: "s"}
	for _, b := range []event.Body{event.Start{}, event.ToolCallStart{Call: c}, event.ToolCall{Call: c}} {
		if err := l.run.out.Append(t.Context(), b); err != nil {
			t.Fatal(err)
		}
	}
	l.run.suspension.beginCalls(l.run.ctx, c.CallID)
	return l, c
}

func (l *loop) lastEvent(t *testing.T) event.Event {
	t.Helper()
	r, err := l.agent.Log.Run(t.Context(), "run_a")
	if err != nil {
		t.Fatal(err)
	}
	return r.Last
}

// The seconds of a run are its own, and not those of the person that it waits for.
func TestTimeOfWaitingForAPersonIsNotTheRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, c := newLoopWithCall(t, Request{Budget: Budget{Seconds: 60}})
		l.run.clock.Start(l.run.ctx, 60, l.run.out, l.run.runGuarded)
		defer l.run.clock.Stop()
		<-time.After(30 * time.Second)

		done := make(chan resolution)
		go func() {
			v, _ := l.askOwner(l.run.ctx, event.Interrupt{Kind: event.KindApproval, Call: c})
			done <- v
		}()

		synctest.Wait()
		<-time.After(14 * time.Minute)
		s, ok := l.lastEvent(t).Body.(event.Suspended)
		tools := l.run.clock.ToolContext() // which end 48 s into the run
		if !ok || tools.Err() != nil {
			t.Fatalf("the last event = %s and the tools' context ended with %v, want suspended and no end", l.lastEvent(t).JSON, context.Cause(tools))
		}
		if err := l.agent.Answer(t.Context(), auth.Identity{}, "run_a", Input{ID: s.Interrupts[0].ID, Approved: new(true)}); err != nil {
			t.Fatal(err)
		}
		if v := <-done; !v.isApproved() {
			t.Errorf("resolution %+v, want it approved", v)
		}
		<-time.After(17 * time.Second)
		if tools.Err() != nil {
			t.Errorf("the time for tools ended after 47 s with %v, want after 48 s", context.Cause(tools))
		}
		<-time.After(2 * time.Second)
		if err := context.Cause(tools); !errors.Is(err, budget.ErrToolTimeUsed) {
			t.Errorf("the tools' context ended with %v, want %v after 49 s", err, budget.ErrToolTimeUsed)
		}
	})
}

// The input timeout ends at the time in the event, also if the timer is late.
func TestInputTimeoutEndsWhenTheEventSaysSo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, c := newLoopWithCall(t, Request{})
		done := make(chan resolution)
		go func() {
			v, _ := l.askOwner(l.run.ctx, event.Interrupt{Kind: event.KindApproval, Call: c})
			done <- v
		}()

		synctest.Wait()
		i := l.lastEvent(t).Body.(event.Suspended).Interrupts[0]
		if i.ExpiresAt != time.Now().Add(15*time.Minute).UnixMilli() {
			t.Errorf("interrupt %+v, want it to expire in 15 min", i)
		}
		<-time.After(15 * time.Minute)
		if v := <-done; !errors.Is(v.unanswered, ErrExpired) || v.isApproved() {
			t.Errorf("resolution %+v, want ErrExpired, not approved", v)
		}
		if err := l.agent.Answer(t.Context(), auth.Identity{}, "run_a", Input{ID: i.ID, Approved: new(true)}); !errors.Is(err, ErrExpired) {
			t.Errorf("error %v, want ErrExpired", err)
		}
	})
}

// Messages that a server sends while the run is suspended are delivered when the run continues: a
// reader who left at suspended has missed nothing.
func TestSuspendedRunSendsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, c := newLoopWithCall(t, Request{})
		asked, told := make(chan resolution), make(chan error)
		go func() {
			v, _ := l.askOwner(l.run.ctx, event.Interrupt{Kind: event.KindElicitation, Call: c})
			asked <- v
		}()

		synctest.Wait()
		s := &notificationSink{run: l.run, call: c}
		go func() {
			s.appendProgress(l.run.ctx, mcp.Progress{Progress: 1})
			told <- s.err
		}()

		if err := budgetOfOneToken(l).SpendTokens(t.Context(), l.run.out, event.Usage{TotalTokens: 1}); err != nil {
			t.Error(err)
		}
		synctest.Wait()
		i, ok := l.lastEvent(t).Body.(event.Suspended)
		if !ok {
			t.Fatalf("last event %s, want suspended", l.lastEvent(t).JSON)
		}
		if err := l.agent.Answer(t.Context(), auth.Identity{}, "run_a", Input{ID: i.Interrupts[0].ID, Action: "decline"}); err != nil {
			t.Fatal(err)
		}
		if v := <-asked; v.elicitationAction() != mcp.Decline {
			t.Errorf("resolution %+v, want elicitationAction Decline", v)
		}
		if err := <-told; err != nil || l.lastEvent(t).Body.Type() != "tool_progress" {
			t.Errorf("error %v, %s, want type tool_progress, no error", err, l.lastEvent(t).JSON)
		}
	})
}

// budgetOfOneToken returns a budget that one token uses up.
func budgetOfOneToken(l *loop) *budget.Budget {
	return budget.New(Budget{TotalTokens: 1}, 0, nil, &l.run.clock, l.run.suspension.wakeCalls)
}

// A server cannot have a run keep questions without end.
func TestQuestionsOfARunAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, c := newLoopWithCall(t, Request{})
		ctx, stop := context.WithCancel(l.run.ctx)
		results := make(chan resolution, maxElicitations)
		for range maxElicitations {
			go func() {
				v, _ := l.askOwner(ctx, event.Interrupt{Kind: event.KindElicitation, Call: c})
				results <- v
			}()
		}

		synctest.Wait()
		if v, err := l.askOwner(ctx, event.Interrupt{Kind: event.KindElicitation, Call: c}); err != nil || v.elicitationAction() != mcp.Cancel {
			t.Errorf("resolution %+v, %v, want elicitationAction Cancel, no error", v, err)
		}
		stop()

		for range maxElicitations {
			if v := <-results; !errors.Is(v.unanswered, errWithdrawn) {
				t.Errorf("resolution %+v, want unanswered %v", v, errWithdrawn)
			}
		}

		if n := l.run.suspension.openCount.Load(); n != 0 || len(l.run.suspension.open) != 0 {
			t.Errorf("open count %d, open %v, want 0 and none", n, l.run.suspension.open)
		}
		l.agent.removeRun(l.run)
	})
}

// The log can lose the events of a child run, and with them what the child has used.
func TestCostIsUnknownIfThatOfAnyChildRunIs(t *testing.T) {
	known := func(cost float64) event.Spent {
		return event.Spent{Usage: event.Usage{InputTokens: 1, TotalTokens: 1}, Cost: &cost, Calls: 1}
	}
	for name, c := range map[string]struct {
		children []event.Spent
		want     string
	}{
		"no child":              {nil, "10"},
		"known":                 {[]event.Spent{known(2), known(3)}, "15"},
		"the first is unknown":  {[]event.Spent{{}, known(3)}, "unknown"},
		"the second is unknown": {[]event.Spent{known(3), {}}, "unknown"},
		"all are unknown":       {[]event.Spent{{}}, "unknown"},
	} {
		price := &llm.Price{Input: 1e6}
		l := &loop{profile: llm.Profile{Price: price}, budget: budget.New(budget.Limits{}, 0, price, nil, nil), childSpent: event.Spent{Cost: new(float64)}}
		l.addUsage(event.Usage{InputTokens: 10, TotalTokens: 10})
		for _, child := range c.children {
			l.countChild(child)
		}
		got := "unknown"
		if cost := l.cost(); cost != nil {
			got = fmt.Sprint(*cost)
		}
		if got != c.want {
			t.Errorf("%s: cost = %s, want %s", name, got, c.want)
		}
	}
}
