package agent_test

import (
	"errors"
	"fmt"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"answerd/internal/agent"
	"answerd/internal/agent/agenttest"
	"answerd/internal/agent/definition"
	"answerd/internal/auth"
	"answerd/internal/event"
	"answerd/internal/event/memory"
	"answerd/internal/llm"
	"answerd/internal/llm/llmtest"
	"answerd/internal/mcp/config"
)

var echoTen = llmtest.Call{Name: "echo", Args: `{"text":"0123456789"}`}

// doubleLimitOnce answers the questions of a run: a limit of once becomes twice that, once, and nothing
// becomes more.
func doubleLimitOnce(t *testing.T, h *agenttest.Fixture, run string, once float64) []event.Event {
	t.Helper()
	return h.EventsUntil(t, run, func(e event.Event) bool {
		s, waits := e.Body.(event.Suspended)
		if !waits {
			return e.Terminal()
		}
		in := agent.Input{ID: s.Interrupts[0].ID, Approved: new(false), Reason: "enough"}
		if s.Interrupts[0].Max == once {
			in = agent.Input{ID: in.ID, Approved: new(true), Args: fmt.Appendf(nil, `{"max":%g}`, 2*once)}
		}
		// It may have been answered, to a process that died.
		if err := h.Answer(t.Context(), auth.Identity{}, run, in); err != nil && !errors.Is(err, agent.ErrAnswered) {
			t.Errorf("error %v, want no error or ErrAnswered", err)
		}
		return false
	})
}

func TestPersonMayRaiseALimitThatTheRunHasReached(t *testing.T) {
	for name, c := range map[string]struct {
		asked agent.Budget
		told  string
		calls int
	}{
		"tool_calls":    {agent.Budget{ToolCalls: 1}, "tool_calls 1/1, tool_calls 2/2", 2},
		"total_tokens":  {agent.Budget{TotalTokens: 30}, "total_tokens 30/30, total_tokens 60/60", 3},
		"input_tokens":  {agent.Budget{InputTokens: 20}, "input_tokens 20/20, input_tokens 40/40", 3},
		"output_tokens": {agent.Budget{OutputTokens: 10}, "output_tokens 10/10, output_tokens 20/20", 3},
		"result_bytes":  {agent.Budget{ResultBytes: 20}, "result_bytes 20/20, result_bytes 40/40", 4},
		"cost":          {agent.Budget{Cost: 0.001}, "cost 0.001/0.001, cost 0.002/0.002", 3},
	} {
		t.Run(name, func(t *testing.T) {
			h := agenttest.NewFixture(t, callWhileOffered(echoTen), func(o *agent.Options) {
				o.Profiles = map[string]llm.Profile{"scripted": {ID: "scripted", Price: &llm.Price{Input: 20, Output: 60}}}
			})
			run := h.StartRun(t, agent.Request{Budget: c.asked, AskAtLimit: true, Interactive: true}).ID
			asked := agenttest.EventsOf[event.BudgetRequired](doubleLimitOnce(t, h, run, limitOf(c.asked, name)))
			if len(asked) != 2 || asked[0].Limit != name || asked[0].Used < asked[0].Max || asked[1].Max != 2*asked[0].Max {
				t.Fatalf("asked %+v, want 2 for %s, the first with all of its maximum used, the second with twice that maximum", asked, name)
			}
			events := h.Events(t, run)
			answered := agenttest.EventsOf[event.BudgetResolved](events)
			if len(answered) != 2 || !answered[0].Approved || answered[0].Max != asked[1].Max || answered[1].Approved || answered[1].Max != asked[1].Max || answered[1].Reason != "enough" {
				t.Errorf(`answered %+v, want the first approved, the second refused ("enough"), both with the second maximum`, answered)
			}
			if got := budgetEvents(events); got != c.told || h.Tools.CallCounts()["echo"] != c.calls {
				t.Errorf("told %s, %d calls, want %s and %d", got, h.Tools.CallCounts()["echo"], c.told, c.calls)
			}
			if end := agenttest.TerminalEvent[event.FinalAnswer](t, events); end.FinishReason != "budget_exceeded" || end.Answer != "Summed up." {
				t.Errorf(`end %+v, want FinishReason budget_exceeded, Answer "Summed up."`, end)
			}
		})
	}
}

