package agent_test

import (
	"context"
	"encoding/json"
	"errors"
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
	"answerd/internal/agent/webhook/webhooktest"
	"answerd/internal/auth"
	"answerd/internal/event"
	"answerd/internal/event/memory"
	"answerd/internal/llm/llmtest"
	"answerd/internal/mcp"
	"answerd/internal/mcp/config"
)

// newRules returns the rules of a file, which can be replaced later.
func newRules(t *testing.T, file string) *auth.Rules {
	t.Helper()
	parsed, err := auth.ParseRules([]byte(file))
	if err != nil {
		t.Fatal(err)
	}
	return auth.NewRules(parsed)
}

// clerk is a caller whom rules know by a claim.
var clerk = auth.Identity{Issuer: "https://iam.example", Subject: "cleo", Claims: map[string]json.RawMessage{"groups": []byte(`["clerks"]`)}}

const clerksAdd = `{"rules": [{"name": "clerks", "claims": {"groups": ["clerks"]}, "tools": ["add", "gi*"], "models": ["scripted"]}]}`

// OWASP AISVS 9.5.3: the model never decides what may be used. It is offered the tools that its
// caller may use. A call of any other tool is denied and reaches no server, and the log has both
// decisions.
func TestModelUsesWhatItsCallerMayUse(t *testing.T) {
	log := &logBuffer{}
	h := agenttest.NewFixture(t, llmtest.Turns(
		llmtest.Calls(onePlusTwo, llmtest.Call{Name: "meet", Args: `{"text":"x"}`}, llmtest.Call{Name: "made_up"}), llmtest.Says("Done."),
	), func(o *agent.Options) {
		o.Rules, o.Logger = newRules(t, clerksAdd), slog.New(slog.NewJSONHandler(log, nil))
	})

	run, err := h.Start(t.Context(), clerk, agent.Request{Question: "?"})
	if err != nil {
		t.Fatal(err)
	}
	events := h.Events(t, run.ID)
	agenttest.TerminalEvent[event.FinalAnswer](t, events)

	var kinds []string
	for _, e := range agenttest.EventsOf[event.ToolError](events) {
		kinds = append(kinds, e.Tool+" "+e.Kind)
	}

	if got := strings.Join(kinds, ", "); got != "meet denied, made_up unknown_tool" && got != "made_up unknown_tool, meet denied" {
		t.Errorf(`got %q, want "meet denied, made_up unknown_tool" or "made_up unknown_tool, meet denied"`, got)
	}
	if n := len(agenttest.EventsOf[event.ToolResult](events)); n != 1 || len(h.Tools.Entered) != 0 {
		t.Errorf("%d results, %d calls of meet, want 1 and 0", n, len(h.Tools.Entered))
	}

	for _, r := range h.Model.Requests() {
		var offered []string
		for _, tool := range r.Tools {
			offered = append(offered, tool.Function.Name)
		}
		if got := strings.Join(offered, " "); got != "add give" {
			t.Errorf(`offered %s, want "add give"`, got)
		}
	}

	said := make(map[string]string)
	for _, line := range log.callLines(t) {
		said[fmt.Sprint(line["tool"])] = fmt.Sprint(line["decision"], " ", line["rule"], " ", line["reason"], " ", line["server"], " ", line["subject"])
	}
	if said["add"] != "allowed clerks <nil> default cleo" || said["meet"] != "denied <nil> rules default cleo" {
		t.Errorf(`the log: %v, want ["add"] "allowed clerks <nil> default cleo", ["meet"] "denied <nil> rules default cleo"`, said)
	}
}

func TestCallerWithoutARuleMayUseNothing(t *testing.T) {
	h := agenttest.NewFixture(t, llmtest.Turns(llmtest.Says("Yes.")), func(o *agent.Options) { o.Rules = newRules(t, clerksAdd) })
	stranger := auth.Identity{Issuer: "https://iam.example", Subject: "eve"}
	for name, c := range map[string]struct {
		who auth.Identity
		r   agent.Request
	}{
		"a stranger": {stranger, agent.Request{}}, "without tools": {stranger, agent.Request{ToolChoice: agent.ToolNone}}, "nobody": {auth.Identity{}, agent.Request{}},
		"another model": {clerk, agent.Request{Model: "better"}},
	} {
		c.r.Question = "?"
		if _, err := h.Start(t.Context(), c.who, c.r); !errors.Is(err, agent.ErrForbidden) {
			t.Errorf("%s: %v, want ErrForbidden", name, err)
		}
	}

	if len(h.Model.Requests()) != 0 || len(h.ToolsFor(t.Context(), stranger)) != 0 || len(h.ServersFor(stranger)) != 0 {
		t.Errorf("a caller without rights: %d model requests, %d tools, %d servers, want 0, 0 and 0", len(h.Model.Requests()), len(h.ToolsFor(t.Context(), stranger)), len(h.ServersFor(stranger)))
	}
	if err := h.Refresh(t.Context(), stranger, "default"); !errors.Is(err, agent.ErrUnknownServer) {
		t.Errorf("refresh: %v, want ErrUnknownServer", err)
	}
	if _, err := h.Prompts(t.Context(), stranger, "default"); !errors.Is(err, agent.ErrUnknownServer) {
		t.Errorf("prompts: %v, want ErrUnknownServer", err)
	}
	_, err := h.CallTool(t.Context(), clerk, agent.ToolCall{Tool: "echo"})
	if failed, ok := errors.AsType[*agent.ToolCallError](err); !ok || failed.Kind != "denied" {
		t.Errorf("a direct call: %v, want a ToolCallError, Kind denied", err)
	}
}

