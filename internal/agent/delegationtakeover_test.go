package agent_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"answerd/internal/agent"
	"answerd/internal/agent/agenttest"
	"answerd/internal/agent/definition"
	"answerd/internal/event"
	"answerd/internal/event/memory"
	"answerd/internal/llm/llmtest"
	"answerd/internal/mcp/config"
)

// losableLog is a log whose process can lose the job of a run to another one.
type losableLog struct {
	*memory.Log

	mu   sync.Mutex // guards jobs
	jobs map[string]losableJob
}

type losableJob struct {
	event.Job
	lost chan struct{}
}

func (j losableJob) Lost() <-chan struct{} { return j.lost }

func (l *losableLog) CreateJob(ctx context.Context, run string, request []byte) (event.Job, error) {
	job, err := l.Log.CreateJob(ctx, run, request)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.jobs[run] = losableJob{job, make(chan struct{})}
	return l.jobs[run], err
}

func (l *losableLog) loseJob(run string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	close(l.jobs[run].lost)
}

// The process of a child dies while a server keeps a request open for an answer, and that of its parent does not. The
// next process of the child withdraws the question. The parent, which asks it too, goes on with the child at once.
func TestQuestionThatAChildWithdrawsEndsInItsParent(t *testing.T) {
	t.Parallel()
	log := &losableLog{Log: memory.New(memory.Options{}), jobs: make(map[string]losableJob)}
	h := agenttest.NewFixture(t, scriptPerAgent(map[string]llmtest.Script{
		"a": llmtest.Turns(askAgent("b", "?"), llmtest.Says("Done.")),
		"b": llmtest.Turns(llmtest.Calls(llmtest.Call{Name: "ask"}), llmtest.Says("Unknown.")),
	}), withAgents(t, fiveAgents, func(o *agent.Options) { o.Log, o.Durable, o.InputTimeout = log, true, time.Minute }))
	run := h.StartRun(t, agent.Request{Interactive: true, Background: true})
	i := waitUntilSuspended(t, h, run.ID, 1)[0]
	log.loseJob(i.ChildRunID)
	events := h.Events(t, run.ID)
	agenttest.TerminalEvent[event.FinalAnswer](t, events)
	if at := events[len(events)-1].Time; at >= i.ExpiresAt {
		t.Errorf("the parent ended %d ms after the question had expired, want it to end before", at-i.ExpiresAt)
	}
}

// slowNotes is a log that stores no note of a child before the context ends.
type slowNotes struct{ event.Log }

func (l slowNotes) AddNote(ctx context.Context, run string, note []byte) error {
	if strings.HasPrefix(string(note), "child ") {
		<-ctx.Done()
		return ctx.Err()
	}
	return l.Log.AddNote(ctx, run, note)
}

// If the time for tools ends while a child begins, only the call fails, and the model still sums up.
func TestTimeForToolsMayEndWhileAChildBegins(t *testing.T) {
	t.Parallel()
	h := agenttest.NewFixture(t, scriptPerAgent(map[string]llmtest.Script{
		"a": llmtest.Turns(askAgent("b", "?"), llmtest.Says("Done.")), "b": llmtest.Turns(llmtest.Says("Yes.")),
	}), withAgents(t, fiveAgents, func(o *agent.Options) { o.Log, o.Durable = slowNotes{newMemoryLog()}, true }))
	events := h.Events(t, h.StartRun(t, agent.Request{Budget: agent.Budget{Seconds: 3}}).ID)
	failed := agenttest.EventsOf[event.ToolError](events)
	if end := agenttest.TerminalEvent[event.FinalAnswer](t, events); end.Answer != "Done." || len(failed) != 1 || failed[0].Kind != "cancelled" {
		t.Errorf("answer %q and failures %+v, want Done. and one call that was cancelled", end.Answer, failed)
	}
}

