package agent_test

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"answerd/internal/agent"
	"answerd/internal/agent/agenttest"
	"answerd/internal/agent/replay"
	"answerd/internal/agent/webhook"
	"answerd/internal/agent/webhook/webhooktest"
	"answerd/internal/event"
	"answerd/internal/event/memory"
	"answerd/internal/llm/llmtest"
	"answerd/internal/mcp/config"
)

// Whenever a process dies, the hooks about the run are asked at least once: about the open question,
// under its one id, and about the end. A question that was answered meanwhile is not told again.
func TestRunHooksAreAskedAtLeastOnceWheneverTheProcessDies(t *testing.T) {
	t.Parallel()
	origin := &recordingLog{Log: memory.New(memory.Options{})}
	script := llmtest.Turns(llmtest.Calls(onePlusTwo), llmtest.Says("Done."))
	first, asked := newWatchedFixture(t, script, emptyReply, withDurableLog(origin), approveTools("add"))
	run := first.StartRun(t, agent.Request{Interactive: true, Background: true})
	i := waitUntilSuspended(t, first, run.ID, 1)[0]
	answerInterrupt(t, first, run.ID, agent.Input{ID: i.ID, Approved: new(true)})
	agenttest.TerminalEvent[event.FinalAnswer](t, first.Events(t, run.ID))
	first.Drain(t.Context()) // the hook interrupt is called while the run continues
	if got := strings.Count(hooksOf(asked), "interrupt"); got != 1 {
		t.Fatalf("got %d questions interrupt without a death, want 1: %s", got, hooksOf(asked))
	}

	for n, a := range origin.recordedOperations() { // before each operation; the last one is the terminal event
		t.Run(fmt.Sprintf("%02d_before_%s", n, a.what), func(t *testing.T) {
			log := origin.diedAfter(t, run, n)
			kept, told := make(map[string]bool), false
			for _, before := range origin.recordedOperations()[:n] {
				kept[before.what] = true
				told = told || before.what == "note told"
			}

			heard := make(chan struct{}, 10)
			h, s := newWatchedFixture(t, script, func(q webhooktest.Question) string {
				if q.Hook == "interrupt" {
					heard <- struct{}{}
				}
				return `{}`
			}, withDurableLog(log), approveTools("add"), withToolsOf(first))

			events := h.EventsUntil(t, run.ID, func(e event.Event) bool { return e.Body.Type() == "suspended" && !kept["give"] })
			if !kept["give"] && len(agenttest.EventsOf[event.ApprovalResolved](events)) == 0 {
				if !told { // or the question would be answered before a process has it
					select {
					case <-heard:
					case <-t.Context().Done():
					}
				}
				open := agenttest.EventsOf[event.Suspended](events)[0].Interrupts[0]
				answerInterrupt(t, h, run.ID, agent.Input{ID: open.ID, Approved: new(true)})
			}

			agenttest.TerminalEvent[event.FinalAnswer](t, h.Events(t, run.ID))
			h.Drain(t.Context())
			got := hooksOf(s)
			if strings.Count(got, "run_end") != 1 {
				t.Errorf("got %s, want run_end once", got)
			}
			if !kept["give"] && !told && !strings.Contains(got, "interrupt") {
				t.Errorf("got %s, want interrupt, which no process was told of", got)
			}
			if told && strings.Contains(got, "interrupt") {
				t.Errorf("got %s, want no interrupt, which the hook knows of", got)
			}

			for _, q := range s.Questions() {
				if q.Hook == "interrupt" && kept["approval_required"] && q.Interrupt.ID != i.ID {
					t.Errorf("got interrupt %s, want %s", q.Interrupt.ID, i.ID)
				}
			}
		})
	}
}

// continueAfterEachOperation executes a run and calls continueRun for each moment at which its process may have died:
// with the run's log up to there, and what the log has by then.
func continueAfterEachOperation(t *testing.T, first *agenttest.Fixture, origin *recordingLog, run event.Run, continueRun func(t *testing.T, log event.Log, kept map[string]int)) {
	t.Helper()
	first.Events(t, run.ID)
	first.Drain(t.Context()) // the hook interrupt is called while the run continues
	operations := origin.recordedOperations()
	for n, a := range operations {
		kept := make(map[string]int)
		for _, before := range operations[:n] {
			kept[before.what]++
		}
		t.Run(fmt.Sprintf("%02d_before_%s", n, strings.ReplaceAll(a.what, " ", "_")), func(t *testing.T) {
			continueRun(t, origin.diedAfter(t, run, n), kept)
		})
		if kind := event.Type(a.what); kind == "final_answer" || kind == "run_error" {
			return
		}
	}
}

