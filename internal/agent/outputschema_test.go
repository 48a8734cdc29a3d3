package agent_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"answerd/internal/agent"
	"answerd/internal/agent/agenttest"
	"answerd/internal/auth"
	"answerd/internal/event"
	"answerd/internal/event/memory"
	"answerd/internal/llm/llmtest"
)

const sumSchema = `{"type":"object","properties":{"sum":{"type":"integer"}},"required":["sum"],"additionalProperties":false}`

// answersInTurn gives the next answer for each answer of the assistant in the conversation.
func answersInTurn(answers ...llmtest.Answer) llmtest.Script {
	return func(r llmtest.Request) llmtest.Answer {
		n := 0
		for _, m := range r.Messages {
			if m.Role == "assistant" {
				n++
			}
		}
		return answers[min(n, len(answers)-1)]
	}
}

// lastStepText returns the text of the last step, as readers see it.
func lastStepText(events []event.Event) (text string) {
	for _, e := range events {
		switch b := e.Body.(type) {
		case event.StepStart, event.StepReset:
			text = ""
		case event.TextDelta:
			text += b.Delta
		}
	}
	return text
}

func TestOutputSchemaThatTheAnswerMeets(t *testing.T) {
	for name, said := range map[string][]string{
		"plain":     {`{"sum"`, `:3}`},
		"in pieces": {"``", "`json\n{\"su", "m\":3}", "\n``", "`\n"},
	} {
		h := agenttest.NewFixture(t, llmtest.Turns(llmtest.Calls(llmtest.Call{Name: "add", Args: `{"a":1,"b":2}`}), llmtest.Says(said...)), nil)
		events := h.Events(t, h.StartRun(t, agent.Request{OutputSchema: json.RawMessage(sumSchema)}).ID)
		end := agenttest.TerminalEvent[event.FinalAnswer](t, events)
		if end.Answer != `{"sum":3}` || string(end.Output) != `{"sum":3}` || end.Metadata.Steps != 2 || len(end.Metadata.ToolNames) != 1 {
			t.Errorf(`%s: ended with %+v, want Answer and Output {"sum":3}, Steps 2 and one tool`, name, end)
		}
		if got := lastStepText(events); got != end.Answer {
			t.Errorf("%s: the deltas of the last step are %q, want the answer %q", name, got, end.Answer)
		}
		if start := events[0].Body.(event.Start); !start.StructuredOutput {
			t.Errorf("%s: start is %+v, want StructuredOutput", name, start)
		}

		for _, r := range h.Model.Requests() {
			want := `"response_format":{"type":"json_schema","json_schema":{"name":"answer","schema":` + sumSchema + `,"strict":true}}`
			if !strings.Contains(string(r.Body), want) {
				t.Errorf("%s: the model was asked %s, want %s in it", name, r.Body, want)
			}
		}
	}
}

func TestOutputSchemaIsMetAfterARepair(t *testing.T) {
	h := agenttest.NewFixture(t, answersInTurn(llmtest.Says(`{"sum":"three","more":1}`), llmtest.Says(`{"sum":3}`)), nil)
	events := h.Events(t, h.StartRun(t, agent.Request{OutputSchema: json.RawMessage(sumSchema)}).ID)
	end := agenttest.TerminalEvent[event.FinalAnswer](t, events)
	if string(end.Output) != `{"sum":3}` || end.Answer != lastStepText(events) || end.Metadata.Steps != 2 || end.Metadata.Usage.TotalTokens != 30 {
		t.Errorf(`ended with %+v after %q, want Output {"sum":3}, the same Answer, Steps 2 and 30 tokens`, end, lastStepText(events))
	}
	requests := h.Model.Requests()
	messages := requests[len(requests)-1].Messages
	said, asked := messages[len(messages)-2], messages[len(messages)-1]
	if len(requests) != 2 || said.Role != "assistant" || said.Content != `{"sum":"three","more":1}` || asked.Role != "user" {
		t.Fatalf("%d requests, the last with %+v and %+v, want 2, the first answer and a message of the user", len(requests), said, asked)
	}

	for _, want := range []string{"- /sum: expected integer", "- /more: "} {
		if !strings.Contains(asked.Content, want) {
			t.Errorf("the model was asked %q, want %q in it", asked.Content, want)
		}
	}

	if len(requests[1].Tools) != 0 || len(requests[0].Tools) == 0 {
		t.Errorf("%d tools were offered and %d for the repair, want some and none", len(requests[0].Tools), len(requests[1].Tools))
	}
}

func TestOutputSchemaThatIsNotMetEndsTheRun(t *testing.T) {
	h := agenttest.NewFixture(t, answersInTurn(llmtest.Says(`Three.`), llmtest.Says(`{"sum":3.5}`)), nil)
	events := h.Events(t, h.StartRun(t, agent.Request{OutputSchema: json.RawMessage(sumSchema)}).ID)
	end := agenttest.TerminalEvent[event.RunError](t, events)
	if end.Code != "invalid_output" || end.Retryable || end.PartialAnswer != `{"sum":3.5}` || len(end.Errors) != 1 || end.Errors[0].Pointer != "/sum" {
		t.Errorf("ended with %+v, want invalid_output with one error at /sum", end)
	}
	if n := len(h.Model.Requests()); n != 2 {
		t.Errorf("the model was asked %d times, want 2", n)
	}
}

