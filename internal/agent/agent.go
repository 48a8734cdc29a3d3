// Package agent answers questions: it asks the model in turns, executes the tool calls that the
// model asks for, and appends everything that happens to the event log.
//
//	a, err := agent.New(agent.Options{Model: model, Tools: servers, Log: log})
//	run, err := a.Start(ctx, identity, agent.Request{Question: "What time is it in Rome?"})
//	reader := a.OpenReader(run.ID) // a run without readers is cancelled after a while
//	page, err := log.After(ctx, run.ID, 0)
//	reader.Close()
//	a.Drain(ctx)
//
// Start returns as soon as the log has the run's first event. From then on the run is independent
// of any connection. It ends with its answer, its failure, Cancel, or after Options.DisconnectGrace
// without a reader. It gets exactly one terminal event, even after a panic.
//
// All calls of a turn run at the same time, and their results go back to the model in call order. A
// failed call becomes a message to the model, and the run continues.
//
// Start reading with loop.go, which has the turns of a run, and toolcall.go, which has the steps of
// a tool call. takeover.go explains how a run continues in another process, suspension.go how it
// waits for people, and reader.go when it is cancelled for lack of readers.
package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/metric"
	metricnoop "go.opentelemetry.io/otel/metric/noop"
	"go.opentelemetry.io/otel/trace"
	tracenoop "go.opentelemetry.io/otel/trace/noop"

	"answerd/internal/agent/admission"
	"answerd/internal/agent/definition"
	"answerd/internal/agent/delivery"
	"answerd/internal/agent/prompt"
	"answerd/internal/agent/record"
	"answerd/internal/agent/recorded"
	"answerd/internal/agent/usage"
	"answerd/internal/agent/webhook"
	"answerd/internal/agent/window"
	"answerd/internal/auth"
	"answerd/internal/event"
	"answerd/internal/llm"
	"answerd/internal/mcp"
)

// Options configure an Agent. Model, Tools and Log are required.
type Options struct {
	Model llm.Model
	Tools Tools
	Log   event.Log

	// BasePath precedes the paths of the API in the URLs of results; "" if the API is at the root.
	BasePath     string
	DefaultModel string // the model of requests that name no model; see ReplaceModels
	// Agents are the named agents; the first one is the default. If there are none, one agent has the
	// settings of these options; see ReplaceAgents.
	Agents []definition.Agent
	// Profiles lists the models that requests may name. If it is empty, any name is allowed, and
	// llm.AcceptsImages decides whether the model gets images.
	Profiles        map[string]llm.Profile
	ToolSearch      ToolSearch // when the model must search for tools; the zero value means never
	Prompt          *prompt.Prompt
	Hooks           *webhook.Client // nil means no hooks
	Rules           *auth.Rules     // who may use what; nil allows everything
	Budget          Budget          // of every run; requests may lower it
	MaxHistory      int             // messages of history that are used; 0 means 16
	MaxTurns        int             // model turns with tools; 0 means 10
	MaxOutputTokens int64           // of one model answer; 0 means that only the budget and the model's profile limit it
	MaxRuns         int             // runs and direct calls at the same time; 0 means 512
	DisconnectGrace time.Duration   // how long a run continues without a reader; 0 means that it is cancelled at once
	InputTimeout    time.Duration   // how long a run waits for a person's answer; 0 means 15 min
	// Durable means that the log outlives this process. Other processes then take over runs that
	// cannot end here, and this process takes over runs of processes that died.
	Durable bool
	// ClaimDelay separates New from the first claim of another process's run. Without the delay,
	// a process that dies shortly after every start would claim runs each time, and so interrupt
	// them.
	ClaimDelay time.Duration
	// Retention is how long the log keeps the events of a run, and Version the version of answerd: both for
	// the exports of runs. RecordModelRequests adds every request to the model to them.
	Retention           time.Duration
	Version             string
	RecordModelRequests bool
	// Repeat makes the runs repeat recorded ones; nil for runs that are not executed again.
	Repeat *recorded.Inputs
	// AuditArguments adds the arguments to the audit line of every tool call.
	AuditArguments bool
	// TraceUsers adds the caller to spans, TraceContent the questions, answers, arguments and results.
	TraceUsers, TraceContent bool

	// MaxRunsPerCaller and Rate limit the runs of one caller; 0 means no limit. While
	// MemoryShort returns true, new runs are refused; nil means never.
	MaxRunsPerCaller int
	Rate             admission.Rate
	MemoryShort      func() bool
	Memory           *admission.Memory // that all runs may hold; nil means any amount

	// CallerBudgets bound what one caller may use per period, in all processes that share the log.
	CallerBudgets []usage.Limit
	// Deliveries tells other services that a run has ended; nil means nobody. Drain drains it too.
	Deliveries *delivery.Deliverer
	// CostClaim names the claim of callers' tokens by which the metrics of tokens and cost are divided;
	// "" means none.
	CostClaim string

	Logger *slog.Logger
	Tracer trace.Tracer
	Meter  metric.Meter
}

