package agent_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	"answerd/internal/agent"
	"answerd/internal/agent/agenttest"
	"answerd/internal/agent/webhook"
	"answerd/internal/agent/webhook/webhooktest"
	"answerd/internal/auth"
	"answerd/internal/event"
	"answerd/internal/llm/llmtest"
	"answerd/internal/mcp/config"
)

// newHookedFixture returns a fixture whose hook service replies what answer returns.
func newHookedFixture(t *testing.T, script llmtest.Script, answer func(webhooktest.Question) string, set func(*agent.Options)) (*agenttest.Fixture, *webhooktest.Service) {
	t.Helper()
	s := webhooktest.New(t, answer)
	hooks, err := webhook.New(webhook.Options{URL: s.URL, Secret: webhooktest.Secret})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(hooks.Close)
	return agenttest.NewFixture(t, script, func(o *agent.Options) {
		o.Hooks = hooks
		if set != nil {
			set(o)
		}
	}), s
}

// replyOnlyTo gives a reply to one hook and an empty one to the others.
func replyOnlyTo(name, reply string) func(webhooktest.Question) string {
	return func(q webhooktest.Question) string {
		if q.Hook == name {
			return reply
		}
		return `{}`
	}
}

// questionsByCall returns what a service was asked, call by call.
func questionsByCall(s *webhooktest.Service) map[string]string {
	out := make(map[string]string)
	for _, q := range s.Questions() {
		what := q.Hook
		if q.Error != nil {
			what += "/" + q.Error.Kind
		}
		out[q.CallID] = strings.TrimSpace(out[q.CallID] + " " + what)
	}
	return out
}

// S0.2: whatever way a call fails, tool_error is asked about it; and of every call
// that can be made the service knows before.
func TestCallFailuresReachTheHook(t *testing.T) {
	server := memoryServer{
		"works": func(*http.Request) (string, error) { return textReply("fine"), nil },
		"fails": func(*http.Request) (string, error) {
			return `{"jsonrpc":"2.0","id":%s,"result":{"isError":true,"content":[]}}`, nil
		},
		"babbles": func(*http.Request) (string, error) { return `what? %s`, nil },
		"refuses": func(*http.Request) (string, error) {
			return `{"jsonrpc":"2.0","id":%s,"error":{"code":-32602,"message":"bad argument"}}`, nil
		},
		"breaks":   func(*http.Request) (string, error) { return "", errors.New("reset") },
		"hesitate": neverReply,
	}

	calls := []llmtest.Call{{Name: "works"}, {Name: "fails"}, {Name: "babbles"}, {Name: "refuses"}, {Name: "breaks"}, {Name: "s_hesitate"}, {Name: "unknown"}, {Name: "works", Args: "{"}}
	tools := server.client(t, config.Server{Name: "m"}, config.Server{Name: "slow", ToolPrefix: "s", Timeout: 10 * time.Millisecond})
	defer tools.Close()
	h, s := newHookedFixture(t, llmtest.Turns(llmtest.Calls(calls...), llmtest.Says("Done.")), func(webhooktest.Question) string { return `{}` },
		func(o *agent.Options) { o.Tools = tools })
	run, err := h.Start(t.Context(), auth.Identity{Subject: "ada"}, agent.Request{Question: "?"})
	if err != nil {
		t.Fatal(err)
	}
	events := h.Events(t, run.ID)
	agenttest.TerminalEvent[event.FinalAnswer](t, events)

	got := questionsByCall(s)
	for i, want := range []string{
		"pre_tool_call tool_result",
		"pre_tool_call tool_error/execution",
		"pre_tool_call tool_error/protocol",
		"pre_tool_call tool_error/invalid_arguments",
		"pre_tool_call tool_error/unavailable", // the connection
		"pre_tool_call tool_error/timeout",
		"tool_error/unknown_tool",
		"tool_error/invalid_arguments",
	} {
		if id := fmt.Sprintf("call_%d", i+1); got[id] != want {
			t.Errorf("%s: %s, want %s", calls[i].Name, got[id], want)
		}
	}

	told := make(map[string]string)
	for _, e := range agenttest.EventsOf[event.ToolError](events) {
		told[e.CallID] = e.Payload
	}

	for _, q := range s.Questions() {
		if q.RunID != run.ID || q.Subject != "ada" || q.Error != nil && q.Error.Message != told[q.CallID] {
			t.Errorf("question %+v, want run %s, subject ada and the error that the model was told: %q", q, run.ID, told[q.CallID])
		}
		// S0.3: the built-in hint stands in front of the hook.
		if q.CallID == "call_8" && (q.ArgsText != "{" || string(q.Args) != "null" || !strings.Contains(q.Error.Message, "input schema")) {
			t.Errorf(`bad arguments: %+v, want ArgsText {, Args null, Error.Message containing "input schema"`, q)
		}
	}
}

