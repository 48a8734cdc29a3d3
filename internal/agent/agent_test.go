package agent_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"net/http"
	"strings"
	"testing"
	"time"

	"answerd/internal/agent"
	"answerd/internal/agent/agenttest"
	"answerd/internal/agent/prompt"
	"answerd/internal/auth"
	"answerd/internal/event"
	"answerd/internal/llm"
	"answerd/internal/llm/llmtest"
)

// S2.1, S1.9
func TestToolCallAsEvents(t *testing.T) {
	h := agenttest.NewFixture(t, llmtest.Turns(
		llmtest.Calls(llmtest.Call{Name: "add", Args: `{"a":1,"b":2}`}),
		llmtest.Says("It is ", "3."),
	), nil)
	events := h.Events(t, h.StartRun(t, agent.Request{}).ID)
	want := "start step_start tool_call_start tool_call_args tool_call step_end tool_result " +
		"step_start text_start text_delta text_delta text_end step_end final_answer"
	if got := agenttest.TypesOf(events); got != want {
		t.Fatalf("got  %s\nwant %s", got, want)
	}
	end := agenttest.TerminalEvent[event.FinalAnswer](t, events)
	if end.Answer != "It is 3." || end.FinishReason != "stop" || end.Metadata.Steps != 2 || end.Metadata.Usage.TotalTokens != 30 {
		t.Errorf(`final answer %+v, want Answer "It is 3.", FinishReason stop, Metadata.Steps 2, Metadata.Usage.TotalTokens 30`, end)
	}
	result := agenttest.EventsOf[event.ToolResult](events)[0]
	if string(result.Payload) != `{"sum":3}` || result.Tool != "add" || result.Server != "default" {
		t.Errorf(`result %+v, want Payload {"sum":3}, Tool add, Server default`, result)
	}
}

// S0.7: all calls of a turn are under way before any has ended, and their results go
// back in call order whatever the order of their ends.
func TestCallsOfATurnRunTogetherAndComeBackInCallOrder(t *testing.T) {
	h := agenttest.NewFixture(t, llmtest.Turns(
		llmtest.Calls(llmtest.Call{Name: "meet", Args: `{"text":"a"}`}, llmtest.Call{Name: "fail"}, llmtest.Call{Name: "meet", Args: `{"text":"c"}`}),
		llmtest.Says("Done."),
	), nil)
	run := h.StartRun(t, agent.Request{})
	<-h.Tools.Entered
	<-h.Tools.Entered // both are inside: neither waits for the other
	close(h.Tools.ReleaseMeet)
	events := h.Events(t, run.ID)
	meta := agenttest.TerminalEvent[event.FinalAnswer](t, events).Metadata
	if got := strings.Join(meta.ToolNames, " "); got != "meet fail meet" {
		t.Errorf(`names %s, want "meet fail meet"`, got)
	}
	if got, want := joinRaw(meta.ToolResults), `"a" {"error":"the tool is out of order"} "c"`; got != want {
		t.Errorf("results %s, want %s", got, want) // S2.8
	}

	var answered []string
	for _, m := range h.Model.Requests()[1].Messages {
		if m.Role == "tool" {
			answered = append(answered, m.ToolCallID+"="+m.Content)
		}
	}

	if got, want := strings.Join(answered, " "), `call_1=a call_2={"error":"the tool is out of order"} call_3=c`; got != want {
		t.Errorf("the model was told %s, want %s", got, want)
	}
}

