// Package agent runs questions to their final answers: it thinks in turns, calls
// the model and the tools, and appends everything that happens to the event log.
//
//	a, err := agent.New(agent.Options{Model: model, Tools: servers, Log: log})
//	run, err := a.Start(ctx, identity, agent.Request{Question: "What time is it in Rome?"})
//	// read the events of run.ID from the log
//	err = a.Drain(ctx)
//
// Start returns at once with the run's first event in the log. From then on the run
// lives on the agent's own context and belongs to no connection: it ends with its
// answer, its failure, Cancel, or when nobody has watched it for the grace period.
// Whatever happens, a panic included, a run gets exactly one terminal event.
//
// All calls of one turn run at the same time; their results go back to the model in
// call order; a failed call is told to the model and the run goes on.
package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"go.opentelemetry.io/otel/metric"
	metricnoop "go.opentelemetry.io/otel/metric/noop"
	"go.opentelemetry.io/otel/trace"
	tracenoop "go.opentelemetry.io/otel/trace/noop"

	"answerd/internal/agent/admission"
	"answerd/internal/agent/webhook"
	"answerd/internal/auth"
	"answerd/internal/event"
	"answerd/internal/llm"
	"answerd/internal/mcp"
)

// Options are the parts and limits of an Agent. Model, Tools and Log are required;
// the rest have the defaults of the settings of the same name.
type Options struct {
	Model llm.Model
	Tools *mcp.Client
	Log   event.Log

	DefaultModel string // the model of requests that name none
	// Profiles are the models that are served, by what requests name. Empty means any
	// model, with a profile of which nothing is known.
	Profiles        map[string]llm.Profile
	ToolSearch      ToolSearch // from when on the model has to look for tools; the zero value is never
	Prompt          *Prompt
	Hooks           *webhook.Client // nil asks nobody
	Rules           *auth.Rules     // who may use what; nil lets everybody use everything
	Budget          Budget          // of every run; requests may ask for less
	MaxHistory      int             // messages of history that are used; 0 means 16
	MaxTurns        int             // model turns with tools; 0 means 10
	MaxRuns         int             // runs and direct calls at a time; 0 means 512
	DisconnectGrace time.Duration   // how long a run goes on that nobody watches; 0 means not at all
	InputTimeout    time.Duration   // how long a run waits for a person's answer; 0 means 15 min
	// Durable says that the log outlives this process: runs that cannot end here go on in
	// another one, and those of processes that died go on here.
	Durable bool
	// Youth is how long this process leaves the runs of others alone where it is Durable. One
	// that dies again and again right after its start would take runs with it each time.
	ClaimDelay time.Duration
	// AuditArguments puts the arguments of every call into its line in the log.
	AuditArguments bool

	// MaxRunsPerCaller and Rate bound the runs of one caller; 0 means as many as there may
	// be. MemoryShort, unless nil, keeps new ones out while it is true.
	MaxRunsPerCaller int
	Rate             admission.Rate
	MemoryShort      func() bool

	Logger *slog.Logger
	Tracer trace.Tracer
	Meter  metric.Meter
}

// Why a request does not become a run.
var (
	ErrDraining = errors.New("the service is shutting down")
	// ErrKeyReused: the idempotency key was used with another request.
	ErrKeyReused = errors.New("the idempotency key was used for another request")
	// ErrUnknownServer: Refresh was asked for a server that is not configured.
	ErrUnknownServer = mcp.ErrUnknownServer
	// ErrForbidden: the rules let the caller use nothing, or not the model that he wants.
	ErrForbidden = errors.New("the rules do not allow it")
)

// Refusal is a caller who has to come back later: its Reason is one of the errors below.
type Refusal = admission.Refusal

// Reasons for which a run or a direct call is refused.
var (
	ErrOverloaded  = admission.ErrFull
	ErrMemoryShort = admission.ErrMemory
	ErrTooMany     = admission.ErrTooMany // of this caller
	ErrTooFast     = admission.ErrTooFast
)

// InvalidError is a request that cannot be run as it stands.
type InvalidError struct {
	Pointer string // the field, as a JSON pointer (RFC 6901) into the native request
	Detail  string // for the caller
}

