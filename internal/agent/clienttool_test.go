package agent_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"answerd/internal/agent"
	"answerd/internal/agent/agenttest"
	"answerd/internal/auth"
	"answerd/internal/event"
	"answerd/internal/llm"
	"answerd/internal/llm/llmtest"
	"answerd/internal/llm/texttool"
)

func clientTool(name string) agent.ClientTool {
	return agent.ClientTool{Name: name, Description: "of the caller", Schema: json.RawMessage(`{"type":"object"}`)}
}

// S2.8: a turn with calls of both kinds ends the run; ours are made first, and the
// metadata have an element for each.
func TestClientToolCallEndsTheRunAfterServerCalls(t *testing.T) {
	h := agenttest.NewFixture(t, llmtest.Turns(llmtest.Calls(
		llmtest.Call{ID: "c1", Name: "colour", Args: `{"of":"sky"}`},
		llmtest.Call{ID: "s1", Name: "add", Args: `{"a":1,"b":2}`},
		llmtest.Call{ID: "c2", Name: "colour", Args: `not json`},
	), llmtest.Says("never asked")), nil)
	events := h.Events(t, h.StartRun(t, agent.Request{ClientTools: []agent.ClientTool{clientTool("colour")}}).ID)
	end := agenttest.TerminalEvent[event.FinalAnswer](t, events)
	if end.FinishReason != "tool_calls" || len(h.Model.Requests()) != 1 {
		t.Errorf("%s after %d requests, want tool_calls and 1", end.FinishReason, len(h.Model.Requests()))
	}
	if got := strings.Join(end.Metadata.ToolNames, " "); got != "colour add colour" {
		t.Errorf(`tool_names %s, want "colour add colour"`, got)
	}
	results, _ := json.Marshal(end.Metadata.ToolResults)
	if string(results) != `[null,{"sum":3},null]` {
		t.Errorf(`tool_results %s, want [null,{"sum":3},null]`, results)
	}

	var written []string
	for _, c := range agenttest.EventsOf[event.ToolCall](events) {
		written = append(written, c.CallID+" "+string(c.Executor)+" "+string(c.Args)+c.ArgsText)
	}

	if got, want := strings.Join(written, ", "), `c1 client {"of":"sky"}, s1  {"a":1,"b":2}, c2 client not json`; got != want {
		t.Errorf("calls: %s, want %s", got, want)
	}
	if n := len(agenttest.EventsOf[event.ToolResult](events)) + len(agenttest.EventsOf[event.ToolError](events)); n != 1 {
		t.Errorf("%d calls have an end of their own, want 1", n)
	}
}

func TestServersToolIsNotReplacedByTheCallers(t *testing.T) {
	h := agenttest.NewFixture(t, llmtest.Turns(llmtest.Calls(llmtest.Call{Name: "add", Args: `{"a":1,"b":2}`}), llmtest.Says("3")), nil)
	events := h.Events(t, h.StartRun(t, agent.Request{ClientTools: []agent.ClientTool{clientTool("add"), clientTool("mine")}}).ID)
	if end := agenttest.TerminalEvent[event.FinalAnswer](t, events); end.Answer != "3" {
		t.Errorf("end %+v, want Answer 3", end)
	}
	offered := make(map[string]int)
	for _, tool := range h.Model.Requests()[0].Tools {
		offered[tool.Function.Name]++
		if tool.Function.Name == "add" && tool.Function.Description == "of the caller" {
			t.Errorf(`the caller's add is offered: Function.Description %q, want other than "of the caller"`, tool.Function.Description)
		}
	}
	if offered["add"] != 1 || offered["mine"] != 1 {
		t.Errorf(`offered: %v, want ["add"] 1, ["mine"] 1`, offered)
	}
}

func TestClientToolsAreNotOfferedWithoutTools(t *testing.T) {
	h := agenttest.NewFixture(t, llmtest.Turns(llmtest.Says("no")), nil)
	h.Events(t, h.StartRun(t, agent.Request{ToolChoice: agent.ToolNone, ClientTools: []agent.ClientTool{clientTool("mine")}}).ID)
	if n := len(h.Model.Requests()[0].Tools); n != 0 {
		t.Errorf("%d tools are offered, want 0", n)
	}
}

// After the last turn no tool can be called, and neither can those of the caller.
func TestSummingUpTurnCannotCallTheClient(t *testing.T) {
	h := agenttest.NewFixture(t, llmtest.Turns(
		llmtest.Calls(llmtest.Call{Name: "add", Args: `{"a":1,"b":2}`}),
		llmtest.Calls(llmtest.Call{Name: "mine", Args: `{}`}),
	), nil)
	events := h.Events(t, h.StartRun(t, agent.Request{MaxTurns: 1, ClientTools: []agent.ClientTool{clientTool("mine")}}).ID)
	end := agenttest.TerminalEvent[event.FinalAnswer](t, events)
	if failed := agenttest.EventsOf[event.ToolError](events); end.FinishReason != "max_turns" || len(failed) != 1 {
		t.Errorf("finish reason %s, %v, want max_turns and 1 failed", end.FinishReason, failed)
	}
}