// A server that the caller may not use is one that there is not.
func TestServerThatIsForbiddenCannotBeNamed(t *testing.T) {
	h := agenttest.NewFixture(t, llmtest.Turns(llmtest.Says("Yes.")), func(o *agent.Options) {
		o.Rules = newRules(t, `{"rules": [{"servers": ["other"]}]}`)
	})
	for _, r := range []agent.Request{
		{Question: "?", Servers: []string{"default"}}, {Question: "?", Prompt: &agent.ServerPrompt{Server: "default", Name: "greet"}},
	} {
		_, err := h.Start(t.Context(), clerk, r)
		if bad, ok := errors.AsType[*agent.InvalidError](err); !ok || bad.Detail != "no MCP server has this name" {
			t.Errorf(`error %v, want an InvalidError, Detail "no MCP server has this name"`, err)
		}
	}
}

// The rules that count are those of the moment in which the call would be made, however
// long ago the run began, and even if a person has agreed to it.
func TestChangedRulesApplyToActiveRuns(t *testing.T) {
	r := newRules(t, clerksAdd)
	h := newAddFixture(t, func(o *agent.Options) { o.Rules = r }, onePlusTwo)
	run, err := h.Start(t.Context(), clerk, agent.Request{Question: "?", Interactive: true})
	if err != nil {
		t.Fatal(err)
	}
	waits := waitUntilSuspended(t, h, run.ID, 1)
	r.Replace([]auth.Rule{{Tools: []string{"echo"}}})
	if err := h.Answer(t.Context(), clerk, run.ID, agent.Input{ID: waits[0].ID, Approved: new(true)}); err != nil {
		t.Fatal(err)
	}
	failed := agenttest.EventsOf[event.ToolError](h.Events(t, run.ID))
	if len(failed) != 1 || failed[0].Kind != "denied" || h.Tools.CallCounts()["add"] != 0 {
		t.Errorf("failed %+v, want 1 failed, Kind denied, calls of add 0", failed)
	}
}

// A process that takes a run over has no token of its caller, and can still check the rules.
func TestResumedRunKeepsItsPermissions(t *testing.T) {
	script := llmtest.Turns(llmtest.Calls(onePlusTwo), llmtest.Says("3."))
	with := func(log event.Log) func(*agent.Options) {
		return func(o *agent.Options) {
			withDurableLog(log)(o)
			o.Rules = newRules(t, clerksAdd)
		}
	}

	origin := &recordingLog{Log: memory.New(memory.Options{})}
	first := agenttest.NewFixture(t, script, with(origin))
	token := clerk
	token.Token = auth.NewSecret("canary")
	run, err := first.Start(t.Context(), token, agent.Request{Question: "?", Background: true})
	if err != nil {
		t.Fatal(err)
	}
	first.Events(t, run.ID)
	if strings.Contains(string(origin.request), "canary") {
		t.Errorf("the token is kept: request %q, want no canary", string(origin.request))
	}
	second := agenttest.NewFixture(t, script, with(origin.diedAfter(t, run, 1)))
	events := second.Events(t, run.ID)
	agenttest.TerminalEvent[event.FinalAnswer](t, events)
	if len(agenttest.EventsOf[event.ToolResult](events)) != 1 || second.Tools.CallCounts()["add"] != 1 {
		t.Errorf("types of %s, want 1 tool result events, calls of add 1", agenttest.TypesOf(events))
	}
}

