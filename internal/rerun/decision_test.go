package rerun_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"answerd/internal/agent"
	"answerd/internal/agent/agenttest"
	"answerd/internal/agent/webhook"
	"answerd/internal/agent/webhook/webhooktest"
	"answerd/internal/auth"
	"answerd/internal/event"
	"answerd/internal/llm/llmtest"
	"answerd/internal/mcp/config"
)

func TestDecisionsOfHooksAreRepeated(t *testing.T) {
	add := llmtest.Call{Name: "add", Args: `{"a":1,"b":2}`}
	addNeedsApproval := func(s *config.Server) { s.ApproveTools = []string{"add"} }
	for _, c := range []struct {
		name, hook, reply string
		request           agent.Request
		configure         []func(*config.Server)
	}{
		{name: "refused", hook: "pre_tool_call", reply: "?", configure: []func(*config.Server){addNeedsApproval}, request: agent.Request{Budget: agent.Budget{ToolCalls: 1}}},
		{name: "changed arguments", hook: "pre_tool_call", reply: `{"args":{"a":10,"b":20}}`},
		{name: "changed arguments that need approval", hook: "pre_tool_call", reply: `{"args":{"a":10,"b":20}}`, configure: []func(*config.Server){addNeedsApproval}},
		{name: "an answer in place of the tool", hook: "pre_tool_call", reply: `{"content":"from the cache"}`, configure: []func(*config.Server){addNeedsApproval}, request: agent.Request{Budget: agent.Budget{ToolCalls: 1}}},
		{name: "another result", hook: "tool_result", reply: `{"content":"seven"}`},
		{name: "a run that ends with a call", hook: "pre_tool_call", reply: `{"abort":true,"reason":"Enough."}`},
		{name: "a run that ends with a result", hook: "tool_result", reply: `{"abort":true,"reason":"Enough."}`},
		{name: "a run that ends with an answer", hook: "model_result", reply: `{"abort":true,"reason":"Enough."}`},
		{name: "a run that ends before a step", hook: "pre_model_call", reply: `{"abort":true,"reason":"Enough."}`},
	} {
		t.Run(c.name, func(t *testing.T) {
			service := webhooktest.New(t, func(q webhooktest.Question) string {
				if q.Hook == c.hook && !(q.Hook == "pre_model_call" && q.Step < 2) {
					return c.reply
				}
				return `{}`
			})

			hooks, err := webhook.New(webhook.Options{URL: service.URL, Secret: webhooktest.Secret, Events: []webhook.Event{webhook.PreModelCall, webhook.ModelResult}})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(hooks.Close)
			h := agenttest.NewFixture(t, llmtest.Turns(llmtest.SaysAndCalls("Let me see.", add), llmtest.Says("Done.")), func(o *agent.Options) { o.Hooks = hooks }, c.configure...)
			run := h.StartRun(t, c.request)
			last := h.Events(t, run.ID)
			if end, failed := last[len(last)-1].Body.(event.RunError); failed != strings.HasPrefix(c.name, "a run that ends") {
				t.Fatalf("run error = %+v, want one if the hook ends the run", end)
			}
			requireSameRerun(t, exportRun(t, h, run.ID))
		})
	}
}

// The end of the run cancels the other calls of the turn, which their servers have already received.
func TestRunThatAHookEndsWhileACallIsInFlightRunsAgain(t *testing.T) {
	var h *agenttest.Fixture
	service := webhooktest.New(t, func(q webhooktest.Question) string {
		if q.Hook != "tool_result" {
			return `{}`
		}
		<-h.Tools.Entered
		return `{"abort":true,"reason":"Enough."}`
	})
	hooks, err := webhook.New(webhook.Options{URL: service.URL, Secret: webhooktest.Secret})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(hooks.Close)
	h = agenttest.NewFixture(t, llmtest.Turns(llmtest.Calls(llmtest.Call{Name: "add", Args: `{"a":1,"b":2}`}, llmtest.Call{Name: "wait"})),
		func(o *agent.Options) { o.Hooks = hooks })
	run := h.StartRun(t, agent.Request{})
	agenttest.TerminalEvent[event.RunError](t, h.Events(t, run.ID))
	requireSameRerun(t, exportRun(t, h, run.ID))
}

func TestDenialsByRulesAreRepeated(t *testing.T) {
	parsed, err := auth.ParseRules([]byte(`{"rules": [{"tools": ["add"], "models": ["scripted"]}]}`))
	if err != nil {
		t.Fatal(err)
	}
	h := agenttest.NewFixture(t, llmtest.Turns(
		llmtest.Calls(llmtest.Call{Name: "echo", Args: `{"text":"x"}`}, llmtest.Call{Name: "add", Args: `{"a":1,"b":2}`}), llmtest.Says("Done."),
	), func(o *agent.Options) { o.Rules = auth.NewRules(parsed) })
	run := h.StartRun(t, agent.Request{})
	events := h.Events(t, run.ID)
	if failed := agenttest.EventsOf[event.ToolError](events); len(failed) != 1 || failed[0].Kind != "denied" {
		t.Fatalf("errors = %+v, want one denied call", failed)
	}
	requireSameRerun(t, exportRun(t, h, run.ID))
}

func TestConversationThatIsRefusedAsTooLongIsRefusedAgain(t *testing.T) {
	var turns []llmtest.Answer
	for i := range 9 {
		args, err := json.Marshal(map[string]string{"text": fmt.Sprint(i, strings.Repeat("word ", 1800))})
		if err != nil {
			t.Fatal(err)
		}
		turns = append(turns, llmtest.Calls(llmtest.Call{Name: "echo", Args: string(args)}))
	}

	script := llmtest.Turns(append(turns, llmtest.Says("Done."))...)
	h := agenttest.NewFixture(t, func(r llmtest.Request) llmtest.Answer {
		n := 0
		for _, m := range r.Messages {
			n += len(m.Content)
		}
		if n > 30_000 {
			return llmtest.Fails(http.StatusBadRequest, "This model's maximum context length is 10 tokens.")
		}
		return script(r)
	}, nil)

	run := h.StartRun(t, agent.Request{})
	events := h.Events(t, run.ID)
	if reached := agenttest.EventsOf[event.Budget](events); len(reached) == 0 || reached[0].Limit != "context_tokens" {
		t.Fatalf("budget events = %+v, want the first about the conversation", reached)
	}
	requireSameRerun(t, exportRun(t, h, run.ID))
}