// countOperations returns how often something was done.
func (c *recordingLog) countOperations(what string) (n int) {
	for _, a := range c.recordedOperations() {
		if a.what == what {
			n++
		}
	}
	return n
}

// countParts returns how many notes hold data of n bytes.
func countParts(n int) int { return len(replay.Parts(make([]byte, n))) }

// An extension that is in the log stays the same when another process repeats the step: the hook
// is not asked again.
func TestPreModelCallExtensionIsTheSameAfterATakeover(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("Speak Latin. ", 3000) // more than one note
	extend := func(word string) func(webhooktest.Question) string {
		return func(q webhooktest.Question) string {
			if q.Hook != "pre_model_call" {
				return `{}`
			}
			if word == "Latin" {
				return `{"instructions":"` + long + `"}`
			}
			return `{"messages":[{"role":"user","content":"Speak ` + word + `."}]}`
		}
	}

	stored := countParts(len(`{"instructions":""}`) + len(long))
	if stored < 2 {
		t.Fatalf("got an extension of %d notes, want several", stored)
	}
	origin := &recordingLog{Log: memory.New(memory.Options{})}
	script := llmtest.Turns(llmtest.Calls(onePlusTwo), llmtest.Says("Done."))
	first, _ := newWatchedFixture(t, script, extend("Latin"), withDurableLog(origin))
	run := first.StartRun(t, agent.Request{Background: true})
	first.Events(t, run.ID)
	if got, want := origin.countOperations("note extended"), 2*stored; got != want {
		t.Fatalf("got %d notes of two extensions, want %d", got, want)
	}

	continueAfterEachOperation(t, first, origin, run, func(t *testing.T, log event.Log, kept map[string]int) {
		h, s := newWatchedFixture(t, script, extend("Greek"), withDurableLog(log), withToolsOf(first))
		agenttest.TerminalEvent[event.FinalAnswer](t, h.Events(t, run.ID))
		asked := make(map[int]bool)
		for _, q := range s.Questions() {
			if q.Hook == "pre_model_call" {
				asked[q.Step] = true
			}
		}
		for i, r := range h.Model.Requests() {
			step := kept["step_end"] + i + 1
			known := kept["note extended"] >= step*stored
			body := string(r.Body)
			if latin, greek := strings.Contains(body, "Latin"), strings.Contains(body, "Greek"); latin != known || greek == known || asked[step] == known {
				t.Errorf("step %d: got Latin %t, Greek %t, hook asked %t; want Latin %t, and else Greek and a question", step, latin, greek, asked[step], known)
			}
		}
	})
}

// A run that a hook ends stays ended when its process dies before the terminal event.
func TestHookAbortIsTheSameAfterATakeover(t *testing.T) {
	for _, hook := range []string{"pre_tool_call", "tool_result", "pre_model_call", "model_result", "interrupt"} {
		t.Run(hook, func(t *testing.T) {
			origin := &recordingLog{Log: memory.New(memory.Options{})}
			script := llmtest.Turns(llmtest.SaysAndCalls("Let me see.", onePlusTwo), llmtest.Says("Done."))
			var configure []func(*config.Server)
			if hook == "interrupt" {
				configure = append(configure, approveTools("add"))
			}

			withHookReply := func(log event.Log, reply string) (func(*agent.Options), *webhooktest.Service) { // asks this hook and not run_end
				s := webhooktest.New(t, replyOnlyTo(hook, reply))
				return func(o *agent.Options) {
					withDurableLog(log)(o)
					o.Hooks = newHooks(t, s.URL, webhook.Event(hook))
				}, s
			}

			options, _ := withHookReply(origin, `{"abort":true,"reason":"not today"}`)
			first := agenttest.NewFixture(t, script, options, configure...)
			run := first.StartRun(t, agent.Request{Background: true, Interactive: hook == "interrupt"})
			first.Events(t, run.ID)
			if got := origin.countOperations("note aborted"); got != 1 {
				t.Fatalf("got %d notes of the abort, want 1", got)
			}

			continueAfterEachOperation(t, first, origin, run, func(t *testing.T, log event.Log, kept map[string]int) {
				if kept["note aborted"] == 0 {
					if kept["tool_error"] > 0 {
						t.Error("got the end of the call in the log and not the abort, want the abort first")
					}
					t.Skip("no process knows yet")
				}
				options, s := withHookReply(log, `{}`)
				h := agenttest.NewFixture(t, script, options, append(configure, withToolsOf(first))...)
				end := agenttest.TerminalEvent[event.RunError](t, h.Events(t, run.ID))
				if end.Code != "tool_aborted" || end.Message != "A hook ended the run: not today" {
					t.Errorf("got %+v, want tool_aborted and the reason", end)
				}
				if isWithheld := end.PartialAnswer == ""; hook != "pre_model_call" && isWithheld != (hook == "model_result") {
					t.Errorf("got %+v, want the text unless model_result withheld it", end)
				}
				if got := hooksOf(s); got != "" || len(h.Model.Requests()) != 0 || len(h.Tools.CallCounts()) != 0 {
					t.Errorf("got hooks %s, %d requests, calls %v; want nothing", got, len(h.Model.Requests()), h.Tools.CallCounts())
				}
			})
		})
	}
}

