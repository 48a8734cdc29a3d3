package agent_test

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"answerd/internal/agent"
	"answerd/internal/agent/agenttest"
	"answerd/internal/auth"
	"answerd/internal/llm/llmtest"
)

// logBuffer is a log of JSON lines that can be read.
type logBuffer struct {
	mu sync.Mutex // protects b
	b  bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

// callLines returns the lines about tool calls.
func (l *logBuffer) callLines(t *testing.T) (lines []map[string]any) {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	for text := range strings.Lines(l.b.String()) {
		var line map[string]any
		if err := json.Unmarshal([]byte(text), &line); err != nil {
			t.Fatal(err)
		}
		if line["msg"] == "tool call" {
			lines = append(lines, line)
		}
	}
	return lines
}

// Every call has one log line, however it ended: who called, on whose behalf, which tool and
// definition, which rule allowed it, and the outcome. The line does not have the arguments.
func TestAuditLogHasOneLinePerCall(t *testing.T) {
	log := &logBuffer{}
	h := newAddFixture(t, func(o *agent.Options) { o.Logger = slog.New(slog.NewJSONHandler(log, nil)) },
		onePlusTwo, llmtest.Call{Name: "add", Args: `{"a":5,"b":5}`}, llmtest.Call{Name: "add", Args: `{"a":6,"b":6}`},
		llmtest.Call{Name: "echo", Args: `{"text":"top secret"}`}, llmtest.Call{Name: "fail"}, llmtest.Call{Name: "made_up"}, llmtest.Call{Name: "echo", Args: `[`},
		llmtest.Call{Name: "add", Args: `{"a":"top secret","b":1}`})

	// Approve the first call, deny the second one, and approve the third one with other arguments.
	ada := auth.Identity{Issuer: "https://iam", Subject: "ada"}
	r, err := h.Start(t.Context(), ada, agent.Request{Question: "?", Interactive: true})
	if err != nil {
		t.Fatal(err)
	}
	for n, in := range []agent.Input{{Approved: new(true)}, {Approved: new(false), Reason: "private words"}, {Approved: new(true), Args: rawJSON(`{"a":7,"b":8}`)}} {
		waits := waitUntilSuspended(t, h, r.ID, n+1)
		for _, i := range waits {
			if want := []string{`{"a":1,"b":2}`, `{"a":5,"b":5}`, `{"a":6,"b":6}`}[n]; string(i.Args) == want {
				in.ID = i.ID
			}
		}
		if err := h.Answer(t.Context(), ada, r.ID, in); err != nil {
			t.Fatal(err)
		}
	}

	// Make two calls without a run: one is approved by its caller.
	h.Events(t, r.ID)
	if _, err := h.CallTool(t.Context(), ada, agent.ToolCall{Tool: "add", Args: rawJSON(onePlusTwo.Args), Approved: true}); err != nil {
		t.Fatal(err)
	}
	if _, err := h.CallTool(t.Context(), ada, agent.ToolCall{Tool: "add", Args: rawJSON(onePlusTwo.Args)}); err == nil {
		t.Fatal("CallTool(add) = no error, want a refusal")
	}

	got := make(map[string]int)
	for _, l := range log.callLines(t) {
		stringField := func(name string) string { s, _ := l[name].(string); return s }
		if stringField("subject") != "ada" || stringField("issuer") != "https://iam" || stringField("call_id") == "" || len(stringField("args_sha256")) != 64 || l["duration_ms"] == nil {
			t.Errorf(`audit line %v, want subject ada, issuer https://iam, a call_id, a SHA-256 and a duration_ms`, l)
		}
		byModel, isUnknown := stringField("actor") == "model", stringField("tool") == "made_up"
		if inRun := stringField("run_id") == r.ID; inRun != byModel {
			t.Errorf("audit line %v, want the run_id in each line of the model, and in no other one", l)
		}
		if hasVersion := stringField("tool_version") != ""; hasVersion == isUnknown {
			t.Errorf("audit line %v, want a tool_version unless the tool is unknown", l)
		}
		if !isUnknown && stringField("server") != "default" {
			t.Errorf("audit line %v, want the server default", l)
		}
		if l["args"] != nil {
			t.Errorf(`arguments are in %v, want ["args"] nil`, l)
		}
		edited := ""
		if l["args_edited"] == true {
			edited = "edited"
		}
		got[strings.Join([]string{stringField("actor"), stringField("tool"), stringField("decision"), stringField("decided_by"), stringField("reason"), stringField("outcome"), edited}, " ")]++
	}
	for _, want := range []string{
		"model add approved ada  ok ", "model add denied ada refused denied ", "model add approved ada  ok edited",
		"model echo allowed   ok ", "model fail allowed   execution ",
		"model made_up denied  unknown_tool unknown_tool ", "model echo denied  invalid_arguments invalid_arguments ",
		"model add denied  invalid_arguments invalid_arguments ", "caller add approved ada  ok ", "caller add denied  not approved by its caller denied ",
	} {
		if got[want] != 1 {
			t.Errorf("%d lines of %q", got[want], want)
		}
		delete(got, want)
	}
	if len(got) != 0 {
		t.Errorf("more lines: %v, want 0", got)
	}

	// Neither arguments nor a person's reason are in the log.
	for _, secret := range []string{"top secret", "private words", `"a":7`} {
		if strings.Contains(log.b.String(), secret) {
			t.Errorf("log %s, want it without %q", log.b.String(), secret)
		}
	}
}

func TestArgumentsAreLoggedWhereTheOperatorWantsThem(t *testing.T) {
	log := &logBuffer{}
	h := agenttest.NewFixture(t, llmtest.Turns(llmtest.Calls(onePlusTwo), llmtest.Says("Done.")), func(o *agent.Options) {
		o.Logger, o.AuditArguments = slog.New(slog.NewJSONHandler(log, nil)), true
	})
	h.Events(t, h.StartRun(t, agent.Request{}).ID)
	if l := log.callLines(t); len(l) != 1 || l[0]["args"] != onePlusTwo.Args {
		t.Errorf(`calls %v, want 1 with ["args"] %q`, l, onePlusTwo.Args)
	}
}

// A call that waits for a person while its run is parked has not ended, so it has no line yet.
func TestAuditLogHasOneLineForACallOfAParkedRun(t *testing.T) {
	t.Parallel()
	log := &logBuffer{}
	h := newAddFixture(t, func(o *agent.Options) {
		withDurableLog(newMemoryLog())(o)
		o.InputTimeout = 50 * time.Millisecond
		o.Logger = slog.New(slog.NewJSONHandler(log, nil))
	}, onePlusTwo)
	h.Events(t, h.StartRun(t, agent.Request{Interactive: true}).ID)
	lines := log.callLines(t)
	if len(lines) != 1 || lines[0]["outcome"] != "denied" {
		t.Errorf("audit lines %v, want 1 with the outcome denied", lines)
	}
}

// Go's JSON encoder escapes <, > and & by default. Those of clients do not.
func TestArgumentsThatAreSentBackAreNotEdited(t *testing.T) {
	log := &logBuffer{}
	call := llmtest.Call{Name: "echo", Args: `{"text":"<a> & b"}`}
	h := agenttest.NewFixture(t, llmtest.Turns(llmtest.Calls(call), llmtest.Says("Done.")), func(o *agent.Options) {
		o.Logger = slog.New(slog.NewJSONHandler(log, nil))
	}, approveTools("echo"))
	run := h.StartRun(t, agent.Request{Interactive: true}).ID
	asked := waitUntilSuspended(t, h, run, 1)[0]
	answerInterrupt(t, h, run, agent.Input{ID: asked.ID, Approved: new(true), Args: rawJSON(call.Args)})
	h.Events(t, run)
	lines := log.callLines(t)
	if len(lines) != 1 || lines[0]["decision"] != "approved" || lines[0]["args_edited"] != nil {
		t.Errorf("audit lines %v, want 1 with the decision approved and without args_edited", lines)
	}
}
