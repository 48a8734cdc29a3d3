package agent_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.opentelemetry.io/otel/attribute"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"answerd/internal/agent"
	"answerd/internal/agent/agenttest"
	"answerd/internal/agent/usage"
	"answerd/internal/auth"
	"answerd/internal/event"
	"answerd/internal/event/memory"
	"answerd/internal/llm"
	"answerd/internal/llm/llmtest"
)

// metricsAndLog collects the metrics and the log.
type metricsAndLog struct {
	reader *sdkmetric.ManualReader

	mu    sync.Mutex // protects lines
	lines bytes.Buffer
}

func (c *metricsAndLog) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.lines.Write(p)
}

// withMetrics makes an agent count by the claim tenant, with a price for its model.
func (c *metricsAndLog) withMetrics(o *agent.Options) {
	c.reader = sdkmetric.NewManualReader()
	o.Meter = sdkmetric.NewMeterProvider(sdkmetric.WithReader(c.reader)).Meter("")
	o.Profiles = map[string]llm.Profile{"scripted": {ID: "scripted", Price: &llm.Price{Input: 1, Output: 2}}}
	o.CostClaim = "tenant"
	o.Logger = slog.New(slog.NewJSONHandler(c, nil))
}

// metricValues returns a metric by its labels, as name=value,…; the sums of a histogram.
func (c *metricsAndLog) metricValues(t *testing.T, name string) map[string]float64 {
	t.Helper()
	var all metricdata.ResourceMetrics
	if err := c.reader.Collect(t.Context(), &all); err != nil {
		t.Fatal(err)
	}
	out := make(map[string]float64)
	label := func(set attribute.Set) string { return set.Encoded(attribute.DefaultEncoder()) }
	for _, scope := range all.ScopeMetrics {
		for _, m := range scope.Metrics {
			switch data := m.Data.(type) {
			case metricdata.Sum[int64]:
				for _, p := range data.DataPoints {
					if m.Name == name {
						out[label(p.Attributes)] += float64(p.Value)
					}
				}
			case metricdata.Sum[float64]:
				for _, p := range data.DataPoints {
					if m.Name == name {
						out[label(p.Attributes)] += p.Value
					}
				}
			case metricdata.Histogram[float64]:
				for _, p := range data.DataPoints {
					if m.Name == name {
						out[label(p.Attributes)] += p.Sum
					}
				}
			}
		}
	}
	return out
}

// endLines returns the lines "run ended" by their agent.
func (c *metricsAndLog) endLines() map[string]map[string]any {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := make(map[string]map[string]any)
	for line := range strings.Lines(c.lines.String()) {
		var fields map[string]any
		if json.Unmarshal([]byte(line), &fields) == nil && fields["msg"] == "run ended" {
			out[fmt.Sprint(fields["agent"])] = fields
		}
	}
	return out
}

func callerOfTenant(name string) auth.Identity {
	return auth.Identity{Issuer: "https://iam.example", Subject: "ann", Claims: map[string]json.RawMessage{"tenant": json.RawMessage(`"` + name + `"`)}}
}

func sumValues(m map[string]float64) (s float64) {
	for _, v := range m {
		s += v
	}
	return s
}

// The answer of a parent has the tokens of its child, and the metrics have them once.
func TestUsageOfChildrenIsCountedOnce(t *testing.T) {
	var c metricsAndLog
	h := agenttest.NewFixture(t, scriptPerAgent(map[string]llmtest.Script{
		"a": llmtest.Turns(askAgent("b", "What is 1 + 2?"), llmtest.Says("b says 3.")),
		"b": llmtest.Turns(llmtest.Calls(onePlusTwo), llmtest.Says("It is 3.")),
	}), withAgents(t, fiveAgents, c.withMetrics))
	run, err := h.Start(t.Context(), callerOfTenant("blue"), agent.Request{Question: "?"})
	if err != nil {
		t.Fatal(err)
	}
	end := agenttest.TerminalEvent[event.FinalAnswer](t, h.Events(t, run.ID))
	h.Drain(t.Context()) // the log line comes after the event
	tokens, cost := c.metricValues(t, "answerd.tokens"), c.metricValues(t, "answerd.cost")
	if got, want := slices.Sorted(maps.Keys(tokens)), []string{"agent=a,claim=blue,model=scripted", "agent=b,claim=blue,model=scripted"}; !slices.Equal(got, want) {
		t.Errorf("label sets = %q, want %q", got, want)
	}
	if got, want := sumValues(tokens), float64(end.Metadata.Usage.TotalTokens); got != want || want == 0 {
		t.Errorf("answerd.tokens = %v in all, want the %v of the answer", got, want)
	}
	if got, want := fmt.Sprintf("%.9f", sumValues(cost)), fmt.Sprintf("%.9f", *end.Metadata.Cost); got != want {
		t.Errorf("answerd.cost = %s in all, want the %s of the answer", got, want)
	}
	parent := c.endLines()["a"]
	if parent["subject"] != "ann" || parent["model"] == "" || parent["total_tokens"] != float64(end.Metadata.Usage.TotalTokens) || parent["cost"] != *end.Metadata.Cost ||
		parent["tool_calls"] != 1.0 || parent["duration_ms"] == nil || parent["run_id"] != run.ID {
		t.Errorf("line of the parent = %v, want its subject, model, tokens, cost, calls and time", parent)
	}
	if child := c.endLines()["b"]; child["parent_run_id"] != run.ID || child["subject"] != "ann" {
		t.Errorf("line of the child = %v, want its parent and subject", child)
	}
}

