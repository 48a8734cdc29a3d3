package agent_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"answerd/internal/agent"
	"answerd/internal/agent/agenttest"
	"answerd/internal/agent/webhook/webhooktest"
	"answerd/internal/auth"
	"answerd/internal/event"
	"answerd/internal/event/memory"
	"answerd/internal/llm"
	"answerd/internal/llm/llmtest"
	"answerd/internal/mcp/config"
)

// drainAtOnce drains a process whose time to drain is over.
func drainAtOnce(h *agenttest.Fixture) {
	over, stop := context.WithCancel(context.Background())
	stop()
	h.Drain(over)
}

// withToolsOf makes a fixture use the tools of another one, because an approval is for the definition of one server.
func withToolsOf(h *agenttest.Fixture) func(*config.Server) {
	return func(s *config.Server) { s.URL = h.Tools.URL }
}

func newMemoryLog() event.Log { return memory.New(memory.Options{}) }

// A drained process hands its runs over instead of failing them.
func TestDrainedProcessHandsItsRunsOver(t *testing.T) {
	log, g, gone := newMemoryLog(), newGate(), make(chan struct{}, 1)
	a := agenttest.NewFixture(t, llmtest.Turns(llmtest.Calls(onePlusTwo), g.blockAnswer(gone)), withDurableLog(log))
	run := a.StartRun(t, agent.Request{}).ID
	a.EventsUntil(t, run, func(e event.Event) bool { return e.Body.Type() == "text_delta" })
	reader := a.OpenReader(run)
	drainAtOnce(a)
	reader.Close()
	<-gone

	select {
	case <-a.HandingOver():
	default:
		t.Error("HandingOver is open, want readers to be told that the run leaves")
	}

	if r, err := log.Run(t.Context(), run); err != nil || r.Status() != event.StatusRunning {
		t.Fatalf("JSON %s, %v, want status StatusRunning, no error", r.Last.AppendJSON(nil), err)
	}
	if _, err := a.Start(t.Context(), auth.Identity{}, agent.Request{Question: "?"}); !errors.Is(err, agent.ErrDraining) {
		t.Errorf("error %v, want ErrDraining", err)
	}
	b := agenttest.NewFixture(t, llmtest.Turns(llmtest.Calls(onePlusTwo), llmtest.Says("3.")), withDurableLog(log))
	events := b.Events(t, run)
	if got, want := typesFrom(events, "text_start"), "text_start text_delta text_end step_reset text_start text_delta text_end step_end final_answer"; got != want {
		t.Errorf("events %q, want %q", got, want)
	}
	if end := agenttest.TerminalEvent[event.FinalAnswer](t, events); end.Answer != "3." || len(b.Tools.CallCounts()) != 0 {
		t.Errorf("%+v, calls %v, want Answer 3., 0 Tools.CallCounts()", end, b.Tools.CallCounts())
	}
	checkOneEndPerCall(t, events)
}

// No process executes a run that only waits. The process that gets the answer continues it.
func TestRunThatWaitsForApprovalNeedsNoProcess(t *testing.T) {
	log := newMemoryLog()
	a := newAddFixture(t, withDurableLog(log), onePlusTwo)
	run := a.StartRun(t, agent.Request{Interactive: true}).ID
	i := waitUntilSuspended(t, a, run, 1)[0]
	drainAtOnce(a)
	b := agenttest.NewFixture(t, llmtest.Turns(llmtest.Calls(onePlusTwo), llmtest.Says("Done.")), withDurableLog(log), approveTools("add"), withToolsOf(a))
	if got := waitUntilSuspended(t, b, run, 1); len(got) != 1 || got[0].ID != i.ID {
		t.Fatalf("interrupts %+v, want 1 with ID %q", got, i.ID)
	}
	if err := b.Answer(t.Context(), auth.Identity{Subject: "eve"}, run, agent.Input{ID: i.ID, Approved: new(true)}); !errors.Is(err, event.ErrNotFound) {
		t.Errorf("a stranger: %v, want ErrNotFound", err)
	}
	answerInterrupt(t, b, run, agent.Input{ID: i.ID, Approved: new(true), Args: rawJSON(`{"a":40,"b":2}`)})
	if err := b.Answer(t.Context(), auth.Identity{}, run, agent.Input{ID: i.ID, Approved: new(false)}); !errors.Is(err, agent.ErrAnswered) {
		t.Errorf("a second answer: %v, want ErrAnswered", err)
	}
	events := b.Events(t, run)
	if got, want := typesFrom(events, "suspended"), "suspended approval_resolved tool_result step_start text_start text_delta text_end step_end final_answer"; got != want {
		t.Errorf("events %q, want %q", got, want)
	}
	if r := agenttest.EventsOf[event.ToolResult](events); len(r) != 1 || string(r[0].Payload) != `{"sum":42}` {
		t.Errorf(`tool result events %+v, want 1 with Payload {"sum":42}`, r)
	}
	if n := a.Tools.CallCounts()["add"]; n != 1 {
		t.Errorf("%d calls, want 1", n)
	}
}