// Reasons for which a request does not become a run.
var (
	ErrDraining = errors.New("the service is shutting down")
	// ErrKeyReused means that the idempotency key was used with another body, ErrKeyElsewhere
	// that it was used at another path.
	ErrKeyReused    = errors.New("the idempotency key was used for another request")
	ErrKeyElsewhere = errors.New("the idempotency key was used at another path")
	// ErrUnknownServer means that Refresh, Prompts or SignOut was called for a server that is not
	// configured.
	ErrUnknownServer = mcp.ErrUnknownServer
	// ErrForbidden means that the rules do not let the caller use anything, or not the requested
	// model.
	ErrForbidden = errors.New("the rules do not allow it")
)

// Refusal asks the caller to retry later. Its Reason is one of the errors below.
type Refusal = admission.Refusal

// Reasons for which a run or a direct call is refused.
var (
	ErrOverloaded  = admission.ErrFull
	ErrMemoryShort = admission.ErrMemory
	ErrTooMany     = admission.ErrTooMany // of this caller
	ErrTooFast     = admission.ErrTooFast
)

// InvalidError names the invalid field of a request, and the reason.
type InvalidError struct {
	Pointer string // the field, as a JSON pointer (RFC 6901) into the native request
	Detail  string // for the caller
}

func (e *InvalidError) Error() string { return e.Pointer + ": " + e.Detail }

// ToolsUnavailableError refuses a question whose tools no connected server has.
type ToolsUnavailableError = admission.ToolsUnavailableError

// Agent owns every run and its goroutine. Its methods may be called concurrently.
type Agent struct {
	Options
	metrics     metrics
	usage       *usage.Meter
	models      atomic.Pointer[servedModels]
	agents      atomic.Pointer[servedAgents]
	windowSizes window.Sizes // of models by their id, as their endpoints named them
	recorder    *record.Recorder

	stop context.CancelCauseFunc // ends all runs
	ctx  context.Context         // the parent of every run
	runs sync.WaitGroup          // runs and direct calls in progress

	accepting    context.Context // ends when Drain begins
	stopAccept   context.CancelFunc
	stopClaims   context.CancelFunc
	claiming     sync.WaitGroup
	idleSignal   chan struct{} // of capacity 1: a run has ended or was suspended
	handOverOnce sync.Once
	handingOver  chan struct{} // closed when Drain hands runs over

	gate *admission.Gate

	mu          sync.Mutex // protects the fields below and the grace timer of every run
	active      map[string]*run
	directCalls int            // in flight
	readers     map[string]int // open readers in this process, by run id
	draining    bool
	handedOver  bool // handOverRuns has begun: no run may be registered any more
}