func limitOf(b agent.Budget, name string) float64 {
	return map[string]float64{
		"tool_calls": float64(b.ToolCalls), "total_tokens": float64(b.TotalTokens), "input_tokens": float64(b.InputTokens),
		"output_tokens": float64(b.OutputTokens), "result_bytes": float64(b.ResultBytes), "cost": b.Cost,
	}[name]
}

// Nobody is asked to raise a limit that the operator does not allow to be higher, nor if the
// question has no on_limit.
func TestBudgetIncreaseIsAskedOnlyWhereItCanBeGranted(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		ours  agent.Budget
		turns int
		r     agent.Request
	}{
		"the operator's own limit":       {agent.Budget{ToolCalls: 1}, 0, agent.Request{AskAtLimit: true, Interactive: true}},
		"as much as the operator's":      {agent.Budget{ToolCalls: 1}, 0, agent.Request{AskAtLimit: true, Interactive: true, Budget: agent.Budget{ToolCalls: 3}}},
		"the last turn":                  {agent.Budget{}, 1, agent.Request{AskAtLimit: true, Interactive: true, Budget: agent.Budget{ToolCalls: 1}}},
		"a request that did not ask":     {agent.Budget{}, 0, agent.Request{Interactive: true, Budget: agent.Budget{ToolCalls: 1}}},
		"a caller who does not answer":   {agent.Budget{}, 0, agent.Request{AskAtLimit: true, Budget: agent.Budget{ToolCalls: 1}}},
		"turns, which are no budget":     {agent.Budget{}, 2, agent.Request{AskAtLimit: true, Interactive: true}},
		"a question that nobody answers": {agent.Budget{}, 0, agent.Request{AskAtLimit: true, Interactive: true, Budget: agent.Budget{ToolCalls: 1}}},
	} {
		t.Run(name, func(t *testing.T) {
			h := agenttest.NewFixture(t, callWhileOffered(echoTen), func(o *agent.Options) {
				o.Budget, o.MaxTurns, o.InputTimeout = c.ours, c.turns, 20*time.Millisecond
			})
			events := h.Events(t, h.StartRun(t, c.r).ID)
			agenttest.TerminalEvent[event.FinalAnswer](t, events)
			asked, resolved := agenttest.EventsOf[event.BudgetRequired](events), agenttest.EventsOf[event.BudgetResolved](events)
			if name != "a question that nobody answers" {
				if len(asked) > 0 {
					t.Errorf("asked %+v, want 0", asked)
				}
			} else if len(asked) != 1 || len(resolved) != 1 || resolved[0].Approved || resolved[0].Max != 1 || resolved[0].Reason != agent.ErrExpired.Error() {
				t.Errorf("asked %+v, resolved %+v, want 1 of each, refused with Max 1 because it expired", asked, resolved)
			}
		})
	}
}

