package demo

import (
	"context"
	"encoding/json"
	"log/slog"
	"strings"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// call calls a tool and gives its text, its structured result and whether it failed.
func call(t *testing.T, session *sdk.ClientSession, name string, args map[string]any) (string, map[string]any, bool) {
	t.Helper()
	res, err := session.CallTool(t.Context(), &sdk.CallToolParams{Name: name, Arguments: args})
	if err != nil {
		t.Fatalf("%s %v: %v", name, args, err)
	}
	var text strings.Builder
	for _, c := range res.Content {
		text.WriteString(c.(*sdk.TextContent).Text)
	}
	structured, _ := res.StructuredContent.(map[string]any)
	return text.String(), structured, res.IsError
}

func TestToolsAnswerAndRefuse(t *testing.T) {
	_, session := world(t, MCPConfig{}, nil)
	long := strings.Repeat("1", 201)
	for _, c := range []struct {
		tool  string
		args  map[string]any
		fails bool
		says  string
	}{
		{"current_time", nil, false, "in UTC (UTC+00:00)."},
		{"current_time", map[string]any{"time_zone": "Asia/Tokyo"}, false, "in Asia/Tokyo (UTC+09:00)."},
		{"current_time", map[string]any{"time_zone": "Atlantis"}, true, "there is no time zone"},
		{"current_time", map[string]any{"time_zone": "Local"}, true, "there is no time zone"},
		{"current_time", map[string]any{"time_zone": "../../etc/passwd"}, true, "there is no time zone"},
		{"current_time", map[string]any{"city": "Rome"}, true, "city"},
		{"calculate", map[string]any{"expression": "12.5*8"}, false, "12.5*8 = 100"},
		{"calculate", map[string]any{"expression": "1/0"}, true, "division by zero"},
		{"calculate", map[string]any{"expression": "1+"}, true, "cannot compute"},
		{"calculate", map[string]any{"expression": long}, true, "expression"},
		{"calculate", nil, true, "expression"},
		{"convert", map[string]any{"value": 12, "from": "miles", "to": "km"}, false, "12 mi is 19.312128 km."},
		{"convert", map[string]any{"value": 100, "from": "EUR", "to": "USD"}, false, "sample rates of " + ratesDate},
		{"convert", map[string]any{"value": 5, "from": "kg", "to": "km"}, true, "do not convert"},
		{"convert", map[string]any{"value": 5, "from": "parsecs", "to": "km"}, true, "no unit or currency"},
		{"convert", map[string]any{"value": "5", "from": "kg", "to": "lb"}, true, "value"},
		{"convert", map[string]any{"value": -300, "from": "C", "to": "K"}, true, "absolute zero"},
		{"search_docs", map[string]any{"query": "how do I resume a stream?"}, false, "Resume: "},
		{"search_docs", map[string]any{"query": "zebra"}, false, "nothing about that"},
		{"search_docs", map[string]any{"query": ""}, true, "query"},
		{"search_docs", map[string]any{"query": "x", "limit": 6}, true, "limit"},
		{"slow_report", map[string]any{"topic": "cats", "steps": 1, "step_ms": 0}, false, "Report about cats"},
		{"slow_report", map[string]any{"topic": "cats", "steps": 11}, true, "steps"},
		{"slow_report", map[string]any{"topic": "cats", "steps": 1.5}, true, "steps"},
		{"slow_report", map[string]any{"topic": "cats", "step_ms": 2001}, true, "step_ms"},
		{"flaky_service", nil, true, "simulated outage"},
		{"flaky_service", map[string]any{"reason": "a test"}, true, `called for "a test"`},
		{"list_notes", nil, false, "2: Call the plumber"},
		{"delete_note", map[string]any{"id": 2}, false, "is deleted"},
		{"delete_note", map[string]any{"id": 2}, true, "there is no note 2"},
		{"delete_note", map[string]any{"id": 0}, true, "id"},
		{"list_notes", nil, false, "1: Buy oat milk; 3: "},
	} {
		text, structured, failed := call(t, session, c.tool, c.args)
		if failed != c.fails || !strings.Contains(text, c.says) {
			t.Errorf("%s %v: failed %v, %q; want %v, %q", c.tool, c.args, failed, text, c.fails, c.says)
		}
		if !failed && (structured == nil || structured["summary"] != text) {
			t.Errorf("%s %v: structured %v", c.tool, c.args, structured)
		}
	}
}

// S3.6: what a host and a model need to choose a tool and to judge its danger.
func TestToolsDescribeThemselves(t *testing.T) {
	_, session := world(t, MCPConfig{URL: "http://127.0.0.1:1"}, nil)
	list, err := session.ListTools(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if len(list.Tools) != 10 {
		t.Errorf("%d tools", len(list.Tools))
	}
	for _, tool := range list.Tools {
		if tool.Title == "" || len(tool.Description) < 20 || tool.Annotations == nil {
			t.Errorf("%s says too little", tool.Name)
		}
		destructive := tool.Annotations.DestructiveHint != nil && *tool.Annotations.DestructiveHint
		if destructive != (tool.Name == "delete_note") || tool.Annotations.ReadOnlyHint == destructive {
			t.Errorf("%s: annotations %+v", tool.Name, tool.Annotations)
		}
		if (tool.OutputSchema == nil) != (tool.Name == "flaky_service") {
			t.Errorf("%s: output schema %v", tool.Name, tool.OutputSchema)
		}
		b, _ := json.Marshal(tool.InputSchema)
		for _, p := range readParam(b, 0).params {
			if p.description == "" {
				t.Errorf("%s.%s has no description", tool.Name, p.name)
			}
		}
	}
}

// The progress handler may run after the call has returned: the SDK hands
// notifications over one by one while responses pass them.
func TestReportTellsItsProgress(t *testing.T) {
	got := make(chan *sdk.ProgressNotificationParams, 8)
	_, session := world(t, MCPConfig{}, &sdk.ClientOptions{
		ProgressNotificationHandler: func(_ context.Context, r *sdk.ProgressNotificationClientRequest) { got <- r.Params },
	})
	params := &sdk.CallToolParams{Name: "slow_report", Arguments: map[string]any{"topic": "whales", "steps": 4, "step_ms": 1}}
	params.SetProgressToken("p")
	if _, err := session.CallTool(t.Context(), params); err != nil {
		t.Fatal(err)
	}
	for i := range 4 {
		p := <-got
		if p.Progress != float64(i+1) || p.Total != 4 || p.Message != stages[i] || p.ProgressToken != "p" {
			t.Errorf("progress %d is %+v", i, p)
		}
	}
}

// F13
func TestCancellingStopsTheReport(t *testing.T) {
	lines := make(chan string, 16)
	s, session := world(t, MCPConfig{Logger: slog.New(slog.NewTextHandler(lineWriter(lines), nil))}, nil)
	started := make(chan struct{})
	s.server.AddReceivingMiddleware(func(next sdk.MethodHandler) sdk.MethodHandler {
		return func(ctx context.Context, method string, req sdk.Request) (sdk.Result, error) {
			if method == "tools/call" {
				close(started)
			}
			return next(ctx, method, req)
		}
	})
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-started
		cancel()
	}()
	_, err := session.CallTool(ctx, &sdk.CallToolParams{Name: "slow_report", Arguments: map[string]any{"topic": "x", "steps": 10, "step_ms": 2000}})
	if err == nil {
		t.Fatal("the call came to an end")
	}
	for line := range lines {
		if strings.Contains(line, `msg="tool call"`) {
			if !strings.Contains(line, "tool=slow_report") || !strings.Contains(line, "subject="+testClient) || !strings.Contains(line, "failed=true") {
				t.Errorf("the log says %q", line)
			}
			return
		}
	}
}

type lineWriter chan string

func (w lineWriter) Write(p []byte) (int, error) {
	w <- string(p)
	return len(p), nil
}

func TestClockKeepsSummerTime(t *testing.T) {
	summer := time.Date(2026, 7, 1, 10, 0, 0, 0, time.UTC)
	r, err := readClock(summer, "Europe/Rome")
	if err != nil {
		t.Fatal(err)
	}
	want := clockReading{"Europe/Rome", "2026-07-01T12:00:00+02:00", "2026-07-01", "Wednesday", "+02:00",
		"It is 12:00:00 on Wednesday, 1 July 2026 in Europe/Rome (UTC+02:00)."}
	if *r != want {
		t.Errorf("%+v", *r)
	}
}

func TestConversions(t *testing.T) {
	for _, c := range []struct {
		value    float64
		from, to string
		want     float64
	}{
		{1, "mile", "km", 1.609344}, {100, "°F", "Celsius", 37.77777778}, {-40, "C", "F", -40}, {0, "K", "°C", -273.15},
		{2, "GiB", "MB", 2147.483648}, {8, "bits", "bytes", 1}, {10, "pounds", "kg", 4.5359237}, {10, "pounds", "euros", 11.4},
		{1, "US dollars", "eur", 0.86}, {3, "cups", "ml", 709.7647095},
	} {
		got, err := convert(c.value, c.from, c.to)
		if err != nil || got.Result != c.want {
			t.Errorf("%v %s to %s: %+v, %v; want %v", c.value, c.from, c.to, got, err, c.want)
		}
	}
}

// Every entry must be found by its own title, else the base cannot be asked.
func TestDocumentationIsFoundByItsTitles(t *testing.T) {
	x := newDocIndex(docs)
	for _, d := range docs {
		if r := x.search(d.title, 1); len(r.Results) == 0 || r.Results[0].Title != d.title {
			t.Errorf("%q finds %v", d.title, r.Results)
		}
	}
	for query, want := range map[string]string{
		"what is answerd": "What answerd is", "resume after disconnect": "Resume", "Last-Event-ID": "Resume",
		"how are tokens cached": "Tokens, JWT and IAM", "jaeger otel traces": "Tracing and metrics", "OPENAI_API_KEY": "Using a real model",
		"session lost": "MCP sessions", "max turns": "Limits, budgets and timeouts", "is the stand-in a language model": "The demo and the stand-in model",
	} {
		if r := x.search(query, 3); len(r.Results) == 0 || r.Results[0].Title != want {
			t.Errorf("%q finds %q", query, r.Summary)
		}
	}
}

// S1.3: the SDK's client sends null for no arguments, and SDK 1.8's server writes a
// schema's defaults into the nil map that it makes of it: a panic that nobody recovers.
func TestStrangeArgumentsDoNotEndTheServer(t *testing.T) {
	_, session := world(t, MCPConfig{}, nil)
	for _, args := range []any{nil, json.RawMessage(" null "), []any{}, "x", 1, json.RawMessage(`{"time_zone":null}`)} {
		_, _ = session.CallTool(t.Context(), &sdk.CallToolParams{Name: "current_time", Arguments: args})
	}
	if text, _, failed := call(t, session, "current_time", map[string]any{}); failed {
		t.Errorf("afterwards: %s", text)
	}
}
