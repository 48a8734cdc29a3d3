package agent_test

import (
	"net/http"
	"strings"
	"testing"

	"answerd/internal/agent"
	"answerd/internal/agent/agenttest"
	"answerd/internal/event"
	"answerd/internal/llm/llmtest"
)

// samplingModel calls the tool that samples, answers what the server asks, and then
// the question.
func samplingModel(r llmtest.Request) llmtest.Answer {
	if r.Messages[0].Content == "Be brief." {
		return llmtest.Says("Word.")
	}
	return llmtest.Turns(llmtest.Calls(llmtest.Call{Name: "sample"}), llmtest.Says("Done."))(r)
}

// S0.6: a server's request goes to the run's model, without the conversation, and is
// counted.
func TestServerSamplesFromTheModelOfTheRun(t *testing.T) {
	h := agenttest.NewFixture(t, samplingModel, nil)
	events := h.Events(t, h.StartRun(t, agent.Request{Question: "A secret question?"}).ID)
	results := agenttest.EventsOf[event.ToolResult](events)
	if len(results) != 1 || !strings.Contains(string(results[0].Payload), "Word.") {
		t.Fatalf("results %+v in %s, want 1 with Payload containing Word.", results, agenttest.TypesOf(events))
	}

	var asked llmtest.Request
	for _, r := range h.Model.Requests() {
		if r.Messages[0].Content == "Be brief." {
			asked = r
		}
	}
	if len(asked.Messages) != 2 || asked.Messages[1].Content != "A word?" || len(asked.Tools) != 0 || asked.MaxTokens != 100 || asked.Model != "scripted" {
		t.Errorf(`the model was asked %+v, want 2 Messages, Messages[1].Content "A word?", 0 Tools, MaxTokens 100, Model scripted`, asked)
	}

	said := int64(0)
	for _, s := range agenttest.EventsOf[event.StepEnd](events) {
		said += s.Usage.TotalTokens
	}

	if used := agenttest.TerminalEvent[event.FinalAnswer](t, events).Metadata.Usage.TotalTokens; used <= said {
		t.Errorf("%d tokens in all, %d of them in the steps, want more than %d", used, said, said)
	}
}

// A step takes 15 tokens here, and so does what a server asks for.
func TestServerGetsWhatIsLeftOfTheBudget(t *testing.T) {
	h := agenttest.NewFixture(t, samplingModel, nil)
	events := h.Events(t, h.StartRun(t, agent.Request{Budget: agent.Budget{TotalTokens: 17}}).ID)
	for _, r := range h.Model.Requests() {
		if r.Messages[0].Content == "Be brief." && r.MaxTokens != 2 {
			t.Errorf("%d tokens were allowed, want 2", r.MaxTokens)
		}
	}
	end := agenttest.TerminalEvent[event.FinalAnswer](t, events)
	if end.FinishReason != "budget_exceeded" || end.Metadata.Usage.TotalTokens != 45 {
		t.Errorf("ended with %s after %d tokens, want budget_exceeded and 45", end.FinishReason, end.Metadata.Usage.TotalTokens)
	}
	if b := agenttest.EventsOf[event.Budget](events); len(b) != 2 || b[1].Used != 30 {
		t.Errorf("budget %+v, want 2, Used 30", b)
	}
}

// The provider charges for an answer that breaks off too, and so does the run, by an estimate.
func TestAnswerToAServerThatBreaksOffIsCounted(t *testing.T) {
	h := agenttest.NewFixture(t, func(r llmtest.Request) llmtest.Answer {
		if r.Messages[0].Content == "Be brief." {
			return func(w http.ResponseWriter, _ *http.Request) {
				llmtest.Stream(w, "", map[string]any{"content": "One two "}, map[string]any{"content": "three"})
			}
		}
		return samplingModel(r)
	}, nil)
	used := agenttest.TerminalEvent[event.FinalAnswer](t, h.Events(t, h.StartRun(t, agent.Request{}).ID)).Metadata.Usage
	if used.OutputTokens != 2*5+3 || used.InputTokens <= 2*10 {
		t.Errorf("%+v is used, want 13 output tokens, 3 of them of the server's request, and more than 20 input tokens", used)
	}
}
