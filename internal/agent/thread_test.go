package agent_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"answerd/internal/agent"
	"answerd/internal/agent/admission"
	"answerd/internal/agent/agenttest"
	"answerd/internal/agent/thread"
	"answerd/internal/auth"
	"answerd/internal/event"
	"answerd/internal/event/memory"
	"answerd/internal/llm"
	"answerd/internal/llm/llmtest"
	"answerd/internal/mcp/config"
)

// addTurn adds a turn to the thread "t" of the anonymous caller.
func addTurn(t *testing.T, log event.Log, run string, turn thread.Turn) {
	t.Helper()
	if _, err := log.BeginTurn(t.Context(), event.Owner{}, "t", run, "", thread.Title(turn.Question)); err != nil {
		t.Fatal(err)
	}
	if err := log.EndTurn(t.Context(), event.Owner{}, "t", run, turn.Encode()); err != nil {
		t.Fatal(err)
	}
}

// answeredTurn returns a turn with a question and its answer.
func answeredTurn(question, answer string) thread.Turn {
	return thread.Turn{Question: question, Status: event.StatusCompleted, Steps: []thread.Step{{Text: answer}}}
}

// turnsOf returns the turns of the thread "t" as messages, one line each.
func turnsOf(t *testing.T, log event.Log) (lines []string) {
	t.Helper()
	page, err := log.Turns(t.Context(), event.Owner{}, "t", 0, 100, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	for _, stored := range page.Turns {
		turn, err := thread.Decode(stored.Data)
		if err != nil {
			t.Fatal(err)
		}
		line := string(turn.Status)
		for _, m := range turn.Messages() {
			line += "|" + m.Role + ":" + withoutUniqueIDs(m.Content)
			for _, c := range m.Calls {
				line += c.Name + c.Arguments
			}
		}
		lines = append(lines, line)
	}
	return lines
}

func isBusy(t *testing.T, log event.Log) bool {
	t.Helper()
	th, err := log.Thread(t.Context(), event.Owner{}, "t")
	if err != nil {
		t.Fatal(err)
	}
	return th.Active != ""
}

// A process is killed at any moment of a run that continues a thread. The process that takes it
// over gives the model the same messages, and in the end the thread has one turn of it. Section 10
// of the contract.
func TestThreadContinuesWhereverItsProcessDied(t *testing.T) {
	seed := func(log event.Log) {
		addTurn(t, log, "run_1", answeredTurn("What is it?", "A number."))
		addTurn(t, log, "run_2", thread.Turn{Question: "Which?", Status: event.StatusFailed, Steps: []thread.Step{{Calls: []thread.Call{{CallID: "call_1", Tool: "echo", Args: []byte(`{}`), Payload: []byte(`"one"`)}}}}})
	}

	origin := &recordingLog{Log: memory.New(memory.Options{}), seed: seed}
	seed(origin.Log)

	newFixture := func(log event.Log) *agenttest.Fixture {
		script := func(r llmtest.Request) llmtest.Answer {
			if r.Messages[len(r.Messages)-1].Role == "user" {
				return llmtest.SaysAndCalls("Let me see. ", llmtest.Call{Name: "echo", Args: `{"text":"x"}`})
			}
			return llmtest.Says("It is ", "3.")
		}
		return agenttest.NewFixture(t, script, withDurableLog(log), func(s *config.Server) { s.IdempotentTools = []string{"echo"} })
	}

	first := newFixture(origin)
	run := first.StartRun(t, agent.Request{Question: "What is 1 + 2?", ThreadID: "t", Background: true})
	agenttest.TerminalEvent[event.FinalAnswer](t, first.Events(t, run.ID))
	wantSaid, wantTurns := lastConversation(first), turnsOf(t, origin)
	if want := 3; len(wantTurns) != want || !strings.Contains(wantSaid, "A number.") || !strings.HasSuffix(wantTurns[2], "assistant:It is 3.") {
		t.Fatalf("turns %q, the model got %s, want %d turns and the earlier answer", wantTurns, wantSaid, want)
	}

	operations := origin.recordedOperations()
	for n := range operations {
		what := "nothing"
		if n > 0 {
			what = operations[n-1].what
		}
		t.Run(fmt.Sprintf("%02d_%s", n, what), func(t *testing.T) {
			t.Parallel()
			log := origin.diedAfter(t, run, n)
			h := newFixture(log)
			end := agenttest.TerminalEvent[event.FinalAnswer](t, h.Events(t, run.ID))
			if got := lastConversation(h); got != "" && got != wantSaid {
				t.Errorf("the model got\n%s, want\n%s", got, wantSaid)
			}
			turns := turnsOf(t, log)
			if fmt.Sprint(turns) != fmt.Sprint(wantTurns) || end.Answer != "It is 3." {
				t.Errorf("turns\n%q, want\n%q", turns, wantTurns)
			}
			if isBusy(t, log) {
				t.Error("the thread is busy after the end of its run, want it to be free")
			}
			next := h.StartRun(t, agent.Request{Question: "And?", ThreadID: "t", Background: true})
			h.Events(t, next.ID)
			if got := lastConversation(h); !strings.Contains(got, "It is 3.") {
				t.Errorf("the model of the next question got\n%s, want the answer before", got)
			}
		})
	}
}

// The turn of a new thread is written beside the first event, so a process can die when it has written one and not
// the other. The process that takes the run over adds the turn to the thread all the same.
func TestNewThreadGetsTheTurnOfARunWhoseProcessDiedAtTheBeginning(t *testing.T) {
	origin := &recordingLog{Log: memory.New(memory.Options{})}
	newFixture := func(log event.Log) *agenttest.Fixture {
		return agenttest.NewFixture(t, llmtest.Turns(llmtest.Says("It is ", "3.")), withDurableLog(log))
	}
	first := newFixture(origin)
	run := first.StartRun(t, agent.Request{Question: "What is 1 + 2?", Background: true})
	first.Events(t, run.ID)
	begin := origin.begin
	turn := answeredTurn("What is 1 + 2?", "It is 3.")
	ended := func(ctx context.Context, log event.Log) error { // as a run that is cancelled at once
		return errors.Join(begin(ctx, log), log.EndTurn(ctx, run.Owner, run.ThreadID, run.ID, turn.Encode()))
	}

	for _, c := range []struct {
		name   string
		begin  func(context.Context, event.Log) error
		events int
	}{
		{"before both", nil, 0},
		{"after the event", nil, 1},
		{"after the turn", begin, 0},
		{"after both", begin, 1},
		{"after the turn's end", ended, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			origin.begin = c.begin
			log := origin.diedAfter(t, run, c.events)
			h := newFixture(log)
			agenttest.TerminalEvent[event.FinalAnswer](t, h.Events(t, run.ID))
			got, err := log.Thread(t.Context(), run.Owner, run.ThreadID)
			if err != nil || got.Turns != 1 || got.LastRun != run.ID || got.Active != "" || got.Title != "What is 1 + 2?" {
				t.Errorf("thread %+v, %v, want one turn, of %s, and the question as title", got, err, run.ID)
			}
		})
	}
}