// S0.7: the arguments that a hook gives are those that are sent, and what the model
// wrote stays on record as the call.
func TestPreToolCallCanChangeACall(t *testing.T) {
	h, s := newHookedFixture(t, llmtest.Turns(llmtest.Calls(llmtest.Call{Name: "add", Args: `{"a":1,"b":2}`}), llmtest.Says("Done.")),
		replyOnlyTo("pre_tool_call", `{"args":{"a":10,"b":20}}`), nil)
	events := h.Events(t, h.StartRun(t, agent.Request{}).ID)
	end := agenttest.TerminalEvent[event.FinalAnswer](t, events)
	result := agenttest.EventsOf[event.ToolResult](events)[0]
	if call := agenttest.EventsOf[event.ToolCall](events)[0]; string(call.Args) != `{"a":1,"b":2}` {
		t.Errorf(`the model's call: %s, want {"a":1,"b":2}`, call.Args)
	}
	if string(result.Payload) != `{"sum":30}` || string(result.Args) != `{"a":10,"b":20}` || string(end.Metadata.ToolParams[0]) != `{"a":10,"b":20}` {
		t.Errorf(`result %s of %s, params %s, want Payload {"sum":30}, Args {"a":10,"b":20}, Metadata.ToolParams[0] {"a":10,"b":20}`, result.Payload, result.Args, end.Metadata.ToolParams)
	}
	if q := s.Questions(); string(q[0].Args) != `{"a":1,"b":2}` || string(q[1].Args) != `{"a":10,"b":20}` || string(q[1].Result.Structured) != `{"sum":30}` {
		t.Errorf(`asked %+v, want Args {"a":1,"b":2}, Args {"a":10,"b":20}, Result.Structured {"sum":30}`, q)
	}
	if sent := h.Model.Requests()[1].Messages; sent[2].ToolCalls[0].Function.Arguments != `{"a":1,"b":2}` {
		t.Errorf(`the conversation has %+v, want Function.Arguments {"a":1,"b":2}`, sent[2].ToolCalls)
	}
}

// A hook's arguments get no more trust than a model's.
func TestArgumentsOfAHookAreCheckedLikeTheModels(t *testing.T) {
	for name, c := range map[string]struct{ args, kind string }{
		"of a wrong type": {`{"a":"x","b":1}`, "invalid_arguments"},
		"too long":        {`{"text":"` + strings.Repeat("x", 70<<10) + `"}`, "denied"},
	} {
		h, _ := newHookedFixture(t, llmtest.Turns(llmtest.Calls(llmtest.Call{Name: "add", Args: `{"a":1,"b":2}`}), llmtest.Says("Done.")),
			replyOnlyTo("pre_tool_call", `{"args":`+c.args+`}`), nil)
		events := h.Events(t, h.StartRun(t, agent.Request{}).ID)
		agenttest.TerminalEvent[event.FinalAnswer](t, events)
		if errs := agenttest.EventsOf[event.ToolError](events); len(errs) != 1 || errs[0].Kind == "" {
			t.Errorf("%s: %+v, want 1 with Kind non-empty", name, errs)
		} else if c.kind == "denied" && errs[0].Kind != "denied" {
			t.Errorf("%s: %+v, want Kind denied", name, errs)
		}
	}
}

