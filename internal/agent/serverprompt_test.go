package agent_test

import (
	"errors"
	"testing"

	"answerd/internal/agent"
	"answerd/internal/agent/agenttest"
	"answerd/internal/auth"
	"answerd/internal/event"
	"answerd/internal/event/memory"
	"answerd/internal/llm/llmtest"
	"answerd/internal/mcp/config"
)

func TestPromptOfAServerComesRightBeforeTheQuestion(t *testing.T) {
	h := agenttest.NewFixture(t, llmtest.Turns(llmtest.Says("Hi.")), nil)
	run := h.StartRun(t, agent.Request{
		Question: "In short?", History: []agent.Message{{Role: "user", Content: "Earlier."}},
		Prompt: &agent.ServerPrompt{Server: "default", Name: "greet", Arguments: map[string]string{"who": "Ada"}},
	})
	agenttest.TerminalEvent[event.FinalAnswer](t, h.Events(t, run.ID))
	got := h.Model.Requests()[0].Messages[1:]
	want := []llmtest.Message{
		{Role: "user", Content: "Earlier."}, {Role: "user", Content: "Greet Ada"}, {Role: "assistant", Content: "Hello."}, {Role: "user", Content: "In short?"},
	}
	if len(got) != len(want) {
		t.Fatalf("messages %+v, want %d", got, len(want))
	}

	for i := range want {
		if got[i].Role != want[i].Role || got[i].Content != want[i].Content {
			t.Errorf("message %d is %+v, want Role %q, Content %q", i, got[i], want[i].Role, want[i].Content)
		}
	}
}

func TestRunWithoutItsPromptFailsWithAReason(t *testing.T) {
	h := agenttest.NewFixture(t, llmtest.Turns(llmtest.Says("Hi.")), nil)
	run := h.StartRun(t, agent.Request{Prompt: &agent.ServerPrompt{Server: "default", Name: "none"}})
	if end := agenttest.TerminalEvent[event.RunError](t, h.Events(t, run.ID)); end.Code != "unprocessable" || end.Message == "" {
		t.Errorf("end %+v, want Code unprocessable, Message non-empty", end)
	}
	_, err := h.Start(t.Context(), auth.Identity{}, agent.Request{Question: "?", Prompt: &agent.ServerPrompt{Server: "none", Name: "greet"}})
	if bad, ok := errors.AsType[*agent.InvalidError](err); !ok || bad.Pointer != "/prompt/server" {
		t.Errorf("error %v, want an InvalidError, Pointer /prompt/server", err)
	}
	if len(h.Model.Requests()) != 0 {
		t.Errorf("the model was asked: %d requests, want 0", len(h.Model.Requests()))
	}
}

// The server of a prompt may be down, or may fill in other values, when a parked run continues. The run continues with
// the messages that the model has seen.
func TestPromptOfAParkedRunIsNotRequestedAgain(t *testing.T) {
	origin := familyRecordingLog{&recordingLog{Log: memory.New(memory.Options{})}}
	newFixture := func(log event.Log, configure ...func(*config.Server)) *agenttest.Fixture {
		return agenttest.NewFixture(t, llmtest.Turns(llmtest.Calls(onePlusTwo), llmtest.Says("Done.")), func(o *agent.Options) { o.Log, o.Durable = log, true }, configure...)
	}
	first := newFixture(origin, approveTools("add"))
	run := first.StartRun(t, agent.Request{
		Question: "In short?", Interactive: true, Background: true,
		Prompt: &agent.ServerPrompt{Server: "default", Name: "greet", Arguments: map[string]string{"who": "Ada"}},
	})
	waitUntilSuspended(t, first, run.ID, 1)
	h := newFixture(replayOperations(t, origin.recordedOperations()), func(s *config.Server) { s.URL = "http://127.0.0.1:1/" })
	agenttest.TerminalEvent[event.FinalAnswer](t, h.Events(t, run.ID))
	if asked := h.Model.Requests()[0].Messages[1:]; len(asked) < 3 || asked[0].Content != "Greet Ada" || asked[2].Content != "In short?" {
		t.Errorf("got the messages %+v, want those of the prompt before the question", asked)
	}
}