// The summary after a limit must have the schema too, and may be repaired once.
func TestOutputSchemaAppliesToTheSummaryAtALimit(t *testing.T) {
	h := agenttest.NewFixture(t, answersInTurn(
		llmtest.Calls(llmtest.Call{Name: "add", Args: `{"a":1,"b":2}`}), llmtest.Says("It is 3."), llmtest.Says(`{"sum":3}`)), nil)
	events := h.Events(t, h.StartRun(t, agent.Request{MaxTurns: 1, OutputSchema: json.RawMessage(sumSchema)}).ID)
	end := agenttest.TerminalEvent[event.FinalAnswer](t, events)
	if string(end.Output) != `{"sum":3}` || end.FinishReason != "max_turns" || end.Metadata.Steps != 3 {
		t.Errorf(`ended with %+v, want Output {"sum":3}, FinishReason max_turns and Steps 3`, end)
	}
	last := h.Model.Requests()[2].Messages
	if n := strings.Count(fmt.Sprint(last), "You have reached the limit"); n != 1 {
		t.Errorf("the model was told of the limit %d times, want once", n)
	}
}

// A call of the caller's own tool ends the run before there is an answer.
func TestOutputSchemaIsNotCheckedBeforeTheAnswer(t *testing.T) {
	h := agenttest.NewFixture(t, llmtest.Turns(llmtest.Calls(llmtest.Call{Name: "mine", Args: `{}`})), nil)
	r := agent.Request{OutputSchema: json.RawMessage(sumSchema)}
	if bad := r.AddClientTool(agent.ClientTool{Name: "mine"}); bad != nil {
		t.Fatalf("the tool is refused: %v, want it taken", bad)
	}
	end := agenttest.TerminalEvent[event.FinalAnswer](t, h.Events(t, h.StartRun(t, r).ID))
	if end.FinishReason != "tool_calls" || end.Output != nil {
		t.Errorf("ended with %+v, want tool_calls and no Output", end)
	}
}

func TestOutputSchemaThatCannotBeUsedIsRefused(t *testing.T) {
	h := agenttest.NewFixture(t, llmtest.Turns(llmtest.Says("!")), nil)
	for _, raw := range []string{`{"type":5}`, `{"$ref":"https://example.com/"}`, `{"title":"` + strings.Repeat("x", 64<<10) + `"}`} {
		_, err := h.Start(t.Context(), auth.Identity{}, agent.Request{Question: "?", OutputSchema: json.RawMessage(raw)})
		invalid, ok := err.(*agent.InvalidError)
		if !ok || invalid.Pointer != "/output_schema" || !strings.Contains(invalid.Detail, "it ") {
			t.Errorf("%.40s: got %v, want an *InvalidError at /output_schema", raw, err)
		}
	}
}

// Another process continues the run from wherever its process died, with the same outcome.
func TestOutputSchemaSurvivesATakeover(t *testing.T) {
	t.Parallel()
	for name, second := range map[string]string{"met": `{"sum":3}`, "not met": `{"sum":"x"}`} {
		origin := &recordingLog{Log: memory.New(memory.Options{})}
		newProcess := func(log event.Log) *agenttest.Fixture {
			return agenttest.NewFixture(t, answersInTurn(
				llmtest.Calls(llmtest.Call{Name: "echo", Args: `{"text":"x"}`}), llmtest.Says("```json\n{}\n", "```"), llmtest.Says(second)), func(o *agent.Options) { o.Log, o.Durable = log, true })
		}

		first := newProcess(origin)
		run := first.StartRun(t, agent.Request{Question: "1 + 2?", Background: true, OutputSchema: json.RawMessage(sumSchema)})
		whole := first.Events(t, run.ID)

		want, wantSaid := endJSON(t, whole), lastConversation(first)
		operations := origin.recordedOperations()
		for n := range operations {
			if what := operations[max(n-1, 0)].what; n > 0 && what != "step_end" && what != "tool_result" && what != "text_delta" {
				continue
			}
			h := newProcess(origin.diedAfter(t, run, n))
			if got := endJSON(t, h.Events(t, run.ID)); got != want {
				t.Errorf("%s, died after %d operations: ended with %s, want %s", name, n, got, want)
			}
			if got := lastConversation(h); got != "" && got != wantSaid {
				t.Errorf("%s, died after %d operations: the model was told\n%s\nwant\n%s", name, n, got, wantSaid)
			}
		}
	}
}

// endJSON returns the terminal event of a run as JSON, without its number and time, and without
// upstream_model, which the log has of the last step only in the terminal event.
func endJSON(t *testing.T, events []event.Event) string {
	t.Helper()
	e, err := event.Encode("run", 1, 1, events[len(events)-1].Body)
	if err != nil {
		t.Fatal(err)
	}
	return strings.Replace(string(e.JSON), `"upstream_model":"scripted",`, "", 1)
}
