package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"path"
	"slices"
	"time"

	metricnoop "go.opentelemetry.io/otel/metric/noop"
	"go.opentelemetry.io/otel/trace"
	tracenoop "go.opentelemetry.io/otel/trace/noop"

	"answerd/internal/agent/admission"
	"answerd/internal/agent/attachment"
	"answerd/internal/agent/output"
	"answerd/internal/agent/prompt"
	"answerd/internal/agent/record"
	"answerd/internal/agent/thread"
	"answerd/internal/agent/usage"
	"answerd/internal/auth"
	"answerd/internal/event"
)

// New returns an agent without runs.
func New(opts Options) (*Agent, error) {
	if err := opts.setDefaults(); err != nil {
		return nil, err
	}
	m, err := newMetrics(opts.Meter, opts.CostClaim != "")
	if err != nil {
		return nil, fmt.Errorf("create the agent's metrics: %w", err)
	}
	counts, err := usage.New(usage.Options{Claim: opts.CostClaim, Limits: opts.CallerBudgets, Store: opts.Log, Meter: opts.Meter, Logger: opts.Logger})
	if err != nil {
		return nil, fmt.Errorf("create the metrics of tokens and cost: %w", err)
	}

	agent := &Agent{Options: opts, metrics: m, usage: counts, active: make(map[string]*run), readers: make(map[string]int)}
	agent.recorder = record.New(record.Options{Log: opts.Log, Retention: opts.Retention, Service: opts.Version})
	agent.ReplaceModels(opts.DefaultModel, opts.Profiles)
	if err := agent.ReplaceAgents(opts.Agents); err != nil {
		return nil, err
	}

	agent.ctx, agent.stop = context.WithCancelCause(context.Background())
	agent.gate = admission.New(admission.Limits{
		Max: opts.MaxRuns, PerCaller: opts.MaxRunsPerCaller, Rate: opts.Rate, MemoryShort: opts.MemoryShort, Memory: opts.Memory,
	})
	agent.idleSignal, agent.handingOver = make(chan struct{}, 1), make(chan struct{})
	agent.accepting, agent.stopAccept = context.WithCancel(context.Background())

	ctx, cancel := context.WithCancel(context.Background())
	agent.stopClaims = cancel
	if agent.Durable || agent.Deliveries != nil {
		for range claimWorkers {
			agent.claiming.Go(func() { agent.claimLoop(ctx) })
		}
	}
	return agent, nil
}

// setDefaults sets the options that have their zero value.
func (o *Options) setDefaults() error {
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
			return err
		}
		o.Prompt = p
	}
	return nil
}

// Start starts a run of request for owner and returns it once its start event is in the log. If owner
// used the idempotency key of request before, it returns the earlier run instead, unless that run was
// cancelled because it had no readers. Start continues the trace in ctx; the run outlives ctx.
// While too many runs are active, Start waits for at most ten seconds, and for the active run of its thread
// if OnBusy wants that.
//
// Errors: *InvalidError, ErrUnknownAgent, ErrForbidden, ErrTooManyHops, *ToolsUnavailableError, ErrDraining, *Refusal, *usage.SpentError,
// ErrKeyReused, ErrKeyElsewhere, thread.ErrNoTurn, *event.BusyError, or the log's.
func (a *Agent) Start(ctx context.Context, owner auth.Identity, request Request) (event.Run, error) {
	busy, err := a.openThread(ctx, owner, &request)
	if err == nil {
		err = a.validateRequest(owner, &request)
	}
	if err != nil {
		return event.Run{}, err
	}
	deadline := time.Now().Add(a.InputTimeout)
	for {
		// Look for an earlier run first: a repeated request adds no load, so it must not be refused.
		run, key, err := a.runByKey(ctx, owner, request)
		if !errors.Is(err, event.ErrNotFound) {
			return run, err
		}
		if busy != "" && !request.runsBeside() {
			waiting, stop := context.WithDeadlineCause(ctx, deadline, errQueuedTooLong)
			err := a.freeThread(waiting, ownerOf(owner), request.ThreadID, busy, request.OnBusy)
			stop()
			if err != nil {
				return event.Run{}, err
			}
			busy = ""
			continue // the active run may have been that of the same key
		}
		run, err = a.startRun(ctx, owner, request, key)
		if active, ok := errors.AsType[*event.BusyError](err); ok {
			busy, request.threadExists = active.Run, true
			continue
		}
		return run, err
	}
}