// The process died after the terminal event or together with its log's answer: the next question adds the
// turn as the events say.
func TestNextQuestionRepairsTheTurnOfAnEndedRun(t *testing.T) {
	log := &turnRefusingLog{Log: memory.New(memory.Options{})}
	script := func(r llmtest.Request) llmtest.Answer {
		last := r.Messages[len(r.Messages)-1]
		if last.Role == "user" && strings.Contains(last.Content, "1 + 2") {
			return llmtest.Calls(llmtest.Call{Name: "add", Args: `{"a":1,"b":2}`})
		}
		return llmtest.Says("It is 3.")
	}

	h := agenttest.NewFixture(t, script, func(o *agent.Options) { o.Log = log })
	log.fails = true
	run := h.StartRun(t, agent.Request{Question: "What is 1 + 2?", ThreadID: "t"})
	agenttest.TerminalEvent[event.FinalAnswer](t, h.Events(t, run.ID))
	if !isBusy(t, log) {
		t.Fatal("the thread is free although the log refused the turn, want it busy")
	}
	log.fails = false
	next := h.StartRun(t, agent.Request{Question: "And?", ThreadID: "t"})
	h.Events(t, next.ID)
	want := []string{`completed|user:What is 1 + 2?|assistant:add{"a":1,"b":2}|tool:{"sum":3}|assistant:It is 3.`, "completed|user:And?|assistant:It is 3."}
	if got := turnsOf(t, log); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("turns %q, want %q", got, want)
	}
}

// turnRefusingLog is a log that stores no turns while fails is set.
type turnRefusingLog struct {
	*memory.Log
	fails bool
}

func (l *turnRefusingLog) EndTurn(ctx context.Context, owner event.Owner, thread, run string, data []byte) error {
	if l.fails {
		return event.ErrUnavailable
	}
	return l.Log.EndTurn(ctx, owner, thread, run, data)
}