// S2.6, S1.3, F9: the model gets an error for each invalid call, and the run continues.
func TestInvalidCallsAreReportedAndNotGuessed(t *testing.T) {
	bad := []llmtest.Call{
		{Name: "no_such_tool", Args: `{}`},
		{Name: "add", Args: `{"a":1,`},
		{Name: "add", Args: `[1]`},
		{Name: "add", Args: `null`},
		{Name: "fail", Args: ``},
		{Name: "add", Args: `{"text":"` + strings.Repeat("x", 70<<10) + `"}`},
	}
	h := agenttest.NewFixture(t, llmtest.Turns(llmtest.Calls(bad...), llmtest.Says("Sorry.")), nil)
	events := h.Events(t, h.StartRun(t, agent.Request{}).ID)
	agenttest.TerminalEvent[event.FinalAnswer](t, events)
	var kinds []string

	byID := make(map[string]string)
	for _, e := range agenttest.EventsOf[event.ToolError](events) {
		byID[e.CallID] = e.Kind
	}

	for i := range bad {
		kinds = append(kinds, byID[fmt.Sprintf("call_%d", i+1)])
	}

	want := "unknown_tool invalid_arguments invalid_arguments invalid_arguments execution invalid_arguments"
	if got := strings.Join(kinds, " "); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}

	for _, m := range h.Model.Requests()[1].Messages {
		for _, c := range m.ToolCalls {
			if !json.Valid([]byte(c.Function.Arguments)) {
				t.Errorf("arguments in the history %.60s, want JSON", c.Function.Arguments)
			}
		}
	}
}

func TestRepeatedCallIDIsMadeUnique(t *testing.T) {
	h := agenttest.NewFixture(t, llmtest.Turns(
		llmtest.Calls(llmtest.Call{ID: "c", Name: "echo", Args: `{"text":"1"}`}),
		llmtest.Calls(llmtest.Call{ID: "c", Name: "echo", Args: `{"text":"2"}`}),
		llmtest.Says("Done."),
	), nil)
	events := h.Events(t, h.StartRun(t, agent.Request{}).ID)
	results := agenttest.EventsOf[event.ToolResult](events)
	if len(results) != 2 || results[0].CallID == results[1].CallID {
		t.Fatalf("%d results, want 2 with different call IDs: %s", len(results), agenttest.TypesOf(events))
	}
}

// S1.8
func TestRunAtItsLimitOfTurnsSumsUp(t *testing.T) {
	for _, c := range []struct {
		name     string
		req      agent.Request
		calls    int // turns with a call before the model answers by itself
		finish   string
		requests int
	}{
		{"one turn less than the limit", agent.Request{MaxTurns: 3}, 2, "stop", 3},
		{"the limit is reached", agent.Request{MaxTurns: 2}, 9, "max_turns", 3},
		{"a higher limit than ours", agent.Request{MaxTurns: 99}, 9, "max_turns", 5},
		{"tool calls are used up", agent.Request{Budget: agent.Budget{ToolCalls: 1}}, 9, "budget_exceeded", 2},
		{"tokens are used up", agent.Request{Budget: agent.Budget{TotalTokens: 16}}, 9, "budget_exceeded", 3},
	} {
		t.Run(c.name, func(t *testing.T) {
			answers := make([]llmtest.Answer, 0, c.calls+1)
			for range c.calls {
				answers = append(answers, llmtest.Calls(llmtest.Call{Name: "echo", Args: `{"text":"x"}`}))
			}

			script := llmtest.Turns(append(answers, llmtest.Says("Enough."))...)
			h := agenttest.NewFixture(t, func(r llmtest.Request) llmtest.Answer {
				if len(r.Tools) == 0 {
					return llmtest.Says("Summed up.")
				}
				return script(r)
			}, func(o *agent.Options) { o.MaxTurns = 4 })

			end := agenttest.TerminalEvent[event.FinalAnswer](t, h.Events(t, h.StartRun(t, c.req).ID))
			if end.FinishReason != c.finish || end.Metadata.FinishReason != c.finish {
				t.Errorf("finish reason %s, Metadata.FinishReason %q, want %s and %s", end.FinishReason, end.Metadata.FinishReason, c.finish, c.finish)
			}
			if got := len(h.Model.Requests()); got != c.requests {
				t.Errorf("%d model requests, want %d", got, c.requests)
			}
			if cut := c.finish != "stop"; cut != (end.Answer == "Summed up.") {
				t.Errorf("answer %q, want the summary: %v", end.Answer, cut)
			}
		})
	}
}

func TestCallsOfALastTurnAreRefusedAndAnswered(t *testing.T) {
	call := llmtest.Calls(llmtest.Call{Name: "echo", Args: `{"text":"x"}`})
	h := agenttest.NewFixture(t, llmtest.Turns(call), nil) // calls even where it has no tools
	events := h.Events(t, h.StartRun(t, agent.Request{MaxTurns: 1}).ID)
	agenttest.TerminalEvent[event.FinalAnswer](t, events)
	if errs := agenttest.EventsOf[event.ToolError](events); len(errs) != 1 || errs[0].Kind != "denied" {
		t.Errorf("errors %+v, want 1 with Kind denied", errs)
	}
}

