package demo

import (
	"context"
	"encoding/json"
	"log/slog"
	"math"
	"strings"
	"testing"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// callTool calls a tool and gives its text, its structured result and whether it failed.
func callTool(t *testing.T, session *sdk.ClientSession, name string, args map[string]any) (string, map[string]any, bool) {
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
	_, session := openSession(t, MCPConfig{}, nil)
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
		{"calculate", map[string]any{"expression": "1/0"}, true, "divisor other than zero"},
		{"calculate", map[string]any{"expression": "1+"}, true, "cannot compute"},
		{"calculate", map[string]any{"expression": long}, true, "expression"},
		{"calculate", nil, true, "expression"},
		{"convert", map[string]any{"value": 12, "from": "miles", "to": "km"}, false, "12 mi is 19.312128 km."},
		{"convert", map[string]any{"value": 100, "from": "EUR", "to": "USD"}, false, "100 EUR is 116.28 USD (at sample rates, not live)."},
		{"convert", map[string]any{"value": 5, "from": "kg", "to": "km"}, true, "no way from"},
		{"convert", map[string]any{"value": 5, "from": "parsecs", "to": "km"}, true, "no way from"},
		{"convert", map[string]any{"value": "5", "from": "kg", "to": "lb"}, true, "value"},
		{"search_docs", map[string]any{"query": "how do I resume a stream?"}, false, "Resume: "},
		{"search_docs", map[string]any{"query": "zebra"}, false, "nothing about that"},
		{"search_docs", map[string]any{"query": ""}, true, "query"},
		{"slow_report", map[string]any{"topic": "cats", "steps": 1, "step_ms": 0}, false, "Report about cats"},
		{"slow_report", map[string]any{"topic": "cats", "steps": 11}, true, "steps"},
		{"slow_report", map[string]any{"topic": "cats", "steps": 1.5}, true, "steps"},
		{"slow_report", map[string]any{"topic": "cats", "step_ms": 2001}, true, "step_ms"},
		{"flaky_service", nil, true, "simulated outage"},
		{"list_notes", nil, false, "2: Call the plumber"},
		{"delete_note", map[string]any{"id": 2}, false, `Note 2, "Call the plumber about the tap", is deleted.`},
		{"delete_note", map[string]any{"id": 2}, true, "there is no note 2"},
		{"delete_note", map[string]any{"id": 0}, true, "id"},
		{"list_notes", nil, false, "There are 4 notes. 1: Buy oat milk. 3: "},
	} {
		text, structured, failed := callTool(t, session, c.tool, c.args)
		if failed != c.fails || !strings.Contains(text, c.says) {
			t.Errorf("%s %v: failed %v, %q; want %v, %q", c.tool, c.args, failed, text, c.fails, c.says)
		}
		if !failed && (structured == nil || structured["summary"] != text) {
			t.Errorf(`%s %v: structured %v, want structured non-nil, ["summary"] %s`, c.tool, c.args, structured, text)
		}
	}
}