// A run that is no longer in the log does not keep its thread busy.
func TestVanishedRunDoesNotKeepItsThreadBusy(t *testing.T) {
	h := agenttest.NewFixture(t, llmtest.Turns(llmtest.Says("Yes.")), nil)
	if _, err := h.Log.BeginTurn(t.Context(), event.Owner{}, "t", "run_gone", "", "Old"); err != nil {
		t.Fatal(err)
	}
	run := h.StartRun(t, agent.Request{ThreadID: "t"})
	h.Events(t, run.ID)
	if got, want := len(turnsOf(t, h.Log)), 1; got != want {
		t.Errorf("%d turns, want %d", got, want)
	}
}

func TestQueuedQuestionWaitsForItsTurn(t *testing.T) {
	t.Parallel()
	h := agenttest.NewFixture(t, llmtest.Turns(llmtest.Calls(llmtest.Call{Name: "meet", Args: `{"text":"x"}`}), llmtest.Says("Done.")), func(o *agent.Options) { o.InputTimeout = 50 * time.Millisecond })
	first := h.StartRun(t, agent.Request{Question: "one", ThreadID: "t", Background: true})
	<-h.Tools.Entered

	// It waits no longer than a run waits for a person.
	_, err := h.Start(t.Context(), auth.Identity{}, agent.Request{Question: "two", ThreadID: "t", OnBusy: agent.BusyQueue})
	if busy, ok := errors.AsType[*event.BusyError](err); !ok || busy.Run != first.ID {
		t.Errorf("error %v, want that %s is active", err, first.ID)
	}

	// Nor longer than its caller.
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err = h.Start(ctx, auth.Identity{}, agent.Request{Question: "two", ThreadID: "t", OnBusy: agent.BusyQueue}); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v, want %v", err, context.Canceled)
	}

	// Nor longer than the process takes questions.
	h.StopAccepting()
	if _, err = h.Start(t.Context(), auth.Identity{}, agent.Request{Question: "two", ThreadID: "t", OnBusy: agent.BusyQueue}); !errors.Is(err, agent.ErrDraining) {
		t.Errorf("error %v, want %v", err, agent.ErrDraining)
	}
	close(h.Tools.ReleaseMeet)
	h.Events(t, first.ID)
	if got, want := len(turnsOf(t, h.Log)), 1; got != want {
		t.Errorf("%d turns, want %d: questions that were refused are none", got, want)
	}
}

// A repeated key attaches to its run, and is never busy with itself.
func TestKeyOfAnActiveRunAttachesToIt(t *testing.T) {
	h := agenttest.NewFixture(t, llmtest.Turns(llmtest.Calls(llmtest.Call{Name: "meet", Args: `{"text":"x"}`}), llmtest.Says("Done.")), nil)
	ask := func(key string, busy agent.OnBusy) (event.Run, error) {
		return h.Start(t.Context(), auth.Identity{}, agent.Request{Question: "one", ThreadID: "t", IdempotencyKey: key, OnBusy: busy, Background: true})
	}
	first, err := ask("k", "")
	if err != nil {
		t.Fatal(err)
	}
	<-h.Tools.Entered

	for _, busy := range []agent.OnBusy{agent.BusyRefuse, agent.BusyQueue, agent.BusyCancel} {
		if again, err := ask("k", busy); err != nil || again.ID != first.ID {
			t.Errorf("on_busy %q: run %s, %v, want %s", busy, again.ID, err, first.ID)
		}
	}

	// Two requests of one key that wait together become one run.
	got := make(chan event.Run, 2)
	for range 2 {
		go func() {
			run, err := ask("queued", agent.BusyQueue)
			if err != nil {
				t.Error(err)
			}
			got <- run
		}()
	}

	close(h.Tools.ReleaseMeet)
	if a, b := <-got, <-got; a.ID != b.ID || a.ID == first.ID {
		t.Errorf("runs %s and %s, want one that is not %s", a.ID, b.ID, first.ID)
	}
}