// replayOperations returns the log of a process that died after these operations.
func replayOperations(t *testing.T, operations []operation) event.Log {
	t.Helper()
	log := &replayedJobs{Log: memory.New(memory.Options{})}
	for _, o := range operations {
		if err := o.do(t.Context(), log); err != nil {
			t.Fatalf("%s: %v", o.what, err)
		}
	}
	for _, job := range log.jobs {
		if err := job.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	return log.Log
}

// A process dies after it has noted the id of a child and before it has created it. The child that the next process
// starts instead is asked what the hook wants, like the first one.
func TestHookChangesTheQuestionOfAChildThatIsStartedAgain(t *testing.T) {
	origin := familyRecordingLog{&recordingLog{Log: memory.New(memory.Options{})}}
	newFixture := func(log event.Log) *agenttest.Fixture {
		h, _ := newWatchedFixture(t, scriptPerAgent(map[string]llmtest.Script{
			"a": llmtest.Turns(askAgent("b", "a secret"), llmtest.Says("Done.")), "b": llmtest.Turns(llmtest.Says("Yes.")),
		}), replyOnlyTo("pre_tool_call", `{"args":{"question":"nothing"}}`), withAgents(t, fiveAgents, func(o *agent.Options) { o.Log, o.Durable = log, true }))
		return h
	}

	first := newFixture(origin)
	run := first.StartRun(t, agent.Request{Background: true})
	first.Events(t, run.ID)
	operations := origin.recordedOperations()
	noted := slices.IndexFunc(operations, func(o operation) bool { return o.what == "note child" })
	h := newFixture(replayOperations(t, operations[:noted+1]))
	events := h.Events(t, run.ID)
	start := h.Events(t, childRunOf(t, events))[0].Body.(event.Start)
	result := agenttest.EventsOf[event.ToolResult](events)[0]
	if start.Question != "nothing" || string(result.Args) != `{"question":"nothing"}` {
		t.Errorf("the child was asked %q and the result has arguments %s, want those of the hook", start.Question, result.Args)
	}
}

// The process of a parent dies before it has reported what its child did, and the child ends before the next process
// reads it. That process reports the rest.
func TestProgressOfAChildIsCompleteAfterATakeover(t *testing.T) {
	origin := familyRecordingLog{&recordingLog{Log: memory.New(memory.Options{})}}
	newFixture := func(log event.Log) *agenttest.Fixture {
		return agenttest.NewFixture(t, scriptPerAgent(map[string]llmtest.Script{
			"a": llmtest.Turns(askAgent("b", "?"), llmtest.Says("Done.")), "b": llmtest.Turns(llmtest.Calls(onePlusTwo), llmtest.Says("Yes.")),
		}), withAgents(t, fiveAgents, func(o *agent.Options) { o.Log, o.Durable = log, true }))
	}
	progressOf := func(events []event.Event) (out []string) {
		for _, b := range agenttest.EventsOf[event.ToolProgress](events) {
			out = append(out, fmt.Sprint(b.Progress, " ", b.Message))
		}
		return out
	}
	first := newFixture(origin)
	run := first.StartRun(t, agent.Request{Background: true})
	want := progressOf(first.Events(t, run.ID))

	var stored []operation // without the end of the parent's call, and with the first of its reports alone
	reports, results := 0, 0
	for _, o := range origin.recordedOperations() {
		if o.what == "tool_progress" {
			reports++
		}
		if o.what == "tool_result" {
			results++
		}
		if results == 2 { // the child's call has ended before
			break
		}
		if o.what != "tool_progress" || reports == 1 {
			stored = append(stored, o)
		}
	}
	got := progressOf(newFixture(replayOperations(t, stored)).Events(t, run.ID))
	if len(want) < 3 || !slices.Equal(got, want) {
		t.Errorf("progress after the takeover: got %q, want %q", got, want)
	}
}

// A run that is given up ends without its call, so the child of the call is cancelled.
func TestRunThatIsGivenUpCancelsItsChild(t *testing.T) {
	origin := familyRecordingLog{&recordingLog{Log: memory.New(memory.Options{})}}
	newFixture := func(log event.Log) *agenttest.Fixture {
		return agenttest.NewFixture(t, scriptPerAgent(map[string]llmtest.Script{
			"a": llmtest.Turns(askAgent("b", "?"), llmtest.Says("Done.")), "b": llmtest.Turns(llmtest.Calls(onePlusTwo), llmtest.Says("Yes.")),
		}), withAgents(t, fiveAgents, func(o *agent.Options) { o.Log, o.Durable = log, true }), approveTools("add"))
	}

	first := newFixture(origin)
	run := first.StartRun(t, agent.Request{Background: true, Interactive: true})
	child := waitUntilSuspended(t, first, run.ID, 1)[0].ChildRunID

	operations := origin.recordedOperations()
	for range 5 {
		operations = append(operations, operation{"note taken", func(ctx context.Context, log event.Log) error { return log.AddNote(ctx, run.ID, []byte("taken")) }})
	}

	h := newFixture(replayOperations(t, operations))
	agenttest.TerminalEvent[event.RunError](t, h.Events(t, run.ID))
	agenttest.TerminalEvent[event.Cancelled](t, h.Events(t, child))
}

// handOverLog is a log in which a parent creates its child only after its process has begun to hand over its runs. The
// hand-over waits for other runs until the test lets their events be stored.
type handOverLog struct {
	event.Log
	appending   chan struct{} // gets an element for each append that waits for stored
	stored      chan struct{}
	noted, goOn chan struct{} // closed when the child is noted, and when the parent may continue
}

func (l *handOverLog) AppendAsync(ctx context.Context, run string, b event.Body) (int64, error) {
	if _, ok := b.(event.TextDelta); ok {
		l.appending <- struct{}{}
		<-l.stored
	}
	return l.Log.AppendAsync(ctx, run, b)
}

func (l *handOverLog) AddNote(ctx context.Context, run string, note []byte) error {
	if strings.HasPrefix(string(note), "child ") {
		close(l.noted)
		<-l.goOn
	}
	return l.Log.AddNote(ctx, run, note)
}

// A parent that is about to start a child while its process hands over its runs is handed over too. It does not fail.
func TestParentIsHandedOverBeforeItsChildBegins(t *testing.T) {
	const others = 6
	log := &handOverLog{Log: newMemoryLog(), appending: make(chan struct{}), stored: make(chan struct{}), noted: make(chan struct{}), goOn: make(chan struct{})}
	h := agenttest.NewFixture(t, scriptPerAgent(map[string]llmtest.Script{
		"a": llmtest.Turns(askAgent("b", "?"), llmtest.Says("Done.")), "e": llmtest.Turns(llmtest.Says("Yes.")),
	}), withAgents(t, fiveAgents, func(o *agent.Options) { o.Log, o.Durable = log, true }))
	run := h.StartRun(t, agent.Request{Background: true})
	<-log.noted

	for range others {
		h.StartRun(t, agent.Request{Background: true, Agent: "e"})
		<-log.appending
	}

	drained := make(chan struct{})
	go func() {
		defer close(drained)
		drainAtOnce(h)
	}()

	<-h.HandingOver()
	<-time.After(20 * time.Millisecond) // for the hand-over to reach the runs
	close(log.goOn)
	<-time.After(20 * time.Millisecond) // for the parent to ask for its child
	close(log.stored)
	<-drained
	if r, err := log.Run(t.Context(), run.ID); err != nil || r.Status() != event.StatusRunning {
		t.Errorf("the parent has the status %s, %v; want %s", r.Status(), err, event.StatusRunning)
	}
}

// silentLog is a log that does not answer the first few requests about a child run.
type silentLog struct {
	event.Log
	mu     sync.Mutex // guards what follows
	parent string
	silent map[string]int // how many more requests of each kind are not answered
}

// answers reports whether the log answers a request of that kind about a run.
func (l *silentLog) answers(kind, run string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.parent == "" {
		l.parent = run
	}
	if run == l.parent || l.silent[kind] == 0 {
		return true
	}
	l.silent[kind]--
	return false
}

func (l *silentLog) Create(ctx context.Context, r event.Run) error {
	if !l.answers("create", r.ID) {
		return event.ErrUnavailable
	}
	return l.Log.Create(ctx, r)
}

func (l *silentLog) CreateJob(ctx context.Context, run string, request []byte) (event.Job, error) {
	if !l.answers("job", run) {
		return nil, event.ErrUnavailable
	}
	return l.Log.CreateJob(ctx, run, request)
}

func (l *silentLog) After(ctx context.Context, run string, seq int64) (event.Page, error) {
	page, err := l.Log.After(ctx, run, seq)
	if !l.answers("after", run) || seq == 0 && page.Ended && !l.answers("all", run) {
		return event.Page{}, event.ErrUnavailable
	}
	return page, err
}

func (l *silentLog) AddInput(ctx context.Context, run, id string, data []byte) error {
	if !l.answers("input", run) {
		return event.ErrUnavailable
	}
	return l.Log.AddInput(ctx, run, id, data)
}

// A log answers reads of a run and the creation of one only for some seconds. A parent waits for it, as the log does
// itself with events, since its child is not lost by that.
func TestParentWaitsForALogThatDoesNotAnswer(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"create", "job", "after", "input", "all"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			log := &silentLog{Log: newMemoryLog(), silent: map[string]int{kind: 1}}
			h := agenttest.NewFixture(t, scriptPerAgent(map[string]llmtest.Script{
				"a": llmtest.Turns(askAgent("b", "?"), llmtest.Says("Done.")),
				"b": llmtest.Turns(llmtest.Calls(onePlusTwo), llmtest.Says("It is 3.")),
			}), withAgents(t, fiveAgents, func(o *agent.Options) { o.Log, o.Durable = log, true }), approveTools("add"))
			run := h.StartRun(t, agent.Request{Interactive: true, Background: true}).ID
			answerInterrupt(t, h, run, agent.Input{ID: waitUntilSuspended(t, h, run, 1)[0].ID, Approved: new(true)})
			events := h.Events(t, run)
			end := agenttest.TerminalEvent[event.FinalAnswer](t, events)
			if results := agenttest.EventsOf[event.ToolResult](events); end.Answer != "Done." || len(results) != 1 || string(results[0].Payload) != `"It is 3."` {
				t.Errorf("got answer %q and results %+v, want Done. and the one of the child", end.Answer, results)
			}
			child := agenttest.TerminalEvent[event.FinalAnswer](t, h.Events(t, childRunOf(t, events)))
			if got, want := end.Metadata.Usage.TotalTokens, 2*child.Metadata.Usage.TotalTokens; got != want {
				t.Errorf("got %d tokens, want %d: both runs have two steps", got, want)
			}
			if log.answers("never", run); log.silent[kind] != 0 {
				t.Errorf("got %d requests about the child left, want 0", log.silent[kind])
			}
			if page, err := h.Log.Runs(t.Context(), event.Filter{Children: true}); err != nil || len(page.Runs) != 2 {
				t.Errorf("got %d runs, %v, want the parent and one child", len(page.Runs), err)
			}
		})
	}
}