// The time to answer ends at the expires_at of the event, although no process executes the run.
func TestParkedRunContinuesAfterItsInputTimeout(t *testing.T) {
	t.Parallel()
	h := newAddFixture(t, func(o *agent.Options) {
		withDurableLog(newMemoryLog())(o)
		o.InputTimeout = 50 * time.Millisecond
	}, onePlusTwo)
	events := h.Events(t, h.StartRun(t, agent.Request{Interactive: true}).ID)
	r := agenttest.EventsOf[event.ApprovalResolved](events)
	if len(r) != 1 || r[0].Approved || len(h.Tools.CallCounts()) != 0 {
		t.Errorf("%+v in %s, want 1 result, Approved false, 0 call counts", r, agenttest.TypesOf(events))
	}
	agenttest.TerminalEvent[event.FinalAnswer](t, events)
}

// The answer to a server's question goes to the call that is open, or nowhere.
func TestQuestionOfAServerEndsWithTheProcessThatHasItsCall(t *testing.T) {
	t.Parallel()
	log := newMemoryLog()
	script := llmtest.Turns(llmtest.Calls(llmtest.Call{Name: "ask"}, onePlusTwo), llmtest.Says("Done."))
	a := agenttest.NewFixture(t, script, withDurableLog(log), approveTools("add"))
	run := a.StartRun(t, agent.Request{Interactive: true}).ID

	waits := waitUntilSuspended(t, a, run, 1)
	for _, i := range waits {
		if i.HeldOpen != (i.Kind == event.KindElicitation) {
			t.Errorf("interrupt %+v, want HeldOpen only for an elicitation", i)
		}
	}

	drainAtOnce(a)
	asked := a.Tools.CallCounts()["ask"]
	b := agenttest.NewFixture(t, script, withDurableLog(log), approveTools("add"), withToolsOf(a))
	open := waitUntilSuspended(t, b, run, 2)
	if len(waits) != 2 || len(open) != 1 || open[0].Kind != event.KindApproval {
		t.Fatalf("%+v, then %+v, want 2 waits, 1 open, Kind KindApproval", waits, open)
	}
	answerInterrupt(t, b, run, agent.Input{ID: open[0].ID, Approved: new(true)})
	events := b.Events(t, run)
	failed, resolved := agenttest.EventsOf[event.ToolError](events), agenttest.EventsOf[event.ElicitationResolved](events)
	if len(failed) != 1 || failed[0].Kind != "unknown_outcome" || failed[0].Tool != "ask" || len(resolved) != 1 || resolved[0].Action != "cancel" {
		t.Errorf("failed %+v, %+v, want 1 failed, Kind unknown_outcome, Tool ask, 1 resolved, Action cancel", failed, resolved)
	}
	if made := a.Tools.CallCounts(); made["ask"] != asked || made["add"] != 1 {
		t.Errorf(`calls %v, want ["ask"] %d, ["add"] 1`, made, asked)
	}
	agenttest.TerminalEvent[event.FinalAnswer](t, events)
}