// The process that takes over a run does not have the caller's token. It counts what it uses, under the
// same claim, and not again what the process before it has counted.
func TestUsageKeepsItsClaimAfterATakeover(t *testing.T) {
	t.Parallel()
	log := memory.New(memory.Options{})
	script := llmtest.Turns(llmtest.Calls(llmtest.Call{Name: "wait", Args: "{}"}), llmtest.Says("Done."))
	var first, second metricsAndLog
	h := agenttest.NewFixture(t, script, func(o *agent.Options) { first.withMetrics(o); o.Log, o.Durable = log, true })
	run, err := h.Start(t.Context(), callerOfTenant("blue"), agent.Request{Question: "?", Background: true})
	if err != nil {
		t.Fatal(err)
	}

	<-h.Tools.Entered
	before := sumValues(first.metricValues(t, "answerd.tokens"))
	drainAtOnce(h)
	after := agenttest.NewFixture(t, script, func(o *agent.Options) { second.withMetrics(o); o.Log, o.Durable = log, true })
	end := agenttest.TerminalEvent[event.FinalAnswer](t, after.Events(t, run.ID))
	later := second.metricValues(t, "answerd.tokens")
	if got, want := slices.Collect(maps.Keys(later)), []string{"agent=default,claim=blue,model=scripted"}; !slices.Equal(got, want) {
		t.Errorf("label sets after the takeover = %q, want %q", got, want)
	}
	if got, want := before+sumValues(later), float64(end.Metadata.Usage.TotalTokens); got != want || before == 0 {
		t.Errorf("answerd.tokens = %v and %v, want %v together", before, sumValues(later), want)
	}
}

// The time of a run begins with its start, also if another process has started it.
func TestDurationOfARunCountsTheTimeBeforeATakeover(t *testing.T) {
	log := memory.New(memory.Options{})
	const age = 10 * time.Minute
	run := event.Run{ID: log.NewID(), Created: log.Now().Add(-age)}
	if err := log.Create(t.Context(), run); err != nil {
		t.Fatal(err)
	}
	job, err := log.CreateJob(t.Context(), run.ID, []byte(`{"version":1,"request":{"question":"?"}}`))
	if err != nil {
		t.Fatal(err)
	}

	if err := job.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	var c metricsAndLog
	h := agenttest.NewFixture(t, llmtest.Turns(llmtest.Says("Yes.")), func(o *agent.Options) { c.withMetrics(o); o.Log, o.Durable = log, true })
	h.EventsUntil(t, run.ID, func(e event.Event) bool { return e.Terminal() })
	h.Drain(t.Context()) // the metric and the log line come after the event
	if got := sumValues(c.metricValues(t, "answerd.run.duration")); got < age.Seconds() || got > 2*age.Seconds() {
		t.Errorf("answerd.run.duration = %v s, want some more than %v", got, age.Seconds())
	}
	if got, ok := c.endLines()["default"]["duration_ms"].(float64); !ok || got < float64(age.Milliseconds()) || got > 2*float64(age.Milliseconds()) {
		t.Errorf("duration_ms = %v, want some more than %d", got, age.Milliseconds())
	}
}

