package agent_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"answerd/internal/agent"
	"answerd/internal/agent/agenttest"
	"answerd/internal/agent/webhook/webhooktest"
	"answerd/internal/auth"
	"answerd/internal/event"
	"answerd/internal/event/memory"
	"answerd/internal/llm"
	"answerd/internal/llm/llmtest"
	"answerd/internal/mcp/config"
)

// budgetEvents returns the budget events of a run as text.
func budgetEvents(events []event.Event) string {
	var out []string
	for _, b := range agenttest.EventsOf[event.Budget](events) {
		out = append(out, fmt.Sprintf("%s %g/%g", b.Limit, b.Used, b.Max))
	}
	return strings.Join(out, ", ")
}

// callWhileOffered returns a model that makes these calls as long as it is offered tools, and then sums up. A
// step costs 10 tokens in and 5 out.
func callWhileOffered(calls ...llmtest.Call) llmtest.Script {
	return func(r llmtest.Request) llmtest.Answer {
		if len(r.Tools) == 0 {
			return llmtest.Says("Summed up.")
		}
		return llmtest.Calls(calls...)
	}
}

// S1.8: every limit is announced when it is near and when it is reached, the run sums
// up, and says which kind of limit it was.
func TestBudgetLimitsAreAnnouncedAndThenTheRunSumsUp(t *testing.T) {
	t.Parallel()
	call := llmtest.Call{Name: "echo", Args: `{"text":"0123456789"}`}
	none := agent.Budget{}
	for name, c := range map[string]struct {
		ours, asked agent.Budget
		turns       int
		told        string
		finish      string
		steps       int
	}{
		"turns":                    {none, none, 5, "max_turns 4/5, max_turns 5/5", "max_turns", 6},
		"tool calls":               {none, agent.Budget{ToolCalls: 5}, 9, "tool_calls 4/5, tool_calls 5/5", "budget_exceeded", 6},
		"tokens":                   {none, agent.Budget{TotalTokens: 75}, 9, "total_tokens 60/75, total_tokens 75/75", "budget_exceeded", 6},
		"input tokens":             {none, agent.Budget{InputTokens: 25}, 9, "input_tokens 20/25, input_tokens 30/25", "budget_exceeded", 4},
		"output tokens":            {none, agent.Budget{OutputTokens: 16}, 9, "output_tokens 15/16, output_tokens 20/16", "budget_exceeded", 5},
		"money":                    {none, agent.Budget{Cost: 0.0012}, 9, "cost 0.001/0.0012, cost 0.0015/0.0012", "budget_exceeded", 4},
		"result bytes":             {none, agent.Budget{ResultBytes: 32}, 9, "result_bytes 30/32, result_bytes 32/32", "budget_exceeded", 5},
		"past 80 % and the limit":  {none, agent.Budget{ToolCalls: 1}, 9, "tool_calls 1/1", "budget_exceeded", 2},
		"the operator's own":       {agent.Budget{ToolCalls: 1}, none, 9, "tool_calls 1/1", "budget_exceeded", 2},
		"more than the operator's": {agent.Budget{ToolCalls: 1}, agent.Budget{ToolCalls: 5}, 9, "tool_calls 1/1", "budget_exceeded", 2},
		"less than the operator's": {agent.Budget{ToolCalls: 5}, agent.Budget{ToolCalls: 1}, 9, "tool_calls 1/1", "budget_exceeded", 2},
		"two at once":              {none, agent.Budget{ToolCalls: 2}, 2, "tool_calls 2/2, max_turns 2/2", "budget_exceeded", 3},
	} {
		t.Run(name, func(t *testing.T) {
			h := agenttest.NewFixture(t, callWhileOffered(call), func(o *agent.Options) {
				o.MaxTurns, o.Budget = 9, c.ours
				o.Profiles = map[string]llm.Profile{"scripted": {ID: "scripted", Price: &llm.Price{Input: 20, Output: 60}}}
			})
			events := h.Events(t, h.StartRun(t, agent.Request{MaxTurns: c.turns, Budget: c.asked}).ID)
			end := agenttest.TerminalEvent[event.FinalAnswer](t, events)
			if got := budgetEvents(events); got != c.told {
				t.Errorf("told %s, want %s", got, c.told)
			}
			if end.FinishReason != c.finish || end.Metadata.FinishReason != c.finish || end.Metadata.Steps != c.steps || end.Answer != "Summed up." {
				t.Errorf(`%s after %d steps: %q, Metadata.FinishReason %q, want FinishReason %q, Metadata.FinishReason %q, Metadata.Steps %d, Answer "Summed up."`, end.FinishReason, end.Metadata.Steps, end.Answer, end.Metadata.FinishReason, c.finish, c.finish, c.steps)
			}
		})
	}
}

