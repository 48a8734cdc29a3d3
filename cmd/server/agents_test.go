package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"answerd/internal/llm/llmtest"
)

// agentsOfPage returns the file of docs/tasks/several-agents.md.
func agentsOfPage(t *testing.T) (page, file string) {
	t.Helper()
	text, err := os.ReadFile("../../docs/tasks/several-agents.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range exampleBlock.FindAllStringSubmatch(string(text), -1) {
		if m[2] == "yaml" {
			return string(text), m[3]
		}
	}
	t.Fatal("the page has no agents, want a file")
	return "", ""
}

// The examples of docs/tasks/several-agents.md run against a service with the agents of that page.
func TestPageOfSeveralAgentsRuns(t *testing.T) {
	t.Parallel()
	page, file := agentsOfPage(t)
	w := newTestWorld(t, func(r llmtest.Request) llmtest.Answer {
		return llmtest.Says("I was told: " + strings.SplitN(r.Messages[0].Content, ".", 2)[0])
	})
	path := filepath.Join(t.TempDir(), "agents.yaml")
	writeFile(t, path, file)

	s := startAnswerd(t, w.environment("AGENTS_FILE", path))
	ran := 0
	for _, part := range exampleBlock.FindAllStringSubmatch(page, -1) {
		if part[2] != "sh" {
			continue
		}
		ran++
		out, err := runShell(t, strings.ReplaceAll(part[3], "http://127.0.0.1:8080", s.url)).CombinedOutput()
		if err != nil || !strings.Contains(strings.ReplaceAll(string(out), `"}`+"\n\n", ""), "Example") {
			t.Errorf("%s: got %s, %v; want the answer of support", part[3], out, err)
		}
	}
	if ran < 3 {
		t.Errorf("got %d examples, want 3", ran)
	}

	for args, want := range map[string]string{"": "Example Ltd", "research": "from the tools alone"} {
		command := newAskCommand(t.Context(), nil, "ask", "-url", s.url, "-agent", args, "Who are you?")
		if args == "" {
			command = newAskCommand(t.Context(), nil, "ask", "-url", s.url, "Who are you?")
		}
		if out, err := command.CombinedOutput(); err != nil || !strings.Contains(string(out), want) {
			t.Errorf("ask -agent %q: got %s, %v; want %q", args, out, err, want)
		}
	}
}

func TestCheckPrintsWhatEachAgentMayUse(t *testing.T) {
	t.Parallel()
	_, file := agentsOfPage(t)
	w := newTestWorld(t, newTwoCallScript())
	path := filepath.Join(t.TempDir(), "agents.yaml")
	writeFile(t, path, file)
	out := &syncBuffer{}
	_ = run(t.Context(), []string{"check"}, w.environment("AGENTS_FILE", path), out, io.Discard) // the scripted model lists no models
	for _, want := range []string{"support, research, of AGENTS_FILE", "AGENT ", "support (default)", "calculate", "tool_calls 8, seconds 60"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("got\n%s\nwant %q in it", out, want)
		}
	}
}

func TestMistakeInAgentsFileIsNamed(t *testing.T) {
	t.Parallel()
	w := newTestWorld(t, newTwoCallScript())
	path := filepath.Join(t.TempDir(), "agents.yaml")
	for text, want := range map[string]string{
		"agents:\n- id: a\n  servers: [crm]":    "AGENTS_FILE: agent a, line 3: servers: no MCP server is named crm",
		"agents:\n- id: a\n  agents: [a]":       "AGENTS_FILE: agent a, line 3: agents: the agents ask each other in a cycle, a → a",
		"agents:\n- id: a\n  budget: {cost: 1}": "AGENTS_FILE: agent a, line 3: budget.cost needs a price of the agent's model, in MODELS_FILE",
	} {
		writeFile(t, path, text)
		err := run(t.Context(), []string{"check"}, w.environment("AGENTS_FILE", path), io.Discard, io.Discard)
		if err == nil || err.Error() != want || reportError(err, io.Discard) != 2 {
			t.Errorf("%s: got %v, want %s and exit code 2", text, err, want)
		}
	}
}

