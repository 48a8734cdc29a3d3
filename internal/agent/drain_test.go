package agent_test

import (
	"context"
	"net/http"
	"testing"
	"time"

	"answerd/internal/agent"
	"answerd/internal/agent/agenttest"
	"answerd/internal/event"
	"answerd/internal/llm/llmtest"
)

// drainAndOpen starts a drain, opens g, and waits for the end of the drain, which must not wait for a person.
func drainAndOpen(t *testing.T, h *agenttest.Fixture, g *gate) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	drained := make(chan struct{})
	go func() { h.Drain(ctx); close(drained) }()
	close(g.open)
	<-drained
	if ctx.Err() != nil {
		t.Error("Drain waited for the person, want it to end before")
	}
}

// A person may take longer than any process has: a drain ends a run that does nothing
// but wait for one as soon as nothing else is active, and not before.
func TestDrainDoesNotWaitForAPerson(t *testing.T) {
	g := newGate()
	asks := llmtest.Calls(llmtest.Call{Name: "ask", Args: `{}`})
	h := agenttest.NewFixture(t, func(r llmtest.Request) llmtest.Answer {
		if r.Messages[len(r.Messages)-1].Content == "goes on" {
			return g.blockAnswer(nil)
		}
		return asks
	}, nil)

	waits := h.StartRun(t, agent.Request{Question: "waits", Interactive: true})
	h.EventsUntil(t, waits.ID, func(e event.Event) bool { _, ok := e.Body.(event.Suspended); return ok })
	goes := h.StartRun(t, agent.Request{Question: "goes on"})
	<-g.reached
	drainAndOpen(t, h, g)
	agenttest.TerminalEvent[event.FinalAnswer](t, h.Events(t, goes.ID))
	if end := agenttest.TerminalEvent[event.RunError](t, h.Events(t, waits.ID)); end.Code != "server_shutdown" || !end.Retryable {
		t.Errorf("end %+v, want Code server_shutdown, Retryable true", end)
	}
}

// A run that begins to wait for a person during the drain does not hold it up either.
func TestDrainEndsWhenTheLastRunIsSuspended(t *testing.T) {
	g := newGate()
	h := agenttest.NewFixture(t, func(llmtest.Request) llmtest.Answer {
		return func(w http.ResponseWriter, r *http.Request) {
			g.once.Do(func() { close(g.reached) })
			<-g.open
			llmtest.Calls(llmtest.Call{Name: "ask", Args: `{}`})(w, r)
		}
	}, nil)

	run := h.StartRun(t, agent.Request{Interactive: true})
	<-g.reached
	drainAndOpen(t, h, g)
	if n := len(agenttest.EventsOf[event.Suspended](h.Events(t, run.ID))); n != 1 {
		t.Errorf("got %d suspended events, want 1", n)
	}
}