// The properties that a host and a model need to choose a tool and to judge its danger.
func TestToolsDescribeThemselves(t *testing.T) {
	_, session := openSession(t, MCPConfig{URL: "http://127.0.0.1:1"}, nil)
	list, err := session.ListTools(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if len(list.Tools) != 10 {
		t.Errorf("%d tools, want 10", len(list.Tools))
	}

	for _, tool := range list.Tools {
		if tool.Title == "" || len(tool.Description) < 20 || tool.Annotations == nil {
			t.Errorf("%s says too little, want Title non-empty, len(Description) at least 20, Annotations non-nil", tool.Name)
		}
		destructive := tool.Annotations.DestructiveHint != nil && *tool.Annotations.DestructiveHint
		if destructive != (tool.Name == "delete_note") || tool.Annotations.ReadOnlyHint == destructive {
			t.Errorf("%s: annotations %+v, want delete_note destructive and all others read-only", tool.Name, tool.Annotations)
		}
		if tool.OutputSchema == nil {
			t.Errorf("%s has no output schema, want OutputSchema non-nil", tool.Name)
		}
		b, _ := json.Marshal(tool.InputSchema)
		var schema struct {
			Properties map[string]struct{ Description string }
		}
		if err := json.Unmarshal(b, &schema); err != nil {
			t.Fatal(err)
		}

		for name, p := range schema.Properties {
			if p.Description == "" {
				t.Errorf("%s.%s has no description, Description %q, want non-empty", tool.Name, name, p.Description)
			}
		}
	}
}

// The progress handler may run after the call has returned: the SDK hands
// notifications over one by one while responses pass them.
func TestSlowReportReportsProgress(t *testing.T) {
	got := make(chan *sdk.ProgressNotificationParams, 8)
	_, session := openSession(t, MCPConfig{}, &sdk.ClientOptions{
		ProgressNotificationHandler: func(_ context.Context, r *sdk.ProgressNotificationClientRequest) { got <- r.Params },
	})
	params := &sdk.CallToolParams{Name: "slow_report", Arguments: map[string]any{"topic": "whales", "steps": 4, "step_ms": 1}}
	params.SetProgressToken("p")
	if _, err := session.CallTool(t.Context(), params); err != nil {
		t.Fatal(err)
	}
	for i := range 4 {
		p := <-got
		if p.Progress != float64(i+1) || p.Total != 4 || p.Message != reportSteps[i] || p.ProgressToken != "p" {
			t.Errorf("progress %d is %+v, want %d of 4 with %q for the token p", i, p, i+1, reportSteps[i])
		}
	}
}

func TestSlowReportStopsWhenCancelled(t *testing.T) {
	lines := make(chan string, 16)
	s, session := openSession(t, MCPConfig{Logger: slog.New(slog.NewTextHandler(lineWriter(lines), nil))}, nil)
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
		t.Fatal("the call came to an end, want an error")
	}

	for line := range lines {
		if strings.Contains(line, `msg="tool executed"`) {
			if !strings.Contains(line, "tool=slow_report") || !strings.Contains(line, "subject="+testClient) || !strings.Contains(line, "failed=true") || !strings.Contains(line, "duration_ms=") {
				t.Errorf("the log says %q, want line containing tool=slow_report, line containing %q, line containing failed=true, line containing duration_ms=", line, "subject="+testClient)
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

func TestCalculateComputes(t *testing.T) {
	for expression, want := range map[string]string{
		"1+2*3": "7", "(1+2)*3": "9", "-2*-3": "6", "7/2": "3.5", "0.1+0.2": "0.3", ".5*4": "2", " 12.5 * 8 ": "100", "1-2-3": "-4", "100/10/2": "5",
		"1000000*1000": "1000000000", "1/3": "0.333333333333", "((((1))))": "1",
	} {
		c := calculation{Expression: expression}
		if err := calculate(t.Context(), nil, &c); err != nil || c.Summary != expression+" = "+want {
			t.Errorf("%s: got %q, %v; want %s", expression, c.Summary, err, want)
		}
	}
	for _, expression := range []string{"", "1/0", "1/(2-2)", "1+", "(1", "1)", "1 2", "a", "1..2", "*2", "2^3", "5%2", "1e300*1e300", `"a"+"b"`, "len(a)", "!1", "1<2"} {
		if err := calculate(t.Context(), nil, &calculation{Expression: expression}); err == nil {
			t.Errorf("%q is computed, want an error", expression)
		}
	}
}

func FuzzCalculate(f *testing.F) {
	for _, s := range []string{"1+2*3", "(1", "1e999999999", "-(-1)", "1/0", "0x1p-9999", "1i*1i", "'a'", "func(){}", "\x00"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		c := calculation{Expression: s[:min(len(s), 200)]} // as the schema bounds it
		if calculate(t.Context(), nil, &c) == nil && (math.IsNaN(c.Result) || math.IsInf(c.Result, 0)) {
			t.Errorf("%q gives %v, want a number or an error", s, c.Result)
		}
	})
}

func TestConvertKnowsUnitsByTheirNames(t *testing.T) {
	for _, c := range []struct {
		value    float64
		from, to string
		want     string
	}{
		{1, "mile", "km", "1 mi is 1.609344 km."}, {100, "°F", "Celsius", "100 °F is 37.7777777778 °C."}, {-40, "C", "F", "-40 °C is -40 °F."},
		{10, "pounds", "kg", "10 lb is 4.5359237 kg."}, {10, "pounds", "euros", "10 GBP is 11.4 EUR (at sample rates, not live)."},
	} {
		r := conversion{Value: c.value, From: c.from, To: c.to}
		if err := convertUnits(t.Context(), nil, &r); err != nil || r.Summary != c.want {
			t.Errorf("%v %s to %s: got %q, %v; want %q", c.value, c.from, c.to, r.Summary, err, c.want)
		}
	}
}

// Every entry must be found by its own title, else the documentation cannot be asked.
func TestSearchDocsFindsEntries(t *testing.T) {
	questions := map[string]string{
		"How do I resume a stream?": "Resume", "resuming after a disconnect": "Resume", "what is answerd": "What answerd is", "how are tokens cached": "Tokens, JWT and IAM",
		"jaeger otel traces": "Tracing and metrics", "which tools need approval": "Approval by a person", "is the stand-in a language model": "The demo and the stand-in model",
	}
	for _, e := range docEntries {
		questions[e.title] = e.title
	}
	for query, want := range questions {
		r := docSearch{Query: query}
		if err := searchDocs(t.Context(), nil, &r); err != nil || r.Title != want {
			t.Errorf("%q: got %q, %v; want %q", query, r.Title, err, want)
		}
	}
}

// The SDK's client sends null for no arguments, and SDK 1.8's server writes a
// schema's defaults into the nil map that it makes of it: a panic that nobody recovers.
func TestMCPServerSurvivesStrangeArguments(t *testing.T) {
	_, session := openSession(t, MCPConfig{}, nil)
	for _, args := range []any{nil, json.RawMessage(" null "), []any{}, "x", 1, json.RawMessage(`{"time_zone":null}`)} {
		_, _ = session.CallTool(t.Context(), &sdk.CallToolParams{Name: "current_time", Arguments: args})
	}
	if text, _, failed := callTool(t, session, "current_time", map[string]any{}); failed {
		t.Errorf("current_time failed with %s, want no error", text)
	}
}