func (e *InvalidError) Error() string { return e.Pointer + ": " + e.Detail }

// Agent owns every run and its goroutine. Its methods may be called concurrently.
type Agent struct {
	Options
	metrics      metrics
	toolCatalogs toolCatalogCache

	stop context.CancelCauseFunc // ends all runs
	ctx  context.Context         // the parent of every run
	runs sync.WaitGroup          // and direct calls

	stopClaims   context.CancelFunc
	claiming     sync.WaitGroup
	idleSignal   chan struct{} // of capacity 1: a run has left, or waits for a person
	handOverOnce sync.Once
	handingOver  chan struct{} // closed by leave, when what goes on here goes on elsewhere

	gate *admission.Gate

	mu          sync.Mutex // guards the fields below and the timer of every run
	active      map[string]*run
	directCalls int            // calls without a run that go on
	readers     map[string]int // how many read a run here, by its id
	draining    bool
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
		p, err := NewPrompt(PromptOptions{})
		if err != nil {
			return nil, err
		}
		o.Prompt = p
	}
	m, err := newMetrics(o.Meter)
	if err != nil {
		return nil, fmt.Errorf("create the agent's metrics: %w", err)
	}
	a := &Agent{Options: o, metrics: m, active: make(map[string]*run), readers: make(map[string]int)}
	a.ctx, a.stop = context.WithCancelCause(context.Background())
	a.gate = admission.New(admission.Limits{Max: o.MaxRuns, PerCaller: o.MaxRunsPerCaller, Rate: o.Rate, MemoryShort: o.MemoryShort})
	a.idleSignal, a.handingOver = make(chan struct{}, 1), make(chan struct{})
	ctx, cancel := context.WithCancel(context.Background())
	if a.stopClaims = cancel; a.Durable {
		for range claimWorkers {
			a.claiming.Go(func() { a.claimLoop(ctx) })
		}
	}
	return a, nil
}

// Start makes a run of r that belongs to owner, and returns it with its start event
// in the log. With an idempotency key that owner used before, it returns the run of
// that time instead. ctx gives the trace that the run continues, and nothing else:
// the run outlives it.
//
// Where too many runs go on, it waits for a place, for at most a second.
//
// Errors: *InvalidError, ErrForbidden, ErrTooManyHops, ErrDraining, *Refusal,
// ErrKeyReused, or the log's.
func (a *Agent) Start(ctx context.Context, owner auth.Identity, r Request) (event.Run, error) {
	if err := a.validateRequest(owner, &r); err != nil {
		return event.Run{}, err
	}
	if err := a.validateForcedTool(ctx, owner, r); err != nil {
		return event.Run{}, err
	}
	// Before anything is refused: whoever repeats a request is no new load.
	if run, err := a.runByKey(ctx, owner, r); !errors.Is(err, event.ErrNotFound) {
		return run, err
	}
	span := trace.SpanContextFromContext(ctx)
	rec := event.Run{
		ID: a.Log.NewID(), ThreadID: r.ThreadID, TraceID: span.TraceID().String(),
		Owner:   event.Owner{Issuer: owner.Issuer, Subject: owner.Subject},
		Created: time.Now(), Background: r.Background, Key: r.IdempotencyKey, Fingerprint: r.Fingerprint, Request: r.Record,
	}
	ru := a.newRun(trace.ContextWithSpanContext(a.ctx, span), rec, owner, r)
	if err := a.admitRun(ctx, ru, owner); err != nil {
		ru.cancel(err)
		return event.Run{}, err
	}
	if err := a.beginRun(ctx, ru); err != nil {
		ru.inbox.stopListening()
		a.removeRun(ru)
		a.runs.Done()
		if _, ok := errors.AsType[*event.KeyError](err); ok {
			return a.runByKey(ctx, owner, r) // the same key, at the same moment
		}
		return event.Run{}, err
	}
	go func() {
		defer a.runs.Done()
		a.executeRun(ru, nil)
	}()
	return a.Log.Run(ctx, rec.ID)
}

