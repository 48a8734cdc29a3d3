package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"answerd/internal/llm/llmtest"
	"answerd/internal/telemetry/otlptest"
)

// maxSeries bounds the lines of /metrics, whatever callers, models and MCP servers send.
const maxSeries = 5000

// metricLabels are all labels of all metrics, with the most values that each may have. A new label
// must be added here: with values of the configuration or of the code.
var metricLabels = map[string]int{
	"agent": 3, "claim": 1002, "model": 3,
	"code": 20, "error_type": 60, "gen_ai_operation_name": 1, "gen_ai_provider_name": 1, "gen_ai_request_model": 3,
	"gen_ai_response_model": 3, "host_name": 1, "gen_ai_token_type": 2, "gen_ai_tool_name": 200, "hook": 3, "le": 60, "mcp_method_name": 1,
	"mcp_server_name": 1, "outcome": 8, "quantile": 5, "reason": 30, "reply": 5, "server_address": 1, "server_port": 1, "service_name": 1, "service_version": 1,
	"state": 10, "telemetry_sdk_language": 1, "telemetry_sdk_name": 1, "telemetry_sdk_version": 1, "version": 1,
}

// readSeries returns the lines of a page of metrics that have a value, and checks their labels.
func readSeries(t *testing.T, page string) (series []string) {
	t.Helper()
	label := regexp.MustCompile(`([a-z_]+)="((?:[^"\\]|\\.)*)"`)
	values := make(map[string][]string)
	for line := range strings.Lines(page) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		series = append(series, line)
		for _, m := range label.FindAllStringSubmatch(line, -1) {
			if !slices.Contains(values[m[1]], m[2]) {
				values[m[1]] = append(values[m[1]], m[2])
			}
		}
	}
	for name, got := range values {
		switch most, known := metricLabels[name]; {
		case !known:
			t.Errorf("the label %s with %.100q is not listed, want it in metricLabels", name, got)
		case len(got) > most:
			t.Errorf("the label %s has %d values, want at most %d: %.300q", name, len(got), most, got)
		}
		for _, v := range got {
			if len(v) > 128 {
				t.Errorf("the label %s has a value of %d bytes, want at most 128", name, len(v))
			}
		}
	}
	return series
}

