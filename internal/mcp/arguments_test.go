package mcp

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"answerd/internal/mcp/catalog"
	"answerd/internal/mcp/config"
	"answerd/internal/mcp/content"
)

// forecastTool is a tool that requires an argument.
const forecastTool = `{"name":"forecast","inputSchema":{"type":"object","properties":{"city":{"type":"string"},"days":{"type":"integer"}},"required":["city"],"additionalProperties":false}}`

// countCallsOf makes a server answer all calls, and returns their count.
func countCallsOf(list *scriptedServer) (*scriptedServer, *atomic.Int64) {
	calls := new(atomic.Int64)
	list.call = func(w http.ResponseWriter, _ *http.Request, m message) {
		calls.Add(1)
		replyJSON(w, m.ID, textResult("done"))
	}
	return list, calls
}

// S1.5: arguments are checked before anything is sent, all that is wrong is named at
// once, and what was only written as text is repaired.
func TestArgumentsAreCheckedBeforeAnythingIsSent(t *testing.T) {
	s, calls := countCallsOf(scriptWithTools(forecastTool))
	c := newClient(t, Options{}, config.Server{Name: "a", URL: serveHTTP(t, s).URL})
	c.Tools(t.Context())
	given := json.RawMessage(`{"days":"x","town":"Rome"}`)
	got, err := c.CheckArgs("forecast", given)
	e := mustFail(t, err)
	if e.Kind != InvalidArguments || len(e.Fields) != 3 || e.Err != nil || string(got) != string(given) {
		t.Errorf("call error %+v, %s, want Kind InvalidArguments, 3 Fields, no Err, and the arguments %s", e, got, given)
	}

	for _, want := range []string{"\n- /city: missing required field: city", "\n- /days: expected integer, got string \"x\"", "\n- /town: unexpected field: town"} {
		if !strings.Contains(e.Message, want) {
			t.Errorf("message %q does not say %q", e.Message, want)
		}
	}

	if got, err := c.CheckArgs("forecast", json.RawMessage(`{"city":"Rome","days":"3"}`)); err != nil || string(got) != `{"city":"Rome","days":3}` {
		t.Errorf(`raw message %s, %v, want {"city":"Rome","days":3} and no error`, got, err)
	}
	if got, err := c.CheckArgs("nowhere", given); err != nil || string(got) != string(given) {
		t.Errorf("a tool that isn't there: %s, %v, want %s and no error", got, err, string(given))
	}

	// Who calls without asking first gets no further.
	_, err = c.Call(t.Context(), Call{Tool: "forecast", Args: given, Check: true})
	if e := mustFail(t, err); e.Kind != InvalidArguments || len(e.Fields) != 3 || calls.Load() != 0 {
		t.Errorf("%+v after %d calls, want Kind InvalidArguments, 3 Fields, calls 0", e, calls.Load())
	}
	res, err := c.Call(t.Context(), Call{Tool: "forecast", Args: json.RawMessage(`{"city":"Rome"}`), Check: true})
	mustResult(t, res, err)
}

// S3.8: a call is checked against the tool as it is when it is sent, which may be after
// a wait of minutes.
func TestCallIsCheckedAgainstTheToolAsItIsNow(t *testing.T) {
	var version atomic.Value
	version.Store(`{"name":"forecast","inputSchema":{"type":"object","properties":{"city":{"type":"string"}}}}`)

	inside, goOn := make(chan struct{}), make(chan struct{})
	var calls atomic.Int64
	s := &scriptedServer{
		list: func(w http.ResponseWriter, _ *http.Request, m message) {
			replyJSON(w, m.ID, `{"tools":[{"name":"slow"},`+version.Load().(string)+`]}`)
		},
		call: func(w http.ResponseWriter, _ *http.Request, m message) {
			if m.Params.Name == "slow" {
				close(inside)
				receive(t, goOn)
			} else {
				calls.Add(1)
			}
			replyJSON(w, m.ID, textResult("done"))
		},
	}

	c := newClient(t, Options{MaxConcurrentCalls: 1}, config.Server{Name: "a", URL: serveHTTP(t, s).URL})
	c.Tools(t.Context())
	args := json.RawMessage(`{"city":"Rome"}`)
	if _, err := c.CheckArgs("forecast", args); err != nil {
		t.Fatal(err)
	}

	var all sync.WaitGroup
	all.Go(func() {
		res, err := c.Call(t.Context(), Call{Tool: "slow"})
		mustResult(t, res, err)
	})

	<-inside
	all.Go(func() { // waits in the queue, while the tool becomes another one
		_, err := c.Call(t.Context(), Call{Tool: "forecast", Args: args, Check: true})
		if e := mustFail(t, err); e.Kind != InvalidArguments || len(e.Fields) != 2 {
			t.Errorf("call error %+v, want Kind InvalidArguments, 2 Fields", e)
		}
	})

	version.Store(strings.ReplaceAll(forecastTool, "city", "place"))
	if err := c.Refresh(t.Context(), "a"); err != nil {
		t.Error(err)
	}
	close(goOn)
	all.Wait()
	if calls.Load() != 0 {
		t.Errorf("it was sent: calls %d, want 0", calls.Load())
	}
	if _, err := c.CheckArgs("forecast", args); err == nil {
		t.Error("CheckArgs fits the old schema still, want an error")
	}
}