func TestLimitIsRaisedWithinTheOperatorsBounds(t *testing.T) {
	h := agenttest.NewFixture(t, callWhileOffered(echoTen), func(o *agent.Options) { o.Budget = agent.Budget{ToolCalls: 3} })
	run := h.StartRun(t, agent.Request{Budget: agent.Budget{ToolCalls: 1}, AskAtLimit: true, Interactive: true}).ID
	i := waitUntilSuspended(t, h, run, 1)[0]
	for args, at := range map[string]string{
		"": "/args", `{}`: "/args", `[2]`: "/args", `{"max":2,"min":1}`: "/args", `{"max":null}`: "/args/max", `{"max":"2"}`: "/args/max", `{"max":1}`: "/args/max", `{"max":-1}`: "/args/max",
		`{"max":2.5}`: "/args/max", `{"max":4}`: "/args/max", `{"max":1e300}`: "/args/max",
	} {
		var misfit *agent.ContentError
		err := h.Answer(t.Context(), auth.Identity{}, run, agent.Input{ID: i.ID, Approved: new(true), Args: rawJSON(args)})
		if !errors.As(err, &misfit) || misfit.Fields[0].Pointer != at {
			t.Errorf("%s: %v, want a ContentError, Fields[0].Pointer %s", args, err, at)
		}
	}

	for _, in := range []agent.Input{{}, {Action: "accept"}, {Approved: new(false), Args: rawJSON(`{"max":2}`)}, {Approved: new(true), Content: rawJSON(`{}`)}} {
		in.ID = i.ID
		if _, ok := errors.AsType[*agent.InvalidError](h.Answer(t.Context(), auth.Identity{}, run, in)); !ok {
			t.Errorf("%+v was taken, want an InvalidError", in)
		}
	}

	if err := h.Answer(t.Context(), auth.Identity{Subject: "eve"}, run, agent.Input{ID: i.ID, Approved: new(true), Args: rawJSON(`{"max":2}`)}); !errors.Is(err, event.ErrNotFound) {
		t.Errorf("a stranger: %v, want ErrNotFound", err)
	}
	answerInterrupt(t, h, run, agent.Input{ID: i.ID, Approved: new(true), Args: rawJSON(`{"max":3}`)})
	events := h.Events(t, run)
	if asked := agenttest.EventsOf[event.BudgetRequired](events); len(asked) != 1 || h.Tools.CallCounts()["echo"] != 3 {
		t.Errorf("%+v, %d calls, want 1 asked and 3", asked, h.Tools.CallCounts()["echo"])
	}
}

// The seconds that a person adds begin where the run's own seconds ended. The clock is stopped
// while the person is asked.
func TestSecondsCanBeRaised(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := memoryServer{"hesitate": func(*http.Request) (string, error) { return textReply("at last"), nil }}
		tools := server.client(t, config.Server{Name: "m", Timeout: time.Hour})
		tools.Tools(t.Context())
		a, err := agent.New(agent.Options{
			Model: slowModel{3 * time.Second, time.Second}, Tools: tools, Log: memory.New(memory.Options{}), DisconnectGrace: time.Hour, InputTimeout: time.Hour, MaxTurns: 99,
		})
		if err != nil {
			t.Fatal(err)
		}

		h := &agenttest.Fixture{Agent: a}
		began := time.Now()
		run := h.StartRun(t, agent.Request{Budget: agent.Budget{Seconds: 10}, AskAtLimit: true, Interactive: true}).ID
		i := waitUntilSuspended(t, h, run, 1)[0]
		if i.Limit != "seconds" || i.Used != 9 || i.Max != 10 || time.Since(began) != 9*time.Second {
			t.Errorf("%+v after %s, want Limit seconds, Used 9, Max 10, took 9 s", i, time.Since(began))
		}
		<-time.After(time.Minute) // of a clock that is not real
		answerInterrupt(t, h, run, agent.Input{ID: i.ID, Approved: new(true), Args: rawJSON(`{"max":20}`)})
		i = waitUntilSuspended(t, h, run, 2)[0]
		if i.Used != 18 || i.Max != 20 {
			t.Errorf("interrupt %+v, want Used 18, Max 20", i)
		}
		answerInterrupt(t, h, run, agent.Input{ID: i.ID, Approved: new(false)})
		events := h.Events(t, run)
		if got := budgetEvents(events); got != "seconds 8/10, seconds 16/20" {
			t.Errorf(`told %s, want "seconds 8/10, seconds 16/20"`, got)
		}
		if end := agenttest.TerminalEvent[event.FinalAnswer](t, events); end.FinishReason != "budget_exceeded" || time.Since(began) != 79*time.Second {
			t.Errorf("%+v after %s, want FinishReason budget_exceeded, took 79 s", end, time.Since(began))
		}
		a.Drain(t.Context())
		_ = tools.Close()
	})
}

// A process may die at any moment of the asking, too.
func TestRaisedLimitOutlivesItsProcess(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		asked agent.Budget
		calls int // that are made
	}{
		"after_calls":  {agent.Budget{ToolCalls: 1}, 2},
		"before_calls": {agent.Budget{TotalTokens: 15}, 1},
	} {
		t.Run(name, func(t *testing.T) { testRaisedLimit(t, c.asked, c.calls) })
	}
}

