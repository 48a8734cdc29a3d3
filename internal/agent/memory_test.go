package agent_test

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"answerd/internal/agent"
	"answerd/internal/agent/admission"
	"answerd/internal/agent/agenttest"
	"answerd/internal/auth"
	"answerd/internal/event"
	"answerd/internal/llm/llmtest"
)

// withMemory lets runs hold that many MiB together.
func withMemory(mib int64) func(*agent.Options) {
	return func(o *agent.Options) { o.Memory = admission.NewMemory(mib << 20) }
}

// textResult returns a result with a text of that many MiB.
func textResult(mib int) string {
	return `{"content":[{"type":"text","text":"` + strings.Repeat("0123456789abcdef", mib<<16) + `"}]}`
}

// requireOverloaded checks that a run ended because it needed more memory than was left.
func requireOverloaded(t *testing.T, h *agenttest.Fixture, run event.Run) {
	t.Helper()
	end := agenttest.TerminalEvent[event.RunError](t, h.Events(t, run.ID))
	if end.Code != "overloaded" || !end.Retryable || end.RetryAfter != 2 {
		t.Errorf("the run ended with %+v, want overloaded, retryable after 2 s", end)
	}
}

func TestMemoryEndsARunWhoseResultDoesNotFit(t *testing.T) {
	t.Parallel()
	h := agenttest.NewFixture(t, giveModel, withMemory(4))
	h.Tools.SetResult("it", textResult(2))
	requireOverloaded(t, h, h.StartRun(t, agent.Request{}))
	h.Tools.SetResult("it", `{"content":[]}`) // its memory is free again
	agenttest.TerminalEvent[event.FinalAnswer](t, h.Events(t, h.StartRun(t, agent.Request{}).ID))
}

func TestMemoryEndsARunWhoseTextDoesNotFit(t *testing.T) {
	t.Parallel()
	var deltas []string
	for n := range 4096 { // 2 MiB in all
		deltas = append(deltas, fmt.Sprintf("%-512d", n))
	}
	h := agenttest.NewFixture(t, llmtest.Turns(llmtest.Says(deltas...)), withMemory(4))
	requireOverloaded(t, h, h.StartRun(t, agent.Request{}))
}

func TestMemoryRefusesARunWhoseQuestionDoesNotFit(t *testing.T) {
	open := make(chan struct{})
	h := agenttest.NewFixture(t, func(llmtest.Request) llmtest.Answer {
		return func(w http.ResponseWriter, r *http.Request) {
			<-open
			llmtest.Says("Done.")(w, r)
		}
	}, withMemory(8))
	first := h.StartRun(t, agent.Request{})
	_, err := h.Start(t.Context(), auth.Identity{}, agent.Request{Question: strings.Repeat("why ", 1<<19)})
	if !errors.Is(err, agent.ErrMemoryShort) {
		t.Errorf("error %v, want ErrMemoryShort", err)
	}
	close(open)
	agenttest.TerminalEvent[event.FinalAnswer](t, h.Events(t, first.ID))
}

// The conversation has only the beginning of a large result.
func TestMemoryCountsAWholeResultUntilItsTurnEnds(t *testing.T) {
	t.Parallel()
	give := llmtest.Calls(llmtest.Call{Name: "give", Args: `{"name":"it"}`})
	h := agenttest.NewFixture(t, llmtest.Turns(give, give, give, llmtest.Says("Done.")), withMemory(11))
	h.Tools.SetResult("it", textResult(2))
	agenttest.TerminalEvent[event.FinalAnswer](t, h.Events(t, h.StartRun(t, agent.Request{}).ID))
}