// The same run uses 50 input and 25 output tokens, or the endpoint does not report its usage.
func TestCostOfARunIsReportedIfThePriceIsKnown(t *testing.T) {
	for name, price := range map[string]*llm.Price{"known": {Input: 20, Output: 60}, "free": {}, "unknown": nil} {
		h := agenttest.NewFixture(t, callWhileOffered(llmtest.Call{Name: "echo", Args: `{"text":"x"}`}), func(o *agent.Options) {
			o.Profiles = map[string]llm.Profile{"scripted": {ID: "scripted", Price: price}}
		})
		events := h.Events(t, h.StartRun(t, agent.Request{MaxTurns: 4}).ID)
		end := agenttest.TerminalEvent[event.FinalAnswer](t, events)
		u := end.Metadata.Usage
		switch cost := end.Metadata.Cost; {
		case price == nil && cost != nil:
			t.Errorf("%s: cost %g, want none without a price", name, *cost)
		case price != nil && (cost == nil || *cost != (float64(u.InputTokens)*price.Input+float64(u.OutputTokens)*price.Output)/1e6):
			t.Errorf("%s: cost %v of %+v, want the tokens times their prices", name, cost, u)
		}
	}
}

// A fallback may cost more than the model that was asked for, and a limit of cost must hold all the same, also in a process
// that takes the run over.
func TestCostOfAFallbackIsChargedAtItsPrice(t *testing.T) {
	script := callWhileOffered(llmtest.Call{Name: "echo", Args: `{"text":"x"}`})
	for name, c := range map[string]struct {
		price *llm.Price // of the fallback
		limit float64
		want  string
	}{
		"its own price": {&llm.Price{Input: 20, Output: 60}, 0.0009, "cost 0.0015 after 3 steps: cost 0.001/0.0009, max_turns 2/2"},
		"no price":      {nil, 0, "cost 4.5e-05 after 3 steps: max_turns 2/2"},
		"free":          {&llm.Price{}, 0, "cost 0 after 3 steps: max_turns 2/2"},
	} {
		newProcess := func(log event.Log, more ...func(*config.Server)) *agenttest.Fixture {
			return agenttest.NewFixture(t, func(r llmtest.Request) llmtest.Answer {
				if r.Model == "cheap" {
					return llmtest.Fails(http.StatusServiceUnavailable, "down")
				}
				return script(r)
			}, func(o *agent.Options) {
				o.Log, o.Durable = log, true
				o.Profiles = map[string]llm.Profile{
					"cheap": {ID: "cheap", Price: &llm.Price{Input: 1, Output: 1}, Fallback: []string{"dear"}}, "dear": {ID: "dear", Price: c.price},
				}
				o.Model = llm.NewRouter(map[llm.ToolCalling]llm.Model{llm.AutoCalling: o.Model}, "", o.Profiles)
			}, more...)
		}
		origin := &recordingLog{Log: memory.New(memory.Options{})}
		first := newProcess(origin)
		run := first.StartRun(t, agent.Request{Model: "cheap", MaxTurns: 2, Budget: agent.Budget{Cost: c.limit}})
		first.Events(t, run.ID) // to the end
		isStepEnd := func(o operation) bool { return o.what == "step_end" }
		died := origin.diedAfter(t, run, slices.IndexFunc(origin.recordedOperations(), isStepEnd)+1)
		for process, h := range map[string]*agenttest.Fixture{"first": first, "second": newProcess(died, withToolsOf(first))} {
			events := h.Events(t, run.ID)
			end := agenttest.TerminalEvent[event.FinalAnswer](t, events)
			if got := fmt.Sprintf("cost %g after %d steps: %s", *end.Metadata.Cost, end.Metadata.Steps, budgetEvents(events)); got != c.want {
				t.Errorf("%s, %s process: got %s, want %s", name, process, got, c.want)
			}
		}
	}
}

