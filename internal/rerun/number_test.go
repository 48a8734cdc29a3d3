package rerun_test

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"answerd/internal/agent"
	"answerd/internal/agent/agenttest"
	"answerd/internal/event"
	"answerd/internal/export"
	"answerd/internal/llm/llmtest"
	"answerd/internal/rerun"
)

// A float has 53 bits, and ids have more: 9007199254740993 and the number before it are the same one.
const (
	largeArgs = `{"a":9007199254740993,"b":0}`
	nextArgs  = `{"a":9007199254740992,"b":0}`
)

// exportLarge returns the export of a run with a call that has largeArgs.
func exportLarge(t *testing.T) *export.Document {
	t.Helper()
	h := agenttest.NewFixture(t, llmtest.Turns(llmtest.Calls(llmtest.Call{Name: "add", Args: largeArgs}), llmtest.Says("Done.")), nil)
	run := h.StartRun(t, agent.Request{})
	h.Events(t, run.ID)
	return exportRun(t, h, run.ID)
}

func TestCallOfAnotherModelMatchesLargeIntegersExactly(t *testing.T) {
	for args, want := range map[string]bool{largeArgs: true, `{"b": 0.0, "a": 9007199254740993}`: true, nextArgs: false} {
		other := newModel(t, llmtest.Turns(llmtest.Calls(llmtest.Call{Name: "add", Args: args}), llmtest.Says("Done.")))
		result, err := rerun.Run(t.Context(), exportLarge(t), rerun.Options{Model: other, ModelID: "other"})
		if err != nil {
			t.Fatal(err)
		}
		matched := false
		for _, e := range result.Events {
			_, ok := e.Body.(event.ToolResult)
			matched = matched || ok
		}
		if matched != want {
			t.Errorf("%s: matched %t, want %t", args, matched, want)
		}
	}
}

func TestAnotherLargeIntegerIsADifference(t *testing.T) {
	doc := exportLarge(t)
	for i, e := range doc.Events {
		if bytes.Contains(e, []byte(`"tool_result"`)) {
			doc.Events[i] = json.RawMessage(strings.ReplaceAll(string(e), largeArgs, nextArgs))
		}
	}

	result, err := rerun.Run(t.Context(), doc, rerun.Options{})
	if err != nil {
		t.Fatal(err)
	}

	var all []string
	for _, d := range result.Differences {
		all = append(all, d.String())
	}

	if text := strings.Join(all, "\n"); !strings.Contains(text, "/metadata/tool_params/0/a: was 9007199254740993, is 9007199254740992") {
		t.Errorf("differences:\n%s\nwant one of the arguments in the final answer", text)
	}
}
