package agent_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"answerd/internal/agent"
	"answerd/internal/agent/agenttest"
	"answerd/internal/auth"
	"answerd/internal/event"
	"answerd/internal/llm/llmtest"
	"answerd/internal/mcp"
	"answerd/internal/mcp/config"
)

// newOrderFixture returns a fixture whose one tool, order, has that schema and answers with that result.
// The arguments that reach it come on sent.
func newOrderFixture(t *testing.T, script llmtest.Script, schema string, result *sdk.CallToolResult) (h *agenttest.Fixture, sent chan string) {
	t.Helper()
	sent = make(chan string, 8)
	server := sdk.NewServer(&sdk.Implementation{Name: "shop", Version: "1"}, nil)
	server.AddTool(&sdk.Tool{Name: "order", InputSchema: json.RawMessage(schema), OutputSchema: json.RawMessage(`{"type":"object","properties":{"n":{"type":"integer"}}}`)},
		func(_ context.Context, r *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
			sent <- string(r.Params.Arguments)
			return result, nil
		})
	web := httptest.NewServer(sdk.NewStreamableHTTPHandler(func(*http.Request) *sdk.Server { return server }, &sdk.StreamableHTTPOptions{Stateless: true}))
	t.Cleanup(web.Close)
	tools, err := mcp.New([]config.Server{{Name: "shop", URL: web.URL}}, mcp.Options{Logger: slog.New(slog.DiscardHandler), StartWait: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tools.Close() })
	return agenttest.NewFixture(t, script, func(o *agent.Options) { o.Tools = tools }), sent
}

// firstToolMessage returns what the model got as the result of the first call.
func firstToolMessage(h *agenttest.Fixture) string {
	messages := h.Model.Requests()[1].Messages
	return string(messages[len(messages)-1].Content)
}

const orderSchema = `{"type":"object","properties":{"item":{"type":"string"},"count":{"type":"integer"},"tags":{"type":"array","items":{"type":"string"}}},"required":["item"],"additionalProperties":false}`

func orderResult(n any) *sdk.CallToolResult {
	return &sdk.CallToolResult{Content: []sdk.Content{&sdk.TextContent{Text: "Ordered."}}, StructuredContent: map[string]any{"n": n}}
}

// S1.5: what the model only wrote as text is repaired. tool_call and the conversation
// have what it wrote; the tool, tool_result and the metadata what was sent.
func TestToolArgumentsAreSentAsTheyFit(t *testing.T) {
	const wrote, fits = `{"item":"7","count":"9007199254740993","tags":"[\"a\"]"}`, `{"item":"7","count":9007199254740993,"tags":["a"]}`
	h, sent := newOrderFixture(t, llmtest.Turns(llmtest.Calls(llmtest.Call{Name: "order", Args: wrote}), llmtest.Says("Done.")), orderSchema, orderResult(1))
	events := h.Events(t, h.StartRun(t, agent.Request{}).ID)
	if got := <-sent; got != fits {
		t.Errorf("sent %s, want %s", got, fits)
	}
	if got := string(agenttest.EventsOf[event.ToolCall](events)[0].Args); got != wrote {
		t.Errorf("tool_call %s, want %s", got, wrote)
	}
	if got := string(agenttest.EventsOf[event.ToolResult](events)[0].Args); got != fits {
		t.Errorf("tool_result %s, want %s", got, fits)
	}
	if got := string(agenttest.TerminalEvent[event.FinalAnswer](t, events).Metadata.ToolParams[0]); got != fits {
		t.Errorf("metadata %s, want %s", got, fits)
	}
	messages := h.Model.Requests()[1].Messages
	if got := messages[len(messages)-2].ToolCalls[0].Function.Arguments; got != wrote {
		t.Errorf("the conversation has %s, want %s", got, wrote)
	}
}

// S0.3, S1.5, S1.7: bad arguments go nowhere; the model gets all that is wrong and the
// schema, and repairs the call in one turn.
func TestBadArgumentsAreRepairedInOneTurn(t *testing.T) {
	h, sent := newOrderFixture(t, llmtest.Turns(
		llmtest.Calls(llmtest.Call{Name: "order", Args: `{"count":2.5,"itm":"x"}`}),
		llmtest.Calls(llmtest.Call{Name: "order", Args: `{"count":2,"item":"x"}`}),
		llmtest.Says("Done."),
	), orderSchema, orderResult(1))
	events := h.Events(t, h.StartRun(t, agent.Request{}).ID)
	if got := <-sent; got != `{"count":2,"item":"x"}` || len(sent) != 0 {
		t.Errorf(`sent %s, and %d more, want {"count":2,"item":"x"} and 0`, got, len(sent))
	}
	failed := agenttest.EventsOf[event.ToolError](events)[0]
	if failed.Kind != "invalid_arguments" || len(failed.Errors) != 3 || string(failed.Args) != `{"count":2.5,"itm":"x"}` {
		t.Errorf(`failed %+v, want Kind invalid_arguments, 3 Errors, Args {"count":2.5,"itm":"x"}`, failed)
	}

	for _, want := range []string{
		"missing required field: item", "/count: expected integer, got number 2.5", `unexpected field: itm; did you mean "item"?`,
		"\nTry again with the correct arguments. The tool's input schema: " + orderSchema,
	} {
		if !strings.Contains(failed.Payload, want) {
			t.Errorf("%q does not say %q", failed.Payload, want)
		}
	}

	if got := firstToolMessage(h); !strings.Contains(got, "did you mean") {
		t.Errorf(`the model was told %s, want it to contain "did you mean"`, got)
	}
	meta := agenttest.TerminalEvent[event.FinalAnswer](t, events).Metadata
	if len(meta.ToolNames) != 2 || len(meta.ToolParams) != 2 || len(meta.ToolResults) != 2 {
		t.Errorf("metadata %+v, want 2 ToolNames, 2 ToolParams, 2 ToolResults", meta)
	}
}

