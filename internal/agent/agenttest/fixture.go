// Package agenttest runs a whole agent between a scripted model and a real MCP server, for tests of the agent and of
// the code that starts runs.
//
//	h := agenttest.NewFixture(t, llmtest.Turns(llmtest.Says("Yes.")), nil)
//	run := h.StartRun(t, agent.Request{Question: "Is it?"})
//	answer := agenttest.TerminalEvent[event.FinalAnswer](t, h.Events(t, run.ID))
package agenttest

//lint:file-ignore SA1019 2026-07-28 deprecates logging (SEP-2577); servers still send it.

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	"answerd/internal/agent"
	"answerd/internal/auth"
	"answerd/internal/event"
	"answerd/internal/event/memory"
	"answerd/internal/llm/llmtest"
	"answerd/internal/llm/openai"
	"answerd/internal/mcp"
	"answerd/internal/mcp/config"
)

// eventTimeout is how long EventsUntil reads a run before it fails the test, fake time included.
const eventTimeout = 3 * time.Minute

// Fixture is an agent between a scripted model and a real MCP server.
type Fixture struct {
	*agent.Agent
	Model *llmtest.Endpoint
	Tools *ToolServer
}

// NewFixture starts an agent, its model and its MCP server. set may change the agent's options, and configure the
// server's; both may be omitted. Unless set changes that, the log is in memory and a run needs no reader for an hour.
// At the test's end, the agent is drained without waiting for runs, and then the model and the server are closed.
func NewFixture(t testing.TB, script llmtest.Script, set func(*agent.Options), configure ...func(*config.Server)) *Fixture {
	t.Helper()
	h := &Fixture{Model: llmtest.New(t, script), Tools: newToolServer(t)}
	server, err := config.SingleServer(h.Tools.URL)
	if err != nil {
		t.Fatal(err)
	}
	server.Sampling = true

	for _, f := range configure {
		f(&server)
	}

	tools, err := mcp.New([]config.Server{server}, mcp.Options{Logger: slog.New(slog.DiscardHandler), StartWait: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tools.Close() })
	model := openai.New(openai.Config{BaseURL: h.Model.URL})
	t.Cleanup(model.Close)

	o := agent.Options{
		Model: model,
		Tools: tools, Log: memory.New(memory.Options{}),
		DefaultModel: "scripted", DisconnectGrace: time.Hour,
	}
	if set != nil {
		set(&o)
	}
	if h.Agent, err = agent.New(o); err != nil {
		t.Fatal(err)
	}

	t.Cleanup(func() {
		over, stop := context.WithCancel(context.Background())
		stop()
		h.Drain(over)
	})
	return h
}

// StartRun starts a run for the anonymous caller.
func (h *Fixture) StartRun(t testing.TB, r agent.Request) event.Run {
	t.Helper()
	if r.Question == "" {
		r.Question = "What is it?"
	}
	run, err := h.Start(t.Context(), auth.Identity{}, r)
	if err != nil {
		t.Fatal(err)
	}
	return run
}

// Events returns a run's events up to its end.
func (h *Fixture) Events(t testing.TB, id string) []event.Event {
	t.Helper()
	return h.EventsUntil(t, id, func(event.Event) bool { return false })
}

// EventsUntil returns a run's events up to the first one that matches, or up to the run's end.
func (h *Fixture) EventsUntil(t testing.TB, id string, matches func(event.Event) bool) []event.Event {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), eventTimeout)
	defer cancel()
	var all []event.Event
	for {
		page, err := h.Log.After(t.Context(), id, int64(len(all)))
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range page.Events {
			all = append(all, e)
			if matches(e) {
				return all
			}
		}
		if page.Ended {
			return all
		}
		if page.More != nil {
			select {
			case <-page.More:
			case <-ctx.Done():
				t.Fatalf("the run stays at %s, want it to go on", TypesOf(all))
			}
		}
	}
}

// TypesOf returns the types of events, separated by spaces.
func TypesOf(events []event.Event) string {
	var out []string
	for _, e := range events {
		out = append(out, string(e.Body.Type()))
	}
	return strings.Join(out, " ")
}

// TerminalEvent returns the body of the last event. It fails the test if that is not a B.
func TerminalEvent[B event.Body](t testing.TB, events []event.Event) B {
	t.Helper()
	b, ok := events[len(events)-1].Body.(B)
	if !ok {
		t.Fatalf("the run ended with %s: %s, want %T", events[len(events)-1].Body.Type(), events[len(events)-1].JSON, b)
	}
	return b
}

// EventsOf returns the bodies of those events that are a B.
func EventsOf[B event.Body](events []event.Event) []B {
	var out []B
	for _, e := range events {
		if b, ok := e.Body.(B); ok {
			out = append(out, b)
		}
	}
	return out
}
