package agent_test

import (
	"encoding/json"
	"flag"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"answerd/internal/agent/agenttest"
	"answerd/internal/llm/llmtest"
)

func TestMain(m *testing.M) {
	// The tests that run in parallel wait for real time limits most of the time.
	if err := flag.Set("test.parallel", "6"); err != nil {
		panic(err)
	}
	goleak.VerifyTestMain(m)
}

func joinRaw(raw []json.RawMessage) string {
	var out []string
	for _, r := range raw {
		out = append(out, string(r))
	}
	return strings.Join(out, " ")
}

// gate lets a script wait for the test, and the test for the script.
type gate struct {
	reached chan struct{}
	open    chan struct{}
	once    sync.Once
}

func newGate() *gate { return &gate{reached: make(chan struct{}), open: make(chan struct{})} }

// blockAnswer returns an answer that says something and then nothing until the gate opens or
// the caller is gone.
func (g *gate) blockAnswer(gone chan<- struct{}) llmtest.Answer {
	return func(w http.ResponseWriter, r *http.Request) {
		llmtest.Stream(w, "", map[string]any{"content": "Let me "})
		g.once.Do(func() { close(g.reached) })
		select {
		case <-g.open:
			fmt.Fprint(w, `data: {"choices":[{"delta":{"content":"see."},"finish_reason":"stop"}]}`+"\n\n")
		case <-r.Context().Done():
			if gone != nil {
				gone <- struct{}{}
			}
		}
	}
}

func cancelRun(t *testing.T, h *agenttest.Fixture, run string) {
	t.Helper()
	if err := h.Cancel(t.Context(), run); err != nil {
		t.Fatal(err)
	}
}