// S2.9
func TestToolChoiceNoneOffersNoTools(t *testing.T) {
	h := agenttest.NewFixture(t, llmtest.Turns(llmtest.Says("Text.")), nil)
	h.Events(t, h.StartRun(t, agent.Request{ToolChoice: agent.ToolNone}).ID)
	if r := h.Model.Requests()[0]; len(r.Tools) != 0 {
		t.Errorf("%d tools were offered, want 0", len(r.Tools))
	}
}

func TestToolChoiceRequiredAppliesToTheFirstTurnOnly(t *testing.T) {
	h := agenttest.NewFixture(t, llmtest.Turns(llmtest.Calls(llmtest.Call{Name: "echo", Args: `{"text":"x"}`}), llmtest.Says("Done.")), nil)
	agenttest.TerminalEvent[event.FinalAnswer](t, h.Events(t, h.StartRun(t, agent.Request{ToolChoice: agent.ToolRequired}).ID))
	r := h.Model.Requests()
	if string(r[0].ToolChoice) != `"required"` || string(r[1].ToolChoice) == `"required"` {
		t.Errorf(`tool_choice %s, then %s, want ToolChoice "required", ToolChoice other than "required"`, r[0].ToolChoice, r[1].ToolChoice)
	}
}

func TestRequestNarrowsTheToolsAndCannotCallOthers(t *testing.T) {
	h := agenttest.NewFixture(t, llmtest.Turns(llmtest.Calls(llmtest.Call{Name: "add", Args: `{"a":1,"b":1}`}), llmtest.Says("Done.")), nil)
	events := h.Events(t, h.StartRun(t, agent.Request{Tools: []string{"ec*"}}).ID)
	offered := h.Model.Requests()[0].Tools
	if len(offered) != 1 || offered[0].Function.Name != "echo" {
		t.Errorf("offered %v, want 1 with Function.Name echo", offered)
	}
	if errs := agenttest.EventsOf[event.ToolError](events); len(errs) != 1 || errs[0].Kind != "unknown_tool" {
		t.Errorf("errors %+v, want 1 with Kind unknown_tool", errs)
	}
}

func TestRequestForAServerThatIsNotThereIsRefused(t *testing.T) {
	h := agenttest.NewFixture(t, llmtest.Turns(llmtest.Says("")), nil)
	_, err := h.Start(t.Context(), auth.Identity{}, agent.Request{Question: "?", Servers: []string{"default", "crm"}})
	var invalid *agent.InvalidError
	if !errors.As(err, &invalid) || invalid.Pointer != "/servers/1" {
		t.Errorf("error %v, want an InvalidError, Pointer /servers/1", err)
	}
}

// S0.6: what a server says while it works.
func TestProgressAndLogsComeBetweenTheCallAndItsResult(t *testing.T) {
	h := agenttest.NewFixture(t, llmtest.Turns(llmtest.Calls(llmtest.Call{Name: "steps"}), llmtest.Says("Done.")), nil)
	events := h.Events(t, h.StartRun(t, agent.Request{}).ID)
	progress := agenttest.EventsOf[event.ToolProgress](events)
	if len(progress) == 0 || progress[len(progress)-1].Total != 3 {
		t.Errorf("progress %+v in %s, want at least 1, Total 3", progress, agenttest.TypesOf(events))
	}
	logs := agenttest.EventsOf[event.LogMessage](events)
	if len(logs) != 3 || logs[2].Level != "warning" || logs[2].Logger != "steps" || string(logs[2].Data) != `{"step":3}` || logs[2].CallID != progress[0].CallID {
		t.Errorf(`logs %+v, want 3, Level warning, Logger steps, Data {"step":3}, CallID %q`, logs, progress[0].CallID)
	}
	agenttest.TerminalEvent[event.FinalAnswer](t, events)
}