func TestRunIsCancelledFromAnyProcess(t *testing.T) {
	log, g, gone := newMemoryLog(), newGate(), make(chan struct{}, 1)
	a := agenttest.NewFixture(t, llmtest.Turns(g.blockAnswer(gone)), withDurableLog(log))
	run := a.StartRun(t, agent.Request{}).ID
	<-g.reached

	b := agenttest.NewFixture(t, llmtest.Turns(llmtest.Says("No.")), withDurableLog(log))
	for range 2 { // asked for twice, it ends once
		cancelRun(t, b, run)
	}

	<-gone
	if end := agenttest.TerminalEvent[event.Cancelled](t, b.Events(t, run)); end.Reason != "requested" {
		t.Errorf("end %+v, want Reason requested", end)
	}
	cancelRun(t, b, run) // as it is
	if err := b.Cancel(t.Context(), "run_none"); !errors.Is(err, event.ErrNotFound) {
		t.Errorf("error %v, want ErrNotFound", err)
	}
}

func TestParkedRunIsCancelled(t *testing.T) {
	h := newAddFixture(t, withDurableLog(newMemoryLog()), onePlusTwo)
	run := h.StartRun(t, agent.Request{Interactive: true}).ID
	waitUntilSuspended(t, h, run, 1)
	cancelRun(t, h, run)
	events := h.Events(t, run)
	agenttest.TerminalEvent[event.Cancelled](t, events)
	checkOneEndPerCall(t, events)
}

// A run that makes its process crash must not crash every process in turn.
func TestRunThatWasInterruptedTooOftenFails(t *testing.T) {
	origin := &recordingLog{Log: memory.New(memory.Options{})}
	first := agenttest.NewFixture(t, llmtest.Turns(llmtest.Says("Yes.")), withDurableLog(origin))
	run := first.StartRun(t, agent.Request{})
	first.Events(t, run.ID)

	for deaths, given := range map[int]bool{4: false, 5: true} {
		log := origin.diedAfter(t, run, 3)
		job, err := log.Claim(t.Context())
		if err != nil {
			t.Fatal(err)
		}

		for range deaths - 1 { // the first one needs no note
			if err := log.AddNote(t.Context(), run.ID, []byte("taken")); err != nil {
				t.Fatal(err)
			}
		}

		if err := job.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		h := agenttest.NewFixture(t, llmtest.Turns(llmtest.Says("Yes.")), withDurableLog(log))
		events := h.Events(t, run.ID)
		end, failed := events[len(events)-1].Body.(event.RunError)
		if failed != given {
			t.Errorf("%d deaths: %s, want the run to fail: %t", deaths, events[len(events)-1].AppendJSON(nil), given)
		}
		if given && (end.Code != "internal" || !end.Retryable || len(h.Model.Requests()) != 0) {
			t.Errorf("%d deaths: %+v after %d requests, want code internal, retryable, no request", deaths, end, len(h.Model.Requests()))
		}
	}
}

// No process continues a run whose request was stored by a newer version, cannot be read, or was
// lost.
func TestRunWhoseRequestCannotBeReadEnds(t *testing.T) {
	for request, code := range map[string]string{``: "server_shutdown", `{`: "internal", `{"version":99,"request":{}}`: "internal"} {
		log := newMemoryLog()
		if err := log.Create(t.Context(), event.Run{ID: "run_a", Created: time.Now()}); err != nil {
			t.Fatal(err)
		}
		job, err := log.CreateJob(t.Context(), "run_a", []byte(request))
		if err != nil {
			t.Fatal(err)
		}

		for _, b := range []event.Body{event.Start{}, event.StepStart{Step: 1}, event.TextStart{PartID: "p"}} {
			if _, err := log.Append(t.Context(), "run_a", b); err != nil {
				t.Fatal(err)
			}
		}

		if err := job.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		h := agenttest.NewFixture(t, llmtest.Turns(llmtest.Says("Yes.")), withDurableLog(log))
		events := h.Events(t, "run_a")
		if end := agenttest.TerminalEvent[event.RunError](t, events); end.Code != code || typesFrom(events, "text_start") != "text_start text_end step_end run_error" {
			t.Errorf("with the request %q the run has %s and ends with %s, want %s", request, agenttest.TypesOf(events), end.Code, code)
		}
	}
}