// The agents may be replaced while a child waits for an answer. Its call continues with the child, although the
// parent's agent could not ask the child's agent any more.
func TestChildContinuesAfterItsAgentIsRemoved(t *testing.T) {
	t.Parallel()
	h := agenttest.NewFixture(t, scriptPerAgent(map[string]llmtest.Script{
		"a": llmtest.Turns(askAgent("b", "?"), llmtest.Says("Done.")),
		"b": llmtest.Turns(llmtest.Calls(onePlusTwo), llmtest.Says("It is 3.")),
	}), withAgents(t, fiveAgents, func(o *agent.Options) { o.Durable = true }), approveTools("add"))
	run := h.StartRun(t, agent.Request{Interactive: true, Background: true})
	i := waitUntilSuspended(t, h, run.ID, 1)[0]
	if err := h.ReplaceAgents([]definition.Agent{{ID: "a", Prompt: "You are a."}}); err != nil {
		t.Fatal(err)
	}
	answerInterrupt(t, h, run.ID, agent.Input{ID: i.ID, Approved: new(true)})
	events := h.Events(t, run.ID)
	results := agenttest.EventsOf[event.ToolResult](events)
	if len(results) != 1 || string(results[0].Payload) != `"It is 3."` || results[0].ChildRunID != i.ChildRunID {
		t.Errorf("got %s with results %+v, want the answer of the child %s", agenttest.TypesOf(events), results, i.ChildRunID)
	}
}

