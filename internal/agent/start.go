package agent

import (
	"cmp"
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
	"answerd/internal/agent/budget"
	"answerd/internal/agent/output"
	"answerd/internal/agent/prompt"
	"answerd/internal/agent/record"
	"answerd/internal/agent/thread"
	"answerd/internal/agent/usage"
	"answerd/internal/auth"
	"answerd/internal/event"
)

// New returns an agent without runs. If the log is durable or there are deliveries, New starts goroutines that claim
// jobs of other processes, the first after ClaimDelay. Drain ends these goroutines.
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

// setDefaults replaces zero values of options by their defaults. It fails only if the default prompt cannot be
// compiled.
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
	o.Logger = cmp.Or(o.Logger, slog.New(slog.DiscardHandler))
	o.Tracer = cmp.Or(o.Tracer, tracenoop.NewTracerProvider().Tracer(""))
	o.Meter = cmp.Or(o.Meter, metricnoop.NewMeterProvider().Meter(""))
	if o.Prompt == nil {
		p, err := prompt.New(prompt.Options{})
		if err != nil {
			return err
		}
		o.Prompt = p
	}
	return nil
}

// Start starts a run of request for owner, and returns it once the log has its start event. If owner has already used
// request's idempotency key, Start returns the earlier run instead, unless that run was cancelled because it had no
// readers. The run continues the trace in ctx, but outlives ctx.
//
// Start waits up to ten seconds for a slot if too many runs are active. If another run of the thread is active,
// Request.OnBusy decides whether Start waits until that run has ended.
//
// It may return *InvalidError, ErrUnknownAgent, thread.ErrNoAgent, ErrForbidden, ErrTooManyHops,
// *ToolsUnavailableError, ErrDraining, *Refusal, *usage.SpentError, ErrKeyReused, ErrKeyElsewhere, thread.ErrNoTurn,
// *event.BusyError, or an error of the log.
func (a *Agent) Start(ctx context.Context, owner auth.Identity, request Request) (event.Run, error) {
	activeID, err := a.openThread(ctx, owner, &request)
	if err != nil {
		return event.Run{}, err
	}
	if err := a.validateRequest(owner, &request); err != nil {
		return event.Run{}, err
	}
	waitCtx, stop := context.WithTimeoutCause(ctx, a.InputTimeout, errQueuedTooLong)
	defer stop()
	for {
		// Look for an earlier run first: a repeated request adds no load, so it must not be refused for lack of a slot.
		run, key, err := a.runByKey(ctx, owner, request)
		if !errors.Is(err, event.ErrNotFound) {
			return run, err
		}
		if activeID != "" && !request.runsBeside() {
			if err := a.freeThread(waitCtx, ownerOf(owner), request.ThreadID, activeID, request.OnBusy); err != nil {
				return event.Run{}, err
			}
			activeID = ""
			continue // another request with the same key may have started a run during the wait
		}
		run, err = a.startRun(ctx, owner, request, key)
		if busy, ok := errors.AsType[*event.BusyError](err); ok {
			activeID = busy.Run // OnBusy decides in the next round
			request.threadExists = true
			continue
		}
		return run, err
	}
}

// startRun starts a run of request after runByKey has found no earlier run and returned key. It returns a
// *event.BusyError if the thread has an active run. All other checks that can refuse the request come before beginRun,
// so that a refused request leaves nothing in the log.
func (a *Agent) startRun(ctx context.Context, owner auth.Identity, request Request, key string) (event.Run, error) {
	if err := a.checkToolsAvailable(ctx, owner, request); err != nil {
		return event.Run{}, err
	}
	if err := a.validateRequiredTool(ctx, owner, request); err != nil {
		return event.Run{}, err
	}

	span := trace.SpanContextFromContext(ctx)
	rec := event.Run{
		ID: a.Log.NewID(), ThreadID: request.ThreadID, TraceID: span.TraceID().String(), Owner: ownerOf(owner), Created: a.Log.Now(),
		Key: key, Fingerprint: request.Fingerprint, Request: request.Record,
		Agent: request.Agent, Background: request.Background, Metadata: request.Metadata,
	}
	r := a.newRun(trace.ContextWithSpanContext(a.ctx, span), rec, owner, request)
	r.account = a.usage.AccountOf(owner)
	if err := a.admitRun(ctx, r); err != nil {
		r.cancel(err)
		return event.Run{}, err
	}
	if err := a.beginRun(ctx, r); err != nil {
		a.discardRun(r)
		if _, ok := errors.AsType[*event.KeyError](err); ok {
			// Another request with the same key created its run after runByKey looked for one.
			run, _, err := a.runByKey(ctx, owner, request)
			return run, err
		}
		return event.Run{}, err
	}

	a.runInBackground(r)
	return a.Log.Run(ctx, rec.ID)
}

