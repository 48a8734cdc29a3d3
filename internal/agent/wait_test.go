package agent

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"answerd/internal/auth"
	"answerd/internal/event"
	"answerd/internal/event/memory"
	"answerd/internal/mcp"
)

// waiting is a loop of a run with one call under way, in memory and in a bubble's time.
func waiting(t *testing.T, r Request) (*loop, event.Call) {
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
	a.watchers[rec.ID] = 1
	t.Cleanup(l.run.inbox.close)
	c := event.Call{CallID: "c1", Tool: "t", Server: "s"}
	for _, b := range []event.Body{event.Start{}, event.ToolCallStart{Call: c}, event.ToolCall{Call: c}} {
		if err := l.run.out.Append(t.Context(), b); err != nil {
			t.Fatal(err)
		}
	}
	l.run.waits.begin(l.run.ctx, []*call{{Call: c}})
	return l, c
}

func (l *loop) last(t *testing.T) event.Event {
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
		l, c := waiting(t, Request{Budget: Budget{Seconds: 60}})
		l.run.clock.start(l.run.ctx, 60, l.run.out)
		defer l.run.clock.stop()
		<-time.After(30 * time.Second)
		done := make(chan verdict)
		go func() {
			v, _ := l.ask(l.run.ctx, event.Interrupt{Kind: event.KindApproval, Call: c}, nil)
			done <- v
		}()
		synctest.Wait()
		<-time.After(14 * time.Minute)
		s, ok := l.last(t).Body.(event.Suspended)
		tools := l.run.clock.tools // which end 48 s into the run
		if !ok || tools.Err() != nil {
			t.Fatalf("%s, %v", l.last(t).JSON, context.Cause(tools))
		}
		if err := l.agent.Answer(t.Context(), auth.Identity{}, "run_a", Input{ID: s.Interrupts[0].ID, Approved: new(true)}); err != nil {
			t.Fatal(err)
		}
		if v := <-done; !v.approves() {
			t.Errorf("%+v", v)
		}
		<-time.After(17 * time.Second)
		if tools.Err() != nil {
			t.Errorf("ended early: %v", context.Cause(tools))
		}
		<-time.After(2 * time.Second)
		if err := context.Cause(tools); !errors.Is(err, errToolTime) {
			t.Errorf("went on: %v", err)
		}
	})
}

// The time to answer is over when the event says so, be the timer late or not.
func TestTheTimeToAnswerEndsWhenTheEventSaysSo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, c := waiting(t, Request{})
		done := make(chan verdict)
		go func() {
			v, _ := l.ask(l.run.ctx, event.Interrupt{Kind: event.KindApproval, Call: c}, nil)
			done <- v
		}()
		synctest.Wait()
		i := l.last(t).Body.(event.Suspended).Interrupts[0]
		if i.ExpiresAt != time.Now().Add(15*time.Minute).UnixMilli() {
			t.Errorf("%+v", i)
		}
		<-time.After(15 * time.Minute)
		if v := <-done; !errors.Is(v.why, ErrExpired) || v.approves() {
			t.Errorf("%+v", v)
		}
		if err := l.agent.Answer(t.Context(), auth.Identity{}, "run_a", Input{ID: i.ID, Approved: new(true)}); !errors.Is(err, ErrExpired) {
			t.Error(err)
		}
	})
}

// What a server says meanwhile is told when the run goes on: a reader who left at suspended
// has seen all there was.
func TestNothingIsToldWhileTheRunIsSuspended(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, c := waiting(t, Request{})
		asked, told := make(chan verdict), make(chan error)
		go func() {
			v, _ := l.ask(l.run.ctx, event.Interrupt{Kind: event.KindElicitation, Call: c}, nil)
			asked <- v
		}()
		synctest.Wait()
		s := &sayings{run: l.run, call: c}
		go func() {
			s.progress(l.run.ctx, mcp.Progress{Progress: 1})
			told <- s.err
		}()
		if err := l.budget0().spendTokens(t.Context(), l.run.out, event.Usage{TotalTokens: 1}); err != nil {
			t.Error(err)
		}
		synctest.Wait()
		i, ok := l.last(t).Body.(event.Suspended)
		if !ok {
			t.Fatalf("%s", l.last(t).JSON)
		}
		if err := l.agent.Answer(t.Context(), auth.Identity{}, "run_a", Input{ID: i.Interrupts[0].ID, Action: "decline"}); err != nil {
			t.Fatal(err)
		}
		if v := <-asked; v.action() != mcp.Decline {
			t.Errorf("%+v", v)
		}
		if err := <-told; err != nil || l.last(t).Body.Type() != "tool_progress" {
			t.Errorf("%v, %s", err, l.last(t).JSON)
		}
	})
}

// budget0 is a budget of one token.
func (l *loop) budget0() *budget {
	return newBudget(Request{Budget: Budget{TotalTokens: 1}}, nil, &l.run.clock, &l.run.waits)
}

// A server cannot have a run keep questions without end.
func TestQuestionsOfARunAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, c := waiting(t, Request{})
		ctx, stop := context.WithCancel(l.run.ctx)
		results := make(chan verdict, maxElicitations)
		for range maxElicitations {
			go func() {
				v, _ := l.ask(ctx, event.Interrupt{Kind: event.KindElicitation, Call: c}, nil)
				results <- v
			}()
		}
		synctest.Wait()
		if v, err := l.ask(ctx, event.Interrupt{Kind: event.KindElicitation, Call: c}, nil); err != nil || v.action() != mcp.Cancel {
			t.Errorf("%+v, %v", v, err)
		}
		stop()
		for range maxElicitations {
			if v := <-results; !errors.Is(v.why, errWithdrawn) {
				t.Errorf("%+v", v)
			}
		}
		if n := l.run.waits.asking.Load(); n != 0 || len(l.run.waits.open) != 0 {
			t.Errorf("%d are left", n)
		}
		l.agent.retire(l.run)
	})
}