// startRun starts a run of a request that no earlier run answers. It returns a *event.BusyError if the
// thread has an active run. Everything that can refuse the request comes before beginRun, so that a refused
// request leaves nothing in the log.
func (a *Agent) startRun(ctx context.Context, owner auth.Identity, request Request, key string) (event.Run, error) {
	if err := a.checkToolsAvailable(ctx, owner, request); err != nil {
		return event.Run{}, err
	}
	if err := a.validateRequiredTool(ctx, owner, request); err != nil {
		return event.Run{}, err
	}

	span := trace.SpanContextFromContext(ctx)
	rec := event.Run{
		ID: a.Log.NewID(), ThreadID: request.ThreadID, TraceID: span.TraceID().String(),
		Owner:   ownerOf(owner),
		Created: a.Log.Now(), Background: request.Background, Metadata: request.Metadata, Key: key, Fingerprint: request.Fingerprint, Request: request.Record,
		Agent: request.Agent,
	}
	ru := a.newRun(trace.ContextWithSpanContext(a.ctx, span), rec, owner, request)
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
			run, _, err := a.runByKey(ctx, owner, request) // another request has just used the same key
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
	r.slot.Discard()
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

// beginRun creates the run, its turn, its job and its first event in the log, in this order:
//
//   - The run, with its idempotency key: of two requests with the same key, Create lets one continue.
//   - Its turn in the thread, which refuses a second active run unless this one may run beside it. The
//     checkpoint needs the earlier turns that beginTurn reads. The turn of a new thread may be stored together with
//     the start event (event.Log.BeginThread).
//   - The job with the checkpoint. A process that dies from here on leaves a run that another one begins.
//   - The start event. A run with a start event and without a job would never end if its process died.
//
// If one of them fails, beginRun undoes the others as far as the log answers. What it cannot undo is found
// later: by the next question of the thread (thread.Store.Release), or by whoever claims the job.
func (a *Agent) beginRun(ctx context.Context, ru *run) error {
	if err := a.Log.Create(ctx, ru.Run); err != nil {
		return fmt.Errorf("create a run: %w", err)
	}
	began, err := ru.beginTurn(ctx)
	if err == nil {
		err = ru.appendStartWithJob(ctx)
	}
	if err != nil {
		// A run that was not started must not keep its idempotency key, nor its thread busy.
		cleanup := context.WithoutCancel(ctx)
		_ = a.Log.Delete(cleanup, ru.ID)
		switch {
		case began && ru.req.threadExists:
			_ = a.Log.EndTurn(cleanup, ru.Owner, ru.ThreadID, ru.ID, nil)
		case began: // it would be empty
			_ = a.Log.DeleteThread(cleanup, ru.Owner, ru.ThreadID)
		}
		if ru.job != nil {
			_ = ru.job.Done(cleanup)
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

// appendStartWithJob creates the job of the run and appends its first event. Every run with events has a job.
func (r *run) appendStartWithJob(ctx context.Context) error {
	if err := r.saveCheckpoint(ctx); err != nil {
		return err
	}
	return r.appendStart(ctx)
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

// maxAbandoned bounds how many abandoned runs of one idempotency key are skipped.
const maxAbandoned = 64

// runByKey returns the run of an earlier request with r's key. It returns ErrNotFound if there
// was no such request, and ErrKeyReused or ErrKeyElsewhere if that request was a different one.
//
// An abandoned run has no answer for its caller, so the key starts a new run. The abandoned run
// keeps the caller's key, and the new run gets a key that is derived from both. So all processes
// that share the log find the same new run. key is the key with which to create a run of request.
func (a *Agent) runByKey(ctx context.Context, owner auth.Identity, request Request) (run event.Run, key string, err error) {
	if request.IdempotencyKey == "" {
		return event.Run{}, "", event.ErrNotFound
	}
	key = request.IdempotencyKey
	for range maxAbandoned {
		run, err = a.Log.RunByKey(ctx, ownerOf(owner), key)
		if err != nil {
			return event.Run{}, key, err
		}
		if run.Fingerprint != request.Fingerprint {
			return event.Run{}, key, reusedKeyError(run.Fingerprint, request.Fingerprint)
		}
		if run, err = a.awaitAbandoned(ctx, run); err != nil {
			return event.Run{}, key, err
		}
		if end, ok := run.Last.Body.(event.Cancelled); !ok || end.Reason != errAbandoned.Error() {
			return run, key, nil
		}
		key = request.IdempotencyKey + "\n" + run.ID // no caller's key contains a line feed
	}
	return run, key, nil
}

// FingerprintPathBytes gives the number of bytes of a Fingerprint that represent the request's
// path; the other bytes represent its body.
const FingerprintPathBytes = 8

// reusedKeyError returns the error for a key that two different requests have: of another path, or of another body.
func reusedKeyError(earlier, later [32]byte) error {
	if [FingerprintPathBytes]byte(earlier[:]) != [FingerprintPathBytes]byte(later[:]) {
		return ErrKeyElsewhere
	}
	return ErrKeyReused
}

// awaitAbandoned waits for the terminal event of a run that is executed here and is being
// cancelled because it has no readers. It returns other runs at once.
func (a *Agent) awaitAbandoned(ctx context.Context, run event.Run) (event.Run, error) {
	a.mu.Lock()
	active := a.active[run.ID]
	a.mu.Unlock()
	if active == nil || !errors.Is(context.Cause(active.ctx), errAbandoned) {
		return run, nil
	}
	if err := thread.AwaitEnd(ctx, a.Log, run.ID, nil); err != nil {
		return run, err
	}
	return a.Log.Run(ctx, run.ID)
}

// validateRequest sets the defaults of request, and refuses a request that cannot be run.
func (a *Agent) validateRequest(owner auth.Identity, request *Request) error {
	if request.Hops > MaxHops {
		return ErrTooManyHops
	}
	if err := a.applyAgent(owner, request); err != nil {
		return err
	}
	defaultModel, profiles := a.Models()
	if request.Model == "" {
		request.Model = defaultModel
	}
	if _, served := profiles[request.Model]; !served && len(profiles) > 0 {
		return &InvalidError{"/model", "not one of the models that are served"}
	}
	if access := a.Rules.Of(owner); access.AllowsNothing() || !access.AllowsModel(request.Model) {
		return ErrForbidden
	}
	if err := request.validateQuestion(); err != nil {
		return err
	}
	if err := a.validateAttachments(*request); err != nil {
		return err
	}
	if request.Callback != "" && !a.Deliveries.AllowsCallback(request.Callback) {
		return &InvalidError{"/callback", "must be an https URL whose origin the operator of the service allows (CALLBACK_ORIGINS)"}
	}
	if err := validateOutputSchema(request.OutputSchema); err != nil {
		return err
	}
	if request.ThreadID == "" {
		request.ThreadID, request.newThread = newID("thr"), true
	} else if request.History == nil && request.parent.Run == "" {
		request.ContinueThread = true
	}
	if request.MaxTurns <= 0 || request.MaxTurns > a.MaxTurns {
		request.MaxTurns = a.MaxTurns
	}
	if err := a.validateCostLimit(*request); err != nil {
		return err
	}
	request.Budget = request.Budget.Within(a.budgetLimits(request.namedAgent))
	return a.validateServersAndTools(owner, *request)
}

// validateOutputSchema returns an error unless the schema of an answer can be used. No schema is valid.
func validateOutputSchema(raw json.RawMessage) error {
	if len(raw) == 0 {
		return nil
	}
	_, err := output.Compile(raw)
	if invalid, ok := errors.AsType[*output.InvalidError](err); ok {
		return &InvalidError{"/output_schema" + invalid.Pointer, "cannot be used as a JSON Schema: " + invalid.Detail}
	}
	return err
}

// validateServersAndTools returns an error if the request names a server that its owner does not have, or if a pattern
// of tools is malformed. A pattern that no tool matches is valid.
func (a *Agent) validateServersAndTools(owner auth.Identity, request Request) error {
	known := make(map[string]bool)
	for _, server := range a.ServersFor(owner) {
		known[server.Name] = true
	}
	for i, name := range request.Servers {
		if !known[name] {
			return &InvalidError{fmt.Sprintf("/servers/%d", i), "no MCP server has this name"}
		}
	}
	if request.Prompt != nil && !(known[request.Prompt.Server] && request.namedAgent.AllowsServer(request.Prompt.Server)) {
		return &InvalidError{"/prompt/server", "no MCP server has this name"}
	}
	for i, glob := range request.Tools {
		if _, err := path.Match(glob, ""); err != nil {
			return &InvalidError{fmt.Sprintf("/tools/%d", i), "not a valid pattern"}
		}
	}
	return nil
}

// validateRequiredTool refuses a request whose model must call a tool that it is not offered, or any tool
// although it is offered none. The endpoint would refuse the first with a less clear message, and the second
// would be answered without a call.
func (a *Agent) validateRequiredTool(ctx context.Context, caller auth.Identity, request Request) error {
	if request.ForcedTool == "" && request.ToolChoice != ToolRequired {
		return nil
	}
	all := request.namedAgent.catalogs.catalogFor(a.ToolsFor(ctx, caller), request)
	asks := a.askTools(caller, request)
	if request.ForcedTool == "" {
		if len(all.Tools) == 0 && len(request.ClientTools) == 0 && len(asks) == 0 {
			return &InvalidError{"/tool_choice", "no tool can be called"}
		}
		return nil
	}
	_, ours := all.ByName[request.ForcedTool]
	asksAgent := slices.ContainsFunc(asks, func(t askTool) bool { return t.Name == request.ForcedTool })
	named := func(t ClientTool) bool { return t.Name == request.ForcedTool }
	if ours || asksAgent || slices.ContainsFunc(request.clientTools(all, nil, asks), named) {
		return nil
	}
	return &InvalidError{"/tool_choice", "there is no tool of this name"}
}

// validateAttachments refuses attachments that the model does not take.
func (a *Agent) validateAttachments(r Request) error {
	if !r.OnlyAcceptedMedia || len(r.Media) == 0 {
		return nil
	}
	profile := a.profileOf(r.Model)
	for i, m := range r.Media {
		if !attachment.Accepts(profile, m) {
			return &InvalidError{fmt.Sprintf("/attachments/%d", i), fmt.Sprintf("the model %s does not take %s; it takes %s", r.Model, m.MIME, attachment.Accepted(profile))}
		}
	}
	return nil
}

// validateCostLimit refuses a cost limit for a model without a price, because the limit would
// never be reached.
func (a *Agent) validateCostLimit(r Request) error {
	switch {
	case a.priceOf(r.Model) != nil:
		return nil
	case r.Budget.Cost > 0:
		return &InvalidError{"/budget/cost", "no price is configured for this model"}
	case a.budgetLimits(r.namedAgent).Cost > 0:
		return &InvalidError{"/model", "no price is configured for this model, and the cost of every run is limited"}
	case a.usage.LimitsCost():
		return &InvalidError{"/model", "no price is configured for this model, and the cost of every caller is limited"}
	}
	return nil
}
