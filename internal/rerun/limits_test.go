package rerun_test

import (
	"encoding/json"
	"strings"
	"testing"

	"answerd/internal/agent"
	"answerd/internal/agent/agenttest"
	"answerd/internal/agent/definition"
	"answerd/internal/auth"
	"answerd/internal/event"
	"answerd/internal/llm/llmtest"
)

func TestTimeIsTakenFromTheRecording(t *testing.T) {
	h := agenttest.NewFixture(t, llmtest.Turns(llmtest.Calls(llmtest.Call{Name: "wait"}, llmtest.Call{Name: "add", Args: `{"a":1,"b":2}`}), llmtest.Says("Done.")), nil)
	run := h.StartRun(t, agent.Request{Budget: agent.Budget{Seconds: 0.3}})
	events := h.Events(t, run.ID)
	if len(agenttest.EventsOf[event.Budget](events)) == 0 {
		t.Fatalf("events = %s, want one about the time", agenttest.TypesOf(events))
	}
	requireSameRerun(t, exportRun(t, h, run.ID))
}

// The question about the time names the time that has passed, which is not exactly that of the limit.
func TestQuestionAboutTheTimeRunsAgain(t *testing.T) {
	h := agenttest.NewFixture(t, llmtest.Turns(llmtest.Calls(llmtest.Call{Name: "wait"}), llmtest.Says("Done.")), nil)
	run := h.StartRun(t, agent.Request{Interactive: true, AskAtLimit: true, Budget: agent.Budget{Seconds: 0.3}})
	events := h.EventsUntil(t, run.ID, func(e event.Event) bool { _, ok := e.Body.(event.Suspended); return ok })
	asked := agenttest.EventsOf[event.BudgetRequired](events)
	if len(asked) != 1 {
		t.Fatalf("events = %s, want one question about the time", agenttest.TypesOf(events))
	}
	answer := agent.Input{ID: asked[0].InterruptID, Approved: new(true), Args: json.RawMessage(`{"max":60}`)}
	if err := h.Answer(t.Context(), auth.Identity{}, run.ID, answer); err != nil {
		t.Fatal(err)
	}
	h.Events(t, run.ID)
	requireSameRerun(t, exportRun(t, h, run.ID))
}

// The usage of an answer that was cut is an estimate, which counts the descriptions of tools, also of one for asking an
// agent that was not asked.
func TestCutAnswerOfAnAgentThatMayAskAnotherRunsAgain(t *testing.T) {
	h := agenttest.NewFixture(t, llmtest.Turns(llmtest.Says(strings.Repeat("The same words again. ", 400))), func(o *agent.Options) {
		o.Agents = []definition.Agent{{ID: "a", Agents: []string{"b"}}, {ID: "b", Description: strings.Repeat("It knows everything. ", 20)}}
	})
	run := h.StartRun(t, agent.Request{})
	end := agenttest.TerminalEvent[event.FinalAnswer](t, h.Events(t, run.ID))
	if end.FinishReason != "length" {
		t.Fatalf("finish reason = %q, want length", end.FinishReason)
	}
	requireSameRerun(t, exportRun(t, h, run.ID))
}
