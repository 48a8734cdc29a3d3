package main

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"answerd/internal/agent/webhook/webhooktest"
)

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
		t.Errorf("asked %+v", q)
	}
	abort <- `{"abort":true,"reason":"not on a Sunday"}`
	resp := post(t, newClient(t), s.url+"/answer", e2eQuestion)
	var p struct{ Code, Detail string }
	if err := json.NewDecoder(resp.Body).Decode(&p); err != nil || resp.StatusCode != http.StatusUnprocessableEntity ||
		p.Code != "tool_aborted" || p.Detail != "A hook ended the run: not on a Sunday" {
		t.Errorf("%s: %+v, %v", resp.Status, p, err)
	}
	if status, body := callTool(t, newClient(t), s.url, "calculate", `{"expression":"1"}`); status != http.StatusForbidden || !strings.Contains(body, `"kind":"denied"`) {
		t.Errorf("%d %s", status, body)
	}
	_, metrics := getBody(t, newClient(t), s.url+"/metrics")
	if !strings.Contains(metrics, `answerd_hook_duration_seconds_count{hook="pre_tool_call"`) || !strings.Contains(metrics, `reply="abort"`) {
		t.Error("the hooks are not in the metrics")
	}
	s.stop()
	if err := <-s.done; err != nil { // the last spans are sent at the end
		t.Fatal(err)
	}
	tree := otlp.spanTree(traceID)
	if tree["tool_call > hook"] != 4 || tree["hook > POST"] != 4 {
		t.Errorf("spans %v", tree)
	}
	if strings.Contains(s.log.String(), webhooktest.Secret.Reveal()) {
		t.Error("the secret is in the log")
	}
}