// F21: a tool whose schema cannot be used stays usable: its arguments are checked for
// being an object, which is said once in the log, and in the list.
func TestToolWithABadSchemaStaysUsable(t *testing.T) {
	bad := []string{
		`{"type":"object","required":true}`, `{"type":"object","properties":{"a":{"$ref":"http://localhost:1/x"}}}`,
		`{"type":"object","allOf":[{"$ref":"#"}]}`, `{"type":"object","properties":{"a":{"pattern":"` + strings.Repeat("a{1000}", 30) + `"}}}`,
	}

	var list []string
	for i, schema := range bad {
		list = append(list, fmt.Sprintf(`{"name":"t%d","inputSchema":%s}`, i, schema))
	}

	s, calls := countCallsOf(scriptWithTools(list...))
	log := &syncBuffer{}

	c := newClient(t, Options{Logger: slog.New(slog.NewTextHandler(log, nil))}, config.Server{Name: "a", URL: serveHTTP(t, s).URL})
	for _, tool := range c.Tools(t.Context()) {
		if want := "the input schema cannot be used: "; !strings.HasPrefix(tool.Unchecked, want) {
			t.Errorf("%s: unchecked %q, want it to start with %q", tool.Name, tool.Unchecked, want)
		}
		if args, err := c.CheckArgs(tool.Name, json.RawMessage(`{"x":"1"}`)); err != nil || string(args) != `{"x":"1"}` {
			t.Errorf(`%s: %s, %v, want {"x":"1"} and no error`, tool.Name, args, err)
		}
		res, err := c.Call(t.Context(), Call{Tool: tool.Name, Args: json.RawMessage(`{"x":"1"}`)})
		mustResult(t, res, err)
	}

	if err := c.Refresh(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	if n := log.count("MCP tool not checked"); n != len(bad) || int(calls.Load()) != len(bad) {
		t.Errorf("said %d times, %d calls, want %d and %d", n, calls.Load(), len(bad), len(bad))
	}
}

// Results are validated against the tool's output schema. A result that violates it is delivered,
// and the violations are reported to its readers; the log says only that there are some.
func TestResultThatViolatesItsSchemaIsDeliveredAndReported(t *testing.T) {
	results := map[string]string{
		"fits":    `{"content":[{"type":"text","text":"3"}],"structuredContent":{"sum":3}}`,
		"wrong":   `{"content":[{"type":"text","text":"3"}],"structuredContent":{"sum":"sesame","x":1}}`,
		"missing": `{"content":[{"type":"text","text":"3"}]}`,
		"failed":  `{"content":[{"type":"text","text":"no"}],"isError":true}`,
	}

	var list []string
	for name := range results {
		list = append(list, `{"name":"`+name+`","outputSchema":{"type":"object","properties":{"sum":{"type":"number"}},"required":["sum"],"additionalProperties":false}}`)
	}

	s := scriptWithTools(list...)
	s.call = func(w http.ResponseWriter, _ *http.Request, m message) { replyJSON(w, m.ID, results[m.Params.Name]) }
	log := &syncBuffer{}
	c := newClient(t, Options{Logger: slog.New(slog.NewTextHandler(log, nil))}, config.Server{Name: "a", URL: serveHTTP(t, s).URL})
	c.Tools(t.Context())

	for name, want := range map[string]string{
		"fits":    "3\nStructured content: {\"sum\":3}",
		"wrong":   "3\nStructured content: {\"sum\":\"sesame\",\"x\":1}\n[This result does not fit the tool's own output schema:\n- /sum: expected number, got string \"sesame\"\n- /x: unexpected field: x]",
		"missing": "3\n[This result does not fit the tool's own output schema:\n- expected structured content, got none]",
		"failed":  "no",
	} {
		res, err := c.Call(t.Context(), Call{Tool: name})
		mustResult(t, res, err)
		if got := res.Text(); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
		if (res.Violations != nil) != strings.Contains(want, "does not fit") {
			t.Errorf("%s: violations %+v, want them only where the text tells of them: %q", name, res.Violations, want)
		}
	}

	if log.count("MCP result does not fit the tool's output schema") != 2 || log.count("sesame") != 0 {
		t.Errorf("log %q, want 2 results that do not fit, and no sesame", log)
	}
}

// S0.3: servers have many wordings for invalid arguments.
func TestRejectedArgumentsAreKnownByTheirWording(t *testing.T) {
	for said, want := range map[string]ErrorKind{
		`validating "arguments": validating root: required: missing properties: ["city"]`:                             InvalidArguments,
		`MCP error -32602: Input validation error: Invalid arguments for tool forecast: [ { "code": "invalid_type"`:   InvalidArguments,
		`MCP error -32602: Invalid arguments for tool forecast: []`:                                                   InvalidArguments,
		`Input validation error: 'city' is a required property`:                                                       InvalidArguments,
		"Error executing tool forecast: 1 validation error for forecastArguments\ncity\n  Field required":             InvalidArguments,
		"2 validation errors for call[forecast]\ncity\n  Missing required argument":                                   InvalidArguments,
		"1 validation error for X\nfoo\n  Unexpected keyword argument [type=unexpected_keyword_argument, input_value": InvalidArguments,
		"forecast() got an unexpected keyword argument 'town'":                                                        InvalidArguments,
		`Invalid arguments: city is missing`:                                                                          InvalidArguments,
		`failed to deserialize parameters: missing field city`:                                                        InvalidArguments,
		`MCP error -32602: Tool forecast not found`:                                                                   UnknownTool,
		`Unknown tool: forecast`:               UnknownTool,
		`Tool forecast disabled`:               UnknownTool,
		`the tool is out of order`:             Execution,
		`Row 3: 2 validation errors for Order`: Execution,
		`the order has 1 validation error`:     Execution,
		``:                                     Execution,
	} {
		quoted, _ := json.Marshal(map[string]string{"type": "text", "text": said})
		if got := ResultErrorKind(&content.Result{IsError: true, Content: []json.RawMessage{quoted}}); got != want {
			t.Errorf("%q is %s, want %q", said, got, want)
		}
	}
}

// The wordings of the SDKs as they are today: real servers, the schema of whose tool
// says less than their code asks for.
func TestSDKRejectionIsKnown(t *testing.T) {
	server := newToolServer(nil)
	server.AddReceivingMiddleware(func(next sdk.MethodHandler) sdk.MethodHandler {
		return func(ctx context.Context, method string, r sdk.Request) (sdk.Result, error) {
			res, err := next(ctx, method, r)
			if list, ok := res.(*sdk.ListToolsResult); ok {
				list.Tools[0].InputSchema = map[string]any{"type": "object"}
			}
			return res, err
		}
	})

	c := newClient(t, Options{}, config.Server{Name: "a", URL: serveHTTP(t, streamableHandler(t, server, nil)).URL})
	c.Tools(t.Context())
	res, err := c.Call(t.Context(), Call{Tool: "echo", Args: json.RawMessage(`{"tekst":"x"}`)})
	mustResult(t, res, err)
	if !res.IsError || ResultErrorKind(res) != InvalidArguments {
		t.Errorf("is error %v %s: %q, want true and InvalidArguments", res.IsError, ResultErrorKind(res), res.Text())
	}
}

// A schema that is too long to be repeated is reduced to what the mistakes are about.
func TestExcerptOfALargeSchema(t *testing.T) {
	var fields []string
	for i := range 500 {
		fields = append(fields, fmt.Sprintf(`"field_%d":{"type":"string","description":"The field of that number."}`, i))
	}

	tool := catalog.Tool{InputSchema: json.RawMessage(`{"type":"object","properties":{` + strings.Join(fields, ",") + `},"required":["field_7"]}`)}
	wrong := []ContentField{{Pointer: "/field_7"}, {Pointer: "/field_9/x"}}
	if got := tool.SchemaExcerpt(wrong, 1<<20); got != string(tool.InputSchema) {
		t.Errorf("SchemaExcerpt = %q, want the whole schema %q", got, string(tool.InputSchema))
	}
	want := `{"type":"object","properties":{"field_7":{"type":"string","description":"The field of that number."},"field_9":{"type":"string","description":"The field of that number."}},"required":["field_7"]} [2 of 500 fields are shown]`
	if got := tool.SchemaExcerpt(wrong, 1000); got != want {
		t.Errorf("schema excerpt %s, want %s", got, want)
	}
	if got := tool.SchemaExcerpt(nil, 1000); len(got) > 1100 || !strings.HasSuffix(got, fmt.Sprintf("[truncated: 1000 of %d bytes are shown]", len(tool.InputSchema))) {
		t.Errorf("schema excerpt %s, want length at most 1100 and to end in %s", got, fmt.Sprintf("[truncated: 1000 of %d bytes are shown]", len(tool.InputSchema)))
	}
}