// Questions that are asked at the same time are answered one after the other: each model request has one
// turn more than the one before.
func TestQueuedQuestionsAreAnsweredOneByOne(t *testing.T) {
	h := agenttest.NewFixture(t, llmtest.Turns(llmtest.Says("Yes.")), nil)
	const questions = 8
	done := make(chan error, questions)
	for i := range questions {
		go func() {
			_, err := h.Start(t.Context(), auth.Identity{}, agent.Request{Question: fmt.Sprint("question ", i), ThreadID: "t", OnBusy: agent.BusyQueue, Background: true})
			done <- err
		}()
	}

	for range questions {
		if err := <-done; err != nil {
			t.Errorf("Start: got %v, want nil", err)
		}
	}

	runs, err := h.Log.Runs(t.Context(), event.Filter{ThreadID: "t"})
	if err != nil || len(runs.Runs) != questions {
		t.Fatalf("%d runs, %v, want %d", len(runs.Runs), err, questions)
	}

	for _, run := range runs.Runs {
		h.Events(t, run.ID)
	}

	for i, r := range h.Model.Requests() {
		if got, want := len(r.Messages), 2+2*i; got != want {
			t.Errorf("request %d has %d messages, want %d", i, got, want)
		}
	}

	if got := len(turnsOf(t, h.Log)); got != questions {
		t.Errorf("%d turns, want %d", got, questions)
	}
}

// What a failed and a cancelled run contribute: the question, the calls that ended, and the partial text.
func TestFailedRunContributesWhatItDid(t *testing.T) {
	script := func(r llmtest.Request) llmtest.Answer {
		switch last := r.Messages[len(r.Messages)-1]; {
		case last.Role == "user" && strings.HasPrefix(last.Content, "fail"):
			return llmtest.SaysAndCalls("Adding. ", llmtest.Call{Name: "add", Args: `{"a":1,"b":2}`})
		case last.Role == "user":
			return llmtest.Says("Yes.")
		}
		return llmtest.Fails(400, "no")
	}

	h := agenttest.NewFixture(t, script, nil)
	failed := h.StartRun(t, agent.Request{Question: "fail", ThreadID: "t"})
	agenttest.TerminalEvent[event.RunError](t, h.Events(t, failed.ID))
	next := h.StartRun(t, agent.Request{Question: "And?", ThreadID: "t"})
	h.Events(t, next.ID)
	if got, want := turnsOf(t, h.Log)[0], `failed|user:fail|assistant:Adding. add{"a":1,"b":2}|tool:{"sum":3}`; got != want {
		t.Errorf("turn %s, want %s", got, want)
	}
	if got := lastConversation(h); !strings.Contains(got, "assistant Adding.") || !strings.Contains(got, `tool {"sum":3}`) || !strings.Contains(got, "user fail") {
		t.Errorf("the model got\n%s, want the question, the call and its result", got)
	}
}

// The log is slow or down: the run still ends.
func TestRunEndsWithoutALogForItsTurn(t *testing.T) {
	log := &turnRefusingLog{Log: memory.New(memory.Options{}), fails: true}
	h := agenttest.NewFixture(t, llmtest.Turns(llmtest.Says("Yes.")), func(o *agent.Options) { o.Log = log })
	run := h.StartRun(t, agent.Request{})
	agenttest.TerminalEvent[event.FinalAnswer](t, h.Events(t, run.ID))
}

// Section 12 of the contract: what only one provider understands stays with its run.
func TestNextRunOfAThreadHasNoMembersOfAProvider(t *testing.T) {
	script := func(llmtest.Request) llmtest.Answer {
		return func(w http.ResponseWriter, _ *http.Request) {
			llmtest.Stream(w, "stop", map[string]any{"content": "Yes.", "reasoning_details": []any{map[string]any{"type": "reasoning.encrypted", "data": "canary"}}})
		}
	}

	h := agenttest.NewFixture(t, script, nil)
	for _, question := range []string{"one", "two"} {
		h.Events(t, h.StartRun(t, agent.Request{Question: question, ThreadID: "t"}).ID)
	}

	last := h.Model.Requests()[1]
	if strings.Contains(string(last.Body), "canary") || len(last.Messages) != 4 {
		t.Errorf("request %s, want it to have the turn before, and not canary", last.Body)
	}
	page, err := h.Log.Turns(t.Context(), event.Owner{}, "t", 0, 10, 1<<20)
	if err != nil || strings.Contains(string(page.Turns[0].Data), "canary") {
		t.Errorf("turn %s, %v, want it without canary", page.Turns[0].Data, err)
	}
}