// A run that stays within its limits says nothing of them, however near it comes.
func TestLimitThatIsNotNearIsNotMentioned(t *testing.T) {
	h := agenttest.NewFixture(t, llmtest.Turns(llmtest.Calls(llmtest.Call{Name: "echo", Args: `{"text":"x"}`}), llmtest.Says("Done.")), nil)
	events := h.Events(t, h.StartRun(t, agent.Request{Budget: agent.Budget{ToolCalls: 2, TotalTokens: 1000, ResultBytes: 1000, Seconds: 600}}).ID)
	if end := agenttest.TerminalEvent[event.FinalAnswer](t, events); end.FinishReason != "stop" || budgetEvents(events) != "" {
		t.Errorf("%s, told %s, want stop and empty", end.FinishReason, budgetEvents(events))
	}
}

func TestResultBeyondTheBudgetIsCutForTheModelAlone(t *testing.T) {
	long := llmtest.Call{Name: "echo", Args: `{"text":"ééééé"}`}
	h := agenttest.NewFixture(t, callWhileOffered(long, long), nil)
	run := h.StartRun(t, agent.Request{Budget: agent.Budget{ResultBytes: 13}})
	events := h.Events(t, run.ID)

	var got []string
	for _, m := range h.Model.Requests()[1].Messages {
		if m.Role == "tool" {
			got = append(got, m.Content)
		}
	}

	if want := "ééééé|é\n[cut here: 2 of 10 bytes are shown; the whole result is at /runs/" + run.ID + "/results/call_2]"; strings.Join(got, "|") != want {
		t.Errorf("the model was told %q, want %q", strings.Join(got, "|"), want)
	}

	for _, r := range agenttest.EventsOf[event.ToolResult](events) {
		if string(r.Payload) != `"ééééé"` {
			t.Errorf(`payload %s, want "ééééé"`, r.Payload)
		}
	}
}

// Which calls of a turn a limit refuses does not depend on who is faster: here the
// hooks of later calls are answered first. Calls that are not made take nothing.
func TestLimitRefusesTheLastCallsOfATurn(t *testing.T) {
	echo := llmtest.Call{Name: "echo", Args: `{"text":"x"}`}
	calls := []llmtest.Call{{Name: "nope"}, {Name: "add", Args: `{"a":1,"b":2}`}, echo, {Name: "echo", Args: `{`}, echo, echo, echo}
	asked := make(map[string]chan struct{})
	for i := range len(calls) + 1 {
		asked[fmt.Sprintf("call_%d", i+1)] = make(chan struct{})
	}

	h, _ := newHookedFixture(t, callWhileOffered(calls...), func(q webhooktest.Question) string {
		if q.Hook != "pre_tool_call" {
			return `{}`
		}
		close(asked[q.CallID])
		switch q.CallID {
		case "call_2":
			<-asked["call_3"]
			return "" // refused: it takes nothing
		case "call_3":
			<-asked["call_5"]
		case "call_5", "call_6":
			<-asked["call_7"]
		}
		return `{}`
	}, nil)

	events := h.Events(t, h.StartRun(t, agent.Request{Budget: agent.Budget{ToolCalls: 2}}).ID)
	if end := agenttest.TerminalEvent[event.FinalAnswer](t, events); end.FinishReason != "budget_exceeded" {
		t.Errorf("end %+v, want FinishReason budget_exceeded", end)
	}

	ends := make(map[string]string)
	for _, e := range agenttest.EventsOf[event.ToolError](events) {
		ends[e.CallID] = e.Kind
		if e.CallID == "call_7" && e.Payload != "The run's budget is used up (tool_calls)." {
			t.Errorf(`payload %q, want "The run's budget is used up (tool_calls)."`, e.Payload)
		}
	}

	for _, e := range agenttest.EventsOf[event.ToolResult](events) {
		ends[e.CallID] = "made"
	}

	for i, want := range []string{"unknown_tool", "denied", "made", "invalid_arguments", "made", "denied", "denied"} {
		if id := fmt.Sprintf("call_%d", i+1); ends[id] != want {
			t.Errorf("%s: %s, want %s", id, ends[id], want)
		}
	}
}

