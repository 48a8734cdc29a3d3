// Package clients has the clients of npm that people use ask a whole service, over real
// HTTP. It has tests only; run.sh installs what they need, and they are skipped without.
package clients

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"net"
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
	"answerd/internal/mcp/config"
)

// TestClients runs every *.live.test.js against one service. The text of a question decides what
// the model does; see script.
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
	gates := &gates{all: make(map[string]*gate)}
	fixture := agenttest.NewFixture(t, script(gates), func(o *agent.Options) {
		o.Profiles = map[string]llm.Profile{"scripted": {ID: "scripted", Images: true}}
	}, func(s *config.Server) { s.ApproveTools = []string{"echo"} })
	handler := api.New(api.Options{Agent: fixture.Agent, Log: fixture.Log})
	web := httptest.NewUnstartedServer(handler)
	web.Config.ConnState = func(conn net.Conn, state http.ConnState) {
		_, port, _ := net.SplitHostPort(conn.RemoteAddr().String())
		switch state {
		case http.StateNew:
			gates.forget(port) // ports come again
		case http.StateClosed:
			close(gates.of(port).open)
		}
	}
	web.Start()
	// The tests say when a slow answer goes on, and ask whether it has begun, and whether
	// the service is done with a connection that was cut.
	control := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		g := gates.of(r.URL.Query().Get("question"))
		wait := g.begun
		switch r.URL.Path {
		case "/begun":
		case "/closed":
			wait = gates.of(r.URL.Query().Get("port")).open
		default:
			close(g.open)
			return
		}
		select {
		case <-wait:
		case <-r.Context().Done():
		}
	}))
	t.Cleanup(func() {
		control.Close()
		over, stop := context.WithCancel(context.Background())
		stop()
		fixture.Drain(over)
		handler.Close(over)
		web.Close()
	})
	files, err := filepath.Glob(cmp.Or(os.Getenv("CLIENTS"), "*") + ".live.test.js")
	if err != nil || len(files) == 0 {
		t.Fatalf("no tests %v, %d files, want files non-zero, no error", err, len(files))
	}
	ctx, stop := context.WithTimeout(t.Context(), 4*time.Minute)
	defer stop()
	cmd := exec.CommandContext(ctx, node, append([]string{"--test", "--test-reporter=tap"}, files...)...)
	cmd.Env = append(os.Environ(), "ANSWERD_URL="+web.URL, "CONTROL_URL="+control.URL)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("error %v\n%s, want no error", err, out)
	}
	ran := make(map[string]bool)
	for line := range strings.SplitSeq(string(out), "\n") {
		if strings.HasPrefix(line, "# tests") || strings.HasPrefix(line, "# skipped") {
			t.Log(line)
		}
		if what, ok := strings.CutPrefix(strings.TrimSpace(line), "# ran: "); ok {
			ran[what] = true
		}
	}
	t.Log(table(t, ran))
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
		"twice":    {llmtest.Calls(llmtest.Call{Name: "echo", Args: `{"text":"one"}`}, llmtest.Call{ID: "call_2", Name: "echo", Args: `{"text":"two"}`}), llmtest.Says("Well.")},
		"client":   {llmtest.Calls(llmtest.Call{Name: "colour", Args: `{"of":"sky"}`}), llmtest.Says("It is blue.")},
		"both":     {llmtest.Calls(add, llmtest.Call{ID: "call_2", Name: "colour", Args: `{}`}), llmtest.Says("Both.")},
		"two":      {llmtest.Calls(llmtest.Call{Name: "echo", Args: `{"text":"now"}`}, llmtest.Call{ID: "call_2", Name: "ask", Args: `{}`}), llmtest.Says("Both.")},
		"three":    {llmtest.Calls(llmtest.Call{Name: "echo", Args: `{"text":"now"}`}, llmtest.Call{ID: "call_2", Name: "colour", Args: `{}`}), llmtest.Says("All.")},
		"stuck":    {llmtest.Calls(llmtest.Call{Name: "wait", Args: `{}`}), llmtest.Says("Never.")},
		"steps":    {llmtest.Calls(llmtest.Call{Name: "steps", Args: `{}`}), llmtest.Says("Stepped.")},
		"form":     {llmtest.Calls(llmtest.Call{Name: "ask", Args: `{}`}), llmtest.Says("Well.")},
		"length":   {lengthy},
		"broken":   {llmtest.Fails(http.StatusBadRequest, "no")},
		"late":     {llmtest.Calls(add), llmtest.Fails(http.StatusBadRequest, "no")},
	}
	return func(r llmtest.Request) llmtest.Answer {
		before, about, turn := "", "", 0
		for _, m := range r.Messages {
			switch {
			case m.Role == "user":
				before, about, turn = about, m.Content, 0
			case m.Role == "assistant" && len(m.ToolCalls) > 0:
				turn++
			}
		}
		if about == "recall" {
			return llmtest.Says("You asked: " + before)
		}
		if strings.HasPrefix(about, "slow ") {
			return slow(gates.of(about))
		}
		held, isHeld := strings.CutPrefix(about, "held ")
		if isHeld {
			held, _, _ = strings.Cut(held, " ")
		}
		halting, isHalting := strings.CutPrefix(about, "halting ")
		if isHalting {
			held, _, _ = strings.Cut(halting, " ")
		}
		answers, ok := scenarios[cmp.Or(held, about)]
		switch last := len(answers) - 1; {
		case !ok:
			return llmtest.Says("You said: " + about)
		case isHalting:
			return hold(gates.of(fmt.Sprint(about, " ", turn)), answers[min(turn, last)])
		case isHeld && turn >= last:
			return hold(gates.of(about), answers[last])
		default:
			return answers[min(turn, last)]
		}
	}
}

// lengthy is cut off by the model's own limit.
func lengthy(w http.ResponseWriter, _ *http.Request) {
	llmtest.Stream(w, "length", map[string]any{"content": "So far"})
}

// hold answers once the gate is open.
func hold(g *gate, answer llmtest.Answer) llmtest.Answer {
	return func(w http.ResponseWriter, r *http.Request) {
		select {
		case <-g.open:
			answer(w, r)
		case <-r.Context().Done():
		}
	}
}

// slow says something, and the rest once the gate is open.
func slow(g *gate) llmtest.Answer {
	return func(w http.ResponseWriter, r *http.Request) {
		g.begin.Do(func() { close(g.begun) })
		llmtest.Stream(w, "", map[string]any{"content": "Wait"})
		select {
		case <-g.open:
			_, _ = io.WriteString(w, `data: {"choices":[{"delta":{"content":" for it."},"finish_reason":"stop"}]}`+"\n\n")
		case <-r.Context().Done():
		}
	}
}

// gate is what a slow answer waits for. It is opened once.
type gate struct {
	begin sync.Once
	begun chan struct{} // closed when the model was asked
	open  chan struct{}
}

// gates are those of slow answers, by the question.
type gates struct {
	mu  sync.Mutex // protects all
	all map[string]*gate
}

func (g *gates) of(question string) *gate {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.all[question] == nil {
		g.all[question] = &gate{begun: make(chan struct{}), open: make(chan struct{})}
	}
	return g.all[question]
}

func (g *gates) forget(name string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.all, name)
}

var add = llmtest.Call{Name: "add", Args: `{"a":1,"b":2}`}
