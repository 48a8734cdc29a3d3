package agent_test

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"answerd/internal/agent"
	"answerd/internal/agent/agenttest"
	"answerd/internal/auth"
	"answerd/internal/event"
	"answerd/internal/event/memory"
	"answerd/internal/llm/llmtest"
	"answerd/internal/mcp/config"
)

// withStatelessToolsOf makes a fixture use the tools of another one over the stateless protocol, 2026-07-28.
func withStatelessToolsOf(h *agenttest.Fixture) func(*config.Server) {
	return func(s *config.Server) {
		s.URL = h.Tools.URL
		agenttest.Stateless(s)
	}
}

func askScript() llmtest.Script {
	return llmtest.Turns(llmtest.Calls(llmtest.Call{Name: "ask"}), llmtest.Says("Booked."))
}

// S0.6: a question of a 2026-07-28 server is answered in another process than the one that it was
// asked in. The call is sent again once, with the server's requestState, which nobody else sees.
func TestInputRequiredIsAnsweredInAnotherProcess(t *testing.T) {
	log := newMemoryLog()
	var lines bytes.Buffer
	withLogger := func(o *agent.Options) {
		withDurableLog(log)(o)
		o.Logger = slog.New(slog.NewTextHandler(&lines, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}

	a := agenttest.NewFixture(t, askScript(), withLogger, agenttest.Stateless)
	run := a.StartRun(t, agent.Request{Interactive: true}).ID
	waits := waitUntilSuspended(t, a, run, 1)
	if i := waits[0]; i.HeldOpen || i.Kind != event.KindElicitation || i.Tool != "ask" || i.Message != "For how many?" {
		t.Errorf("the interrupt is %+v, want the question of ask, not held open", i)
	}
	drainAtOnce(a)
	b := agenttest.NewFixture(t, askScript(), withDurableLog(log), withStatelessToolsOf(a))
	open := waitUntilSuspended(t, b, run, 1)
	if len(open) != 1 || open[0].ID != waits[0].ID {
		t.Fatalf("open interrupts after the change of process: %+v, want %s", open, waits[0].ID)
	}
	in := agent.Input{ID: open[0].ID, Action: "accept", Content: rawJSON(`{"people":4}`)}
	answerInterrupt(t, b, run, in)
	if err := b.Answer(t.Context(), auth.Identity{}, run, in); !errors.Is(err, agent.ErrAnswered) {
		t.Errorf("a second answer: %v, want %v", err, agent.ErrAnswered)
	}
	events := b.Events(t, run)
	if got, want := typesFrom(events, "suspended"), "suspended elicitation_resolved tool_result step_start text_start text_delta text_end step_end final_answer"; got != want {
		t.Errorf("events after the answer: %s, want %s", got, want)
	}
	if r := agenttest.EventsOf[event.ToolResult](events); len(r) != 1 || !strings.Contains(string(r[0].Payload), `{\"people\":4}`) {
		t.Errorf("results %+v, want one with the answer", r)
	}
	if n := a.Tools.CallCounts()["ask"]; n != 2 {
		t.Errorf("ask got %d requests, want the first one and the one with the answer", n)
	}

	for _, e := range events {
		if bytes.Contains(e.AppendJSON(nil), []byte(agenttest.RequestState)) {
			t.Errorf("the event %s has the requestState, want it without", e.AppendJSON(nil))
		}
	}

	if strings.Contains(lines.String(), agenttest.RequestState) {
		t.Error("the requestState is in the log, want it without")
	}
}

// Without another process, nothing of the call waits either: the server's one permit is free.
func TestInputRequiredHoldsNoPermit(t *testing.T) {
	h := agenttest.NewFixture(t, llmtest.Turns(llmtest.Calls(llmtest.Call{Name: "ask"}, llmtest.Call{Name: "echo", Args: `{"text":"x"}`}), llmtest.Says("Booked.")),
		nil, agenttest.Stateless, func(s *config.Server) { s.MaxConcurrentCalls = 1 })
	run := h.StartRun(t, agent.Request{Interactive: true}).ID
	waits := waitUntilSuspended(t, h, run, 1)
	answerInterrupt(t, h, run, agent.Input{ID: waits[0].ID, Action: "decline"})
	events := h.Events(t, run)
	agenttest.TerminalEvent[event.FinalAnswer](t, events)
	if r := agenttest.EventsOf[event.ToolResult](events); len(r) != 2 || r[0].Tool != "echo" {
		t.Errorf("results %+v, want that of echo before that of ask", r)
	}
}

// The questions of one result are asked together, each is answered in another process, and the server
// may ask again.
func TestInputRequiredWithSeveralQuestionsAndRoundTrips(t *testing.T) {
	log := newMemoryLog()
	script := llmtest.Turns(llmtest.Calls(llmtest.Call{Name: "interview"}), llmtest.Says("Thanks."))
	h := agenttest.NewFixture(t, script, withDurableLog(log), agenttest.Stateless)

	origin := h
	run := h.StartRun(t, agent.Request{Interactive: true}).ID
	said := 0
	for _, want := range []int{2, 1, 1} {
		waits := waitUntilSuspended(t, h, run, said+1)
		if len(waits) != want {
			t.Fatalf("%d open questions before answer %d, want %d", len(waits), said+1, want)
		}
		drainAtOnce(h)
		h = agenttest.NewFixture(t, script, withDurableLog(log), withStatelessToolsOf(origin))
		said++
		answerInterrupt(t, h, run, agent.Input{ID: waits[len(waits)-1].ID, Action: "accept", Content: rawJSON(fmt.Sprintf(`{"answer":"%d"}`, said))})
	}

	events := h.Events(t, run)
	r := agenttest.EventsOf[event.ToolResult](events)
	if len(r) != 1 {
		t.Fatalf("results %+v, want one: %s", r, agenttest.TypesOf(events))
	}

	for _, want := range []string{`{\\\"answer\\\":\\\"1\\\"}`, `{\\\"answer\\\":\\\"2\\\"}`, `{\\\"answer\\\":\\\"3\\\"}`} {
		if text := string(r[0].Payload); !strings.Contains(strings.ReplaceAll(text, `\\\"`, `\"`), strings.ReplaceAll(want, `\\\"`, `\"`)) {
			t.Errorf("the result %s has no %s", text, want)
		}
	}

	if n := origin.Tools.CallCounts()["interview"]; n != 3 {
		t.Errorf("interview got %d requests, want 3", n)
	}
}

// A question that nobody answers in time is answered with cancel, in whichever process the run is.
func TestInputRequiredExpires(t *testing.T) {
	t.Parallel()
	h := agenttest.NewFixture(t, askScript(), func(o *agent.Options) {
		withDurableLog(newMemoryLog())(o)
		o.InputTimeout = 50 * time.Millisecond
	}, agenttest.Stateless)
	events := h.Events(t, h.StartRun(t, agent.Request{Interactive: true}).ID)
	r := agenttest.EventsOf[event.ToolResult](events)
	if len(r) != 1 || !strings.Contains(string(r[0].Payload), "cancel") {
		t.Errorf("results %+v, want one with cancel: %s", r, agenttest.TypesOf(events))
	}
	agenttest.TerminalEvent[event.FinalAnswer](t, events)
}

func TestParkedRunOfInputRequiredIsCancelled(t *testing.T) {
	h := agenttest.NewFixture(t, askScript(), withDurableLog(newMemoryLog()), agenttest.Stateless)
	run := h.StartRun(t, agent.Request{Interactive: true}).ID
	waitUntilSuspended(t, h, run, 1)
	cancelRun(t, h, run)
	events := h.Events(t, run)
	agenttest.TerminalEvent[event.Cancelled](t, events)
	checkOneEndPerCall(t, events)
	if n := h.Tools.CallCounts()["ask"]; n != 1 {
		t.Errorf("ask got %d requests, want 1", n)
	}
}

// If the server is gone when the person answers, the call fails and the run continues.
func TestInputRequiredOfAServerThatIsGone(t *testing.T) {
	log := newMemoryLog()
	a := agenttest.NewFixture(t, askScript(), withDurableLog(log), agenttest.Stateless)
	run := a.StartRun(t, agent.Request{Interactive: true}).ID
	waits := waitUntilSuspended(t, a, run, 1)
	drainAtOnce(a)
	b := agenttest.NewFixture(t, askScript(), withDurableLog(log), func(s *config.Server) { s.URL = "http://127.0.0.1:1/" })
	if open := waitUntilSuspended(t, b, run, 1); len(open) != 1 || open[0].ID != waits[0].ID {
		t.Fatalf("open interrupts %+v, want %s", open, waits[0].ID)
	}
	answerInterrupt(t, b, run, agent.Input{ID: waits[0].ID, Action: "accept", Content: rawJSON(`{"people":4}`)})
	events := b.Events(t, run)
	if failed := agenttest.EventsOf[event.ToolError](events); len(failed) != 1 {
		t.Errorf("errors %+v, want one: %s", failed, agenttest.TypesOf(events))
	}
	agenttest.TerminalEvent[event.FinalAnswer](t, events)
}

// The process is killed at any moment. The call is then made once, or ends as unknown_outcome.
func TestInputRequiredContinuesWhereverItsProcessDied(t *testing.T) {
	t.Parallel()
	origin := &recordingLog{Log: memory.New(memory.Options{})}
	first := agenttest.NewFixture(t, askScript(), withDurableLog(origin), agenttest.Stateless)
	run := first.StartRun(t, agent.Request{Interactive: true, Background: true})

	answer := func(h *agenttest.Fixture, i event.Interrupt) {
		answerInterrupt(t, h, run.ID, agent.Input{ID: i.ID, Action: "accept", Content: rawJSON(`{"people":4}`)})
	}
	answer(first, waitUntilSuspended(t, first, run.ID, 1)[0])
	first.Events(t, run.ID)

	// Let the process die before each operation, and another one continue.
	sent, required := 0, 0
	for n, operation := range origin.recordedOperations() {
		t.Run(fmt.Sprintf("%02d_%s", n, operation.what), func(t *testing.T) {
			log := origin.diedAfter(t, run, n)
			ended, _ := toolCallsSoFar(t, log, run.ID)
			h := agenttest.NewFixture(t, askScript(), withDurableLog(log), agenttest.Stateless)

			// Answer in the second process, unless the log has the answer.
			isOpen := make(map[string]event.Elicitation)
			events := h.EventsUntil(t, run.ID, func(e event.Event) bool {
				switch b := e.Body.(type) {
				case event.Elicitation:
					isOpen[b.InterruptID] = b
				case event.Suspended:
					if inputs, err := log.Inputs(t.Context(), run.ID, 0); err == nil && len(inputs.Inputs) == 0 {
						answer(h, b.Interrupts[0])
					}
				}
				return e.Terminal()
			})
			agenttest.TerminalEvent[event.FinalAnswer](t, events)
			checkOneEndPerCall(t, events)

			// The requests of both processes together are those of one call.
			made := h.Tools.CallCounts()["ask"]
			failed, results := agenttest.EventsOf[event.ToolError](events), agenttest.EventsOf[event.ToolResult](events)
			switch {
			case ended["ask"] > 0:
				if made != 0 || len(results) != 1 {
					t.Errorf("%d requests and results %+v after the call had ended, want none and one", made, results)
				}
			case sent > required: // a request was under way
				if made != 0 || len(failed) != 1 || failed[0].Kind != "unknown_outcome" {
					t.Errorf("%d requests and errors %+v, want none and unknown_outcome", made, failed)
				}
			default:
				if made != 2-sent || len(results) != 1 || !strings.Contains(string(results[0].Payload), "people") {
					t.Errorf("%d requests and results %+v, want %d requests and one result", made, results, 2-sent)
				}
			}
			if len(isOpen) > 1 {
				t.Errorf("the person was asked %d times, want once", len(isOpen))
			}
		})
		switch operation.what {
		case "note sent":
			sent++
		case "note input":
			required++
		}
	}

	if sent != 2 || required != 1 {
		t.Errorf("%d requests were noted and %d times input, want 2 and 1", sent, required)
	}
}
