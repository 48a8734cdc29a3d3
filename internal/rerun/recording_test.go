package rerun_test

import (
	"encoding/json"
	"testing"
	"testing/synctest"

	"answerd/internal/agent"
	"answerd/internal/agent/agenttest"
	"answerd/internal/llm/llmtest"
	"answerd/internal/rerun"
)

// A file may have been changed by hand: here the turn of a call has no end, so the result of the call is not one of its
// own events.
func TestRecordingWithoutTheEndOfATurnIsRead(t *testing.T) {
	add := llmtest.Call{Name: "add", Args: `{"a":1,"b":2}`}
	h := agenttest.NewFixture(t, llmtest.Turns(llmtest.Calls(add), llmtest.Says("Three.")), nil)
	run := h.StartRun(t, agent.Request{Budget: agent.Budget{ToolCalls: 1}})
	h.Events(t, run.ID)
	doc := exportRun(t, h, run.ID)

	var kept []json.RawMessage
	for _, raw := range doc.Events {
		var e map[string]any
		if err := json.Unmarshal(raw, &e); err != nil {
			t.Fatal(err)
		}
		if e["type"] == "step_end" {
			continue
		}
		e["seq"] = len(kept) + 1
		changed, err := json.Marshal(e)
		if err != nil {
			t.Fatal(err)
		}
		kept = append(kept, changed)
	}
	doc.Events = kept

	synctest.Test(t, func(t *testing.T) {
		result, err := rerun.Run(t.Context(), doc, rerun.Options{})
		if err != nil || len(result.Differences) == 0 {
			t.Errorf("result = %+v, error %v, want differences", result, err)
		}
	})
}