func TestForcedToolIsNamedInTheFirstTurnOnly(t *testing.T) {
	for _, c := range []struct{ name, tool, args string }{{"server", "add", `{"a":1,"b":2}`}, {"client", "mine", `{}`}} {
		t.Run(c.name, func(t *testing.T) {
			h := agenttest.NewFixture(t, llmtest.Turns(llmtest.Calls(llmtest.Call{Name: c.tool, Args: c.args}), llmtest.Says("done")), nil)
			h.Events(t, h.StartRun(t, agent.Request{ToolChoice: agent.ToolRequired, ForcedTool: c.tool, ClientTools: []agent.ClientTool{clientTool("mine")}}).ID)
			requests := h.Model.Requests()
			if got := string(requests[0].ToolChoice); got != `{"type":"function","function":{"name":"`+c.tool+`"}}` {
				t.Errorf("first: %s, want %s", got, `{"type":"function","function":{"name":"`+c.tool+`"}}`)
			}
			if len(requests) > 1 && string(requests[1].ToolChoice) != `"auto"` {
				t.Errorf(`second: %s, want "auto"`, requests[1].ToolChoice)
			}
		})
	}

	h := agenttest.NewFixture(t, llmtest.Turns(llmtest.Says("done")), inTextMode)
	h.Events(t, h.StartRun(t, agent.Request{ToolChoice: agent.ToolRequired, ForcedTool: "add"}).ID)
	if s, want := h.Model.Requests()[0].Messages[0].Content, "You must call the tool add now."; !strings.Contains(s, want) {
		t.Errorf("in text: %s, want it to contain %s", s, want)
	}
	_, err := h.Start(t.Context(), auth.Identity{}, agent.Request{Question: "q", ToolChoice: agent.ToolRequired, ForcedTool: "nosuch"})
	if refused, ok := errors.AsType[*agent.InvalidError](err); !ok || refused.Pointer != "/tool_choice" {
		t.Errorf("a tool that is not there: %v, want an InvalidError, Pointer /tool_choice", err)
	}
}

func TestSamplingAndMaxTokensReachTheWire(t *testing.T) {
	warm, seed := 0.5, int64(7)
	h := agenttest.NewFixture(t, llmtest.Turns(llmtest.Says("yes")), func(o *agent.Options) {
		profiles := map[string]llm.Profile{"scripted": {ID: "scripted", MaxOutputTokens: 100}}
		o.Profiles, o.Model = profiles, llm.NewRouter(texttool.Models(o.Model), llm.NativeCalling, profiles)
	})

	h.Events(t, h.StartRun(t, agent.Request{MaxTokens: 500, Instructions: "Rhyme.", Sampling: agent.Sampling{
		Temperature: &warm, Seed: &seed, Stop: []string{"END"}, ReasoningEffort: "low", ResponseFormat: json.RawMessage(`{"type":"json_object"}`),
	}}).ID)
	r := h.Model.Requests()[0]
	var got map[string]json.RawMessage
	if err := json.Unmarshal(r.Body, &got); err != nil {
		t.Fatal(err)
	}

	for name, want := range map[string]string{
		"temperature": "0.5", "seed": "7", "stop": `["END"]`, "reasoning_effort": `"low"`,
		"response_format": `{"type":"json_object"}`, "max_completion_tokens": "100",
	} {
		if string(got[name]) != want {
			t.Errorf("%s: %s, want %s", name, got[name], want)
		}
	}

	if _, given := got["top_p"]; given {
		t.Errorf("request has top_p %s, want none", got["top_p"])
	}
	if len(r.Messages) != 2 || !strings.HasSuffix(r.Messages[0].Content, "\n\nRhyme.") || !strings.HasPrefix(r.Messages[0].Content, "You are") {
		t.Errorf(`messages: %+v, want 2, Content ending in "\n\nRhyme.", Content starting with "You are"`, r.Messages)
	}
}

// A tool_choice is about the calls of one model, so a child keeps the tools that AllowedTools does not name.
func TestAllowedToolsDoNotNarrowChildren(t *testing.T) {
	h := agenttest.NewFixture(t, scriptPerAgent(map[string]llmtest.Script{
		"a": llmtest.Turns(askAgent("b", "?"), llmtest.Says("Done.")), "b": llmtest.Turns(llmtest.Says("No.")),
	}), withAgents(t, fiveAgents))
	h.Events(t, h.StartRun(t, agent.Request{AllowedTools: []string{"ask_b"}}).ID)
	requests := h.Model.Requests()
	if len(requests) < 2 {
		t.Fatalf("got %d model requests, want those of a and b", len(requests))
	}
	if tools := requests[0].Tools; len(tools) != 1 || tools[0].Function.Name != "ask_b" {
		t.Errorf("a is offered %+v, want only ask_b", tools)
	}
	if len(requests[1].Tools) == 0 {
		t.Error("b is offered no tools, want its own")
	}

	h.Events(t, h.StartRun(t, agent.Request{AllowedTools: []string{"echo"}}).ID)
	if tools := h.Model.Requests()[len(requests)].Tools; len(tools) != 1 || tools[0].Function.Name != "echo" {
		t.Errorf("a is offered %+v, want only echo", tools)
	}
}
