package agent_test

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"answerd/internal/agent"
	"answerd/internal/agent/agenttest"
	"answerd/internal/agent/replay"
	"answerd/internal/event"
	"answerd/internal/event/memory"
	"answerd/internal/llm"
	"answerd/internal/llm/llmtest"
	"answerd/internal/mcp/config"
)

// recordingLog is a log that records the operations on a run, so that a
// process can be made to have died after any of them.
type recordingLog struct {
	*memory.Log

	seed func(event.Log) // prepares a log before the run; nil for nothing

	mu         sync.Mutex // protects what follows
	request    []byte
	begin      func(context.Context, event.Log) error // begins the turn of the run
	operations []operation
}

// operation is one change of the log.
type operation struct {
	what string
	do   func(context.Context, event.Log) error
}

// recordOperation changes the log and records that under one lock: a reader of the change finds it
// recorded.
func (c *recordingLog) recordOperation(what string, now func() error, do func(context.Context, event.Log) error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	err := now()
	if err == nil {
		c.operations = append(c.operations, operation{what, do})
	}
	return err
}

// recordedOperations returns the operations so far.
func (c *recordingLog) recordedOperations() []operation {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.operations)
}

func (c *recordingLog) CreateJob(ctx context.Context, run string, request []byte) (event.Job, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.request = request
	return c.Log.CreateJob(ctx, run, request)
}

func (c *recordingLog) BeginThread(ctx context.Context, r event.Run, title string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.begin = func(ctx context.Context, log event.Log) error { return log.BeginThread(ctx, r, title) }
	return c.Log.BeginThread(ctx, r, title)
}

func (c *recordingLog) BeginTurn(ctx context.Context, owner event.Owner, thread, run, agent, title string) (event.Thread, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.begin = func(ctx context.Context, log event.Log) error {
		_, err := log.BeginTurn(ctx, owner, thread, run, agent, title)
		return err
	}
	return c.Log.BeginTurn(ctx, owner, thread, run, agent, title)
}

func (c *recordingLog) EndTurn(ctx context.Context, owner event.Owner, thread, run string, data []byte) error {
	return c.recordOperation("end turn",
		func() error { return c.Log.EndTurn(ctx, owner, thread, run, data) },
		func(ctx context.Context, log event.Log) error { return log.EndTurn(ctx, owner, thread, run, data) })
}

func (c *recordingLog) AppendAsync(ctx context.Context, run string, b event.Body) (seq int64, err error) {
	return c.Append(ctx, run, b)
}

func (c *recordingLog) Append(ctx context.Context, run string, b event.Body) (seq int64, err error) {
	err = c.recordOperation(string(b.Type()),
		func() error { seq, err = c.Log.Append(ctx, run, b); return err },
		func(ctx context.Context, log event.Log) error { _, err := log.Append(ctx, run, b); return err })
	return seq, err
}

func (c *recordingLog) AddNote(ctx context.Context, run string, note []byte) error {
	word, _, _ := strings.Cut(string(note), " ")
	return c.recordOperation("note "+word,
		func() error { return c.Log.AddNote(ctx, run, note) },
		func(ctx context.Context, log event.Log) error { return log.AddNote(ctx, run, note) })
}

func (c *recordingLog) AddInput(ctx context.Context, run, id string, data []byte) error {
	return c.recordOperation("give",
		func() error { return c.Log.AddInput(ctx, run, id, data) },
		func(ctx context.Context, log event.Log) error { return log.AddInput(ctx, run, id, data) })
}

func (c *recordingLog) SaveResult(ctx context.Context, run, call string, result []byte) error {
	return c.recordOperation("keep",
		func() error { return c.Log.SaveResult(ctx, run, call, result) },
		func(ctx context.Context, log event.Log) error { return log.SaveResult(ctx, run, call, result) })
}