// discardRun removes a run that was registered but did not begin, so that the run does not count towards the caller's
// rate.
func (a *Agent) discardRun(r *run) {
	r.inbox.stopListening()
	r.slot.Discard()
	a.removeRun(r)
	a.runs.Done()
}

// runInBackground executes a run that was registered and has begun, in its own goroutine.
func (a *Agent) runInBackground(r *run) {
	go func() {
		defer a.runs.Done()
		a.executeRun(r, nil)
	}()
}

// beginRun writes the run, its turn in the thread, its job and its first event to the log, in this order. The turn
// precedes the job, because the job's checkpoint contains the earlier turns, which beginTurn reads. The event comes
// last: if the process died after the event but before the job, the run would never end. On success, beginRun starts
// the run's grace period.
//
// If a step fails, beginRun undoes the earlier steps as far as the log permits. The next question in the thread, or the
// process that claims the job, repairs the rest. The error is ErrDraining if this process has handed over its runs,
// wraps a *event.BusyError if the thread has another active run, and otherwise wraps the error of the step.
func (a *Agent) beginRun(ctx context.Context, r *run) error {
	if err := a.Log.Create(ctx, r.Run); err != nil {
		return fmt.Errorf("create a run: %w", err)
	}
	turnMayHaveBegun, err := r.beginTurn(ctx)
	if err == nil {
		err = r.saveCheckpoint(ctx)
	}
	if err == nil {
		err = r.appendStart(ctx)
	}
	if err == nil {
		a.awaitReader(r) // the client is about to open a reader, and even a short DisconnectGrace must leave time for that
		return nil
	}
	a.undoBegin(context.WithoutCancel(ctx), r, turnMayHaveBegun)
	switch {
	case r.relinquished() == errHandedOver:
		return ErrDraining // Drain handed over this process's runs while this one waited for the log
	case errors.Is(err, event.ErrFenced):
		// Another request with the same key waited too long for the first event, and marked this run as abandoned.
		err = event.ErrStarting
	}
	return fmt.Errorf("start a run: %w", err)
}

// undoBegin deletes a run that did not begin from the log, so that the run blocks neither its idempotency key nor its
// thread. turnMayHaveBegun is the result of beginTurn. undoBegin ignores errors: the run's own error is the one to
// return.
func (a *Agent) undoBegin(ctx context.Context, r *run, turnMayHaveBegun bool) {
	_ = a.Log.Delete(ctx, r.ID)
	if turnMayHaveBegun {
		t, err := a.Log.Thread(ctx, r.Owner, r.ThreadID)
		isOwn := err == nil && t.Active == r.ID // otherwise another process has released the thread, and may use it
		if isOwn && !r.req.threadExists {       // the thread was created for this run and would be empty
			_ = a.Log.DeleteThread(ctx, r.Owner, r.ThreadID)
		} else {
			_ = a.Log.EndTurn(ctx, r.Owner, r.ThreadID, r.ID, nil) // adds no turn, and frees the thread for other runs
		}
	}
	if r.job != nil {
		_ = r.job.Done(ctx)
	}
}