// runByKey returns the run of an earlier request with r's key: ErrNotFound if there was
// none, ErrKeyReused if that was another request.
func (a *Agent) runByKey(ctx context.Context, owner auth.Identity, r Request) (event.Run, error) {
	if r.IdempotencyKey == "" {
		return event.Run{}, event.ErrNotFound
	}
	run, err := a.Log.RunByKey(ctx, event.Owner{Issuer: owner.Issuer, Subject: owner.Subject}, r.IdempotencyKey)
	if err == nil && run.Fingerprint != r.Fingerprint {
		return event.Run{}, ErrKeyReused
	}
	return run, err
}

// beginRun puts a run and its first event into the log.
func (a *Agent) beginRun(ctx context.Context, ru *run) error {
	if err := a.Log.Create(ctx, ru.Run); err != nil {
		return fmt.Errorf("create a run: %w", err)
	}
	err := ru.saveCheckpoint(ctx) // first, so that a run which can be read is one that somebody executes
	if err == nil {
		err = ru.appendStart(ctx)
	}
	if err != nil {
		// A run that never began must not keep its key. The log forgets it in time too.
		over := context.WithoutCancel(ctx)
		_ = a.Log.Delete(over, ru.ID)
		if ru.job != nil {
			_ = ru.job.Done(over)
		}
		if ru.relinquished() == errHandedOver {
			return ErrDraining // which began while the log was asked
		}
		return fmt.Errorf("start a run: %w", err)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	// Whoever started the run is about to watch it, however short the grace is.
	ru.startGraceLocked(max(a.DisconnectGrace, firstReaderGrace))
	return nil
}

// admitRun counts a run in, before the log is asked for anything: the log may be slow, and
// whoever finds the run there must find it here.
func (a *Agent) admitRun(ctx context.Context, ru *run, owner auth.Identity) error {
	_, err := a.acquireSlot(ctx, owner, func(p *admission.Slot) { ru.slot, a.active[ru.ID] = p, ru })
	return err
}

// acquireSlot gives a caller a place, and keeps Drain waiting until a.runs is done for it. then
// is called with the agent's mutex held.
func (a *Agent) acquireSlot(ctx context.Context, caller auth.Identity, then func(*admission.Slot)) (*admission.Slot, error) {
	slot, err := a.gate.Acquire(ctx, caller.Key())
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

// registerWork adds to a.runs, unless Drain waits for them already.
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

// HandingOver is closed when Drain has given up waiting for runs which other processes go on
// with, or has nothing to wait for: whoever reads a run here can read it there.
func (a *Agent) HandingOver() <-chan struct{} { return a.handingOver }

// StopAccepting lets no further run begin, and returns when that holds.
func (a *Agent) StopAccepting() {
	a.mu.Lock()
	a.draining = true
	a.mu.Unlock()
	a.gate.Close()
}

// Drain refuses new runs and waits until the others have ended, or do nothing but wait
// for a person, who may take longer than any process has. When ctx is done first, it
// does not wait for them either. What is left then it hands over where the log outlives
// this process, and ends where it doesn't, each with a terminal event of its own; it
// returns once that is done.
func (a *Agent) Drain(ctx context.Context) {
	a.StopAccepting()
	a.stopClaims() // or what is handed over would come right back
	a.claiming.Wait()
	done := make(chan struct{})
	go func() { a.runs.Wait(); close(done) }()
	for !a.isIdle() {
		select {
		case <-a.idleSignal:
			continue
		case <-ctx.Done():
		}
		break
	}
	if a.Durable {
		a.handOverRuns()
	}
	a.stop(errShutdown)
	<-done
}

// isIdle reports whether nothing goes on but runs that wait for a person.
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

// signalIdle says that there may be less that goes on.
func (a *Agent) signalIdle() {
	select {
	case a.idleSignal <- struct{}{}:
	default:
	}
}

// handOverRuns leaves all runs to other processes.
func (a *Agent) handOverRuns() {
	a.handOverOnce.Do(func() { close(a.handingOver) })
	a.mu.Lock()
	runs := slices.Collect(maps.Values(a.active))
	a.mu.Unlock()
	for _, r := range runs {
		r.relinquish(errHandedOver)
	}
}