func TestPreToolCallCanAnswerInPlaceOfTheTool(t *testing.T) {
	h, s := newHookedFixture(t, llmtest.Turns(llmtest.Calls(llmtest.Call{Name: "meet", Args: `{"text":"x"}`}), llmtest.Says("Done.")),
		replyOnlyTo("pre_tool_call", `{"content":"from the cache"}`), nil)
	events := h.Events(t, h.StartRun(t, agent.Request{Budget: agent.Budget{ToolCalls: 1}}).ID)
	end := agenttest.TerminalEvent[event.FinalAnswer](t, events)
	if r := agenttest.EventsOf[event.ToolResult](events); len(r) != 1 || string(r[0].Payload) != `"from the cache"` || len(r[0].Content) != 1 || end.FinishReason != "stop" {
		t.Errorf(`result %+v, end %+v, want 1 result, Payload "from the cache", 1 Content, FinishReason stop`, r, end)
	}
	select {
	case <-h.Tools.Entered:
		t.Error("the tool was called, want the hook's result instead")
	default:
	}
	if got := questionsByCall(s)["call_1"]; got != "pre_tool_call" {
		t.Errorf("asked %s, want pre_tool_call", got)
	}
}

// A hook that guards calls guards them when it is broken too; the others let things
// be. Either way the run continues and the log says so without quoting anybody.
func TestBrokenHookRefusesCallsAndNothingElse(t *testing.T) {
	for name, c := range map[string]struct{ hook, reply, want string }{
		"no permission":        {"pre_tool_call", "", "denied"},
		"an unclear one":       {"pre_tool_call", `{"canary":true}`, "denied"},
		"prose":                {"pre_tool_call", `canary`, "denied"},
		"no view of an error":  {"tool_error", "", "execution"},
		"an unclear one of it": {"tool_error", `{"args":{"canary":1}}`, "execution"},
		"no view of a result":  {"tool_result", "", "x"},
		"one after the fact":   {"tool_result", `{"args":{"canary":1}}`, "x"},
	} {
		t.Run(name, func(t *testing.T) {
			call := llmtest.Call{Name: "echo", Args: `{"text":"x"}`}
			if c.hook == "tool_error" {
				call = llmtest.Call{Name: "fail"}
			}
			var log bytes.Buffer
			h, _ := newHookedFixture(t, llmtest.Turns(llmtest.Calls(call), llmtest.Says("Done.")), replyOnlyTo(c.hook, c.reply),
				func(o *agent.Options) { o.Logger = slog.New(slog.NewTextHandler(&log, nil)) })
			events := h.Events(t, h.StartRun(t, agent.Request{}).ID)
			agenttest.TerminalEvent[event.FinalAnswer](t, events)

			got := ""
			for _, e := range agenttest.EventsOf[event.ToolError](events) {
				got += e.Kind
			}

			for _, e := range agenttest.EventsOf[event.ToolResult](events) {
				got += strings.Trim(string(e.Payload), `"`)
			}
			if got != c.want {
				t.Errorf("got %s, want %s", got, c.want)
			}
			h.Drain(t.Context()) // it logs the run's end
			if text := log.String(); !strings.Contains(text, "hook failed") || strings.Contains(text, "canary") {
				t.Errorf(`log %s, want text containing "hook failed", text without canary`, text)
			}
		})
	}
}

// S0.2: a string becomes the tool's result, for the model and for every reader.
func TestHookCanTurnAFailureIntoAResult(t *testing.T) {
	h, _ := newHookedFixture(t, llmtest.Turns(llmtest.Calls(llmtest.Call{Name: "fail"}, llmtest.Call{Name: "nope"}), llmtest.Says("Done.")),
		replyOnlyTo("tool_error", `{"content":"use the other one"}`), nil)
	events := h.Events(t, h.StartRun(t, agent.Request{}).ID)
	end := agenttest.TerminalEvent[event.FinalAnswer](t, events)
	results := agenttest.EventsOf[event.ToolResult](events)
	if len(results) != 2 || len(agenttest.EventsOf[event.ToolError](events)) != 0 || joinRaw(end.Metadata.ToolResults) != `"use the other one" "use the other one"` {
		t.Errorf(`results %+v, metadata %s, want 2 results, 0 tool error events, Metadata.ToolResults "use the other one" "use the other one"`, results, joinRaw(end.Metadata.ToolResults))
	}
	for _, m := range h.Model.Requests()[1].Messages {
		if m.Role == "tool" && m.Content != "use the other one" {
			t.Errorf(`the model was told %q, want "use the other one"`, m.Content)
		}
	}
}