// A process dies while a call waits for its approval, and the call's server is down when the next one begins. The model
// is not informed that the tool does not exist.
func TestCallWhoseServerIsDownAfterATakeoverIsUnavailable(t *testing.T) {
	t.Parallel()
	origin := familyRecordingLog{&recordingLog{Log: memory.New(memory.Options{})}}
	newFixture := func(log event.Log, configure ...func(*config.Server)) *agenttest.Fixture {
		return agenttest.NewFixture(t, llmtest.Turns(llmtest.Calls(onePlusTwo), llmtest.Says("Done.")), func(o *agent.Options) { o.Log, o.Durable = log, true }, configure...)
	}
	first := newFixture(origin, approveTools("add"))
	run := first.StartRun(t, agent.Request{Interactive: true, Background: true})
	waitUntilSuspended(t, first, run.ID, 1)
	h := newFixture(replayOperations(t, origin.recordedOperations()), func(s *config.Server) { s.URL = "http://127.0.0.1:1/" })
	failed := agenttest.EventsOf[event.ToolError](h.Events(t, run.ID))
	if len(failed) != 1 || failed[0].Kind != "unavailable" || !strings.Contains(failed[0].Payload, "default") {
		t.Errorf("got %+v, want one call, which is unavailable because of its server", failed)
	}
}