// S0.3: the same where it is the server that says so, in a result or by -32602.
func TestRejectionByTheServerHasTheSchema(t *testing.T) {
	rejection := &sdk.CallToolResult{IsError: true, Content: []sdk.Content{&sdk.TextContent{Text: "1 validation error for orderArguments\nitem\n  Field required"}}}
	h, sent := newOrderFixture(t, llmtest.Turns(llmtest.Calls(llmtest.Call{Name: "order", Args: `{}`}), llmtest.Says("Done.")), `{"type":"object"}`, rejection)
	failed := agenttest.EventsOf[event.ToolError](h.Events(t, h.StartRun(t, agent.Request{}).ID))[0]
	<-sent
	if failed.Kind != "invalid_arguments" || !strings.HasPrefix(failed.Payload, "1 validation error") ||
		!strings.HasSuffix(failed.Payload, "\nTry again with the correct arguments. The tool's input schema: "+`{"type":"object"}`) {
		t.Errorf(`failed %+v, want Kind invalid_arguments, Payload starting with "1 validation error", Payload ending in %q`, failed, "\nTry again with the correct arguments. The tool's input schema: "+`{"type":"object"}`)
	}
}

// A large schema does not fill the conversation again with each mistake.
func TestSchemaInAnAnswerIsBounded(t *testing.T) {
	var fields []string
	for i := range 1000 {
		fields = append(fields, fmt.Sprintf(`"field_%d":{"type":"integer"}`, i))
	}
	h, _ := newOrderFixture(t, llmtest.Turns(llmtest.Calls(llmtest.Call{Name: "order", Args: `{"field_3":"x"}`}), llmtest.Says("Done.")),
		`{"type":"object","properties":{`+strings.Join(fields, ",")+`}}`, orderResult(1))
	failed := agenttest.EventsOf[event.ToolError](h.Events(t, h.StartRun(t, agent.Request{}).ID))[0]
	if want := `{"type":"object","properties":{"field_3":{"type":"integer"}}} [1 of 1000 fields are shown]`; !strings.HasSuffix(failed.Payload, want) {
		t.Errorf("%.2000s, want it to end in %q", failed.Payload, want)
	}
}

// A result that violates the tool's own schema is delivered, and the violation is reported.
func TestViolationOfTheOutputSchemaIsReported(t *testing.T) {
	h, _ := newOrderFixture(t, llmtest.Turns(llmtest.Calls(llmtest.Call{Name: "order", Args: `{"item":"x"}`}), llmtest.Says("Done.")), orderSchema, orderResult("many"))
	result := agenttest.EventsOf[event.ToolResult](h.Events(t, h.StartRun(t, agent.Request{}).ID))[0]
	if string(result.Structured) != `{"n":"many"}` || len(result.SchemaViolations) != 1 || result.SchemaViolations[0].Pointer != "/n" {
		t.Errorf(`result %+v, want Structured {"n":"many"}, 1 SchemaViolations, Pointer /n`, result)
	}
	if got, want := firstToolMessage(h), "does not fit the tool's own output schema"; !strings.Contains(got, want) {
		t.Errorf("the model was told %s, want it to contain %s", got, want)
	}
}

// S3.8, S1.7: a tool that changed during the run is checked, and explained, as it is now.
func TestToolThatChangedIsExplainedAsItIs(t *testing.T) {
	var schema atomic.Value
	schema.Store(`{"type":"object"}`)

	server := sdk.NewServer(&sdk.Implementation{Name: "shop", Version: "1"}, nil)
	offerTool := func() {
		server.AddTool(&sdk.Tool{Name: "order", InputSchema: json.RawMessage(schema.Load().(string))}, func(context.Context, *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
			return orderResult(1), nil
		})
	}

	offerTool()
	web := httptest.NewServer(sdk.NewStreamableHTTPHandler(func(*http.Request) *sdk.Server { return server }, &sdk.StreamableHTTPOptions{Stateless: true}))
	t.Cleanup(web.Close)
	tools, err := mcp.New([]config.Server{{Name: "shop", URL: web.URL}}, mcp.Options{Logger: slog.New(slog.DiscardHandler), StartWait: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tools.Close() })
	h := agenttest.NewFixture(t, llmtest.Turns(), func(o *agent.Options) { o.Tools = tools })
	call := agent.ToolCall{Tool: "order", Args: json.RawMessage(`{}`)}
	if _, err := h.CallTool(t.Context(), auth.Identity{}, call); err != nil {
		t.Fatal(err)
	}
	schema.Store(orderSchema)
	offerTool()
	if err := tools.Refresh(t.Context(), "shop"); err != nil {
		t.Fatal(err)
	}
	_, err = h.CallTool(t.Context(), auth.Identity{}, call)
	if err == nil || !strings.Contains(err.Error(), "missing required field: item") || !strings.Contains(err.Error(), orderSchema) {
		t.Errorf(`error %v, want error containing "missing required field: item", error containing %q`, err, orderSchema)
	}
}
