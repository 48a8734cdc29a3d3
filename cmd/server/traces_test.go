package main

import (
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"answerd/internal/telemetry/otlptest"
)

// traceReceiver is an OTLP/HTTP collector.
type traceReceiver struct {
	url string

	mu      sync.Mutex // guards the fields below
	spans   []otlptest.Span
	headers http.Header
}

func newTraceReceiver(t *testing.T) *traceReceiver {
	r := &traceReceiver{}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		b, err := io.ReadAll(req.Body)
		var spans []otlptest.Span
		if err == nil {
			spans, err = otlptest.Decode(b)
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		r.headers = req.Header
		r.spans = append(r.spans, spans...)
	}))
	t.Cleanup(server.Close)
	r.url = server.URL
	return r
}

// spanTree counts the spans of one trace, by "parent > child".
func (r *traceReceiver) spanTree(traceID string) map[string]int {
	r.mu.Lock()
	defer r.mu.Unlock()
	names := make(map[string]string)
	for _, s := range r.spans {
		names[s.SpanID] = s.Name
	}
	out := make(map[string]int)
	for _, s := range r.spans {
		if s.TraceID == traceID {
			parent, ok := names[s.ParentID]
			if !ok {
				parent = "?"
			}
			out[parent+" > "+s.Name]++
		}
	}
	return out
}

func (r *traceReceiver) attributes(name string) map[string]string {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := make(map[string]string)
	for _, s := range r.spans {
		if s.Name == name {
			maps.Copy(out, s.Attributes)
		}
	}
	return out
}

// S2.10: the spans of a run hang together under its request and continue the
// caller's trace; the model and the MCP server get it on.
func TestTraceSpansFromTheCallerToTheTools(t *testing.T) {
	const (
		traceID = "4bf92f3577b34da6a3ce929d0e0e4736"
		caller  = "00-" + traceID + "-00f067aa0ba902b7-01"
	)
	w, otlp := newTestWorld(t, newTwoCallScript()), newTraceReceiver(t)
	s := startAnswerd(t, w.environment("ENABLE_TRACING", "true", "OCI_APM_TRACES_URL", otlp.url+"/apm", "OCI_APM_DATA_KEY", "canary-data-key"))
	a := postQuestion(t, newClient(t), s.url, e2eQuestion, "Traceparent", caller)
	s.stop()
	if err := <-s.done; err != nil { // the last spans are sent at the end
		t.Fatal(err)
	}
	if a.TraceID != traceID {
		t.Errorf("the answer has trace %s, want %s", a.TraceID, traceID)
	}

	tree := otlp.spanTree(traceID)
	for branch, n := range map[string]int{
		"? > POST /answer":                 1,
		"POST /answer > tool_calling_loop": 1,
		"tool_calling_loop > llm_invoke":   2,
		"tool_calling_loop > tool_call":    2,
		"llm_invoke > POST":                2, // the HTTP request to the model
		"tool_call > POST":                 2, // and to the MCP server
	} {
		if tree[branch] != n {
			t.Errorf("got %d of %q, want %d in %v", tree[branch], branch, n, tree)
		}
	}

	for span, wanted := range map[string][]string{
		"llm_invoke": {"model", "gen_ai.operation.name", "gen_ai.request.model", "gen_ai.usage.input_tokens"},
		"tool_call":  {"tool", "gen_ai.tool.name", "gen_ai.tool.call.id", "mcp.method.name"},
	} {
		got := otlp.attributes(span)
		for _, key := range wanted {
			if got[key] == "" {
				t.Errorf("%s has no %s: %v, want [key] non-empty", span, key, got)
			}
		}
	}

	for i, r := range w.model.Requests() {
		if want := "00-" + traceID + "-"; !strings.HasPrefix(r.Header.Get("Traceparent"), want) {
			t.Errorf("model request %d has traceparent %q, want it to start with %q", i, r.Header.Get("Traceparent"), want)
		}
	}

	if got := otlp.headers.Get("Authorization"); got != "dataKey canary-data-key" {
		t.Errorf(`the collector got authorization %q, want "dataKey canary-data-key"`, got)
	}
	if strings.Contains(s.log.String(), "canary") {
		t.Errorf("log %q, want it without the data key", s.log.String())
	}
}

func TestTracingWithoutAnEndpointIsAStartUpError(t *testing.T) {
	t.Parallel()
	w := newTestWorld(t, newTwoCallScript())
	err := run(t.Context(), nil, w.environment("ENABLE_TRACING", "true"), io.Discard, io.Discard)
	if reportError(err, io.Discard) != 2 || !strings.HasPrefix(err.Error(), "ENABLE_TRACING: ") {
		t.Errorf("error %v, want exit code 2 for ENABLE_TRACING", err)
	}
}

func TestTraceIDIsInAnswersWithoutTracing(t *testing.T) {
	t.Parallel()
	w := newTestWorld(t, newTwoCallScript())
	s := startAnswerd(t, w.environment())
	a := postQuestion(t, newClient(t), s.url, e2eQuestion)
	if len(a.TraceID) != 32 || strings.Trim(a.TraceID, "0") == "" {
		t.Errorf("trace id %q, want 32 digits, not all 0", a.TraceID)
	}
	for i, r := range w.model.Requests() {
		if !strings.Contains(r.Header.Get("Traceparent"), a.TraceID) {
			t.Errorf("model request %d has traceparent %q, want it to contain %q", i, r.Header.Get("Traceparent"), a.TraceID)
		}
	}
}