// S0.5: what a hook makes of a result is the result, and what it took out is nowhere.
func TestHookCanReplaceAResult(t *testing.T) {
	h, _ := newHookedFixture(t, llmtest.Turns(llmtest.Calls(llmtest.Call{Name: "add", Args: `{"a":4000,"b":321}`}, llmtest.Call{Name: "echo", Args: `{"text":"gone"}`}), llmtest.Says("Done.")),
		func(q webhooktest.Question) string {
			switch {
			case q.Hook == "tool_result" && q.Tool == "add":
				return `{"content":"a sum"}`
			case q.Hook == "tool_result":
				return `{"content":""}`
			}
			return `{}`
		}, nil)

	events := h.Events(t, h.StartRun(t, agent.Request{}).ID)
	end := agenttest.TerminalEvent[event.FinalAnswer](t, events)
	if got := joinRaw(end.Metadata.ToolResults); got != `"a sum" ""` {
		t.Errorf(`metadata %s, want "a sum" ""`, got)
	}

	for _, e := range events {
		if bytes.Contains(e.AppendJSON(nil), []byte(":4321")) { // the digits alone are in a time now and then
			t.Errorf("append JSON %s, want no :4321", e.AppendJSON(nil))
		}
	}

	for _, m := range h.Model.Requests()[1].Messages {
		if m.Role == "tool" && m.Content != "a sum" && m.Content != "(no content)" {
			t.Errorf(`the model was told %q, want "a sum" or "(no content)"`, m.Content)
		}
	}
}

// S0.2: the run ends, and only after every call of the turn has been answered.
func TestAbortEndsTheRunWithEveryCallAnswered(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ hook, tool, args, kind, says string }{
		{"pre_tool_call", "echo", `{"text":"x"}`, "denied", "A hook refused this call: not today"},
		{"tool_error", "fail", ``, "execution", "the tool is out of order"},
		{"tool_result", "echo", `{"text":"x"}`, "denied", "The call was made, and a hook withheld its result: not today"},
	} {
		t.Run(c.hook, func(t *testing.T) {
			underWay := make(chan struct{}) // the other call
			h, _ := newHookedFixture(t, llmtest.Turns(llmtest.Calls(llmtest.Call{Name: "wait"}, llmtest.Call{Name: c.tool, Args: c.args})),
				func(q webhooktest.Question) string {
					if q.Hook == c.hook && q.Tool == c.tool {
						<-underWay
						return `{"abort":true,"reason":"not today"}`
					}
					return `{}`
				}, nil)

			run := h.StartRun(t, agent.Request{})
			<-h.Tools.Entered
			close(underWay)
			events := h.Events(t, run.ID)
			end := agenttest.TerminalEvent[event.RunError](t, events)
			if end.Code != "tool_aborted" || end.Message != "A hook ended the run: not today" || end.Retryable {
				t.Errorf(`end %+v, want Code tool_aborted, Message "A hook ended the run: not today", Retryable false`, end)
			}
			<-h.Tools.Canceled

			byTool := make(map[string]event.ToolError)
			for _, e := range agenttest.EventsOf[event.ToolError](events) {
				byTool[e.Tool] = e
			}

			if e := byTool[c.tool]; e.Kind != c.kind || e.Payload != c.says {
				t.Errorf("the call: %+v, want Kind %q, Payload %q", e, c.kind, c.says)
			}
			if e := byTool["wait"]; e.Kind != "cancelled" {
				t.Errorf("the other call: %+v, want Kind cancelled", e)
			}

			for _, r := range agenttest.EventsOf[event.ToolResult](events) {
				t.Errorf("result %s, want none", r.Payload)
			}
		})
	}
}