// A limit of money that could never be reached is refused instead of ignored.
func TestCostLimitNeedsAPrice(t *testing.T) {
	h := agenttest.NewFixture(t, llmtest.Turns(llmtest.Says("Yes.")), nil)
	limited := h.Options
	limited.Budget.Cost = 1
	strict, err := agent.New(limited)
	if err != nil {
		t.Fatal(err)
	}

	for pointer, ask := range map[string]func() error{
		"/budget/cost": func() error {
			_, err := h.Start(t.Context(), auth.Identity{}, agent.Request{Question: "?", Budget: agent.Budget{Cost: 1}})
			return err
		},
		"/model": func() error {
			_, err := strict.Start(t.Context(), auth.Identity{}, agent.Request{Question: "?"})
			return err
		},
	} {
		bad, ok := errors.AsType[*agent.InvalidError](ask())
		if !ok || bad.Pointer != pointer {
			t.Errorf("%s: %v, want an InvalidError, Pointer %s", pointer, bad, pointer)
		}
	}
}

// slowModel takes its time, calls the tool "hesitate" while it is offered tools, and
// sums up else.
type slowModel struct{ first, then time.Duration }

func (m slowModel) Stream(ctx context.Context, r llm.Request) iter.Seq2[llm.Part, error] {
	return func(yield func(llm.Part, error) bool) {
		takes := m.then
		if len(r.Tools) > 0 {
			takes = m.first
		}
		if !yield(llm.Text{Delta: "Well, "}, nil) {
			return
		}
		select {
		case <-time.After(takes):
		case <-ctx.Done():
			yield(nil, ctx.Err())
			return
		}
		if len(r.Tools) > 0 {
			_ = yield(llm.ToolCall{ID: "call", Name: "hesitate"}, nil) && yield(llm.Finish{Reason: "tool_calls"}, nil)
			return
		}
		_ = yield(llm.Text{Delta: "that is all."}, nil) && yield(llm.Finish{Reason: "stop"}, nil)
	}
}

