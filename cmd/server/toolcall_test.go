package main

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"
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
		t.Errorf("%d %s, %v", status, body, err)
	}
	if _, metrics := getBody(t, newClient(t), s.url+"/metrics"); !strings.Contains(metrics, `gen_ai_tool_name="calculate"`) {
		t.Error("the call is not in the metrics")
	}
	s.stop()
	if err := <-s.done; err != nil { // the last spans are sent at the end
		t.Fatal(err)
	}
	tree := otlp.spanTree(traceID)
	for _, branch := range []string{"? > POST /tools/{name}/call", "POST /tools/{name}/call > tool_call", "tool_call > POST"} {
		if tree[branch] != 1 {
			t.Errorf("%d of %q in %v", tree[branch], branch, tree)
		}
	}
}
