package api_test

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
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

// TestClients lets the clients of npm that people use ask one service over HTTP: every
// clients/*.live.test.js. clients/run.sh installs what they need; the test is skipped without.
// The text of a question decides what the model does: see answerByQuestion.
func TestClients(t *testing.T) {
	wanted, err := os.ReadFile("clients/package-lock.json")
	if err != nil {
		t.Fatal(err)
	}
	if got, _ := os.ReadFile("clients/node_modules/.installed"); !bytes.Equal(got, wanted) {
		t.Skip("the packages are not installed: clients/run.sh does that")
	}
	node, err := exec.LookPath("node")
	if err != nil {
		t.Skip("Node is missing")
	}
	gates := &gates{all: make(map[string]*gate)}
	fixture := agenttest.NewFixture(t, answerByQuestion(gates), func(o *agent.Options) {
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
			close(gates.get(port).open)
		}
	}
	web.Start()
	// The tests say when a slow answer continues, and ask whether it has begun, and whether
	// the service is done with a connection that was cut.
	control := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		g := gates.get(r.URL.Query().Get("question"))
		wait := g.begun
		switch r.URL.Path {
		case "/begun":
		case "/closed":
			wait = gates.get(r.URL.Query().Get("port")).open
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
	files, err := filepath.Glob("clients/" + cmp.Or(os.Getenv("CLIENTS"), "*") + ".live.test.js")
	if err != nil || len(files) == 0 {
		t.Fatalf("found %d files of tests, error %v, want some and no error", len(files), err)
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
	t.Log(clientTable(t, ran))
}

// answerByQuestion returns a model that answers by the user's last message, so that runs at the same
// time do not disturb each other. After "held ", the last answer waits for its gate; after "halting ",
// each answer waits for its own.
func answerByQuestion(gates *gates) llmtest.Script {
	addition := llmtest.Call{Name: "add", Args: `{"a":1,"b":2}`}
	answersOf := map[string][]llmtest.Answer{
		"plain":    {llmtest.Says("Hello ", "there.")},
		"tool":     {llmtest.Calls(addition), llmtest.Says("It is ", "3.")},
		"parallel": {llmtest.Calls(addition, llmtest.Call{ID: "call_2", Name: "add", Args: `{"a":3,"b":4}`}), llmtest.Says("Done.")},
		"failing":  {llmtest.Calls(llmtest.Call{Name: "fail", Args: `{}`}), llmtest.Says("It failed.")},
		"approval": {llmtest.Calls(llmtest.Call{Name: "echo", Args: `{"text":"now"}`}), llmtest.Says("Well.")},
		"twice":    {llmtest.Calls(llmtest.Call{Name: "echo", Args: `{"text":"one"}`}, llmtest.Call{ID: "call_2", Name: "echo", Args: `{"text":"two"}`}), llmtest.Says("Well.")},
		"client":   {llmtest.Calls(llmtest.Call{Name: "colour", Args: `{"of":"sky"}`}), llmtest.Says("It is blue.")},
		"both":     {llmtest.Calls(addition, llmtest.Call{ID: "call_2", Name: "colour", Args: `{}`}), llmtest.Says("Both.")},
		"two":      {llmtest.Calls(llmtest.Call{Name: "echo", Args: `{"text":"now"}`}, llmtest.Call{ID: "call_2", Name: "ask", Args: `{}`}), llmtest.Says("Both.")},
		"three":    {llmtest.Calls(llmtest.Call{Name: "echo", Args: `{"text":"now"}`}, llmtest.Call{ID: "call_2", Name: "colour", Args: `{}`}), llmtest.Says("All.")},
		"stuck":    {llmtest.Calls(llmtest.Call{Name: "wait", Args: `{}`}), llmtest.Says("Never.")},
		"steps":    {llmtest.Calls(llmtest.Call{Name: "steps", Args: `{}`}), llmtest.Says("Stepped.")},
		"form":     {llmtest.Calls(llmtest.Call{Name: "ask", Args: `{}`}), llmtest.Says("Well.")},
		"length":   {cutOffAnswer},
		"broken":   {llmtest.Fails(http.StatusBadRequest, "no")},
		"late":     {llmtest.Calls(addition), llmtest.Fails(http.StatusBadRequest, "no")},
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
			return answerInTwoParts(gates.get(about))
		}
		held, isHeld := strings.CutPrefix(about, "held ")
		if isHeld {
			held, _, _ = strings.Cut(held, " ")
		}
		halting, isHalting := strings.CutPrefix(about, "halting ")
		if isHalting {
			held, _, _ = strings.Cut(halting, " ")
		}
		answers, ok := answersOf[cmp.Or(held, about)]
		switch last := len(answers) - 1; {
		case !ok:
			return llmtest.Says("You said: " + about)
		case isHalting:
			return answerOnceOpen(gates.get(fmt.Sprint(about, " ", turn)), answers[min(turn, last)])
		case isHeld && turn >= last:
			return answerOnceOpen(gates.get(about), answers[last])
		default:
			return answers[min(turn, last)]
		}
	}
}

// cutOffAnswer answers with a text that the model's own limit cuts off.
func cutOffAnswer(w http.ResponseWriter, _ *http.Request) {
	llmtest.Stream(w, "length", map[string]any{"content": "So far"})
}

// answerOnceOpen gives the answer once the gate is open.
func answerOnceOpen(g *gate, answer llmtest.Answer) llmtest.Answer {
	return func(w http.ResponseWriter, r *http.Request) {
		select {
		case <-g.open:
			answer(w, r)
		case <-r.Context().Done():
		}
	}
}

// answerInTwoParts streams the beginning of an answer, and the rest once the gate is open.
func answerInTwoParts(g *gate) llmtest.Answer {
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

// gate is what an answer waits for. It is opened once.
type gate struct {
	begin sync.Once
	begun chan struct{} // closed when the model was asked
	open  chan struct{}
}

// gates holds the gates by their name: a question, or the port of a connection.
type gates struct {
	mu  sync.Mutex // protects all
	all map[string]*gate
}

func (g *gates) get(question string) *gate {
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

// clientScenarios lists what can happen in a run, and npmClients what people use. Each pair is tried.
var (
	clientScenarios = []string{"plain", "tool", "parallel tools", "failing tool", "approval yes", "approval no", "elicitation", "client tool", "model failure", "cancel", "truncated", "cut", "resume", "thread"}
	npmClients      = []string{
		"openai chat", "openai responses", "ai-sdk openai chat", "ai-sdk openai responses", "ai-sdk openai-compatible", "ai-sdk open-responses",
		"ai 5", "ai 6", "ai 7", "ag-ui 0.0.59", "ag-ui 1.0.0", "eventsource", "eventsource-client", "fetch-event-source",
	}
)

const (
	noApprovals       = "the format cannot ask: declined"
	noResume          = "the format cannot continue a stream"
	wholeConversation = "the client sends the whole conversation itself"
	noCallerTools     = "the native format has no tools of the caller"
	cutMark           = ", cut" // after the name of a scenario that ran with cuts
)

// missingFromClient has the reason why a client does not go through a scenario.
var missingFromClient = map[string]map[string]string{
	"openai chat":              {"approval yes": noApprovals, "resume": noResume},
	"openai responses":         {},
	"ai-sdk openai chat":       {"approval yes": noApprovals, "resume": noResume, "thread": wholeConversation},
	"ai-sdk openai responses":  {"resume": noResume, "thread": wholeConversation},
	"ai-sdk openai-compatible": {"approval yes": noApprovals, "resume": noResume, "thread": wholeConversation},
	"ai-sdk open-responses":    {"approval yes": "the client passes over mcp items", "approval no": "the client passes over mcp items", "resume": noResume, "thread": wholeConversation},
	"ai 5":                     {"approval yes": "version 5 has no approvals: declined"},
	"eventsource":              {"client tool": noCallerTools},
	"eventsource-client":       {"client tool": noCallerTools},
	"fetch-event-source":       {"client tool": noCallerTools},
}

// uncut lists the scenarios that are not also tried with streams that are cut in the middle: they are
// about a cut themselves, or about what the model gets.
var uncut = []string{"cut", "resume", "thread"}

// clientTable returns a table of which scenarios ran with which clients: "ran" without a cut only, "cut"
// also with streams cut in the middle. It reports a pair that did not run although the client has the
// scenario, and one that did not run with a cut although the format can continue a stream.
func clientTable(t *testing.T, ran map[string]bool) string {
	t.Helper()
	var b strings.Builder
	line := func(first string, cells []string) {
		fmt.Fprintf(&b, "\n%-26s", first)
		for i, cell := range cells {
			fmt.Fprintf(&b, " %-*s", len(clientScenarios[i]), cell)
		}
	}
	line("", clientScenarios)
	reasons := make(map[string]bool)
	for _, client := range npmClients {
		var cells []string
		for _, scenario := range clientScenarios {
			why := missingFromClient[client][scenario]
			switch {
			case ran[client+" | "+scenario] && ran[client+" | "+scenario+cutMark]:
				cells = append(cells, "cut")
			case ran[client+" | "+scenario]:
				cells = append(cells, "ran")
				if missingFromClient[client]["resume"] == "" && !slices.Contains(uncut, scenario) {
					t.Errorf("%s: got no run of %s with a cut, want one, or the scenario among those without: %q", client, scenario, uncut)
				}
			case why != "":
				cells = append(cells, "-")
				reasons[fmt.Sprintf("%s, %s: %s", client, scenario, why)] = true
			default:
				cells = append(cells, "MISSING")
				t.Errorf("%s: got no run of %s, want one, or a reason in missingFromClient", client, scenario)
			}
		}
		line(client, cells)
	}
	for what := range ran {
		client, scenario, _ := strings.Cut(what, " | ")
		if !slices.Contains(npmClients, client) || !slices.Contains(clientScenarios, strings.TrimSuffix(scenario, cutMark)) {
			t.Errorf("got a run of %s, want one of the clients %q and scenarios %q", what, npmClients, clientScenarios)
		}
	}
	return b.String() + "\n\n- not in this client or format:\n" + strings.Join(slices.Sorted(maps.Keys(reasons)), "\n")
}