// The last part of a run's seconds belongs to its summing-up: tools are given up
// before it, the model speaks to the end.
func TestSecondsOfARunLeaveTimeToSumUp(t *testing.T) {
	const s = time.Second
	for name, c := range map[string]struct {
		ours, asked float64
		model       slowModel
		answer      time.Duration // of the tool; 0 never answers
		told, end   string
		after       time.Duration
	}{
		"a tool that hangs":             {0, 10, slowModel{s, s}, 0, "seconds 8/10", "final_answer", 9 * s},
		"a long run":                    {0, 100, slowModel{s, s}, 0, "seconds 80/100", "final_answer", 86 * s},
		"the operator's seconds":        {10, 0, slowModel{s, s}, 0, "seconds 8/10", "final_answer", 9 * s},
		"more than the operator's":      {10, 600, slowModel{s, s}, 0, "seconds 8/10", "final_answer", 9 * s},
		"tools that answer":             {0, 10, slowModel{s, s}, 2 * s, "seconds 8/10", "final_answer", 9 * s},
		"a call after the time":         {0, 10, slowModel{9 * s, s / 2}, 0, "seconds 8/10", "final_answer", 9*s + s/2},
		"a model that hangs":            {0, 10, slowModel{time.Hour, 0}, 0, "seconds 8/10, seconds 10/10", "run_error", 10 * s},
		"a summing-up that is too long": {0, 10, slowModel{s, time.Hour}, 0, "seconds 8/10, seconds 10/10", "run_error", 10 * s},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				server := memoryServer{"hesitate": func(r *http.Request) (string, error) {
					if c.answer == 0 {
						return neverReply(r)
					}
					select {
					case <-time.After(c.answer):
						return textReply("at last"), nil
					case <-r.Context().Done():
						return "", r.Context().Err()
					}
				}}

				tools := server.client(t, config.Server{Name: "m", Timeout: time.Hour})
				tools.Tools(t.Context())
				a, err := agent.New(agent.Options{
					Model: c.model, Tools: tools, Log: memory.New(memory.Options{}), DisconnectGrace: time.Hour, Budget: agent.Budget{Seconds: c.ours},
				})
				if err != nil {
					t.Fatal(err)
				}
				h := &agenttest.Fixture{Agent: a}

				// The run ends in time, and its readers learn how much of the budget is used.
				began := time.Now()
				events := h.Events(t, h.StartRun(t, agent.Request{Budget: agent.Budget{Seconds: c.asked}}).ID)
				took := time.Since(began)
				if got := budgetEvents(events); got != c.told || took != c.after {
					t.Errorf("told %s, took %s, want %s and %v", got, took, c.told, c.after)
				}

				// It ends with a summary, or with an error if the model takes too long for one.
				switch end := events[len(events)-1].Body.(type) {
				case event.FinalAnswer:
					if c.end != "final_answer" || end.FinishReason != "budget_exceeded" || end.Answer != "Well, that is all." {
						t.Errorf(`end %+v, end %q, want end final_answer, FinishReason budget_exceeded, Answer "Well, that is all."`, end, c.end)
					}
					errs := agenttest.EventsOf[event.ToolError](events)
					if last := errs[len(errs)-1]; !strings.Contains(last.Payload, "time for tools") && !strings.Contains(last.Payload, "seconds") {
						t.Errorf(`the model was told %q, want it to contain "time for tools" or seconds`, last.Payload)
					}
				case event.RunError:
					if c.end != "run_error" || end.Code != "budget_exceeded" || end.PartialAnswer != "Well, " {
						t.Errorf(`end %+v, end %q, want end run_error, Code budget_exceeded, PartialAnswer "Well, "`, end, c.end)
					}
				}

				a.Drain(t.Context())
				_ = tools.Close()
			})
		})
	}
}

// An endpoint that ignores the limit of the request is cut off within 64 tokens of the budget.
func TestRunawayAnswerIsCutAtTheBudget(t *testing.T) {
	words := make([]string, 5000)
	for i := range words {
		words[i] = fmt.Sprintf(" word%d", i)
	}

	h := agenttest.NewFixture(t, llmtest.Turns(llmtest.Says(words...)), nil)
	events := h.Events(t, h.StartRun(t, agent.Request{Budget: agent.Budget{OutputTokens: 400}}).ID)
	end := agenttest.TerminalEvent[event.FinalAnswer](t, events)
	if n := len(agenttest.EventsOf[event.TextDelta](events)); n < 400 || n > 464 || end.FinishReason != "length" {
		t.Errorf("got %d deltas and finish reason %s, want 400 to 464 and length", n, end.FinishReason)
	}
	if got := h.Model.Requests()[0].MaxTokens; got != 400 {
		t.Errorf("got max_completion_tokens %d in the request, want 400", got)
	}
	if got := end.Metadata.Usage.OutputTokens; got < 400 || got > 464 {
		t.Errorf("got %d output tokens in the metadata, want an estimate of 400 to 464", got)
	}
}