// A cancel reaches the model and the tools, and every open thing is closed.
func TestCancelReachesTheModel(t *testing.T) {
	g, gone := newGate(), make(chan struct{}, 1)
	h := agenttest.NewFixture(t, llmtest.Turns(g.blockAnswer(gone)), nil)
	run := h.StartRun(t, agent.Request{})
	h.EventsUntil(t, run.ID, func(e event.Event) bool { _, ok := e.Body.(event.TextDelta); return ok })
	cancelRun(t, h, run.ID)
	events := h.Events(t, run.ID)
	if got, want := agenttest.TypesOf(events), "start step_start text_start text_delta text_end step_end cancelled"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if end := agenttest.TerminalEvent[event.Cancelled](t, events); end.Reason != "requested" || end.PartialAnswer != "Let me " {
		t.Errorf(`end %+v, want Reason requested, PartialAnswer "Let me "`, end)
	}
	<-gone
}

func TestCancelReachesTheTool(t *testing.T) {
	t.Parallel()
	h := agenttest.NewFixture(t, llmtest.Turns(llmtest.Calls(llmtest.Call{Name: "wait"}), llmtest.Says("Done.")), nil)
	run := h.StartRun(t, agent.Request{})
	<-h.Tools.Entered
	cancelRun(t, h, run.ID)
	events := h.Events(t, run.ID)
	agenttest.TerminalEvent[event.Cancelled](t, events)
	if errs := agenttest.EventsOf[event.ToolError](events); len(errs) != 1 || errs[0].Kind != "cancelled" {
		t.Errorf("errors %+v, want 1 with Kind cancelled", errs)
	}
	<-h.Tools.Canceled
}

func TestRunWithoutReadersIsCancelledAfterTheGrace(t *testing.T) {
	g := newGate()
	h := agenttest.NewFixture(t, llmtest.Turns(g.blockAnswer(nil)), func(o *agent.Options) { o.DisconnectGrace = 0 })
	run := h.StartRun(t, agent.Request{})
	first, second := h.OpenReader(run.ID), h.OpenReader(run.ID)
	<-g.reached
	first.Close()
	if r, err := h.Log.Run(t.Context(), run.ID); err != nil || r.Last.Terminal() {
		t.Fatalf("run while a second reader is connected: %+v, %v, want it not to have ended", r, err)
	}
	second.Close()
	if end := agenttest.TerminalEvent[event.Cancelled](t, h.Events(t, run.ID)); end.Reason != "abandoned" {
		t.Errorf("end %+v, want Reason abandoned", end)
	}
}

func TestReconnectWithinTheGraceKeepsTheRun(t *testing.T) {
	g := newGate()
	h := agenttest.NewFixture(t, llmtest.Turns(g.blockAnswer(nil)), nil)
	run := h.StartRun(t, agent.Request{})
	h.OpenReader(run.ID).Close()
	<-g.reached
	defer h.OpenReader(run.ID).Close()
	close(g.open)
	if end := agenttest.TerminalEvent[event.FinalAnswer](t, h.Events(t, run.ID)); end.Answer != "Let me see." {
		t.Errorf(`end %+v, want Answer "Let me see."`, end)
	}
}

func TestBackgroundRunNeedsNobody(t *testing.T) {
	g := newGate()
	h := agenttest.NewFixture(t, llmtest.Turns(g.blockAnswer(nil)), func(o *agent.Options) { o.DisconnectGrace = 0 })
	run := h.StartRun(t, agent.Request{Background: true})
	<-g.reached
	h.OpenReader(run.ID).CloseAndCancel()
	close(g.open)
	agenttest.TerminalEvent[event.FinalAnswer](t, h.Events(t, run.ID))
}

func TestDrainLetsRunsEndAndRefusesOthers(t *testing.T) {
	g := newGate()
	h := agenttest.NewFixture(t, llmtest.Turns(g.blockAnswer(nil)), func(o *agent.Options) { o.MaxRuns = 1 })
	run := h.StartRun(t, agent.Request{})
	<-g.reached
	drained := make(chan struct{})
	go func() { h.Drain(context.Background()); close(drained) }()
	for {
		_, err := h.Start(t.Context(), auth.Identity{}, agent.Request{Question: "?"})
		if errors.Is(err, agent.ErrDraining) {
			break // Drain has begun; until then there is one run too many
		}
	}
	close(g.open)
	<-drained
	agenttest.TerminalEvent[event.FinalAnswer](t, h.Events(t, run.ID))
}

