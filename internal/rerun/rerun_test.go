package rerun_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"answerd/internal/agent"
	"answerd/internal/agent/agenttest"
	"answerd/internal/agent/definition"
	"answerd/internal/agent/replay"
	"answerd/internal/api/scenario"
	"answerd/internal/auth"
	"answerd/internal/event"
	"answerd/internal/export"
	"answerd/internal/llm"
	"answerd/internal/llm/llmtest"
	"answerd/internal/llm/openai"
	"answerd/internal/mcp/config"
	"answerd/internal/rerun"
)

// documentOf returns the export of a scenario, which has events only: what the run began with follows from
// them.
func documentOf(t *testing.T, s scenario.Scenario) *export.Document {
	t.Helper()
	start, ok := s.Events[0].Body.(event.Start)
	if !ok {
		t.Fatalf("%s begins with %T, want a start event", s.Name, s.Events[0].Body)
	}

	doc := &export.Document{
		Version: export.Version, Run: export.Run{ID: scenario.RunID, ThreadID: scenario.ThreadID, Agent: start.Agent, Status: "completed"},
		Request:  export.Request{Question: start.Question, Model: start.Model, Metadata: start.Metadata, Interactive: true, MaxTurns: 100},
		Messages: []export.Message{{Role: "user", Text: start.Question}}, Settings: export.Settings{Prompt: export.Template{Timezone: "UTC"}},
	}
	if start.StructuredOutput {
		doc.Request.OutputSchema = json.RawMessage(`{"type":"object","properties":{"city":{"type":"string"},"degrees":{"type":"number"}},"required":["city","degrees"]}`)
	}
	if start.Agent != "" {
		doc.Settings.Agent = json.RawMessage(`{"id":"` + start.Agent + `"}`)
	}

	if lines := childEvents[s.Name]; lines != nil {
		doc.Settings.Agent = json.RawMessage(`{"id":"` + start.Agent + `","agents":["research"]}`)
		doc.Children = []export.Document{{
			Version: export.Version, Run: export.Run{ID: "run_2", ThreadID: scenario.ThreadID, ParentID: scenario.RunID, Agent: "research"},
			Request:  export.Request{Question: "Which file?", Model: start.Model, Interactive: true, MaxTurns: 100, Level: 1},
			Settings: export.Settings{Agent: json.RawMessage(`{"id":"research"}`), Prompt: export.Template{Timezone: "UTC"}},
			Tools:    []export.Tool{{Name: "delete", Server: "files", InputSchema: json.RawMessage(`{"type":"object"}`), NeedsApproval: true}},
		}}
		for i, line := range lines {
			doc.Children[0].Events = append(doc.Children[0].Events, fmt.Appendf(nil, `{"run_id":"run_2","seq":%d,"ts":1,%s`, i+1, line[1:]))
		}
	}

	tools := make(map[string]*export.Tool)
	for _, e := range s.Events {
		doc.Events = append(doc.Events, e.AppendJSON(nil))
		switch b := e.Body.(type) {
		case event.ToolCallStart:
			if b.Executor == event.Client {
				doc.Request.ClientTools = append(doc.Request.ClientTools, export.ClientTool{Name: b.Tool, Schema: json.RawMessage(`{"type":"object"}`)})
			} else if b.Server != "" && tools[b.Tool] == nil {
				tools[b.Tool] = &export.Tool{Name: b.Tool, Server: b.Server, InputSchema: json.RawMessage(`{"type":"object"}`), NeedsApproval: b.NeedsApproval}
			}
		case event.ApprovalRequired:
			if tools[b.Tool] != nil {
				tools[b.Tool].Version = b.ToolVersion
			}
		case event.ApprovalResolved:
			doc.Inputs = append(doc.Inputs, newInput(t, b.InterruptID, map[string]any{"approved": b.Approved, "reason": b.Reason, "subject": b.By}))
		case event.ElicitationResolved:
			doc.Inputs = append(doc.Inputs, newInput(t, b.InterruptID, map[string]any{"action": b.Action}))
		}
	}

	for _, name := range slices.Sorted(maps.Keys(tools)) {
		doc.Tools = append(doc.Tools, *tools[name])
	}
	return doc
}

