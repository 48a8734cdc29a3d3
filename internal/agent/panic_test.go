package agent_test

import (
	"context"
	"sync/atomic"
	"testing"

	"answerd/internal/agent"
	"answerd/internal/agent/agenttest"
	"answerd/internal/event"
	"answerd/internal/event/memory"
	"answerd/internal/llm/llmtest"
)

// panickingLog is a log that panics in the first append of an event of the type at, or, if inputs is true, in each
// read of inputs. The panic is on the goroutine that calls the method.
type panickingLog struct {
	event.Log
	at     event.Type // of the event whose first append panics
	inputs bool       // reading inputs panics
	done   chan struct{}
}

func (l *panickingLog) AppendAsync(ctx context.Context, run string, b event.Body) (int64, error) {
	return l.Append(ctx, run, b)
}

func (l *panickingLog) Append(ctx context.Context, run string, b event.Body) (int64, error) {
	if b.Type() == l.at {
		select {
		case <-l.done:
		default:
			close(l.done)
			panic("a bug")
		}
	}
	return l.Log.Append(ctx, run, b)
}

func (l *panickingLog) Inputs(ctx context.Context, run string, after int64) (event.InputPage, error) {
	if l.inputs {
		panic("a bug")
	}
	return l.Log.Inputs(ctx, run, after)
}

// F32: on whichever goroutine a run panics, it ends once, as internal, and the next run
// is not affected.
func TestPanicAnywhereEndsOneRun(t *testing.T) {
	t.Parallel()
	callTool := func(tool string) llmtest.Script {
		return llmtest.Turns(llmtest.Calls(llmtest.Call{Name: tool, Args: `{}`}), llmtest.Says("Done."))
	}
	for name, c := range map[string]struct {
		log  panickingLog
		tool string
	}{
		"the run's own":        {panickingLog{at: "step_start"}, "fail"},
		"a tool call":          {panickingLog{at: "tool_error"}, "fail"},
		"progress of a server": {panickingLog{at: "tool_progress"}, "steps"},
		"a log message":        {panickingLog{at: "log"}, "steps"},
		"what a server asks":   {panickingLog{at: "elicitation"}, "ask"},
		"what a person says":   {panickingLog{inputs: true}, "ask"},
		"the end":              {panickingLog{at: "final_answer"}, "fail"},
	} {
		t.Run(name, func(t *testing.T) {
			var log *panickingLog
			var metrics metricsAndLog
			h := agenttest.NewFixture(t, callTool(c.tool), func(o *agent.Options) {
				metrics.withMetrics(o)
				log = &c.log
				log.Log, log.done = o.Log, make(chan struct{})
				o.Log = log
			})

			const series = "code=internal,outcome=run_error"
			if got, there := metrics.metricValues(t, "answerd.runs")[series]; !there || got != 0 {
				t.Errorf("answerd.runs{%s} at the start = %v (there: %t), want 0: an alert needs a zero to rise from", series, got, there)
			}
			run := h.StartRun(t, agent.Request{Interactive: true})
			if end := agenttest.TerminalEvent[event.RunError](t, h.Events(t, run.ID)); end.Code != "internal" || end.Message != "The run failed inside the service." {
				t.Errorf(`end %+v, want Code internal, Message "The run failed inside the service."`, end)
			}
			log.inputs = false
			next := h.StartRun(t, agent.Request{})
			agenttest.TerminalEvent[event.FinalAnswer](t, h.Events(t, next.ID))
			h.Agent.Drain(t.Context())
			if got := metrics.metricValues(t, "answerd.runs")[series]; got != 1 {
				t.Errorf("answerd.runs{%s} = %v, want 1", series, got)
			}
		})
	}
}

// panicAtTakeoverLog is a log whose methods Claim and Run, which a takeover calls, panic once each.
type panicAtTakeoverLog struct {
	event.Log
	claim, run atomic.Bool // the method has panicked
}

func (l *panicAtTakeoverLog) Claim(ctx context.Context) (event.Job, error) {
	if !l.claim.Swap(true) {
		panic("a bug")
	}
	return l.Log.Claim(ctx)
}

func (l *panicAtTakeoverLog) Run(ctx context.Context, id string) (event.Run, error) {
	if l.claim.Load() && !l.run.Swap(true) {
		panic("a bug")
	}
	return l.Log.Run(ctx, id)
}

// F32: a panic during a takeover ends neither the process nor the run: the process releases the job of the
// run, and claims it again.
func TestPanicDuringATakeoverDoesNotEndTheRun(t *testing.T) {
	t.Parallel()
	origin := &recordingLog{Log: memory.New(memory.Options{})}
	says := llmtest.Turns(llmtest.Says("Done."))
	run := agenttest.NewFixture(t, says, withDurableLog(origin)).StartRun(t, agent.Request{Question: "?", Background: true})
	log := &panicAtTakeoverLog{Log: origin.diedAfter(t, run, 0)}
	events := agenttest.NewFixture(t, says, withDurableLog(log)).Events(t, run.ID)
	if end := agenttest.TerminalEvent[event.FinalAnswer](t, events); end.Answer != "Done." || !log.claim.Load() || !log.run.Load() {
		t.Errorf("end %+v, want Done. after a failed claim (failed: %v) and a failed Run (failed: %v)", end, log.claim.Load(), log.run.Load())
	}
}