// A forbidden call is not sent to the hook service either, which could answer in place of the tool.
func TestHookIsNotCalledForForbiddenTools(t *testing.T) {
	h, service := newHookedFixture(t, llmtest.Turns(llmtest.Calls(llmtest.Call{Name: "echo", Args: `{"text":"x"}`}), llmtest.Says("Done.")),
		func(webhooktest.Question) string { return `{"content":"from the hook"}` },
		func(o *agent.Options) { o.Rules = newRules(t, clerksAdd) })
	run, err := h.Start(t.Context(), clerk, agent.Request{Question: "?"})
	if err != nil {
		t.Fatal(err)
	}
	if got := agenttest.TypesOf(h.Events(t, run.ID)); strings.Contains(got, "tool_result") {
		t.Errorf("events %q, want no tool_result", got)
	}
	if _, err := h.CallTool(t.Context(), clerk, agent.ToolCall{Tool: "echo", Args: []byte(`{"text":"x"}`)}); err == nil {
		t.Error("the direct call was answered, want an error")
	}
	if n := len(service.Questions()); n != 0 {
		t.Errorf("the hook was asked %d times, want 0", n)
	}
}

// newNamesakes returns a fixture whose model calls the tool send of the server second. A server first, before it in
// mcp.json, has a tool of that name too, and is down until useFirst is called. called gets each call's server and
// arguments.
func newNamesakes(t *testing.T, set func(*agent.Options)) (h *agenttest.Fixture, useFirst func(), called chan string) {
	t.Helper()
	var isUp atomic.Bool
	called = make(chan string, 1)
	serve := func(name, schema string) config.Server {
		server := sdk.NewServer(&sdk.Implementation{Name: name, Version: "1"}, nil)
		server.AddTool(&sdk.Tool{Name: "send", InputSchema: json.RawMessage(schema)}, func(_ context.Context, r *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
			called <- name + " " + string(r.Params.Arguments)
			return &sdk.CallToolResult{}, nil
		})
		handler := sdk.NewStreamableHTTPHandler(func(*http.Request) *sdk.Server { return server }, &sdk.StreamableHTTPOptions{Stateless: true})
		web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if name == "first" && !isUp.Load() {
				w.WriteHeader(http.StatusServiceUnavailable)
				return
			}
			handler.ServeHTTP(w, r)
		}))
		t.Cleanup(web.Close)
		c, err := config.SingleServer(web.URL)
		if err != nil {
			t.Fatal(err)
		}
		c.Name, c.Approval = name, config.ApproveAlways
		return c
	}
	servers := []config.Server{serve("first", `{"type":"object","required":["x"]}`), serve("second", `{"type":"object","required":["a"]}`)}
	tools, err := mcp.New(servers, mcp.Options{Logger: slog.New(slog.DiscardHandler), StartWait: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tools.Close() })
	h = agenttest.NewFixture(t, llmtest.Turns(llmtest.Calls(llmtest.Call{Name: "send", Args: `{"a":1}`}), llmtest.Says("Done.")),
		func(o *agent.Options) { o.Tools = tools; set(o) })
	useFirst = func() {
		t.Helper()
		isUp.Store(true)
		if err := h.Refresh(t.Context(), auth.Identity{}, "first"); err != nil {
			t.Fatal(err)
		}
	}
	return h, useFirst, called
}

// An earlier server of mcp.json comes up while a call of a later one waits, and takes the tool's name. The arguments
// that a person enters are still checked by the schema of the tool that they approve.
func TestChangedArgumentsFitTheToolThatWasShown(t *testing.T) {
	h, useFirst, called := newNamesakes(t, func(*agent.Options) {})
	run := h.StartRun(t, agent.Request{Interactive: true}).ID
	i := waitUntilSuspended(t, h, run, 1)[0]
	useFirst()
	answerInterrupt(t, h, run, agent.Input{ID: i.ID, Approved: new(true), Args: rawJSON(`{"a":2}`)})
	if got, want := <-called, `second {"a":2}`; got != want {
		t.Errorf("got the call %s, want %s", got, want)
	}
}

// A parked run is continued by a process that knows the tool by another name, or another tool by its name.
func TestParkedCallKeepsItsToolWhenTheNameIsTaken(t *testing.T) {
	for name, request := range map[string]agent.Request{"all servers": {}, "one server": {Servers: []string{"second"}}} {
		h, useFirst, called := newNamesakes(t, func(o *agent.Options) { o.Durable = true })
		request.Interactive, request.Background = true, true
		run := h.StartRun(t, request).ID
		i := waitUntilSuspended(t, h, run, 1)[0]
		useFirst()
		answerInterrupt(t, h, run, agent.Input{ID: i.ID, Approved: new(true)})
		events := h.Events(t, run)
		if failed := agenttest.EventsOf[event.ToolError](events); len(failed) > 0 {
			t.Errorf("%s: got %+v, want the call made", name, failed)
			continue
		}
		if got, want := <-called, `second {"a":1}`; got != want {
			t.Errorf("%s: got the call %s, want %s", name, got, want)
		}
	}
}