// childEvents has the events of the child runs of scenarios, which have those of one run.
var childEvents = map[string][]string{
	"delegation-approval": {
		`{"type":"start","question":"Which file?","model":"m","thread_id":"thr_1","agent":"research","parent_run_id":"run_1"}`,
		`{"type":"step_start","step":1}`,
		`{"type":"tool_call_start","call_id":"call_1","tool":"delete","server":"files","needs_approval":true}`,
		`{"type":"tool_call","call_id":"call_1","tool":"delete","server":"files","args":{"path":"a"}}`,
		`{"type":"step_end","step":1,"finish_reason":"tool_calls"}`,
		`{"type":"approval_required","call_id":"call_1","tool":"delete","server":"files","interrupt_id":"int_1","args":{"path":"a"},"message":"Allow the call of delete on the MCP server files?","expires_at":4102444800000}`,
		`{"type":"suspended","interrupts":[{"id":"int_1","kind":"approval","call_id":"call_1","tool":"delete","server":"files","message":"Allow the call of delete on the MCP server files?","args":{"path":"a"},"expires_at":4102444800000}]}`,
		`{"type":"approval_resolved","call_id":"call_1","tool":"delete","server":"files","interrupt_id":"int_1","approved":true,"by":"ada"}`,
		`{"type":"tool_result","call_id":"call_1","tool":"delete","server":"files","args":{"path":"a"},"payload":"ok","content":[{"type":"text","text":"ok"}],"duration_ms":1}`,
		`{"type":"step_start","step":2}`,
		`{"type":"text_start","part_id":"text_1"}`,
		`{"type":"text_delta","part_id":"text_1","delta":"It is gone."}`,
		`{"type":"text_end","part_id":"text_1"}`,
		`{"type":"step_end","step":2,"finish_reason":"stop"}`,
		`{"type":"final_answer","answer":"It is gone.","metadata":{"tool_names":["delete"],"tool_params":[{"path":"a"}],"tool_results":["ok"],"model":"m","steps":2,"finish_reason":"stop","usage":{"input_tokens":0,"output_tokens":0,"total_tokens":0}},"finish_reason":"stop"}`,
	},
	"delegation-cancel": {
		`{"type":"start","question":"Which file?","model":"m","thread_id":"thr_1","agent":"research","parent_run_id":"run_1"}`,
		`{"type":"step_start","step":1}`,
		`{"type":"step_end","step":1,"finish_reason":"cancelled"}`,
		`{"type":"cancelled","reason":"requested","partial_answer":""}`,
	},
}

func newInput(t *testing.T, id string, data map[string]any) export.Input {
	t.Helper()
	encoded, err := json.Marshal(data)
	if err != nil {
		t.Fatal(err)
	}
	return export.Input{ID: id, Data: encoded}
}

// Scenarios are written by hand, so that texts differ from those of the run loop. What matters is that each of
// them can be run again to its end, and which differences are reported.
func TestScenariosAreRunAgain(t *testing.T) {
	for _, s := range scenario.All(t) {
		t.Run(s.Name, func(t *testing.T) {
			doc := documentOf(t, s)
			data, err := doc.Encode()
			if err != nil {
				t.Fatal(err)
			}
			s.Golden(t, "export.golden", data)
			if doc, err = export.Decode(data); err != nil {
				t.Fatal(err)
			}
			result, err := rerun.Run(t.Context(), doc, rerun.Options{Stall: 300 * time.Millisecond})
			if err != nil {
				t.Fatal(err)
			}

			var report strings.Builder
			for _, d := range result.Differences {
				fmt.Fprintln(&report, d)
			}
			s.Golden(t, "replay.golden", []byte(report.String()))
		})
	}
}