// An answer may come in the very moment in which its run is parked.
func TestInputIsAcceptedWhileItsRunIsParked(t *testing.T) {
	t.Parallel()
	h := agenttest.NewFixture(t, func(r llmtest.Request) llmtest.Answer {
		if r.Messages[len(r.Messages)-1].Role == "tool" {
			return llmtest.Says("Done.")
		}
		return llmtest.Calls(onePlusTwo)
	}, withDurableLog(newMemoryLog()), approveTools("add"))
	for range 300 {
		run := h.StartRun(t, agent.Request{Interactive: true}).ID
		answerInterrupt(t, h, run, agent.Input{ID: waitUntilSuspended(t, h, run, 1)[0].ID, Approved: new(true)})
		agenttest.TerminalEvent[event.FinalAnswer](t, h.Events(t, run))
	}
}

// An approval may be lost, asked for and given at any moment of a process' death; the call
// is made once, and only if and as it was approved.
func TestApprovalSurvivesWheneverItsProcessDies(t *testing.T) {
	t.Parallel()
	origin := &recordingLog{Log: memory.New(memory.Options{})}

	calls := []llmtest.Call{onePlusTwo, {Name: "echo", Args: `{"text":"x"}`}}
	newProcess := func(log event.Log, more ...func(*config.Server)) *agenttest.Fixture {
		more = append(more, approveTools("add"), func(s *config.Server) { s.IdempotentTools = []string{"echo"} })
		return agenttest.NewFixture(t, llmtest.Turns(llmtest.Calls(calls...), llmtest.Says("Done.")), withDurableLog(log), more...)
	}

	approve := func(h *agenttest.Fixture, run string) {
		i := waitUntilSuspended(t, h, run, 1)[0]
		err := h.Answer(t.Context(), auth.Identity{}, run, agent.Input{ID: i.ID, Approved: new(true), Args: rawJSON(`{"a":40,"b":2}`)})
		if err != nil && !errors.Is(err, agent.ErrAnswered) {
			t.Errorf("error %v, want no error or ErrAnswered", err)
		}
	}

	first := newProcess(origin)
	run := first.StartRun(t, agent.Request{Interactive: true})
	approve(first, run.ID)

	wantEnd, wantSaid := agenttest.TerminalEvent[event.FinalAnswer](t, first.Events(t, run.ID)), lastConversation(first)
	for n, a := range origin.recordedOperations() {
		t.Run(fmt.Sprintf("%02d_before_%s", n, a.what), func(t *testing.T) {
			log := origin.diedAfter(t, run, n)
			before, sent := toolCallsSoFar(t, log, run.ID)
			made := first.Tools.CallCounts()["add"]
			h := newProcess(log, withToolsOf(first))
			approve(h, run.ID)
			events := h.Events(t, run.ID)
			end := agenttest.TerminalEvent[event.FinalAnswer](t, events)
			checkOneEndPerCall(t, events)
			made = first.Tools.CallCounts()["add"] - made

			if sent["add"] > before["add"] { // under way
				if failed := agenttest.EventsOf[event.ToolError](events); len(failed) != 1 || failed[0].Kind != "unknown_outcome" || made != 0 {
					t.Errorf("%+v, %d calls, want 1 failed, Kind unknown_outcome, made 0", failed, made)
				}
				return
			}

			if made != 1-before["add"] || withoutUniqueIDs(joinRaw(end.Metadata.ToolResults)) != withoutUniqueIDs(joinRaw(wantEnd.Metadata.ToolResults)) {
				t.Errorf("%d calls, results %s, want %d calls, results %s", made, end.Metadata.ToolResults, 1-before["add"], wantEnd.Metadata.ToolResults)
			}
			if got := lastConversation(h); got != "" && got != wantSaid {
				t.Errorf("the model was told\n%s\nand not\n%s", got, wantSaid)
			}
			if len(agenttest.EventsOf[event.ApprovalRequired](events)) != 1 {
				t.Errorf("asked again: %s, want 1 approval required events", agenttest.TypesOf(events))
			}
		})
	}
}