// Callers, models and an MCP server that make up a name or a status each time make no series of it.
func TestMetricsStayBelow5000SeriesUnderAttack(t *testing.T) {
	t.Parallel()

	// The model, the MCP server and the callers make up names and statuses.
	const attempts = 150
	var turn atomic.Int64
	model := llmtest.New(t, func(q llmtest.Request) llmtest.Answer {
		n := turn.Add(1)
		switch last := q.Messages[len(q.Messages)-1]; {
		case strings.HasPrefix(last.Content, "status"):
			return llmtest.Fails(400+int(n%200), "no")
		case strings.HasPrefix(last.Content, "tool"):
			return llmtest.Calls(llmtest.Call{Name: fmt.Sprintf("made_up_%d_%s", n, strings.Repeat("x", 300)), Args: "{}"})
		}
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/event-stream")
			fmt.Fprintf(w, "data: {\"id\":\"c\",\"object\":\"chat.completion.chunk\",\"model\":\"upstream-%d-%s\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"Yes.\"},\"finish_reason\":\"stop\"}],\"usage\":{\"prompt_tokens\":1,\"completion_tokens\":1,\"total_tokens\":2}}\n\ndata: [DONE]\n\n", n, strings.Repeat("y", 200))
		}
	})

	server := sdk.NewServer(&sdk.Implementation{Name: "hostile", Version: "1"}, nil)
	var tools []string
	for i := range attempts {
		tools = append(tools, fmt.Sprintf("tool_%d", i))
		server.AddTool(&sdk.Tool{Name: tools[i], InputSchema: json.RawMessage(`{"type":"object"}`)}, func(context.Context, *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
			return &sdk.CallToolResult{IsError: i%2 == 0}, nil
		})
	}
	web := httptest.NewServer(sdk.NewStreamableHTTPHandler(func(*http.Request) *sdk.Server { return server }, nil))
	t.Cleanup(func() { web.CloseClientConnections(); web.Close() })

	s := startAnswerd(t, newTestEnvironment("ADDR", "127.0.0.1:0", "LLM_BASE_URL", model.URL, "DEFAULT_MODEL_ID", "scripted", "MCP_URL", web.URL, "LLM_MAX_RETRIES", "0"))
	c := newClient(t)
	_, before := getBody(t, c, s.url+"/metrics")

	bodies := []string{
		`{"question":"model","model":"model-%d-` + strings.Repeat("z", 100) + `"}`,
		`{"question":"status %d"}`, `{"question":"tool %d"}`,
	}
	attack := func(i int) {
		method, path, body := "POST", "/answer", ""
		switch kind := i % 6; kind {
		case 0, 1, 2:
			body = fmt.Sprintf(bodies[kind], i)
		case 3:
			path, body = "/tools/"+tools[i/6%len(tools)]+"/call", `{"args":{}}`
		case 4:
			path, body = fmt.Sprintf("/tools/unknown_%d/call", i), `{"args":{}}`
		case 5:
			method, path = fmt.Sprintf("METHOD%d", i), fmt.Sprintf("/path/%d", i)
		}
		req, err := http.NewRequestWithContext(t.Context(), method, s.url+path, strings.NewReader(body))
		if err != nil {
			t.Error(err)
			return
		}
		req.Header.Set("Content-Type", "application/json")
		resp, err := c.Do(req)
		if err != nil {
			t.Error(err)
			return
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
	}
	var all sync.WaitGroup
	for worker := range 8 {
		all.Go(func() {
			for i := worker; i < 6*attempts; i += 8 {
				attack(i)
			}
		})
	}
	all.Wait()

	_, page := getBody(t, c, s.url+"/metrics")
	series := readSeries(t, page)
	t.Logf("%d attempts: %d series and %d bytes, from %d series", 6*attempts, len(series), len(page), len(readSeries(t, before)))
	if len(series) >= maxSeries || strings.Contains(page, "otel_metric_overflow") {
		t.Errorf("got %d series, want less than %d and none that stands for an overflow", len(series), maxSeries)
	}
	for _, name := range []string{"model-", "upstream-", "made_up_", "unknown_", "METHOD", "/path/"} {
		if strings.Contains(page, name) {
			t.Errorf("/metrics has a name that begins with %q, want none of those", name)
		}
	}
	for _, want := range []string{`gen_ai_request_model="_other"`, `gen_ai_response_model="_other"`, `gen_ai_tool_name="_other"`, `gen_ai_tool_name="tool_0"`} {
		if !strings.Contains(page, want) {
			t.Errorf("/metrics has no %s", want)
		}
	}
}

// Spans carry names that callers, models and servers chose; their length is bounded.
func TestSpanAttributesAreBounded(t *testing.T) {
	long := strings.Repeat("x", 100_000)
	model := llmtest.New(t, llmtest.Turns(llmtest.Calls(llmtest.Call{ID: "id_" + long, Name: "name_" + long, Args: "{}"}), llmtest.Says("Well.")))
	otlp := newTraceReceiver(t)
	s := startAnswerd(t, newTestEnvironment("ADDR", "127.0.0.1:0", "LLM_BASE_URL", model.URL, "DEFAULT_MODEL_ID", "scripted",
		"ENABLE_TRACING", "true", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", otlp.url))

	c := newClient(t)
	for _, r := range []struct{ method, path, body string }{
		{"POST", "/answer", `{"question":"?","model":"m` + long[:20_000] + `"}`},
		{"POST", "/answer", `{"question":"?"}`},
		{"GET", "/" + long[:8_000], ""},
		{long[:8_000], "/answer", ""},
	} {
		resp := sendRequest(t, c, r.method, s.url+r.path, strings.NewReader(r.body), []string{"Content-Type", "application/json", "User-Agent", long[:9_000]})
		_, _ = io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
	}

	s.stop()
	if err := <-s.done; err != nil { // the last spans are sent at the end
		t.Fatal(err)
	}
	otlp.mu.Lock()
	defer otlp.mu.Unlock()
	if i := slices.IndexFunc(otlp.spans, func(sp otlptest.Span) bool { return sp.Name == "tool_call" }); i < 0 {
		t.Errorf("got %d spans, want one of a tool call among them", len(otlp.spans))
	}

	for _, sp := range otlp.spans {
		if len(sp.Name) > 128 {
			t.Errorf("a span has a name of %d bytes, want at most 128", len(sp.Name))
		}
		for key, v := range sp.Attributes {
			if len(v) > 4096 {
				t.Errorf("the span %s has %s of %d bytes, want at most 4096", sp.Name, key, len(v))
			}
		}
	}
}