// exportRun returns the export of a run, as it is read from a file.
func exportRun(t testing.TB, h *agenttest.Fixture, id string) *export.Document {
	t.Helper()
	doc, err := h.Export(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	data, err := doc.Encode()
	if err == nil {
		doc, err = export.Decode(data)
	}
	if err != nil {
		t.Fatal(err)
	}
	return doc
}

// requireSameRerun runs a document again and requires the same events.
func requireSameRerun(t testing.TB, doc *export.Document) {
	t.Helper()
	result, err := rerun.Run(t.Context(), doc, rerun.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range result.Differences {
		t.Errorf("%v, want no difference", d)
	}
	if t.Failed() {
		for _, line := range doc.Events {
			t.Logf("recorded: %s", line)
		}
		for _, e := range result.Events {
			t.Logf("new: %s", e.AppendJSON(nil))
		}
	}
}

func TestRunsRunAgainAsRecorded(t *testing.T) {
	call := func(name, args string) llmtest.Call { return llmtest.Call{Name: name, Args: args} }
	addNeedsApproval := func(s *config.Server) { s.ApproveTools = []string{"add"} }
	for _, c := range []struct {
		name      string
		script    llmtest.Script
		request   agent.Request
		set       func(*agent.Options)
		configure []func(*config.Server)
		answers   []agent.Input // of the interrupts, in order
	}{
		{name: "plain", script: llmtest.Turns(llmtest.Says("Yes", ".", " No."))},
		{name: "history", script: llmtest.Turns(llmtest.Says("Yes.")), request: agent.Request{History: []agent.Message{{Role: "user", Content: "?"}, {Role: "assistant", Content: "!"}}}},
		{name: "parallel calls", script: llmtest.Turns(llmtest.Calls(call("add", `{"a":1,"b":2}`), call("echo", `{"text":"x"}`), call("fail", `{}`), call("steps", `{}`), call("none", `{}`), call("add", `{"a":"x"}`), call("add", `{`)), llmtest.Says("Done."))},
		{name: "budget of calls", script: llmtest.Turns(llmtest.Calls(call("add", `{"a":1,"b":2}`), call("echo", `{"text":"x"}`)), llmtest.Says("Done.")), request: agent.Request{Budget: agent.Budget{ToolCalls: 1}}},
		{name: "turns", script: func(r llmtest.Request) llmtest.Answer {
			if len(r.Tools) == 0 {
				return llmtest.Says("That is all.")
			}
			return llmtest.Calls(call("add", `{"a":1,"b":2}`))
		}, request: agent.Request{MaxTurns: 2}},
		{name: "approval", script: llmtest.Turns(llmtest.Calls(call("add", `{"a":1,"b":2}`), call("echo", `{"text":"x"}`)), llmtest.Says("Done.")), request: agent.Request{Interactive: true}, configure: []func(*config.Server){addNeedsApproval}, answers: []agent.Input{{Approved: new(true)}}},
		{name: "changed arguments", script: llmtest.Turns(llmtest.Calls(call("add", `{"a":1,"b":2}`)), llmtest.Says("Done.")), request: agent.Request{Interactive: true}, configure: []func(*config.Server){addNeedsApproval}, answers: []agent.Input{{Approved: new(true), Args: json.RawMessage(`{"a":3,"b":4}`)}}},
		{name: "refusal", script: llmtest.Turns(llmtest.Calls(call("add", `{"a":1,"b":2}`)), llmtest.Says("Done.")), request: agent.Request{Interactive: true}, configure: []func(*config.Server){addNeedsApproval}, answers: []agent.Input{{Approved: new(false), Reason: "No."}}},
		{name: "nobody to ask", script: llmtest.Turns(llmtest.Calls(call("add", `{"a":1,"b":2}`)), llmtest.Says("Done.")), configure: []func(*config.Server){addNeedsApproval}},
		{name: "elicitation", script: llmtest.Turns(llmtest.Calls(call("ask", `{}`)), llmtest.Says("Done.")), request: agent.Request{Interactive: true}, configure: []func(*config.Server){agenttest.Stateless}, answers: []agent.Input{{Action: "accept", Content: json.RawMessage(`{"people":3}`)}}},
		{name: "held elicitation", script: llmtest.Turns(llmtest.Calls(call("ask", `{}`)), llmtest.Says("Done.")), request: agent.Request{Interactive: true}, answers: []agent.Input{{Action: "decline"}}},
		{name: "model failure", script: llmtest.Turns(llmtest.Calls(call("add", `{"a":1,"b":2}`)), llmtest.Fails(400, "no"))},
		{name: "client tool", script: llmtest.Turns(llmtest.Calls(call("mine", `{}`), call("add", `{"a":1,"b":2}`))), request: agent.Request{ClientTools: []agent.ClientTool{{Name: "mine", Schema: json.RawMessage(`{"type":"object"}`)}}}},
		{name: "schema", script: llmtest.Turns(llmtest.Says("no"), llmtest.Says(`{"a":1}`)), request: agent.Request{OutputSchema: json.RawMessage(`{"type":"object","required":["a"]}`)}},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := agenttest.NewFixture(t, c.script, c.set, c.configure...)
			run := h.StartRun(t, c.request)
			for _, in := range c.answers {
				asked := ""
				h.EventsUntil(t, run.ID, func(e event.Event) bool {
					i, _ := replay.InterruptOf(e)
					_, waits := e.Body.(event.Suspended)
					if i.ID != "" {
						asked = i.ID
					}
					return waits
				})
				in.ID = asked
				if err := h.Answer(t.Context(), auth.Identity{}, run.ID, in); err != nil {
					t.Fatal(err)
				}
			}

			h.Events(t, run.ID)
			requireSameRerun(t, exportRun(t, h, run.ID))
		})
	}
}