func testRaisedLimit(t *testing.T, budget agent.Budget, calls int) {
	once := float64(max(budget.ToolCalls, int(budget.TotalTokens)))
	origin := &recordingLog{Log: memory.New(memory.Options{})}
	first := agenttest.NewFixture(t, callWhileOffered(echoTen), withDurableLog(origin))
	run := first.StartRun(t, agent.Request{Question: "?", Budget: budget, AskAtLimit: true, Interactive: true, Background: true})
	whole := doubleLimitOnce(t, first, run.ID, once)
	want := agenttest.TerminalEvent[event.FinalAnswer](t, whole)
	for n, a := range origin.recordedOperations() {
		t.Run(fmt.Sprintf("%02d_before_%s", n, a.what), func(t *testing.T) {
			t.Parallel()
			log := origin.diedAfter(t, run, n)
			before, sent := toolCallsSoFar(t, log, run.ID)
			h := agenttest.NewFixture(t, callWhileOffered(echoTen), withDurableLog(log))
			events := doubleLimitOnce(t, h, run.ID, once)
			end := agenttest.TerminalEvent[event.FinalAnswer](t, events)
			if end.Answer != want.Answer || end.FinishReason != want.FinishReason || end.Metadata.Usage != want.Metadata.Usage || end.Metadata.Steps != want.Metadata.Steps {
				t.Errorf("ended with %+v, want Answer %q, FinishReason %q, Metadata.Usage %+v, Metadata.Steps %d", end, want.Answer, want.FinishReason, want.Metadata.Usage, want.Metadata.Steps)
			}
			checkOneEndPerCall(t, events)
			asked, resolved := agenttest.EventsOf[event.BudgetRequired](events), agenttest.EventsOf[event.BudgetResolved](events)
			if len(asked) != 2 || len(resolved) != 2 || asked[0].Max != once || asked[1].Max != 2*once {
				t.Errorf("asked %+v, %+v, want 2 asked, 2 resolved, Max %v, Max %v", asked, resolved, once, 2*once)
			}
			if made, lost := h.Tools.CallCounts()["echo"], sent["echo"]-before["echo"]; made != max(calls-before["echo"]-lost, 0) {
				t.Errorf("%d calls made, want %d; %d ended and %d sent before", made, max(calls-before["echo"]-lost, 0), before["echo"], sent["echo"])
			}
			if got, want := budgetEvents(events), budgetEvents(whole); got != want {
				t.Errorf("told %s, want %s", got, want)
			}
		})
	}
}

// A person may answer when the agent has other limits than the run has started with. The event says what the run uses.
func TestRaisedLimitStaysWithinThatOfTheRunsAgent(t *testing.T) {
	const file = "agents:\n- {id: a, budget: {tool_calls: %d}}\n"
	h := agenttest.NewFixture(t, callWhileOffered(echoTen), withAgents(t, fmt.Sprintf(file, 3)))
	run := h.StartRun(t, agent.Request{Budget: agent.Budget{ToolCalls: 1}, AskAtLimit: true, Interactive: true}).ID
	i := waitUntilSuspended(t, h, run, 1)[0]
	later, err := definition.Parse(fmt.Appendf(nil, file, 10), definition.Options{AnyModel: true})
	if err == nil {
		err = h.ReplaceAgents(later.Agents)
	}
	if err != nil {
		t.Fatal(err)
	}

	answerInterrupt(t, h, run, agent.Input{ID: i.ID, Approved: new(true), Args: rawJSON(`{"max":8}`)})
	events := h.Events(t, run)
	agenttest.TerminalEvent[event.FinalAnswer](t, events)
	resolved := agenttest.EventsOf[event.BudgetResolved](events)
	if n := h.Tools.CallCounts()["echo"]; n != 3 || len(resolved) != 1 || resolved[0].Max != 3 {
		t.Errorf("%d calls and %+v, want 3 and the limit 3", n, resolved)
	}
}
