package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"

	"answerd/internal/agent/webhook/webhooktest"
	"answerd/internal/llm/llmtest"
)

// callTool calls a tool over HTTP and reads what comes back.
func callTool(t *testing.T, c *http.Client, url, tool, args string, header ...string) (status int, body string) {
	t.Helper()
	resp := post(t, c, url+"/tools/"+tool+"/call", `{"args":`+args+`}`, header...)
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(b)
}

// The call is a child of its request, and continues the caller's trace.
func TestToolCallWithoutAModelHasATrace(t *testing.T) {
	const traceID = "4bf92f3577b34da6a3ce929d0e0e4736"
	w, otlp := newTestWorld(t, newTwoCallScript()), newTraceReceiver(t)
	s := startAnswerd(t, w.environment("ENABLE_TRACING", "true", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", otlp.url))
	status, body := callTool(t, newClient(t), s.url, "calculate", `{"expression":"12.5 * 8"}`, "Traceparent", "00-"+traceID+"-00f067aa0ba902b7-01")
	var got struct{ Payload struct{ Result float64 } }
	if err := json.Unmarshal([]byte(body), &got); err != nil || status != http.StatusOK || got.Payload.Result != 100 {
		t.Errorf("status %d %s, %v, Payload.Result %v, want 200, 100 and no error", status, body, err, got.Payload.Result)
	}
	if _, metrics := getBody(t, newClient(t), s.url+"/metrics"); !strings.Contains(metrics, `gen_ai_tool_name="calculate"`) {
		t.Errorf(`metrics %s, want gen_ai_tool_name="calculate" in them`, metrics)
	}
	s.stop()
	if err := <-s.done; err != nil { // the last spans are sent at the end
		t.Fatal(err)
	}

	tree := otlp.spanTree(traceID)
	for _, branch := range []string{"? > POST /tools/{name}/call", "POST /tools/{name}/call > tool_call", "tool_call > POST"} {
		if tree[branch] != 1 {
			t.Errorf("%d of %q in %v, want 1", tree[branch], branch, tree)
		}
	}
}

// An answerd that has itself for a tool, and a model that always asks it, come to an end:
// the fourth question does not get through, and each of the others has its answer.
func TestLoopOfAnAgentThatAsksItselfEnds(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex // protects what follows
	asked, refused := 0, false
	model := llmtest.New(t, func(r llmtest.Request) llmtest.Answer {
		last := r.Messages[len(r.Messages)-1]
		mu.Lock()
		defer mu.Unlock()
		if last.Role == "user" {
			asked++
			return llmtest.Calls(llmtest.Call{Name: "answer", Args: fmt.Sprintf(`{"question":"%d?"}`, asked)})
		}
		refused = refused || strings.Contains(last.Content, "passed through 3 agents")
		return llmtest.Says("Well.")
	})

	addr := "127.0.0.1:" + freePort(t)
	p := spawnAnswerd(t, []string{"ADDR=" + addr, "MCP_URL=http://" + addr + "/mcp", "LLM_BASE_URL=" + model.URL, "DEFAULT_MODEL_ID=scripted"})
	p.waitForLine(t, "listening")
	resp := post(t, http.DefaultClient, "http://"+addr+"/servers/default/refresh", "")
	if resp.StatusCode != http.StatusOK {
		t.Fatalf("refresh of its own server: got %s, want 200", resp.Status)
	}
	a := postQuestion(t, http.DefaultClient, "http://"+addr, `{"question":"?"}`)
	mu.Lock()
	defer mu.Unlock()
	if a.Answer != "Well." || asked != 4 || !refused {
		t.Errorf("got %d questions, refused %v and answer %q, want 4, true and Well.", asked, refused, a.Answer)
	}
}

// The service that HOOKS_URL names is asked in the trace of the run, it is counted,
// and it can end a run; what the two share is in no log.
func TestHooksAreCalledInTheTraceOfTheRun(t *testing.T) {
	const traceID = "4bf92f3577b34da6a3ce929d0e0e4736"
	abort := make(chan string, 1)
	hooks := webhooktest.New(t, func(q webhooktest.Question) string {
		if q.RunID == "" { // a question of the run that was ended may still be on its way
			return `{"abort":true}`
		}
		select {
		case reply := <-abort:
			return reply
		default:
			return `{}`
		}
	})

	w, otlp := newTestWorld(t, newTwoCallScript()), newTraceReceiver(t)
	s := startAnswerd(t, w.environment("ENABLE_TRACING", "true", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", otlp.url,
		"HOOKS_URL", hooks.URL, "HOOKS_SECRET", webhooktest.Secret.Reveal(), "LOG_LEVEL", "debug"))
	a := postQuestion(t, newClient(t), s.url, e2eQuestion, "Traceparent", "00-"+traceID+"-00f067aa0ba902b7-01")
	if q := hooks.Questions(); len(q) != 4 || q[0].Hook != "pre_tool_call" || q[3].Hook != "tool_result" || q[3].RunID != a.RunID {
		t.Errorf("asked %+v, want 4, Hook pre_tool_call, Hook tool_result, RunID %q", q, a.RunID)
	}
	abort <- `{"abort":true,"reason":"not on a Sunday"}`
	resp := post(t, newClient(t), s.url+"/answer", e2eQuestion)
	var p struct{ Code, Detail string }
	if err := json.NewDecoder(resp.Body).Decode(&p); err != nil || resp.StatusCode != http.StatusUnprocessableEntity ||
		p.Code != "tool_aborted" || p.Detail != "A hook ended the run: not on a Sunday" {
		t.Errorf(`%s: %+v, %v, want status 422, Code tool_aborted, Detail "A hook ended the run: not on a Sunday", no error`, resp.Status, p, err)
	}
	if status, body := callTool(t, newClient(t), s.url, "calculate", `{"expression":"1"}`); status != http.StatusForbidden || !strings.Contains(body, `"kind":"denied"`) {
		t.Errorf(`status %d %s, want status 403, body containing "kind":"denied"`, status, body)
	}
	_, metrics := getBody(t, newClient(t), s.url+"/metrics")
	if !strings.Contains(metrics, `answerd_hook_duration_seconds_count{hook="pre_tool_call"`) || !strings.Contains(metrics, `reply="abort"`) {
		t.Errorf("metrics %s, want the duration of pre_tool_call and a reply to abort in them", metrics)
	}
	s.stop()
	if err := <-s.done; err != nil { // the last spans are sent at the end
		t.Fatal(err)
	}
	tree := otlp.spanTree(traceID)
	if tree["tool_call > hook"] != 4 || tree["hook > POST"] != 4 {
		t.Errorf(`spans %v, want ["tool_call > hook"] 4, ["hook > POST"] 4`, tree)
	}
	if strings.Contains(s.log.String(), webhooktest.Secret.Reveal()) {
		t.Errorf("log %s, want it without the hook's secret", s.log.String())
	}
}