// A question that no person can answer is resolved at once, but an event of a parallel call can come first.
func TestEventBetweenAQuestionAndItsResolutionKeepsItsPlace(t *testing.T) {
	h := agenttest.NewFixture(t, llmtest.Turns(
		llmtest.Calls(llmtest.Call{Name: "add", Args: `{"a":1,"b":2}`}, llmtest.Call{Name: "echo", Args: `{"text":`}), llmtest.Says("Done."),
	), nil, func(s *config.Server) { s.ApproveTools = []string{"add"} })

	run := h.StartRun(t, agent.Request{})
	h.Events(t, run.ID)
	doc := exportRun(t, h, run.ID)

	// Move the failure of echo, which the recording may have before or after both.
	indexOf := func(text string) int {
		return slices.IndexFunc(doc.Events, func(line json.RawMessage) bool { return strings.Contains(string(line), text) })
	}
	failed := indexOf(`"payload":"the arguments cannot be used`)
	line := doc.Events[failed]
	doc.Events = slices.Delete(doc.Events, failed, failed+1)
	doc.Events = slices.Insert(doc.Events, indexOf(`"type":"approval_resolved"`), line)
	for i := range doc.Events {
		doc.Events[i] = regexp.MustCompile(`"seq":\d+`).ReplaceAll(doc.Events[i], fmt.Appendf(nil, `"seq":%d`, i+1))
	}

	requireSameRerun(t, doc)
}

func TestCancelledRunRunsAgain(t *testing.T) {
	h := agenttest.NewFixture(t, llmtest.Turns(llmtest.Calls(llmtest.Call{Name: "wait"}, llmtest.Call{Name: "add", Args: `{"a":1,"b":2}`}), llmtest.Says("Done.")), nil)
	run := h.StartRun(t, agent.Request{})
	<-h.Tools.Entered
	h.EventsUntil(t, run.ID, func(e event.Event) bool { _, ok := e.Body.(event.ToolResult); return ok }) // otherwise add may not be sent
	if err := h.Cancel(t.Context(), run.ID); err != nil {
		t.Fatal(err)
	}
	h.Events(t, run.ID)
	requireSameRerun(t, exportRun(t, h, run.ID))
}

func TestTakeoverRunsAgain(t *testing.T) {
	for _, s := range scenario.All(t) {
		if s.Name == "takeover" {
			requireSameRerun(t, documentOf(t, s))
		}
	}
}