// admitRun refuses the run if a budget of its caller is used up. Otherwise it waits up to ten seconds for a slot, and
// then registers the run in Agent.active. It must come before the run is written to the log, because code that finds
// the run in the log relies on finding it here too. If admitRun returns nil, the caller must call a.runs.Done once.
func (a *Agent) admitRun(ctx context.Context, r *run) error {
	if err := a.usage.Check(ctx, r.account); err != nil {
		if errors.Is(err, usage.ErrSpent) {
			a.metrics.countRefusal(ctx, err)
		}
		return err
	}
	_, err := a.acquireSlot(ctx, r.caller, memoryOf(r.req.size()), func(slot *admission.Slot) {
		r.slot = slot
		r.memory = slot.Memory
		a.active[r.ID] = r
	})
	return err
}

// acquireSlot waits up to ten seconds for one of caller's slots and for requestBytes of memory. Then it adds 1 to
// a.runs, which Drain waits for, and calls register with a.mu held. The caller of acquireSlot must release the slot and
// call a.runs.Done. The error is ErrDraining or a *Refusal; acquireSlot counts refusals in the metrics.
func (a *Agent) acquireSlot(ctx context.Context, caller auth.Identity, requestBytes int64, register func(*admission.Slot)) (*admission.Slot, error) {
	slot, err := a.gate.Acquire(ctx, caller.Key(), requestBytes)
	if err == nil && !a.registerWork(slot, register) {
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

// registerWork adds 1 to a.runs and calls register, both with a.mu held. After StopAccepting it does neither and
// returns false.
func (a *Agent) registerWork(slot *admission.Slot, register func(*admission.Slot)) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.accepting.Err() != nil {
		return false
	}
	a.runs.Add(1)
	register(slot)
	return true
}

// runByKey returns the run that an earlier request with request's idempotency key started. If no request did, the error
// is event.ErrNotFound, and the new run must be created with key, which is "" if request has no idempotency key. If the
// earlier request had another body or path, the error is ErrKeyReused or ErrKeyElsewhere.
//
// A run that was cancelled because it had no reader has no answer, so a second request with its idempotency key starts
// a new run. The abandoned run keeps the key. The new run's key is derived from the idempotency key and the abandoned
// run's id, so that all processes that share the log find the same new run.
func (a *Agent) runByKey(ctx context.Context, owner auth.Identity, request Request) (run event.Run, key string, err error) {
	if request.IdempotencyKey == "" {
		return event.Run{}, "", event.ErrNotFound
	}
	key = request.IdempotencyKey
	for { // each iteration skips one abandoned run that the log still has
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
		end, wasCancelled := run.Last.Body.(event.Cancelled)
		isAbandoned := wasCancelled && end.Reason == errAbandoned.Error()
		if !isAbandoned {
			return run, key, nil
		}
		key = request.IdempotencyKey + "\n" + run.ID // a client's key never contains a line feed
	}
}

// awaitAbandoned returns run unchanged, unless this process is cancelling it for lack of readers. In that case it waits
// for the run's terminal event and returns the run as the log then has it. The error is the cause of ctx, or comes from
// the log.
func (a *Agent) awaitAbandoned(ctx context.Context, run event.Run) (event.Run, error) {
	active := a.activeRun(run.ID)
	if active == nil || !errors.Is(context.Cause(active.ctx), errAbandoned) {
		return run, nil
	}
	if err := thread.AwaitEnd(ctx, a.Log, run.ID, nil); err != nil {
		return run, err
	}
	return a.Log.Run(ctx, run.ID)
}

// validateRequest fills in request's missing settings from its agent and the service's defaults, lowers its limits to
// theirs, and returns an error if the request cannot be run.
func (a *Agent) validateRequest(owner auth.Identity, request *Request) error {
	if request.Hops > MaxHops {
		return ErrTooManyHops
	}
	if err := a.applyAgent(owner, request); err != nil {
		return err
	}
	defaultModel, profiles := a.Models()
	request.Model = cmp.Or(request.Model, defaultModel)
	if _, served := profiles[request.Model]; !served && len(profiles) > 0 {
		return errUnknownModel
	}
	if !a.MayUseModel(owner, request.Model) {
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
		request.ThreadID = newID("thr")
		request.newThread = true
	} else if request.History == nil && request.parent.Run == "" { // a child run adds no turn to the thread
		request.ContinueThread = true
	}
	request.MaxTurns = budget.Lower(request.MaxTurns, a.MaxTurns)
	if err := a.validateCostLimit(*request); err != nil {
		return err
	}
	request.Budget = request.Budget.Within(a.budgetLimits(request.namedAgent))
	return a.validateServersAndTools(owner, *request)
}

// validateOutputSchema returns an error unless raw is a JSON Schema that answers can be checked against. Empty raw
// means that the request has no schema, which is valid.
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

// validateServersAndTools returns an *InvalidError if the request names a server that does not exist or that the access
// rules hide from owner, or if a tool pattern is malformed. A pattern that matches no tool is valid.
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

// validateRequiredTool refuses a request whose ForcedTool or one of whose AllowedTools is not offered to the model,
// because the model's endpoint would refuse it with a less clear message, or the model would lack the tool. It also
// refuses ToolRequired if the model is offered no tools, because the endpoint would then answer without a call.
func (a *Agent) validateRequiredTool(ctx context.Context, caller auth.Identity, request Request) error {
	if request.ForcedTool == "" && request.ToolChoice != ToolRequired && len(request.AllowedTools) == 0 {
		return nil
	}
	serverTools := request.namedAgent.catalogFor(a.ToolsFor(ctx, caller), request)
	asks := a.askTools(caller, request)
	isServiceTool := func(name string) bool {
		_, isServerTool := serverTools.ByName[name]
		return isServerTool || hasAskTool(asks, name)
	}
	for _, name := range request.AllowedTools {
		if !isServiceTool(name) {
			return &InvalidError{"/tool_choice", "there is no tool called " + name}
		}
	}
	if request.ForcedTool != "" {
		isForced := func(t ClientTool) bool { return t.Name == request.ForcedTool }
		isClientTool := slices.ContainsFunc(request.clientTools(serverTools, nil, asks), isForced)
		if !isClientTool && !isServiceTool(request.ForcedTool) {
			return &InvalidError{"/tool_choice", "there is no tool of this name"}
		}
		return nil
	}
	toolCount := len(serverTools.Tools) + len(request.ClientTools) + len(asks)
	if request.ToolChoice == ToolRequired && toolCount == 0 {
		return &InvalidError{"/tool_choice", "no tool can be called"}
	}
	return nil
}

// validateAttachments returns an *InvalidError for the first attachment that the model does not accept. It checks only
// requests with OnlyAcceptedMedia.
func (a *Agent) validateAttachments(request Request) error {
	if !request.OnlyAcceptedMedia || len(request.Media) == 0 {
		return nil
	}
	profile := a.profileOf(request.Model)
	for i, m := range request.Media {
		if !attachment.Accepts(profile, m) {
			detail := fmt.Sprintf("the model %s does not take %s; it takes %s", request.Model, m.MIME, attachment.Accepted(profile))
			return &InvalidError{fmt.Sprintf("/attachments/%d", i), detail}
		}
	}
	return nil
}

// validateCostLimit returns an *InvalidError if the cost is limited but the model has no price, because the limit would
// then never be reached. The request, the service, the agent or a budget of the callers may limit the cost.
func (a *Agent) validateCostLimit(request Request) error {
	switch {
	case a.priceOf(request.Model) != nil:
		return nil
	case request.Budget.Cost > 0:
		return &InvalidError{"/budget/cost", "no price is configured for this model"}
	case a.budgetLimits(request.namedAgent).Cost > 0:
		return &InvalidError{"/model", "no price is configured for this model, and the cost of every run is limited"}
	case a.usage.LimitsCost():
		return &InvalidError{"/model", "no price is configured for this model, and the cost of every caller is limited"}
	}
	return nil
}