// A result that the hook has not seen is shown to nobody, even if the hook could not be asked
// because another one ended the run.
func TestResultIsNotShownBeforeItsHookHasSeenIt(t *testing.T) {
	arrived, over := make(chan struct{}), make(chan struct{})
	h, _ := newHookedFixture(t, llmtest.Turns(llmtest.Calls(llmtest.Call{Name: "add", Args: `{"a":4000,"b":321}`}, llmtest.Call{Name: "fail"})),
		func(q webhooktest.Question) string {
			switch q.Hook {
			case "tool_result":
				close(arrived)
				<-over
			case "tool_error":
				<-arrived
				return `{"abort":true}`
			}
			return `{}`
		}, nil)
	defer close(over)
	events := h.Events(t, h.StartRun(t, agent.Request{}).ID)
	if end := agenttest.TerminalEvent[event.RunError](t, events); end.Code != "tool_aborted" || end.Message != "A hook ended the run." {
		t.Errorf(`end %+v, want Code tool_aborted, Message "A hook ended the run."`, end)
	}

	for _, e := range events {
		if bytes.Contains(e.AppendJSON(nil), []byte("4321")) {
			t.Errorf("append JSON %s, want no 4321", e.AppendJSON(nil))
		}
	}

	for _, e := range agenttest.EventsOf[event.ToolError](events) {
		if e.Tool == "add" && e.Kind != "cancelled" {
			t.Errorf("tool error %+v, want Kind cancelled", e)
		}
	}
}

// The hooks are also asked about calls without a model. There is no run that an abort could end.
func TestDirectCallsCallTheHooks(t *testing.T) {
	for name, c := range map[string]struct {
		tool, reply, hook string
		want              string // the payload, or the failure's kind
	}{
		"changed":          {"echo", `{"args":{"text":"y"}}`, "pre_tool_call", `"y"`},
		"answered":         {"echo", `{"content":"z"}`, "pre_tool_call", `"z"`},
		"refused":          {"echo", `{"abort":true}`, "pre_tool_call", "denied"},
		"unguarded":        {"echo", ``, "pre_tool_call", "denied"},
		"turned":           {"fail", `{"content":"z"}`, "tool_error", `"z"`},
		"failed for good":  {"fail", `{"abort":true}`, "tool_error", "execution"},
		"read by the hook": {"echo", `{"content":"z"}`, "tool_result", `"z"`},
		"withheld":         {"echo", `{"abort":true}`, "tool_result", "denied"},
	} {
		h, s := newHookedFixture(t, llmtest.Turns(), replyOnlyTo(c.hook, c.reply), nil)
		args := json.RawMessage(`{"text":"x"}`)
		if c.tool == "fail" {
			args = nil
		}
		res, err := h.CallTool(t.Context(), auth.Identity{Subject: "ada"}, agent.ToolCall{Tool: c.tool, Args: args})
		got := string(res.Payload)
		if bad, ok := errors.AsType[*agent.ToolCallError](err); ok {
			got = bad.Kind
		}
		if got != c.want {
			t.Errorf("%s: %s, %v, want %s", name, got, err, c.want)
		}

		for _, q := range s.Questions() {
			if q.RunID != "" || q.Subject != "ada" || !strings.HasPrefix(q.CallID, "call_") {
				t.Errorf("%s: asked %+v, want RunID empty, Subject ada, CallID starting with call_", name, q)
			}
		}
	}
}

// Hooks of a turn's calls are asked together: the first reply comes when all are there.
func TestHooksOfATurnAreAskedTogether(t *testing.T) {
	arrived, all := make(chan struct{}, 3), make(chan struct{})
	call := llmtest.Call{Name: "echo", Args: `{"text":"x"}`}
	h, _ := newHookedFixture(t, llmtest.Turns(llmtest.Calls(call, call, call), llmtest.Says("Done.")), func(q webhooktest.Question) string {
		if q.Hook == "pre_tool_call" {
			arrived <- struct{}{}
			<-all
		}
		return `{}`
	}, nil)

	run := h.StartRun(t, agent.Request{})
	for range 3 {
		<-arrived
	}

	close(all)
	if end := agenttest.TerminalEvent[event.FinalAnswer](t, h.Events(t, run.ID)); len(end.Metadata.ToolNames) != 3 {
		t.Errorf("end %+v, want 3 Metadata.ToolNames", end)
	}
}
