package agent_test

import (
	"encoding/json"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"answerd/internal/agent"
	"answerd/internal/agent/agenttest"
	"answerd/internal/auth"
	"answerd/internal/event"
	"answerd/internal/llm/llmtest"
	"answerd/internal/mcp"
	"answerd/internal/mcp/config"
)

// S4.8: a tool that is kept from the model is unknown to its runs, and can be called
// by name; and at once, while its server is still being connected.
func TestToolThatIsKeptFromTheModelCanBeCalled(t *testing.T) {
	h := agenttest.NewFixture(t, llmtest.Turns(llmtest.Calls(llmtest.Call{Name: "h_add", Args: `{"a":1,"b":2}`}), llmtest.Says("No.")), nil)
	tools, err := mcp.New([]config.Server{{Name: "hidden", URL: h.Tools.URL, ToolPrefix: "h", Hidden: true}}, mcp.Options{Logger: slog.New(slog.DiscardHandler), StartWait: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	defer tools.Close()
	o := h.Options
	o.Tools = tools
	a, err := agent.New(o)
	if err != nil {
		t.Fatal(err)
	}

	res, err := a.CallTool(t.Context(), auth.Identity{}, agent.ToolCall{Tool: "h_add", Args: json.RawMessage(`{"a":1,"b":2}`)})
	if err != nil || string(res.Payload) != `{"sum":3}` || res.Server != "hidden" {
		t.Errorf(`tool result %+v, %v, want Payload {"sum":3}, Server hidden, no error`, res, err)
	}

	h.Agent = a
	events := h.Events(t, h.StartRun(t, agent.Request{}).ID)
	if failed := agenttest.EventsOf[event.ToolError](events); len(failed) != 1 || failed[0].Kind != "unknown_tool" {
		t.Errorf("the model's call: %+v, want 1 with Kind unknown_tool", failed)
	}
}

// A call without a model ends in the words of a run's call.
func TestDirectCallEndsLikeTheCallOfARun(t *testing.T) {
	calls := []llmtest.Call{{Name: "echo", Args: `{"text":"x"}`}, {Name: "fail", Args: `{}`}, {Name: "add", Args: `{"a":"x"}`}, {Name: "nope", Args: `{}`}}
	h := agenttest.NewFixture(t, llmtest.Turns(llmtest.Calls(calls...), llmtest.Says("Done.")), nil)

	events := h.Events(t, h.StartRun(t, agent.Request{}).ID)
	worked, failed := make(map[string]event.ToolResult), make(map[string]event.ToolError)
	for _, e := range agenttest.EventsOf[event.ToolResult](events) {
		worked[e.Tool] = e
	}

	for _, e := range agenttest.EventsOf[event.ToolError](events) {
		failed[e.Tool] = e
	}

	for _, c := range calls {
		res, err := h.CallTool(t.Context(), auth.Identity{}, agent.ToolCall{Tool: c.Name, Args: json.RawMessage(c.Args)})
		var bad *agent.ToolCallError
		if errors.As(err, &bad) {
			if want := failed[c.Name]; bad.Kind != want.Kind || bad.Payload != want.Payload || bad.Server != want.Server {
				t.Errorf("%s: directly %+v, in a run %+v", c.Name, bad, want)
			}
			continue
		}
		if want := worked[c.Name]; err != nil || string(res.Payload) != string(want.Payload) || len(res.Content) != len(want.Content) {
			t.Errorf("%s: directly %+v, %v, in a run %+v", c.Name, res, err, want)
		}
	}

	if len(worked) != 1 || len(failed) != 3 {
		t.Errorf("%d calls worked, %d failed, want 1 and 3", len(worked), len(failed))
	}
}

// A caller who waits only for the result of a call cannot answer a question during it.
func TestDirectCallDeclinesQuestions(t *testing.T) {
	h := agenttest.NewFixture(t, llmtest.Turns(), nil)
	res, err := h.CallTool(t.Context(), auth.Identity{}, agent.ToolCall{Tool: "ask"})
	if err != nil || !strings.Contains(string(res.Payload), "decline") {
		t.Errorf("payload %s, %v, want Payload containing decline, no error", res.Payload, err)
	}
	if _, err := h.CallTool(t.Context(), auth.Identity{}, agent.ToolCall{Tool: "sample"}); err == nil {
		t.Error("CallTool(sample) = no error, want it refused")
	}
}

// Clients parse events and answers with bounds on the depth, some of 1,000 levels.
func TestResultThatIsNestedTooDeepIsTooLarge(t *testing.T) {
	nestedArrays := func(levels int) string { return strings.Repeat("[", levels) + strings.Repeat("]", levels) }
	for name, c := range map[string]struct {
		result string
		fails  bool
	}{
		"structured at the bound":   {`{"content":[],"structuredContent":{"a":` + nestedArrays(127) + `}}`, false},
		"structured beyond":         {`{"content":[],"structuredContent":{"a":` + nestedArrays(128) + `}}`, true},
		"a block beyond":            {`{"content":[{"type":"text","text":"x","_meta":{"a":` + nestedArrays(127) + `}}]}`, true},
		"brackets in a text":        {`{"content":[{"type":"text","text":"` + strings.Repeat(`[\"`, 500) + `"}]}`, false},
		"many values side by side":  {`{"content":[],"structuredContent":{"a":[` + strings.Repeat("[],", 500) + `1]}}`, false},
		"as deep as parsers accept": {`{"content":[],"structuredContent":{"a":` + nestedArrays(9000) + `}}`, true},
	} {
		t.Run(name, func(t *testing.T) {
			var args string
			h := agenttest.NewFixture(t, func(r llmtest.Request) llmtest.Answer {
				return llmtest.Turns(llmtest.Calls(llmtest.Call{Name: "give", Args: args}), llmtest.Says("Done."))(r)
			}, nil)
			args = h.Tools.SetResult("deep", c.result)
			events := h.Events(t, h.StartRun(t, agent.Request{}).ID)
			failed := agenttest.EventsOf[event.ToolError](events)
			if len(failed) > 0 != c.fails {
				t.Fatalf("failures %+v, want some: %t", failed, c.fails)
			}
			if c.fails && (failed[0].Kind != "too_large" || !strings.Contains(failed[0].Payload, "nested deeper than 128 levels") || !strings.Contains(failed[0].Payload, `[[[[`)) {
				t.Errorf("%s: %s, want too_large with a preview", failed[0].Kind, failed[0].Payload)
			}
		})
	}
}

func TestToolNameOfAModelIsEscapedAndCut(t *testing.T) {
	for name, want := range map[string]string{
		"a\u202eb\u2066c":               `a\u202eb\u2066c`,
		"line\nfeed\x1b[31m":            `line\nfeed\x1b[31m`,
		strings.Repeat("é", 100_000/2):  strings.Repeat("é", 64),
		strings.Repeat("\u202e", 1000):  strings.Repeat(`\u202e`, 21),
		"x" + strings.Repeat("é", 1000): "x" + strings.Repeat("é", 63),
	} {
		h := agenttest.NewFixture(t, llmtest.Turns(llmtest.Calls(llmtest.Call{Name: name, Args: `{}`}), llmtest.Says("Done.")), nil)
		events := h.Events(t, h.StartRun(t, agent.Request{}).ID)
		for _, e := range agenttest.EventsOf[event.ToolCall](events) {
			if e.Tool != want {
				t.Errorf("%.20q: the event names %q, want %q", name, e.Tool, want)
			}
		}
		if got := agenttest.TerminalEvent[event.FinalAnswer](t, events).Metadata.ToolNames; len(got) != 1 || got[0] != want {
			t.Errorf("%.20q: tool_names %q, want %q", name, got, want)
		}
	}
}