// run_end is sent with the same end and the same delivery id by whatever process the run ends in.
func TestRunEndIsTheSameAfterATakeover(t *testing.T) {
	for name, answer := range map[string]llmtest.Answer{"failed": llmtest.Fails(http.StatusBadRequest, "no"), "completed": llmtest.Says("Done.")} {
		t.Run(name, func(t *testing.T) {
			origin := &recordingLog{Log: memory.New(memory.Options{})}
			first, asked := newWatchedFixture(t, llmtest.Turns(answer), emptyReply, withDurableLog(origin))
			run := first.StartRun(t, agent.Request{Background: true})
			first.Events(t, run.ID)
			all := asked.Questions()

			want := all[len(all)-1]
			continueAfterEachOperation(t, first, origin, run, func(t *testing.T, log event.Log, kept map[string]int) {
				stored := map[string]string{"failed": "note end", "completed": "step_end"}[name]
				if kept[stored] == 0 {
					t.Skip("no process knows the end yet")
				}
				h, s := newWatchedFixture(t, llmtest.Turns(llmtest.Says("Something else.")), emptyReply, withDurableLog(log), withToolsOf(first))
				events := h.Events(t, run.ID)
				q := s.Questions()
				if len(q) != 1 || q[0].Hook != "run_end" || q[0].Status != name || q[0].DeliveryID != want.DeliveryID {
					t.Fatalf("got %+v, want one run_end, %s, %s", q, name, want.DeliveryID)
				}
				if name == "completed" && q[0].Result.Answer != want.Result.Answer {
					t.Errorf("got result %+v, want %+v", q[0].Result, want.Result)
				}
				if name == "failed" && *q[0].Error != *want.Error {
					t.Errorf("got error %+v, want %+v", q[0].Error, want.Error)
				}
				if last := events[len(events)-1].Body.Type(); (last == "run_error") != (name == "failed") {
					t.Errorf("got the last event %s, want the end of a run that %s", last, name)
				}
			})
		})
	}
}

// The metadata of a run that was taken over have the arguments with which a failed call was made, as a hook changed them.
func TestMetadataOfAFailedCallHasItsArgumentsAfterATakeover(t *testing.T) {
	origin := &recordingLog{Log: memory.New(memory.Options{})}
	script := llmtest.Turns(llmtest.Calls(llmtest.Call{Name: "fail", Args: `{"secret":1}`}), llmtest.Says("Done."))
	first, _ := newWatchedFixture(t, script, replyOnlyTo("pre_tool_call", `{"args":{}}`), withDurableLog(origin))
	run := first.StartRun(t, agent.Request{Background: true})
	want := agenttest.TerminalEvent[event.FinalAnswer](t, first.Events(t, run.ID)).Metadata
	failed := slices.IndexFunc(origin.recordedOperations(), func(o operation) bool { return o.what == "tool_error" })
	h := agenttest.NewFixture(t, script, withDurableLog(origin.diedAfter(t, run, failed+1)))
	got := agenttest.TerminalEvent[event.FinalAnswer](t, h.Events(t, run.ID)).Metadata
	if joinRaw(got.ToolParams) != joinRaw(want.ToolParams) || joinRaw(want.ToolParams) != `{}` {
		t.Errorf("got %s, want %s, which are {}", joinRaw(got.ToolParams), joinRaw(want.ToolParams))
	}
}