// A long thread is trimmed like any long conversation.
func TestLongThreadIsTrimmedToTheWindow(t *testing.T) {
	h := agenttest.NewFixture(t, llmtest.Turns(llmtest.Says("Yes.")), func(o *agent.Options) {
		o.Profiles = map[string]llm.Profile{"scripted": {ID: "scripted", ContextTokens: 3000, MaxOutputTokens: 500}}
	})

	for i := range 40 {
		addTurn(t, h.Log, fmt.Sprintf("run_%d", i), answeredTurn(fmt.Sprintf("Question %d?", i), strings.Repeat("long ", 200)))
	}

	events := h.Events(t, h.StartRun(t, agent.Request{Question: "Last?", ThreadID: "t"}).ID)
	agenttest.TerminalEvent[event.FinalAnswer](t, events)

	trimmed := false
	for _, b := range agenttest.EventsOf[event.Budget](events) {
		trimmed = trimmed || b.Limit == "context_tokens"
	}

	body := string(h.Model.Requests()[0].Body)
	if !trimmed || strings.Contains(body, "Question 0?") || !strings.Contains(body, "Question 39?") || !strings.Contains(body, "Last?") {
		t.Errorf("trimmed %t, the request has %d bytes, want it trimmed, with the newest turns and not the oldest", trimmed, len(body))
	}
}

// Of several questions that wait for their thread, one begins when it is free. The others wait on, and do not count as
// runs that their caller has started.
func TestQueuedQuestionsAreCountedOnce(t *testing.T) {
	t.Parallel()
	const queued = 4
	g := newGate()
	answers := make(chan llmtest.Answer, queued+1)
	answers <- g.blockAnswer(nil)

	for range queued {
		answers <- llmtest.Says("Yes.")
	}

	h := agenttest.NewFixture(t, func(llmtest.Request) llmtest.Answer { return <-answers }, func(o *agent.Options) {
		o.Rate = admission.Rate{N: queued + 1, Per: time.Hour}
	})
	first := h.StartRun(t, agent.Request{ThreadID: "t", Background: true})
	<-g.reached

	var wg sync.WaitGroup
	for range queued {
		wg.Go(func() {
			run, err := h.Start(t.Context(), auth.Identity{}, agent.Request{Question: "And?", ThreadID: "t", OnBusy: agent.BusyQueue, Background: true})
			if err != nil {
				t.Errorf("a queued question: %v", err)
				return
			}
			h.Events(t, run.ID)
		})
	}

	<-time.After(100 * time.Millisecond)
	close(g.open)
	wg.Wait()
	agenttest.TerminalEvent[event.FinalAnswer](t, h.Events(t, first.ID))
}

// A new thread cannot continue with results, because it has no calls. The refused request leaves no thread behind.
func TestRefusedRequestLeavesNoThread(t *testing.T) {
	h := agenttest.NewFixture(t, answerAlways("Yes."), nil)
	results := []agent.Message{{Role: "tool", CallID: "call_1", Content: "3"}}
	_, err := h.Start(t.Context(), auth.Identity{}, agent.Request{ThreadID: "t", ContinueThread: true, History: results})
	if _, invalid := errors.AsType[*agent.InvalidError](err); !invalid {
		t.Errorf("Start = %v, want an InvalidError", err)
	}
	page, err := h.Log.ListThreads(t.Context(), event.ThreadFilter{})
	if err != nil || len(page.Threads) > 0 {
		t.Errorf("the threads %+v are listed, %v, want none", page.Threads, err)
	}
}

// slowTurns is a log whose answer comes after the caller went away.
type slowTurns struct {
	event.Log
	cancel context.CancelFunc
}

func (l slowTurns) BeginThread(ctx context.Context, run event.Run, title string) error {
	_, err := l.BeginTurn(ctx, run.Owner, run.ThreadID, run.ID, run.Agent, title)
	return err
}

func (l slowTurns) BeginTurn(ctx context.Context, owner event.Owner, thread, run, agent, title string) (event.Thread, error) {
	if _, err := l.Log.BeginTurn(ctx, owner, thread, run, agent, title); err != nil {
		return event.Thread{}, err
	}
	l.cancel()
	return event.Thread{}, event.ErrUnavailable
}

// The log may have begun a turn although the caller went away before it answered. No thread may stay active then.
func TestTurnOfACallerWhoWentAwayIsEnded(t *testing.T) {
	for _, id := range []string{"", "t"} {
		ctx, cancel := context.WithCancel(t.Context())
		h := agenttest.NewFixture(t, answerAlways("Yes."), func(o *agent.Options) { o.Log = slowTurns{newMemoryLog(), cancel} })
		if _, err := h.Start(ctx, auth.Identity{}, agent.Request{Question: "?", ThreadID: id}); !errors.Is(err, event.ErrUnavailable) {
			t.Errorf("thread %q: Start = %v, want %v", id, err, event.ErrUnavailable)
		}
		page, err := h.Log.ListThreads(t.Context(), event.ThreadFilter{})
		for _, thread := range page.Threads {
			if thread.Active != "" {
				t.Errorf("thread %q: %+v is listed, %v, want no active thread", id, thread, err)
			}
		}
	}
}