// delegatingModel asks the agent b, which answers at once, and then sends nothing.
type delegatingModel struct{}

func (delegatingModel) Stream(ctx context.Context, r llm.Request) iter.Seq2[llm.Part, error] {
	return func(yield func(llm.Part, error) bool) {
		switch {
		case strings.HasPrefix(r.Messages[0].Text, "You are b."):
			_ = yield(llm.Text{Delta: "Yes."}, nil) && yield(llm.Finish{Reason: "stop"}, nil)
		case r.Messages[len(r.Messages)-1].Role == llm.ToolRole:
			<-ctx.Done()
			yield(nil, context.Cause(ctx))
		default:
			_ = yield(llm.ToolCall{ID: "call", Name: "ask_b", Arguments: `{"question":"?"}`}, nil) && yield(llm.Finish{Reason: "tool_calls"}, nil)
		}
	}
}

// drainingLog is a log whose process is drained as soon as the job of a first run is done.
type drainingLog struct {
	event.Log
	drain func()

	mu       sync.Mutex // protects what follows
	done     string     // the first run whose job is done; "" for none yet
	released []string   // the runs whose jobs were released
	inputs   []string   // the inputs, with their runs
}

func (l *drainingLog) CreateJob(ctx context.Context, run string, request []byte) (event.Job, error) {
	job, err := l.Log.CreateJob(ctx, run, request)
	return drainingJob{job, l}, err
}

func (l *drainingLog) AddInput(ctx context.Context, run, id string, data []byte) error {
	l.mu.Lock()
	l.inputs = append(l.inputs, run+" "+id)
	l.mu.Unlock()
	return l.Log.AddInput(ctx, run, id, data)
}

// drainingJob is a job of a drainingLog.
type drainingJob struct {
	event.Job
	log *drainingLog
}

func (j drainingJob) Done(ctx context.Context) error {
	err := j.Job.Done(ctx)
	j.log.mu.Lock()
	first := j.log.done == ""
	if first {
		j.log.done = j.Run()
	}
	j.log.mu.Unlock()
	if first {
		j.log.drain()
	}
	return err
}

func (j drainingJob) Release(ctx context.Context) error {
	j.log.mu.Lock()
	j.log.released = append(j.log.released, j.Run())
	j.log.mu.Unlock()
	return j.Job.Release(ctx)
}

// A run that has just ended when its process hands its runs over has ended: its parent is told, it is counted, and
// its job is not released again.
func TestRunThatEndsWhileItsProcessIsDrainedHasEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tools := memoryServer{}.client(t, config.Server{Name: "m"})
		log, drained := &drainingLog{Log: newMemoryLog()}, make(chan struct{})
		var c metricsAndLog
		o := agent.Options{Model: delegatingModel{}, Tools: tools, DefaultModel: "scripted", DisconnectGrace: time.Hour}
		withAgents(t, fiveAgents, c.withMetrics)(&o)
		o.Log, o.Durable = log, true
		a, err := agent.New(o)
		if err != nil {
			t.Fatal(err)
		}

		h := &agenttest.Fixture{Agent: a}
		log.drain = func() {
			go func() { drainAtOnce(h); close(drained) }()
			synctest.Wait() // all runs are handed over; Drain waits for this one
		}

		parent := h.StartRun(t, agent.Request{}).ID
		<-drained
		child := log.done
		if r, err := log.Run(t.Context(), child); err != nil || r.Status() != event.StatusCompleted || r.ParentID != parent {
			t.Fatalf("first run that ended = %+v, %v, want the child of %s, completed", r, err, parent)
		}
		if want := parent + " " + child; !slices.Contains(log.inputs, want) {
			t.Errorf("inputs = %q, want %q: the parent is told that its child has ended", log.inputs, want)
		}
		if got, want := log.released, []string{parent}; !slices.Equal(got, want) {
			t.Errorf("released runs = %q, want %q, the parent alone", got, want)
		}
		if got := sumValues(c.metricValues(t, "answerd.runs")); got != 1 {
			t.Errorf("answerd.runs = %v, want 1", got)
		}
		if got := sumValues(c.metricValues(t, "answerd.runs.active")); got != 0 {
			t.Errorf("answerd.runs.active = %v, want 0", got)
		}
		if line := c.endLines()["b"]; line["run_id"] != child {
			t.Errorf("line of the child = %v, want one", line)
		}
		_ = tools.Close()
	})
}