// An answer that is cancelled while the model writes it has no usage, and has cost something.
func TestUsageOfACancelledAnswerIsEstimated(t *testing.T) {
	var c metricsAndLog
	h := agenttest.NewFixture(t, llmtest.Turns(newGate().blockAnswer(nil)), c.withMetrics)
	run := h.StartRun(t, agent.Request{Question: strings.Repeat("why ", 100)})
	h.EventsUntil(t, run.ID, func(e event.Event) bool { _, ok := e.Body.(event.TextDelta); return ok })
	cancelRun(t, h, run.ID)
	h.Events(t, run.ID)
	h.Drain(t.Context())
	got := c.metricValues(t, "answerd.tokens")["agent=default,claim=_none,model=scripted"]
	if got < 100 || got > 2000 {
		t.Errorf("answerd.tokens = %v, want an estimate of the prompt and the answer", got)
	}
	if cost := sumValues(c.metricValues(t, "answerd.cost")); cost <= 0 {
		t.Errorf("answerd.cost = %v, want it above 0", cost)
	}
}

// A run that uses up its caller's budget sums up, as at the end of its own budget; the next one of the
// caller is refused, one of another caller is not.
func TestRunSumsUpWhenTheBudgetOfItsCallerEnds(t *testing.T) {
	limits, err := usage.ParseLimits("total_tokens=20/24h")
	if err != nil {
		t.Fatal(err)
	}

	h := agenttest.NewFixture(t, callWhileOffered(llmtest.Call{Name: "echo", Args: `{"text":"x"}`}), func(o *agent.Options) { o.CallerBudgets = limits })
	run, err := h.Start(t.Context(), callerOfTenant("blue"), agent.Request{Question: "?", AskAtLimit: true, Interactive: true})
	if err != nil {
		t.Fatal(err)
	}

	events := h.Events(t, run.ID)
	end := agenttest.TerminalEvent[event.FinalAnswer](t, events)
	if end.FinishReason != "budget_exceeded" || end.Metadata.Usage.TotalTokens != 45 { // 15 a turn: two with tools, one without
		t.Errorf("end = %s with %+v, want budget_exceeded after 3 turns", end.FinishReason, end.Metadata.Usage)
	}
	if got, want := budgetEvents(events), "caller_total_tokens 30/20"; got != want {
		t.Errorf("budget events = %q, want %q", got, want)
	}
	var spent *usage.SpentError
	if _, err := h.Start(t.Context(), callerOfTenant("red"), agent.Request{Question: "?"}); !errors.As(err, &spent) || spent.Used != 45 {
		t.Errorf("Start after that = %v, want *SpentError of 45", err)
	}
	if _, err := h.Start(t.Context(), auth.Identity{Issuer: "https://iam.example", Subject: "bob"}, agent.Request{Question: "?"}); err != nil {
		t.Errorf("Start of another caller = %v, want no error", err)
	}
}

// A process dies after the budget of the caller has ended. The next one ends the run in the same way, and does not tell
// of the budget again, although a new period may have begun.
func TestRunSumsUpAfterATakeoverWhenTheBudgetOfItsCallerEnded(t *testing.T) {
	limits, err := usage.ParseLimits("total_tokens=20/24h")
	if err != nil {
		t.Fatal(err)
	}
	origin := &recordingLog{Log: memory.New(memory.Options{})}
	newProcess := func(log event.Log) *agenttest.Fixture {
		return agenttest.NewFixture(t, callWhileOffered(llmtest.Call{Name: "echo", Args: `{"text":"x"}`}), func(o *agent.Options) { o.Log, o.Durable, o.CallerBudgets = log, true, limits })
	}
	first := newProcess(origin)

	run := first.StartRun(t, agent.Request{Background: true})
	want := budgetEvents(first.Events(t, run.ID))
	isTold := false
	for n, operation := range origin.recordedOperations() {
		if isTold {
			events := newProcess(origin.diedAfter(t, run, n)).Events(t, run.ID)
			end := agenttest.TerminalEvent[event.FinalAnswer](t, events)
			if got := budgetEvents(events); got != want || end.FinishReason != "budget_exceeded" || end.Metadata.Steps != 3 {
				t.Errorf("died before %s: budget events %q and %s after %d steps, want %q and budget_exceeded after 3", operation.what, got, end.FinishReason, end.Metadata.Steps, want)
			}
		}
		isTold = isTold || operation.what == "budget"
	}
	if !isTold {
		t.Error("no budget event, want one")
	}
}