func TestAgentsFileIsReloaded(t *testing.T) {
	t.Parallel()
	w := newTestWorld(t, func(r llmtest.Request) llmtest.Answer { return llmtest.Says(r.Messages[0].Content) })
	path := filepath.Join(t.TempDir(), "agents.yaml")
	writeFile(t, path, "agents:\n- {id: a, prompt: One.}")
	p := spawnAnswerd(t, append(w.environ(), "AGENTS_FILE="+path))
	url, c := p.url(t), newClient(t)
	askAgent := func() string { return postQuestion(t, c, url, `{"question":"?","agent":"a"}`).Answer }
	if got := askAgent(); got != "One." {
		t.Errorf("got %q, want One.", got)
	}
	writeFile(t, path, "agents:\n- {id: a, prompt: Two.}")
	p.signal(t, syscall.SIGHUP)
	p.waitForLine(t, "AGENTS_FILE read again")
	if got := askAgent(); got != "Two." {
		t.Errorf("after the change: got %q, want Two.", got)
	}
	writeFile(t, path, "agents:\n- {id: A}")
	p.signal(t, syscall.SIGHUP)
	if line := p.waitForLine(t, "AGENTS_FILE refused"); !strings.Contains(line, "agent 1, line 2: id must be") {
		t.Errorf("got %s, want the agent, the line and the mistake", line)
	}
	if got := askAgent(); got != "Two." {
		t.Errorf("after a mistake: got %q, want the agents that were in use", got)
	}
}

// A process is killed while a child run waits for an approval, and again right after the answer. The
// next process continues with the same child: one question, one call of the tool.
func TestKilledProcessContinuesItsChildRun(t *testing.T) {
	t.Parallel()
	w := newTestWorld(t, func(r llmtest.Request) llmtest.Answer {
		last := r.Messages[len(r.Messages)-1]
		switch {
		case last.Role == "tool":
			return llmtest.Says("It is 100.")
		case strings.HasPrefix(r.Messages[0].Content, "Parent"):
			return llmtest.Calls(llmtest.Call{ID: "p", Name: "ask_b", Args: `{"question":"What is 12.5 * 8?"}`})
		}
		return llmtest.Calls(llmtest.Call{ID: "c", Name: "calculate", Args: `{"expression":"12.5 * 8"}`})
	})

	// Start the service with its log on disk.
	dir := t.TempDir()
	path := filepath.Join(dir, "agents.yaml")
	writeFile(t, path, "agents:\n- {id: a, prompt: Parent., agents: [b]}\n- {id: b, prompt: Child., approval: always}")
	env := append(w.environ(), "AGENTS_FILE="+path, "EVENTS_URL=file:"+filepath.Join(dir, "events"))
	c := newClient(t)
	p := spawnAnswerd(t, env)
	url := p.url(t)
	restart := func() {
		t.Helper()
		p.signal(t, syscall.SIGKILL)
		_ = p.wait() // killed; until it is gone, it holds the lock of the directory
		p = spawnAnswerd(t, env)
		url = p.url(t)
	}

	// Start a run whose child waits for an approval.
	started := post(t, c, url+"/answer", `{"question":"?","background":true}`)
	defer started.Body.Close()
	type state struct {
		Run        string `json:"run_id"`
		Status     string
		Answer     string
		Interrupts []struct {
			ID    string
			Tool  string
			Child string `json:"child_run_id"`
		}
	}
	var first state
	if err := json.NewDecoder(started.Body).Decode(&first); err != nil {
		t.Fatal(err)
	}

	await := func(status string) (s state) {
		t.Helper()
		ctx := longContext(t)
		for s.Status != status {
			_, body := getBody(t, c, url+"/runs/"+first.Run)
			if err := json.Unmarshal([]byte(body), &s); err != nil || ctx.Err() != nil || s.Status == "failed" {
				t.Fatalf("got %s, %v; want status %s", body, err, status)
			}
		}
		return s
	}

	// Kill the process. The next one waits for the same approval.
	waits := await("suspended").Interrupts
	restart()
	again := await("suspended").Interrupts
	if len(waits) != 1 || len(again) != 1 || waits[0] != again[0] || waits[0].Tool != "calculate" {
		t.Fatalf("interrupts: got %+v and %+v after the kill, want the one of calculate in both", waits, again)
	}

	// Approve the call, and kill the process again.
	resp := post(t, c, url+"/runs/"+first.Run+"/input", fmt.Sprintf(`{"id":%q,"approved":true}`, waits[0].ID))
	resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		t.Fatalf("the answer: got %d, want 200", resp.StatusCode)
	}
	restart()

	// The run completes, with one question and at most one call.
	if end := await("completed"); end.Answer != "It is 100." {
		t.Errorf("answer: got %q, want It is 100.", end.Answer)
	}
	_, events := getBody(t, c, url+"/runs/"+first.Run+"/events")
	_, inner := getBody(t, c, url+"/runs/"+waits[0].Child+"/events")
	for what, text := range map[string]string{"parent": events, "child": inner} {
		if n := strings.Count(text, "event: approval_required"); n != 1 {
			t.Errorf("%s: got %d questions, want one\n%s", what, n, text)
		}
	}
	if calls := strings.Count(w.lines.String(), `"tool":"calculate"`); calls > 1 {
		t.Errorf("calculate: got %d calls, want one", calls)
	}
}