// suspendedLog returns the log of a process that died when its run waited for the approval of add. The budget is used
// up by then, so echo waits for add.
func suspendedLog(t *testing.T, b agent.Budget) (log event.Log, run event.Run, approver *agenttest.Fixture) {
	t.Helper()
	origin := &recordingLog{Log: memory.New(memory.Options{})}
	h := agenttest.NewFixture(t, addAndEchoScript(), withDurableLog(origin), approveTools("add"))
	run = h.StartRun(t, agent.Request{Interactive: true, Background: true, Budget: b})
	waitUntilSuspended(t, h, run.ID, 1)
	operations := origin.recordedOperations()
	n := slices.IndexFunc(operations, func(o operation) bool { return o.what == "suspended" })
	return origin.diedAfter(t, run, n+1), run, h
}

func addAndEchoScript() llmtest.Script {
	return llmtest.Turns(llmtest.Calls(onePlusTwo, llmtest.Call{Name: "echo", Args: `{"text":"x"}`}), llmtest.Says("Done."))
}

// A call that waited for another one may end in the next process before anybody has answered, because a hook or the
// rules say so. No event may follow suspended, so its outcome waits for the answer.
func TestCallThatEndsInASuspendedRunWaitsForTheAnswer(t *testing.T) {
	log, run, first := suspendedLog(t, agent.Budget{ToolCalls: 1})
	heard := make(chan struct{}, 10)
	h, _ := newWatchedFixture(t, addAndEchoScript(), func(q webhooktest.Question) string {
		if q.Tool != "echo" {
			return `{}`
		}
		heard <- struct{}{}
		return `{"content":"No."}`
	}, withDurableLog(log), approveTools("add"), withToolsOf(first))

	<-heard
	answerInterrupt(t, h, run.ID, agent.Input{ID: waitUntilSuspended(t, h, run.ID, 1)[0].ID, Approved: new(true)})
	events := h.Events(t, run.ID)
	if end := agenttest.TerminalEvent[event.FinalAnswer](t, events); joinRaw(end.Metadata.ToolResults) != `{"sum":3} "No."` {
		t.Errorf(`results %s, want {"sum":3} "No."`, joinRaw(end.Metadata.ToolResults))
	}
	checkOneEndPerCall(t, events)
}

// The time of a run that waits for a person does not pass while another process prepares to ask again.
func TestTimeOfASuspendedRunDoesNotPassDuringATakeover(t *testing.T) {
	t.Parallel()
	log, run, first := suspendedLog(t, agent.Budget{Seconds: 3})
	replied := make(chan struct{})
	h, _ := newWatchedFixture(t, addAndEchoScript(), func(q webhooktest.Question) string {
		if q.Tool == "add" && q.Hook == "pre_tool_call" {
			<-time.After(2600 * time.Millisecond) // the time for tools ends after 2.4 s
			close(replied)
		}
		return `{}`
	}, withDurableLog(log), approveTools("add"), withToolsOf(first))

	<-replied
	i := waitUntilSuspended(t, h, run.ID, 1)[0]
	answerInterrupt(t, h, run.ID, agent.Input{ID: i.ID, Approved: new(true)})
	if end := agenttest.TerminalEvent[event.FinalAnswer](t, h.Events(t, run.ID)); end.FinishReason != "stop" {
		t.Errorf("finish reason %q, want stop", end.FinishReason)
	}
}