func TestDrainEndsRunsThatTakeTooLongWithTheirOwnLastEvent(t *testing.T) {
	g := newGate()
	h := agenttest.NewFixture(t, llmtest.Turns(g.blockAnswer(nil)), nil)
	run := h.StartRun(t, agent.Request{})
	<-g.reached
	over, stop := context.WithCancel(t.Context())
	stop()
	h.Drain(over)
	if end := agenttest.TerminalEvent[event.RunError](t, h.Events(t, run.ID)); end.Code != "server_shutdown" || !end.Retryable {
		t.Errorf("end %+v, want Code server_shutdown, Retryable true", end)
	}
}

// A hundred callers wait for a place. The next is refused at once, and the others when they leave.
func TestRunsAboveTheLimitAreRefused(t *testing.T) {
	g := newGate()
	defer close(g.open)
	h := agenttest.NewFixture(t, llmtest.Turns(g.blockAnswer(nil)), func(o *agent.Options) { o.MaxRuns = 1 })
	h.StartRun(t, agent.Request{})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()

	const callers = 101
	refusals := make(chan error, callers)
	for range callers {
		go func() {
			_, err := h.Start(ctx, auth.Identity{}, agent.Request{Question: "?"})
			refusals <- err
		}()
	}

	for n := range callers {
		if err := <-refusals; !errors.Is(err, agent.ErrOverloaded) {
			t.Errorf("refusal %d: error %v, want ErrOverloaded", n, err)
		}
		cancel() // after the first
	}
}

func TestIdempotencyKeyStandsForOneRunOfOneOwner(t *testing.T) {
	h := agenttest.NewFixture(t, llmtest.Turns(llmtest.Says("Yes.")), nil)
	ada, bob := auth.Identity{Subject: "ada"}, auth.Identity{Subject: "bob"}
	startWithKey := func(who auth.Identity, print byte) (event.Run, error) {
		return h.Start(t.Context(), who, agent.Request{Question: "?", IdempotencyKey: "k", Fingerprint: [32]byte{agent.FingerprintPathBytes: print}})
	}
	first, err := startWithKey(ada, 1)
	if err != nil {
		t.Fatal(err)
	}

	if again, err := startWithKey(ada, 1); err != nil || again.ID != first.ID {
		t.Errorf("the same again: %s, %v, want %s and no error", again.ID, err, first.ID)
	}
	if _, err := startWithKey(ada, 2); !errors.Is(err, agent.ErrKeyReused) {
		t.Errorf("another body: %v, want ErrKeyReused", err)
	}
	if other, err := startWithKey(bob, 2); err != nil || other.ID == first.ID {
		t.Errorf("another owner: %s, %v, want ID other than %s, no error", other.ID, err, first.ID)
	}
}

func TestModelFailureEndsTheRunAndIsNotQuoted(t *testing.T) {
	h := agenttest.NewFixture(t, llmtest.Turns(llmtest.Fails(http.StatusUnauthorized, "key sk-canary is wrong")), nil)
	events := h.Events(t, h.StartRun(t, agent.Request{}).ID)
	end := agenttest.TerminalEvent[event.RunError](t, events)
	if end.Code != "model_error" || end.Retryable || strings.Contains(string(events[len(events)-1].JSON), "canary") {
		t.Errorf("end %+v, [last].JSON %q, want Code model_error, Retryable false, JSON without canary", end, string(events[len(events)-1].JSON))
	}
}

// panickingModel panics in the middle of an answer.
type panickingModel struct{}

func (panickingModel) Stream(context.Context, llm.Request) iter.Seq2[llm.Part, error] {
	return func(yield func(llm.Part, error) bool) {
		yield(llm.Text{Delta: "Let me "}, nil)
		panic("a bug")
	}
}

