package agent_test

import (
	"slices"
	"strings"
	"testing"

	"answerd/internal/agent"
	"answerd/internal/agent/agenttest"
	"answerd/internal/event"
	"answerd/internal/event/memory"
	"answerd/internal/llm/llmtest"
)

// A process may die after the first event of a run and before it has stored what the run's export needs. The process that
// takes the run over stores it, unless a part is stored already: then the export says what is missing.
func TestExportOfARunWhoseProcessDiedAtTheBeginning(t *testing.T) {
	origin := &recordingLog{Log: memory.New(memory.Options{})}
	script := llmtest.Turns(llmtest.Says("Yes."))
	first := agenttest.NewFixture(t, script, withDurableLog(origin))
	history := []agent.Message{{Role: "user", Content: strings.Repeat("x ", 50<<10)}, {Role: "assistant", Content: "Go on."}}
	run := first.StartRun(t, agent.Request{Question: "Is it?", History: history, Background: true})
	agenttest.TerminalEvent[event.FinalAnswer](t, first.Events(t, run.ID))

	operations := origin.recordedOperations()
	pieces := 0
	for _, o := range operations {
		if o.what == "note beginning" {
			pieces++
		}
	}
	if pieces < 2 {
		t.Fatalf("the beginning has %d pieces, want several", pieces)
	}
	stored := 0
	for n := range operations {
		if n > 0 && operations[n-1].what == "note beginning" {
			stored++
		}
		h := agenttest.NewFixture(t, script, withDurableLog(origin.diedAfter(t, run, n)))
		agenttest.TerminalEvent[event.FinalAnswer](t, h.Events(t, run.ID))
		doc, err := h.Export(t.Context(), run.ID)
		if err != nil {
			t.Fatalf("Export after %d of %d pieces = %v, want no error", stored, pieces, err)
		}
		isComplete := stored == 0 || stored == pieces
		if got := !slices.Contains(doc.Missing, "what the run began with"); got != isComplete {
			t.Errorf("after %d operations with %d of %d pieces: the beginning is in the export: %t, want %t", n, stored, pieces, got, isComplete)
		}
	}
}