// diedAfter returns the log of a process that died after so many operations.
func (c *recordingLog) diedAfter(t *testing.T, r event.Run, operations int) event.Log {
	t.Helper()
	log := memory.New(memory.Options{})
	if c.seed != nil {
		c.seed(log)
	}
	if err := log.Create(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	if c.begin != nil { // a child has no turn
		if err := c.begin(t.Context(), log); err != nil {
			t.Fatal(err)
		}
	}
	job, err := log.CreateJob(t.Context(), r.ID, c.request)
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range c.recordedOperations()[:operations] {
		if err := a.do(t.Context(), log); err != nil {
			t.Fatalf("%s: %v", a.what, err)
		}
	}
	if err := job.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	return log
}

func withDurableLog(log event.Log) func(*agent.Options) {
	return func(o *agent.Options) {
		o.Log, o.Durable = log, true
		o.Budget = agent.Budget{ToolCalls: 5, TotalTokens: 60}
	}
}

// lastConversation returns the messages of the last request that a model got, without the ids of calls.
func lastConversation(h *agenttest.Fixture) string {
	all := h.Model.Requests()
	if len(all) == 0 {
		return ""
	}
	var out []string
	for _, m := range all[len(all)-1].Messages {
		var calls []string
		for _, c := range m.ToolCalls {
			calls = append(calls, c.Function.Name+c.Function.Arguments)
		}
		out = append(out, fmt.Sprintf("%s %.200s %v", m.Role, withoutUniqueIDs(m.Content), calls))
	}
	return strings.Join(out, "\n")
}

// withoutUniqueIDs returns a text without what makes ids of calls unique: a step that runs again has new
// ones.
func withoutUniqueIDs(text string) string { return uniqueCall.ReplaceAllString(text, "$1") }

var uniqueCall = regexp.MustCompile(`(call_\d)_\d`)

// A process is killed at any moment. The process that takes its run over ends it as the first one
// would have: with the same conversation, the same calls, each made once, and the same answer. Only
// a call that was in flight ends as unknown_outcome. The call journal of issue 5, S2.8, S3.3.
func TestRunContinuesWhereverItsProcessDied(t *testing.T) {
	origin := &recordingLog{Log: memory.New(memory.Options{})}
	gift := `{"content":[{"type":"text","text":"` + strings.Repeat("whole ", 60<<10) + `"}]}`
	newFixture := func(log event.Log) *agenttest.Fixture {
		var args string
		ready := make(chan struct{}) // closed once args is set: a run may be claimed, and the model asked, before
		script := func(r llmtest.Request) llmtest.Answer {
			<-ready
			return llmtest.Turns(
				llmtest.SaysAndCalls("Let me see. ", llmtest.Call{Name: "add", Args: `{"a":1,"b":2}`}, llmtest.Call{Name: "echo", Args: `{"text":"x"}`}, llmtest.Call{Name: "fail"}, llmtest.Call{Name: "echo", Args: `[`}),
				llmtest.Calls(llmtest.Call{Name: "give", Args: args}),
				llmtest.Says("It is ", "3."),
			)(r)
		}
		h := agenttest.NewFixture(t, script, withDurableLog(log), func(s *config.Server) { s.IdempotentTools = []string{"echo"} })
		args = h.Tools.SetResult("g", gift)
		close(ready)
		return h
	}
	first := newFixture(origin)
	run := first.StartRun(t, agent.Request{Question: "What is 1 + 2?", Background: true})
	whole := first.Events(t, run.ID)
	want, wantSaid := agenttest.TerminalEvent[event.FinalAnswer](t, whole), lastConversation(first)

	operations := origin.recordedOperations()
	for n := range operations { // the last one is the terminal event
		what := "nothing"
		if n > 0 {
			what = operations[n-1].what
		}
		t.Run(fmt.Sprintf("%02d_%s", n, what), func(t *testing.T) {
			t.Parallel()
			log := origin.diedAfter(t, run, n)
			before, sent := toolCallsSoFar(t, log, run.ID)
			h := newFixture(log)

			// The second process ends the run as the first one would have.
			events := h.Events(t, run.ID)
			end := agenttest.TerminalEvent[event.FinalAnswer](t, events)
			if end.Answer != want.Answer || end.FinishReason != want.FinishReason || end.Metadata.Usage != want.Metadata.Usage || end.Metadata.Steps != want.Metadata.Steps {
				t.Errorf("ended with %+v, want Answer %q, FinishReason %q, Metadata.Usage %+v, Metadata.Steps %d", end, want.Answer, want.FinishReason, want.Metadata.Usage, want.Metadata.Steps)
			}
			checkOneEndPerCall(t, events)

			// Each call was made once, by either process. The outcome of a call in flight is unknown.
			unknown := make(map[string]int)
			for _, e := range agenttest.EventsOf[event.ToolError](events) {
				if e.Kind == "unknown_outcome" {
					unknown[e.Tool]++
				}
			}
			for tool, times := range map[string]int{"add": 1, "echo": 1, "fail": 1, "give": 1} {
				lost := sent[tool] - before[tool] // under way when the process died
				made := times - before[tool]
				if lost > 0 && tool != "echo" {
					made = 0
				}
				if h.Tools.CallCounts()[tool] != made || unknown[tool] != times-before[tool]-made {
					t.Errorf("%s: made %d times by the second process, %d unknown; %d ended and %d sent by the first, want %d and %d", tool, h.Tools.CallCounts()[tool], unknown[tool], before[tool], sent[tool], made, times-before[tool]-made)
				}
			}

			if len(unknown) > 0 {
				return
			}

			// Without such a call, the conversation and the metadata are equal too.
			if got := lastConversation(h); got != "" && got != wantSaid {
				t.Errorf("the model was told\n%s\nand not\n%s", got, wantSaid)
			}
			if withoutUniqueIDs(joinRaw(end.Metadata.ToolResults)+joinRaw(end.Metadata.ToolParams)) != withoutUniqueIDs(joinRaw(want.Metadata.ToolResults)+joinRaw(want.Metadata.ToolParams)) {
				t.Errorf("metadata %+v, want results and arguments as in %+v", end.Metadata, want.Metadata)
			}

			// No budget event is repeated.
			told := make(map[string]int)
			for _, b := range agenttest.EventsOf[event.Budget](events) {
				if told[fmt.Sprint(b.Limit, b.Used >= b.Max)]++; told[fmt.Sprint(b.Limit, b.Used >= b.Max)] > 1 {
					t.Errorf("told of %s (used up: %t) %d times, want at most once", b.Limit, b.Used >= b.Max, told[fmt.Sprint(b.Limit, b.Used >= b.Max)])
				}
			}
		})
	}
}

// toolCallsSoFar returns how many calls of each tool had ended when a process died, and how many it
// had sent.
func toolCallsSoFar(t *testing.T, log event.Log, run string) (ended, sent map[string]int) {
	t.Helper()
	ended, sent = make(map[string]int), make(map[string]int)
	var events []event.Event
	for {
		page, err := log.After(t.Context(), run, int64(len(events)))
		if err != nil {
			t.Fatal(err)
		}
		if len(page.Events) == 0 {
			break
		}
		events = append(events, page.Events...)
	}
	names := make(map[string]string)
	for _, e := range events {
		switch b := e.Body.(type) {
		case event.ToolCallStart:
			names[replay.CallKey(b.CallID)] = b.Tool
		case event.ToolResult:
			ended[b.Tool]++
		case event.ToolError:
			if b.Kind != "invalid_arguments" {
				ended[b.Tool]++
			}
		}
	}
	notes, err := log.Notes(t.Context(), run)
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range notes {
		if mark, ok := strings.CutPrefix(string(n.Data), "sent "); ok {
			sent[names[mark]]++
		}
	}
	return ended, sent
}

// checkOneEndPerCall checks that each call has exactly one end (S2.8).
func checkOneEndPerCall(t *testing.T, events []event.Event) {
	t.Helper()
	open := make(map[string]int)
	for _, e := range events {
		switch b := e.Body.(type) {
		case event.ToolCallStart:
			open[b.CallID]++
		case event.ToolResult:
			open[b.CallID]--
		case event.ToolError:
			open[b.CallID]--
		}
	}
	for _, id := range slices.Sorted(maps.Keys(open)) {
		if open[id] != 0 {
			t.Errorf("%s ended %d times, want once", id, 1-open[id])
		}
	}
}

func TestNewProcessDoesNotClaimRunsAtOnce(t *testing.T) {
	t.Parallel()
	const youth = 300 * time.Millisecond
	log := memory.New(memory.Options{})
	run := event.Run{ID: log.NewID(), Created: time.Now()}
	if err := log.Create(t.Context(), run); err != nil {
		t.Fatal(err)
	}
	if _, err := log.Append(t.Context(), run.ID, event.Start{Question: "?"}); err != nil {
		t.Fatal(err)
	}
	job, err := log.CreateJob(t.Context(), run.ID, []byte(`{"request":{"question":"?"}}`))
	if err != nil {
		t.Fatal(err)
	}

	if err := job.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	h := agenttest.NewFixture(t, llmtest.Turns(llmtest.Says("!")), func(o *agent.Options) { o.Log, o.Durable, o.ClaimDelay = log, true, youth })
	all := h.Events(t, run.ID)
	if at := time.UnixMilli(all[1].Time); at.Before(began.Add(youth).Truncate(time.Millisecond)) {
		t.Errorf("claimed %v after the run began, want %v at the earliest", at.Sub(began), youth)
	}
}

// A step that runs again with fewer requests to the model has only these in the export.
func TestExportHasTheRequestsOfTheLastTimeOfAStep(t *testing.T) {
	log, g := newMemoryLog(), newGate()
	options := func(o *agent.Options) {
		withDurableLog(log)(o)
		o.Budget, o.MaxHistory, o.RecordModelRequests = agent.Budget{}, 100, true
	}

	heldScript := func(llmtest.Request) llmtest.Answer { return g.blockAnswer(nil) }
	a := agenttest.NewFixture(t, smallEndpoint(map[string]int{"scripted": 2048}, heldScript), options)
	run := a.StartRun(t, agent.Request{History: longHistory(40), Background: true}).ID
	<-g.reached
	if n := len(a.Model.Requests()); n != 2 {
		t.Fatalf("requests of the first process = %d, want 2: one is refused as too long", n)
	}
	drainAtOnce(a)
	b := agenttest.NewFixture(t, answerAlways("Yes."), options)
	agenttest.TerminalEvent[event.FinalAnswer](t, b.Events(t, run))
	doc, err := b.Export(t.Context(), run)
	if err != nil {
		t.Fatal(err)
	}
	if n, want := len(doc.ModelRequests), len(b.Model.Requests()); n != want || len(doc.ModelRequests[0].Messages) != 42 {
		t.Errorf("requests of the export = %d, want the %d of the second process, with 42 messages", n, want)
	}
}

// A fallback has answered the first step, so the process that takes over asks it first, as the one before would have done.
func TestProcessThatTakesOverAsksTheModelThatAnswered(t *testing.T) {
	t.Parallel()
	log := newMemoryLog()
	script := func(r llmtest.Request) llmtest.Answer {
		if r.Model == "large" {
			return llmtest.Fails(http.StatusServiceUnavailable, "down")
		}
		return llmtest.Turns(llmtest.Calls(onePlusTwo), llmtest.Says("Done."))(r)
	}
	routed := func(o *agent.Options) {
		withDurableLog(log)(o)
		o.Profiles = map[string]llm.Profile{"large": {ID: "large", Fallback: []string{"small"}}, "small": {ID: "small"}}
		o.Model = llm.NewRouter(map[llm.ToolCalling]llm.Model{llm.AutoCalling: o.Model}, "", o.Profiles)
	}
	a := agenttest.NewFixture(t, script, routed, approveTools("add"))
	run := a.StartRun(t, agent.Request{Model: "large", Interactive: true}).ID
	i := waitUntilSuspended(t, a, run, 1)[0]
	drainAtOnce(a)
	b := agenttest.NewFixture(t, script, routed, approveTools("add"), withToolsOf(a))
	answerInterrupt(t, b, run, agent.Input{ID: i.ID, Approved: new(true)})
	agenttest.TerminalEvent[event.FinalAnswer](t, b.Events(t, run))
	if asked := b.Model.Requests(); len(asked) != 1 || asked[0].Model != "small" {
		t.Errorf("%d requests, the first of %q, want one of small", len(asked), asked[0].Model)
	}
}

// A process may die between the last step and the final answer, whose metadata name the model as its endpoint does.
func TestFinalAnswerNamesTheUpstreamModelAfterATakeover(t *testing.T) {
	t.Parallel()
	origin := familyRecordingLog{&recordingLog{Log: memory.New(memory.Options{})}}
	a := agenttest.NewFixture(t, llmtest.Turns(llmtest.Calls(onePlusTwo), llmtest.Says("Done.")), withDurableLog(origin))
	run := a.StartRun(t, agent.Request{Background: true}).ID
	want := agenttest.TerminalEvent[event.FinalAnswer](t, a.Events(t, run)).Metadata
	operations := origin.recordedOperations()
	for n, o := range operations {
		if o.what == "final_answer" {
			operations = operations[:n]
			break
		}
	}
	b := agenttest.NewFixture(t, answerAlways("Yes."), withDurableLog(replayOperations(t, operations)), withToolsOf(a))
	got := agenttest.TerminalEvent[event.FinalAnswer](t, b.Events(t, run)).Metadata
	if n := len(b.Model.Requests()); got.UpstreamModel != want.UpstreamModel || want.UpstreamModel == "" || n != 0 {
		t.Errorf("got the upstream model %q after %d requests, want %q of the step that had ended", got.UpstreamModel, n, want.UpstreamModel)
	}
}