// New returns an agent without runs.
func New(o Options) (*Agent, error) {
	if o.MaxHistory <= 0 {
		o.MaxHistory = 16
	}
	if o.MaxTurns <= 0 {
		o.MaxTurns = 10
	}
	if o.MaxRuns <= 0 {
		o.MaxRuns = 512
	}
	if o.InputTimeout <= 0 {
		o.InputTimeout = 15 * time.Minute
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Tracer == nil {
		o.Tracer = tracenoop.NewTracerProvider().Tracer("")
	}
	if o.Meter == nil {
		o.Meter = metricnoop.NewMeterProvider().Meter("")
	}
	if o.Prompt == nil {
		p, err := prompt.New(prompt.Options{})
		if err != nil {
			return nil, err
		}
		o.Prompt = p
	}
	m, err := newMetrics(o.Meter, o.CostClaim != "")
	if err != nil {
		return nil, fmt.Errorf("create the agent's metrics: %w", err)
	}
	counts, err := usage.New(usage.Options{Claim: o.CostClaim, Limits: o.CallerBudgets, Store: o.Log, Meter: o.Meter, Logger: o.Logger})
	if err != nil {
		return nil, fmt.Errorf("create the metrics of tokens and cost: %w", err)
	}
	a := &Agent{Options: o, metrics: m, usage: counts, active: make(map[string]*run), readers: make(map[string]int)}
	a.recorder = record.New(record.Options{Log: o.Log, Retention: o.Retention, Service: o.Version})
	a.ReplaceModels(o.DefaultModel, o.Profiles)
	if err := a.ReplaceAgents(o.Agents); err != nil {
		return nil, err
	}
	a.ctx, a.stop = context.WithCancelCause(context.Background())
	a.gate = admission.New(admission.Limits{Max: o.MaxRuns, PerCaller: o.MaxRunsPerCaller, Rate: o.Rate, MemoryShort: o.MemoryShort, Memory: o.Memory})
	a.idleSignal, a.handingOver = make(chan struct{}, 1), make(chan struct{})
	a.accepting, a.stopAccept = context.WithCancel(context.Background())
	ctx, cancel := context.WithCancel(context.Background())
	if a.stopClaims = cancel; a.Durable || a.Deliveries != nil {
		for range claimWorkers {
			a.claiming.Go(func() { a.claimLoop(ctx) })
		}
	}
	return a, nil
}

// Start starts a run of r for owner and returns it once its start event is in the log. If owner
// used the idempotency key of r before, it returns the earlier run instead, unless that run was
// cancelled because it had no readers. Start continues the trace in ctx; the run outlives ctx.
// While too many runs are active, Start waits for at most ten seconds, and for the active run of its thread
// if OnBusy wants that.
//
// Errors: *InvalidError, ErrUnknownAgent, ErrForbidden, ErrTooManyHops, *ToolsUnavailableError, ErrDraining, *Refusal, *usage.SpentError,
// ErrKeyReused, ErrKeyElsewhere, thread.ErrNoTurn, *event.BusyError, or the log's.
func (a *Agent) Start(ctx context.Context, owner auth.Identity, r Request) (event.Run, error) {
	busy, err := a.openThread(ctx, owner, &r)
	if err == nil {
		err = a.validateRequest(owner, &r)
	}
	if err != nil {
		return event.Run{}, err
	}
	deadline := time.Now().Add(a.InputTimeout)
	for {
		// Look for an earlier run first: a repeated request adds no load, so it must not be refused.
		run, key, err := a.runByKey(ctx, owner, r)
		if !errors.Is(err, event.ErrNotFound) {
			return run, err
		}
		if busy != "" && !r.runsBeside() {
			waiting, stop := context.WithDeadlineCause(ctx, deadline, errQueuedTooLong)
			err := a.freeThread(waiting, ownerOf(owner), r.ThreadID, busy, r.OnBusy)
			stop()
			if err != nil {
				return event.Run{}, err
			}
			busy = ""
			continue // the active run may have been that of the same key
		}
		run, err = a.startRun(ctx, owner, r, key)
		if active, ok := errors.AsType[*event.BusyError](err); ok {
			busy = active.Run
			continue
		}
		return run, err
	}
}

// ownerOf returns the owner of what the caller starts.
func ownerOf(caller auth.Identity) event.Owner {
	return event.Owner{Issuer: caller.Issuer, Subject: caller.Subject}
}

// startRun starts a run of a request that no earlier run answers. It returns a *event.BusyError if the
// thread has an active run.
func (a *Agent) startRun(ctx context.Context, owner auth.Identity, r Request, key string) (event.Run, error) {
	if err := a.checkToolsAvailable(ctx, owner, r); err != nil {
		return event.Run{}, err
	}
	if err := a.validateForcedTool(ctx, owner, r); err != nil {
		return event.Run{}, err
	}
	span := trace.SpanContextFromContext(ctx)
	rec := event.Run{
		ID: a.Log.NewID(), ThreadID: r.ThreadID, TraceID: span.TraceID().String(),
		Owner:   ownerOf(owner),
		Created: a.Log.Now(), Background: r.Background, Metadata: r.Metadata, Key: key, Fingerprint: r.Fingerprint, Request: r.Record,
		Agent: r.Agent,
	}
	ru := a.newRun(trace.ContextWithSpanContext(a.ctx, span), rec, owner, r)
	ru.account = a.usage.AccountOf(owner)
	err := a.usage.Check(ctx, ru.account)
	if err == nil {
		err = a.admitRun(ctx, ru, owner)
	} else if errors.Is(err, usage.ErrSpent) {
		a.metrics.countRefusal(ctx, err)
	}
	if err != nil {
		ru.cancel(err)
		return event.Run{}, err
	}
	if err := a.beginRun(ctx, ru); err != nil {
		a.discardRun(ru)
		if _, ok := errors.AsType[*event.KeyError](err); ok {
			run, _, err := a.runByKey(ctx, owner, r) // another request has just used the same key
			return run, err
		}
		return event.Run{}, err
	}
	a.runInBackground(ru)
	return a.Log.Run(ctx, rec.ID)
}

// discardRun removes a run that was registered and did not begin.
func (a *Agent) discardRun(r *run) {
	r.inbox.stopListening()
	a.removeRun(r)
	a.runs.Done()
}

// runInBackground executes a run that was registered and began.
func (a *Agent) runInBackground(r *run) {
	go func() {
		defer a.runs.Done()
		a.executeRun(r, nil)
	}()
}

// beginRun creates the run, its job and its first event in the log.
func (a *Agent) beginRun(ctx context.Context, ru *run) error {
	if err := a.Log.Create(ctx, ru.Run); err != nil {
		return fmt.Errorf("create a run: %w", err)
	}
	began, err := ru.beginTurn(ctx)
	if err == nil {
		err = ru.saveCheckpoint(ctx) // first, so that every run with events has a job
	}
	if err == nil {
		err = ru.appendStart(ctx)
	}
	if err != nil {
		// A run that was not started must not keep its idempotency key, nor its thread busy.
		over := context.WithoutCancel(ctx)
		_ = a.Log.Delete(over, ru.ID)
		if began {
			_ = a.Log.EndTurn(over, ru.Owner, ru.ThreadID, ru.ID, nil)
		}
		if ru.job != nil {
			_ = ru.job.Done(over)
		}
		if ru.relinquished() == errHandedOver {
			return ErrDraining // Drain began while Create waited for the log
		}
		if errors.Is(err, event.ErrFenced) { // a request with the same key waited too long and marked the run as abandoned
			return fmt.Errorf("start a run: %w", event.ErrStarting)
		}
		return fmt.Errorf("start a run: %w", err)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	// The caller is about to open a reader, so a short grace period must not cancel the run
	// before.
	ru.startGraceLocked(max(a.DisconnectGrace, firstReaderGrace))
	return nil
}

// admitRun acquires a slot and registers the run. It precedes every request to the log, because
// a caller who finds the run in the log must also find it registered here.
func (a *Agent) admitRun(ctx context.Context, ru *run, owner auth.Identity) error {
	_, err := a.acquireSlot(ctx, owner, memoryOf(ru.req.size()), func(p *admission.Slot) { ru.slot, ru.memory, a.active[ru.ID] = p, p.Memory, ru })
	return err
}

// acquireSlot acquires a slot for caller, whose request holds that many bytes, and makes Drain wait
// until a.runs is done for it. It calls then while it holds the agent's mutex.
func (a *Agent) acquireSlot(ctx context.Context, caller auth.Identity, request int64, then func(*admission.Slot)) (*admission.Slot, error) {
	slot, err := a.gate.Acquire(ctx, caller.Key(), request)
	if err == nil && !a.registerWork(slot, then) {
		slot.Release()
		err = admission.ErrClosed
	}
	switch {
	case errors.Is(err, admission.ErrClosed):
		return nil, ErrDraining
	case err != nil:
		a.metrics.countRefusal(ctx, err)
		return nil, err
	}
	return slot, nil
}

// registerWork adds to a.runs. It reports false if Drain has begun.
func (a *Agent) registerWork(slot *admission.Slot, then func(*admission.Slot)) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.draining {
		return false
	}
	a.runs.Add(1)
	then(slot)
	return true
}

// StopAccepting refuses new runs and direct calls from now on.
func (a *Agent) StopAccepting() {
	a.mu.Lock()
	a.draining = true
	a.mu.Unlock()
	a.gate.Close()
	a.stopAccept()
}

// isIdle reports whether all active runs are suspended and no direct call is in flight.
func (a *Agent) isIdle() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, r := range a.active {
		if !r.suspension.isSuspended.Load() {
			return false
		}
	}
	return a.directCalls == 0
}

// signalIdle makes Drain check again, since fewer runs may be active.
func (a *Agent) signalIdle() {
	select {
	case a.idleSignal <- struct{}{}:
	default:
	}
}
