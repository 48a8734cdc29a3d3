// Package clients has the clients of npm that people use ask a whole service, over real
// HTTP. It has tests only; run.sh installs what they need, and they are skipped without.
package clients

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"answerd/internal/agent"
	"answerd/internal/agent/agenttest"
	"answerd/internal/api"
	"answerd/internal/llm"
	"answerd/internal/llm/llmtest"
	"answerd/internal/mcp"
)

// TestClients runs every *.live.test.js against one service. What a question is about
// says what the model does; see script.
func TestClients(t *testing.T) {
	wanted, err := os.ReadFile("package-lock.json")
	if err != nil {
		t.Fatal(err)
	}
	if got, _ := os.ReadFile("node_modules/.installed"); !bytes.Equal(got, wanted) {
		t.Skip("the packages are not installed: run.sh does that")
	}
	node, err := exec.LookPath("node")
	if err != nil {
		t.Skip("Node is missing")
	}
	gates := &gates{open: make(map[string]chan struct{})}
	house := agenttest.Build(t, script(gates), func(o *agent.Options) {
		o.Profiles = map[string]llm.Profile{"scripted": {ID: "scripted", Images: true}}
	}, func(s *mcp.ServerConfig) { s.ApproveTools = []string{"echo"} })
	web := httptest.NewServer(api.New(api.Options{Agent: house.Agent, Log: house.Log}))
	// The tests say when a slow answer goes on.
	control := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		close(gates.of(r.URL.Query().Get("question")))
	}))
	t.Cleanup(func() {
		control.Close()
		over, stop := context.WithCancel(context.Background())
		stop()
		house.Drain(over)
		web.Close()
	})
	files, err := filepath.Glob("*.live.test.js")
	if err != nil || len(files) == 0 {
		t.Fatal("no tests", err)
	}
	ctx, stop := context.WithTimeout(t.Context(), 4*time.Minute)
	defer stop()
	cmd := exec.CommandContext(ctx, node, append([]string{"--test", "--test-reporter=tap"}, files...)...)
	cmd.Env = append(os.Environ(), "ANSWERD_URL="+web.URL, "CONTROL_URL="+control.URL)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for line := range strings.SplitSeq(string(out), "\n") {
		if strings.HasPrefix(line, "# tests") || strings.HasPrefix(line, "# skipped") {
			t.Log(line)
		}
	}
}

// script is what the model does, by the user's last message: so any number of runs can
// follow it at the same time.
func script(gates *gates) llmtest.Script {
	scenarios := map[string][]llmtest.Answer{
		"plain":    {llmtest.Says("Hello ", "there.")},
		"tool":     {llmtest.Calls(add), llmtest.Says("It is ", "3.")},
		"parallel": {llmtest.Calls(add, llmtest.Call{ID: "call_2", Name: "add", Args: `{"a":3,"b":4}`}), llmtest.Says("Done.")},
		"failing":  {llmtest.Calls(llmtest.Call{Name: "fail", Args: `{}`}), llmtest.Says("It failed.")},
		"approval": {llmtest.Calls(llmtest.Call{Name: "echo", Args: `{"text":"now"}`}), llmtest.Says("Well.")},
		"client":   {llmtest.Calls(llmtest.Call{Name: "colour", Args: `{"of":"sky"}`}), llmtest.Says("It is blue.")},
		"both":     {llmtest.Calls(add, llmtest.Call{ID: "call_2", Name: "colour", Args: `{}`}), llmtest.Says("Both.")},
		"two":      {llmtest.Calls(llmtest.Call{Name: "echo", Args: `{"text":"now"}`}, llmtest.Call{ID: "call_2", Name: "ask", Args: `{}`}), llmtest.Says("Both.")},
		"three":    {llmtest.Calls(llmtest.Call{Name: "echo", Args: `{"text":"now"}`}, llmtest.Call{ID: "call_2", Name: "colour", Args: `{}`}), llmtest.Says("All.")},
		"stuck":    {llmtest.Calls(llmtest.Call{Name: "wait", Args: `{}`}), llmtest.Says("Never.")},
		"steps":    {llmtest.Calls(llmtest.Call{Name: "steps", Args: `{}`}), llmtest.Says("Stepped.")},
		"form":     {llmtest.Calls(llmtest.Call{Name: "ask", Args: `{}`}), llmtest.Says("Well.")},
		"broken":   {llmtest.Fails(http.StatusBadRequest, "no")},
		"late":     {llmtest.Calls(add), llmtest.Fails(http.StatusBadRequest, "no")},
	}
	return func(r llmtest.Request) llmtest.Answer {
		about, turn := "", 0
		for _, m := range r.Messages {
			switch {
			case m.Role == "user":
				about, turn = m.Content, 0
			case m.Role == "assistant" && len(m.ToolCalls) > 0:
				turn++
			}
		}
		if strings.HasPrefix(about, "slow ") {
			return slow(gates.of(about))
		}
		answers, ok := scenarios[about]
		if !ok {
			return llmtest.Says("You said: " + about)
		}
		return answers[min(turn, len(answers)-1)]
	}
}

// slow says something, and the rest once the gate is open.
func slow(gate <-chan struct{}) llmtest.Answer {
	return func(w http.ResponseWriter, r *http.Request) {
		llmtest.Stream(w, "", map[string]any{"content": "Wait"})
		select {
		case <-gate:
			_, _ = io.WriteString(w, `data: {"choices":[{"delta":{"content":" for it."},"finish_reason":"stop"}]}`+"\n\n")
		case <-r.Context().Done():
		}
	}
}

// gates are what slow answers wait for, by the question: each is opened once.
type gates struct {
	mu   sync.Mutex // protects open
	open map[string]chan struct{}
}

func (g *gates) of(question string) chan struct{} {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.open[question] == nil {
		g.open[question] = make(chan struct{})
	}
	return g.open[question]
}

var add = llmtest.Call{Name: "add", Args: `{"a":1,"b":2}`}