func TestDelegationRunsAgain(t *testing.T) {
	h := agenttest.NewFixture(t, func(r llmtest.Request) llmtest.Answer {
		last := r.Messages[len(r.Messages)-1]
		switch {
		case last.Role == "tool":
			return llmtest.Says("Done: " + last.Content)
		case r.Messages[0].Content == "You are a.":
			return llmtest.Calls(llmtest.Call{Name: "ask_b", Args: `{"question":"One?"}`}, llmtest.Call{Name: "ask_b", Args: `{"question":"Two?"}`}, llmtest.Call{Name: "add", Args: `{"a":1,"b":2}`})
		}
		return llmtest.Calls(llmtest.Call{Name: "echo", Args: fmt.Sprintf(`{"text":%q}`, last.Content)})
	}, func(o *agent.Options) {
		o.Agents = []definition.Agent{{ID: "a", Prompt: "You are a.", Agents: []string{"b"}}, {ID: "b", Prompt: "You are b."}}
	})

	run := h.StartRun(t, agent.Request{})
	h.Events(t, run.ID)
	doc := exportRun(t, h, run.ID)
	if len(doc.Children) != 2 {
		t.Fatalf("children = %d, want 2", len(doc.Children))
	}
	requireSameRerun(t, doc)
}

// A recording may not have a child run that a call starts. The child then gets no answer of the model, and the rerun
// goes on to the end of its parent.
func TestDelegationToAChildThatIsNotRecordedIsADifference(t *testing.T) {
	h := agenttest.NewFixture(t, func(r llmtest.Request) llmtest.Answer {
		if r.Messages[0].Content == "You are a." && r.Messages[len(r.Messages)-1].Role != "tool" {
			return llmtest.Calls(llmtest.Call{Name: "ask_b", Args: `{"question":"One?"}`})
		}
		return llmtest.Says("Done.")
	}, func(o *agent.Options) {
		o.Agents = []definition.Agent{{ID: "a", Prompt: "You are a.", Agents: []string{"b"}}, {ID: "b", Prompt: "You are b."}}
	})

	run := h.StartRun(t, agent.Request{})
	h.Events(t, run.ID)
	doc := exportRun(t, h, run.ID)
	doc.Children = nil

	synctest.Test(t, func(t *testing.T) {
		result, err := rerun.Run(t.Context(), doc, rerun.Options{})
		if err != nil {
			t.Fatal(err)
		}
		failed := agenttest.EventsOf[event.ToolError](result.Events)
		if want := "The recording has no further answer of the model."; len(failed) != 1 || !strings.Contains(failed[0].Payload, want) {
			t.Errorf("failed calls = %+v, want one that says %q", failed, want)
		}
		if end, ok := result.Events[len(result.Events)-1].Body.(event.FinalAnswer); !ok || end.Answer != "Done." {
			t.Errorf("end = %+v, want the answer Done.", result.Events[len(result.Events)-1].Body)
		}
	})
}

// newModel returns the model of an OpenAI endpoint that follows script.
func newModel(t *testing.T, script llmtest.Script) llm.Model {
	t.Helper()
	return openai.New(openai.Config{BaseURL: llmtest.New(t, script).URL})
}

// While another model answers, no person can be asked for a higher budget.
func TestAnotherModelIsNotAllowedMore(t *testing.T) {
	h := agenttest.NewFixture(t, llmtest.Turns(llmtest.Says("Three.")), nil)
	run := h.StartRun(t, agent.Request{Interactive: true, AskAtLimit: true, Budget: agent.Budget{ToolCalls: 1}})
	h.Events(t, run.ID)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()

	other := newModel(t, func(r llmtest.Request) llmtest.Answer {
		if len(r.Tools) == 0 {
			return llmtest.Says("Two.")
		}
		return llmtest.Calls(llmtest.Call{Name: "add", Args: `{"a":1,"b":1}`})
	})

	result, err := rerun.Run(ctx, exportRun(t, h, run.ID), rerun.Options{Model: other, ModelID: "other"})
	if err != nil {
		t.Fatal(err)
	}
	if end, ok := result.Events[len(result.Events)-1].Body.(event.FinalAnswer); !ok || end.Answer != "Two." || end.FinishReason != "budget_exceeded" {
		t.Errorf("end = %+v, want the answer Two. at the limit", result.Events[len(result.Events)-1].Body)
	}
}

