package agent_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"answerd/internal/agent"
	"answerd/internal/agent/agenttest"
	"answerd/internal/event"
	"answerd/internal/llm/llmtest"
)

// BenchmarkResult runs a question whose one call brings a large result, the endpoint and
// the MCP server included.
func BenchmarkResult(b *testing.B) {
	for _, size := range []int{1 << 10, 100_000, 1_000_000} {
		text, _ := json.Marshal(strings.Repeat("A line of a report that goes on for long.\n", size/42+1)[:size])
		for kind, result := range map[string]string{
			"text":       fmt.Sprintf(`{"content":[{"type":"text","text":%s}]}`, text),
			"structured": fmt.Sprintf(`{"content":[{"type":"text","text":"See there."}],"structuredContent":{"report":%s}}`, text),
		} {
			b.Run(fmt.Sprintf("%s/%d", kind, size), func(b *testing.B) {
				args := ""
				h := agenttest.NewFixture(b, func(r llmtest.Request) llmtest.Answer {
					return func(w http.ResponseWriter, q *http.Request) {
						llmtest.Turns(llmtest.Calls(llmtest.Call{Name: "give", Args: args}), llmtest.Says("Read."))(r)(w, q)
					}
				}, nil)
				args = h.Tools.SetResult("big", result)
				b.ReportAllocs()
				for b.Loop() {
					run := h.StartRun(b, agent.Request{})
					agenttest.TerminalEvent[event.FinalAnswer](b, h.Events(b, run.ID))
				}
			})
		}
	}
}