// F32
func TestPanicEndsItsRunAndNoOther(t *testing.T) {
	h := agenttest.NewFixture(t, llmtest.Turns(llmtest.Says("")), func(o *agent.Options) { o.Model = panickingModel{} })
	for range 2 {
		events := h.Events(t, h.StartRun(t, agent.Request{}).ID)
		if got, want := agenttest.TypesOf(events), "start step_start text_start text_delta text_end step_end run_error"; got != want {
			t.Errorf("got %s, want %s", got, want)
		}
		if end := agenttest.TerminalEvent[event.RunError](t, events); end.Code != "internal" || strings.Contains(end.Message, "bug") {
			t.Errorf("end %+v, want Code internal, Message without bug", end)
		}
	}
}

// S2.4
func TestSystemPromptKnowsTheUserAndTheDay(t *testing.T) {
	rome, err := time.LoadLocation("Europe/Rome")
	if err != nil {
		t.Fatal(err)
	}

	prompt, err := prompt.New(prompt.Options{Template: "{{.username}}|{{.today_long}}|{{.today_iso}}|{{.tools}}", Username: "Ada", Location: rome})
	if err != nil {
		t.Fatal(err)
	}

	h := agenttest.NewFixture(t, llmtest.Turns(llmtest.Says("Hello.")), func(o *agent.Options) { o.Prompt = prompt })
	before := time.Now().In(rome)
	h.Events(t, h.StartRun(t, agent.Request{Tools: []string{"add"}}).ID)
	parts := strings.Split(h.Model.Requests()[0].Messages[0].Content, "|")
	said, err := time.ParseInLocation("Monday, 02 January 2006, 15:04:05 MST", parts[1], rome)
	if err != nil || said.Sub(before.Truncate(time.Second)) < 0 || said.Sub(before) > time.Minute {
		t.Errorf("today_long %q: %v, want the time of the request", parts[1], err)
	}
	if parts[0] != "Ada" || parts[2] != said.Format(time.DateOnly) || parts[3] != "- add: adds two numbers\n" {
		t.Errorf("prompt %q, want Ada, %s and the line of add", parts, said.Format(time.DateOnly))
	}
}

func TestBadPromptTemplateIsRefusedAtOnce(t *testing.T) {
	for _, text := range []string{"{{.username", "{{.no_such_field}}", "{{call .username}}"} {
		if _, err := prompt.New(prompt.Options{Template: text}); err == nil {
			t.Errorf("%q was taken, want an error", text)
		}
	}
}

// S2.5
func TestMessagesAreTheLastOfTheHistoryAndTheQuestion(t *testing.T) {
	for _, c := range []struct {
		name    string
		history []agent.Message
		want    string
	}{
		{"none", nil, "user:Q"},
		{"as it is", []agent.Message{{Role: "user", Content: "a"}, {Role: "assistant", Content: "b"}}, "user:a assistant:b user:Q"},
		{"roles in capitals", []agent.Message{{Role: "User", Content: "a"}}, "user:a user:Q"},
		{"unknown roles and empty content are skipped", []agent.Message{{Role: "system", Content: "obey"}, {Role: "tool", Content: "x"}, {Role: "user", Content: " "}, {Role: "user", Content: "a"}}, "user:a user:Q"},
		{"a last item that repeats the question is dropped", []agent.Message{{Role: "assistant", Content: "b"}, {Role: "user", Content: "Q"}}, "assistant:b user:Q"},
		{"an assistant who said the same is not", []agent.Message{{Role: "assistant", Content: "Q"}}, "assistant:Q user:Q"},
		{"only the last ones", []agent.Message{{Role: "user", Content: "1"}, {Role: "user", Content: "2"}, {Role: "user", Content: "3"}, {Role: "user", Content: "4"}}, "user:2 user:3 user:4 user:Q"},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := agenttest.NewFixture(t, llmtest.Turns(llmtest.Says("Hello.")), func(o *agent.Options) { o.MaxHistory = 3 })
			h.Events(t, h.StartRun(t, agent.Request{Question: "Q", History: c.history}).ID)
			var got []string
			for _, m := range h.Model.Requests()[0].Messages[1:] {
				got = append(got, m.Role+":"+m.Content)
			}
			if strings.Join(got, " ") != c.want {
				t.Errorf("got %s, want %s", strings.Join(got, " "), c.want)
			}
		})
	}
}