func TestChangedRecordingIsADifference(t *testing.T) {
	h := agenttest.NewFixture(t, llmtest.Turns(llmtest.Calls(llmtest.Call{Name: "add", Args: `{"a":1,"b":2}`}), llmtest.Says("Three.")), nil)
	run := h.StartRun(t, agent.Request{})
	h.Events(t, run.ID)

	doc := exportRun(t, h, run.ID)
	for i, tool := range doc.Tools {
		if tool.Name == "add" {
			doc.Tools[i].InputSchema = json.RawMessage(`{"type":"object","required":["c"]}`)
		}
	}

	result, err := rerun.Run(t.Context(), doc, rerun.Options{})
	if err != nil {
		t.Fatal(err)
	}

	var all []string
	for _, d := range result.Differences {
		all = append(all, d.String())
	}

	if text := strings.Join(all, "\n"); !strings.Contains(text, "tool_result /type: was tool_result, is tool_error") {
		t.Errorf("differences:\n%s\nwant that the call fails with the changed schema", text)
	}
}

// newRunEndedByShutdown returns a run that was taken over and then ended by a shutdown. The agent of the rerun keeps
// its runs for another process, so it hands this one over instead, and nobody ends it.
func newRunEndedByShutdown(t *testing.T) *export.Document {
	t.Helper()
	for _, s := range scenario.All(t) {
		if s.Name != "takeover" {
			continue
		}
		doc := documentOf(t, s)
		n := len(doc.Events) - 2 // the end of the step, and of the run
		for i, end := range []string{
			`{"type":"step_end","run_id":%q,"seq":%d,"ts":1,"step":1,"finish_reason":"error"}`,
			`{"type":"run_error","run_id":%q,"seq":%d,"ts":1,"code":"server_shutdown","message":"The server stopped.","retryable":true}`,
		} {
			doc.Events[n+i] = fmt.Appendf(nil, end, doc.Run.ID, n+i+1)
		}
		return doc
	}
	t.Fatal("there is no scenario takeover")
	return nil
}

// A bubble does not end before its goroutines.
func TestRunThatDoesNotEndIsGivenUp(t *testing.T) {
	doc := newRunEndedByShutdown(t)
	synctest.Test(t, func(t *testing.T) {
		if _, err := rerun.Run(t.Context(), doc, rerun.Options{}); !errors.Is(err, rerun.ErrStalled) {
			t.Errorf("error = %v, want %v", err, rerun.ErrStalled)
		}
	})
}

func TestContextEndsARunThatDoesNotEnd(t *testing.T) {
	doc := newRunEndedByShutdown(t)
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if _, err := rerun.Run(ctx, doc, rerun.Options{Stall: time.Hour}); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("error = %v, want %v", err, context.DeadlineExceeded)
		}
	})
}

// A call that waits until an earlier one is approved, because it may not be allowed otherwise, was never sent. Neither
// was a call of an agent whose run has not started.
func TestRunThatIsCancelledWhileCallsWaitRunsAgain(t *testing.T) {
	h := agenttest.NewFixture(t, llmtest.Turns(llmtest.Calls(
		llmtest.Call{Name: "add", Args: `{"a":1,"b":2}`}, llmtest.Call{Name: "echo", Args: `{"text":"x"}`}, llmtest.Call{Name: "ask_b", Args: `{"question":"?"}`},
	)), func(o *agent.Options) {
		o.Agents = []definition.Agent{{ID: "a", Prompt: "You are a.", Agents: []string{"b"}}, {ID: "b", Prompt: "You are b."}}
	}, func(s *config.Server) { s.ApproveTools = []string{"add"} })

	run := h.StartRun(t, agent.Request{Interactive: true, Budget: agent.Budget{ToolCalls: 1}})
	h.EventsUntil(t, run.ID, func(e event.Event) bool { _, waits := e.Body.(event.Suspended); return waits })
	if err := h.Cancel(t.Context(), run.ID); err != nil {
		t.Fatal(err)
	}
	h.Events(t, run.ID)

	doc := exportRun(t, h, run.ID)
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		requireSameRerun(t, doc)
		if took := time.Since(began); took != 0 {
			t.Errorf("the rerun waited %v, want that it waits for no call", took)
		}
	})
}
