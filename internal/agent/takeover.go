package agent

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"time"

	"go.opentelemetry.io/otel/propagation"

	"answerd/internal/agent/definition"
	"answerd/internal/agent/delivery"
	"answerd/internal/agent/replay"
	"answerd/internal/agent/usage"
	"answerd/internal/auth"
	"answerd/internal/event"
)

// Takeover: how a run continues in another process.
//
// If the log outlives the process (Options.Durable), every run has a job in the log. The job
// contains the run's checkpoint, and has a lease that the executing process renews. A process
// stops executing a run that has not ended in one of three ways:
//
//   - It relinquishes the run: it seals its writer, writes NoteLeft, and releases the job, or
//     parks the job until a person answers.
//   - It dies. Its lease ends, and another process claims the job.
//   - It loses its lease, for example after a long pause. The log then refuses its events
//     (event.ErrFenced), since another process writes the run.
//
// The other process claims the job, reads the checkpoint and the events, and replays the run up to the point where it
// stopped. So each event occurs once, and a tool call that must not be repeated is not sent again.

const (
	// maxCrashes bounds how many processes may die while they execute a run, because the run itself may be the cause.
	maxCrashes = 5
	// claimRetry is the pause between a failed claim and the next claim.
	claimRetry = time.Second
)

// releaseTimeout bounds the use of the log when a run is taken over, released or ended after a panic, and at the end of
// Drain. It exceeds the log's own timeout for an append.
const releaseTimeout = 40 * time.Second

// claimWorkers is how many jobs are claimed at the same time. A claim can take long, because the log must find out
// whether the process before is alive. Other jobs must not wait for that.
const claimWorkers = 4

// errJobLost means that the log has lost the job of a run, and perhaps events too. No process continues the run,
// because it could make calls again that were made already.
var errJobLost = errors.New("the log has lost the job of the run")

// unrecoverableError reports that no process can continue a run.
type unrecoverableError struct {
	public string // the message of the run's terminal event
	err    error  // the reason, for the log
}

func (e *unrecoverableError) Error() string { return "go on with a run: " + e.err.Error() }

func (e *unrecoverableError) Unwrap() error { return e.err }

// checkpoint holds what another process needs to execute the run and readers do not see. It does not contain the
// caller's token, which was given to one process only. It contains the caller's scopes and claims only if there are
// rules, which need them; without rules, the only claim is that of CostClaim, in Account.
type checkpoint struct {
	Version     int     `json:"version"`
	Request     Request `json:"request"`
	TraceParent string  `json:"traceparent,omitempty"`

	Agent  *definition.Agent `json:"agent,omitempty"` // the definition at the start of the run; nil without AGENTS_FILE
	Parent parentCall        `json:"parent,omitzero"`
	Thread []Message         `json:"thread,omitempty"` // the earlier turns that the run has read
	Beside bool              `json:"beside,omitempty"` // run.isBeside

	Account usage.Account `json:"account,omitzero"`
	Group   string        `json:"group,omitempty"` // of the caller, for the limits of the process that takes over

	Scopes []string                   `json:"scopes,omitempty"`
	Claims map[string]json.RawMessage `json:"claims,omitempty"`
}

// checkpointVersion must be raised when an older process cannot read the checkpoint of a newer process.
const checkpointVersion = 1

// saveCheckpoint creates the job of the run with its checkpoint, sets r.job, and starts to receive inputs. Without a
// durable log it does nothing.
func (r *run) saveCheckpoint(ctx context.Context) error {
	if !r.agent.Durable {
		return nil
	}
	saved := checkpoint{Version: checkpointVersion, Request: r.req, Account: r.account, Group: r.caller.Group}
	// The run's record (event.Run) has these three.
	saved.Request.IdempotencyKey = ""
	saved.Request.Fingerprint = [32]byte{}
	saved.Request.Record = nil
	saved.Thread = r.req.earlier
	saved.Beside = r.isBeside
	saved.Parent = r.req.parent
	if r.req.Agent != "" {
		saved.Agent = &r.req.namedAgent.Agent
	}
	if r.agent.Rules != nil {
		saved.Scopes, saved.Claims = r.caller.Scopes, r.caller.Claims
	}
	carrier := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(r.ctx, carrier)
	saved.TraceParent = carrier["traceparent"]
	encoded, err := json.Marshal(saved)
	if err != nil {
		return fmt.Errorf("encode a checkpoint: %w", err)
	}
	if r.job, err = r.agent.Log.CreateJob(ctx, r.ID, encoded); err != nil {
		return fmt.Errorf("create the job of a run: %w", err)
	}
	r.inbox.startListening()
	return nil
}

// decodeCheckpoint decodes the checkpoint that another process saved. If the job has none, it returns errJobLost. A
// panic becomes an error, since the run would otherwise crash each process that claims it.
func decodeCheckpoint(encoded []byte) (saved checkpoint, err error) {
	defer recoverTo(&err)
	if len(encoded) == 0 {
		return saved, errJobLost
	}
	if err := json.Unmarshal(encoded, &saved); err != nil {
		return saved, fmt.Errorf("decode a checkpoint: %w", err)
	}
	if saved.Version != checkpointVersion {
		return saved, fmt.Errorf("a checkpoint of version %d, want %d", saved.Version, checkpointVersion)
	}
	return saved, nil
}

// claimLoop claims jobs and continues their runs until ctx ends: runs of processes that died or are shutting down,
// parked runs whose question was answered or has expired, and deliveries.
func (a *Agent) claimLoop(ctx context.Context) {
	waitFor(ctx, a.ClaimDelay)
	for a.awaitFreeSlot(ctx) {
		job, err := a.claimJob(ctx)
		if err == nil {
			a.resumeClaimed(job)
			continue
		}
		if ctx.Err() == nil {
			a.Logger.LogAttrs(ctx, slog.LevelWarn, "failed to claim a run", errorAttrs(err)...)
		}
		waitFor(ctx, claimRetry)
	}
}

// claimJob waits for a job and claims it. A panic in the log becomes an error, since it would otherwise end the process
// with all its runs.
func (a *Agent) claimJob(ctx context.Context) (_ event.Job, err error) {
	defer recoverTo(&err)
	return a.Log.Claim(ctx)
}

// awaitFreeSlot waits until this process has a free slot for a claimed run. It reports false if ctx ends first.
func (a *Agent) awaitFreeSlot(ctx context.Context) bool {
	for {
		if a.gate.HasFreeSlot() {
			return ctx.Err() == nil
		}
		select {
		case <-a.gate.Freed():
		case <-ctx.Done():
			return false
		}
	}
}

// resumeClaimed continues the run of a claimed job, or makes the next attempt of a delivery. It does not wait for
// either.
func (a *Agent) resumeClaimed(job event.Job) {
	if delivery.IsDelivery(job.Run()) {
		a.Deliveries.Resume(job)
		return
	}
	a.runs.Go(func() {
		r, badCheckpoint, err := a.loadClaimed(job)
		if err != nil {
			a.Logger.LogAttrs(a.ctx, slog.LevelWarn, "failed to load a claimed run", append(errorAttrs(err), slog.String("run_id", job.Run()))...)
			waitFor(a.ctx, claimRetry) // a job that is released can be claimed again at once
		}
		if r == nil { // after an error, or because the agent is draining
			a.releaseClaim(job)
			return
		}
		restoreErr := r.restoreFromLog(badCheckpoint)
		if errors.Is(restoreErr, event.ErrUnavailable) {
			// The log may answer another attempt, here or in another process. executeRun then releases the job.
			r.relinquish(errHandedOver)
		}
		a.awaitReader(r)
		a.executeRun(r, restoreErr)
	})
}

// loadClaimed creates the run of a claimed job from its record and checkpoint, and registers it as executed here,
// whether or not a slot is free. It returns a nil run with an error, and without one if the agent is draining.
// badCheckpoint says why the checkpoint cannot be used; the run is registered even then, so that it gets a terminal
// event.
func (a *Agent) loadClaimed(job event.Job) (_ *run, badCheckpoint, err error) {
	defer recoverTo(&err)
	ctx, cancel := context.WithTimeout(context.Background(), releaseTimeout)
	rec, err := a.Log.Run(ctx, job.Run())
	cancel()
	if err != nil {
		return nil, nil, fmt.Errorf("read the record of a run: %w", err)
	}
	saved, badCheckpoint := decodeCheckpoint(job.Request())
	named, agentErr := a.restoreAgent(saved.Agent)
	badCheckpoint = cmp.Or(badCheckpoint, agentErr) // the first that is not nil
	saved.Request.namedAgent = named
	saved.Request.parent = saved.Parent
	saved.Request.earlier = saved.Thread
	parent := propagation.TraceContext{}.Extract(a.ctx, propagation.MapCarrier{"traceparent": saved.TraceParent})
	caller := auth.Identity{Issuer: rec.Owner.Issuer, Subject: rec.Owner.Subject, Group: saved.Group, Scopes: saved.Scopes, Claims: saved.Claims}
	r := a.newRun(parent, rec, caller, saved.Request)
	r.job = job
	r.account = saved.Account
	r.isBeside = saved.Beside
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.draining {
		r.cancel(nil)
		return nil, nil, nil
	}
	a.active[r.ID] = r
	r.slot = a.gate.AcquireOverLimit(r.caller.Key(), memoryOf(r.req.size()))
	r.memory = r.slot.Memory
	return r, badCheckpoint, nil
}

// releaseClaim releases a job that was claimed but whose run was not started here. An error is only logged, since the
// lease of the job ends anyway.
func (a *Agent) releaseClaim(job event.Job) {
	ctx, cancel := context.WithTimeout(context.Background(), releaseTimeout)
	defer cancel()
	if err := catchPanic(func() error { return job.Release(ctx) }); err != nil {
		a.Logger.Warn("failed to release a run", "run_id", job.Run(), "error", err)
	}
}

// restoreFromLog reads what the run did so far and prepares it to continue: it sets r.out, r.threadTurn and r.replayed,
// and starts to receive inputs. If the process before died before the start event, it appends that event.
//
// Its error says why the run cannot continue here: *unrecoverableError or errJobLost if no process can continue it. It
// does not stop when the run's context ends, because a cancelled run needs its state to close what is open. A panic
// becomes an error, since the run would otherwise crash each process that claims it.
func (r *run) restoreFromLog(badCheckpoint error) (err error) {
	defer recoverTo(&err)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.ctx), releaseTimeout)
	defer cancel()
	events, readErr := r.agent.allEvents(ctx, r.ID)
	if readErr == nil && len(events) == 0 && badCheckpoint == nil {
		return r.startClaimed(ctx)
	}
	if readErr == nil {
		readErr = r.continueWriting(events)
	}
	if err := whyUnrecoverable(readErr, badCheckpoint); err != nil {
		return err
	}
	if len(events) == 1 { // its process may have died before the log stored the turn (event.Log.BeginThread)
		if err := r.repairTurn(ctx); err != nil {
			return err
		}
	}
	if err := r.restoreState(ctx, events); err != nil {
		return err
	}
	if r.req.Awaited && r.replayed.Suspended {
		// At the first suspension, the caller was asked to fetch the answer later. Since then the run needs no reader.
		r.agent.mu.Lock()
		r.Background = true
		r.agent.mu.Unlock()
	}
	r.agent.Logger.InfoContext(ctx, "run taken over",
		"run_id", r.ID, "attempt", r.job.Attempt(), "events", len(events), "steps", len(r.replayed.Steps))
	return nil
}

// restoreState stores that this process takes the run over, sets r.replayed from events, all events of the run so far,
// and from its notes and inputs, and starts to receive inputs. It returns an *unrecoverableError for a run that its
// process was ending for a reason that the log does not have.
func (r *run) restoreState(ctx context.Context, events []event.Event) error {
	notes, err := r.beginAttempt(ctx, events)
	if err != nil {
		return err
	}
	// The inputs are read before the inbox starts to listen, because its goroutine calls receiveAvailable too, and only
	// one goroutine may call it at a time.
	inputs, _, err := r.inbox.receiveAvailable(ctx)
	if err != nil {
		return fmt.Errorf("read the inputs of a run: %w", err)
	}
	r.inbox.startListening()
	r.replayed = replay.Read(events, notes, inputs)
	hasCause := r.replayed.End != nil || r.replayed.Abort != nil || context.Cause(r.ctx) != nil
	if r.replayed.Ending && !hasCause {
		return &unrecoverableError{"The process that executed the run died while it ended it.", errors.New("its end has no cause")}
	}
	return nil
}

// startClaimed starts a run that has a job and no event, because its process died between the two.
func (r *run) startClaimed(ctx context.Context) error {
	r.inbox.startListening()
	if err := r.repairTurn(ctx); err != nil {
		return err
	}
	return r.appendStart(ctx)
}

// beginAttempt reads the notes of the run, returns them, and stores that this process takes the run over. If too many
// processes have died while they executed the run, it returns an *unrecoverableError and sets r.replayed, which
// cancelChildren needs.
func (r *run) beginAttempt(ctx context.Context, events []event.Event) ([]event.Note, error) {
	notes, err := r.agent.Log.Notes(ctx, r.ID)
	if err != nil {
		return nil, fmt.Errorf("read the notes of a run: %w", err)
	}
	if n := replay.Crashes(notes); n >= maxCrashes {
		r.replayed = replay.Read(events, notes, nil)
		return nil, &unrecoverableError{"The run was given up, since it was cut short too often.", fmt.Errorf("%d processes died with it", n)}
	}
	// The note counts this process (replay.Crashes), so it comes before the run does anything that could crash the
	// process. A process that has lost the run again fails here with ErrFenced.
	return notes, r.writeNote(ctx, replay.NoteTaken)
}

// continueWriting replaces the writer of the run by one that continues after events, all events of the run so far, and
// adds the events to the run's turn of the thread. It returns an error if the events are not in a valid order.
func (r *run) continueWriting(events []event.Event) (err error) {
	for _, e := range events {
		r.threadTurn.Add(e.Body)
	}
	if r.out, err = event.WriterAfter(r.agent.Log, r.ID, events); err != nil {
		return err
	}
	r.out.Observe(r.threadTurn.Add)
	return nil
}

// whyUnrecoverable returns the reason why a run cannot continue here; nil if it can. err is the error of reading its
// events, and badCheckpoint that of reading its checkpoint. If the log does not answer, the reason is err itself, and
// another attempt may succeed.
func whyUnrecoverable(err, badCheckpoint error) error {
	switch {
	case errors.Is(err, event.ErrUnavailable):
		return err
	case errors.Is(badCheckpoint, errJobLost):
		return badCheckpoint
	case errors.Is(err, event.ErrGone):
		return &unrecoverableError{"What the run did so far is no longer kept.", err}
	case err != nil:
		return &unrecoverableError{"What the run did so far cannot be read.", err}
	case badCheckpoint != nil:
		return &unrecoverableError{"What was asked cannot be read.", badCheckpoint}
	}
	return nil
}

// repairTurn begins the turn of a run if its thread does not exist: the process that began the run died before the log
// had stored the thread. If the thread exists, the turn was begun, and may have ended by now. It does nothing for a
// child run, which has no turn. It returns an error only if the log does not answer.
func (r *run) repairTurn(ctx context.Context) error {
	if r.req.parent.Run != "" {
		return nil
	}
	_, err := r.agent.threads().Get(ctx, r.Owner, r.ThreadID)
	if errors.Is(err, event.ErrNotFound) {
		_, err = r.agent.threads().Begin(ctx, r.Run, r.req.title())
	}
	if errors.Is(err, event.ErrUnavailable) {
		return fmt.Errorf("begin the turn of a run: %w", err)
	}
	return nil
}

// releaseJob gives the job of a run that did not end here back to the log. A run that waits for a person is parked
// until a person answers or a question expires, unless an answer has arrived already. An answer that comes after
// pendingInput has looked has a position after pos, so the log makes the job available again. Errors are only logged.
//
// NoteLeft comes first: without it, the next process counts this process as having died (replay.Crashes).
func (a *Agent) releaseJob(r *run) {
	ctx, cancel := context.WithTimeout(context.Background(), releaseTimeout)
	defer cancel()
	err := r.writeNote(ctx, replay.NoteLeft)
	pos, pending := a.pendingInput(ctx, r)
	switch {
	case errors.Is(err, event.ErrFenced): // another process executes the run already, so the error is expected
		err = r.job.Release(ctx)
	case r.relinquished() == errParked && !pending:
		err = errors.Join(err, r.job.Park(ctx, pos, r.suspension.earliestExpiry()))
	default:
		err = errors.Join(err, r.job.Release(ctx))
	}
	if err != nil {
		// The lease will end, and another process will find the job.
		a.Logger.WarnContext(ctx, "failed to release a run", "run_id", r.ID, "error", err)
	}
}

// pendingInput reports whether the log has an input that the run has not processed: an answer to an open question, the
// end of a child run, or a cancellation. No input up to position pos is pending. If the log does not answer,
// pendingInput reports true, because the process that continues the run checks again.
func (a *Agent) pendingInput(ctx context.Context, r *run) (pos int64, pending bool) {
	awaited := r.suspension.awaitedInputs()
	for {
		page, err := a.Log.Inputs(ctx, r.ID, pos)
		if err != nil {
			return pos, true
		}
		if len(page.Inputs) == 0 {
			return pos, false
		}
		for _, in := range page.Inputs {
			if awaited[in.ID] || in.ID == event.CancelID {
				return pos, true
			}
			pos = in.Pos
		}
	}
}

// HandingOver returns a channel that is closed when Drain hands runs over to other processes. From then on, readers
// should continue in another process.
func (a *Agent) HandingOver() <-chan struct{} { return a.handingOver }

// handOverRuns relinquishes all runs of this process, closes handingOver, and makes registerChild refuse children.
func (a *Agent) handOverRuns() {
	a.handOverOnce.Do(func() { close(a.handingOver) })
	a.mu.Lock()
	a.handedOver = true
	runs := slices.Collect(maps.Values(a.active))
	a.mu.Unlock()
	for _, r := range runs {
		r.relinquish(errHandedOver)
	}
}

// Drain refuses new runs and direct calls, and waits until all runs have ended or are suspended and no direct call is
// in flight, but not longer than until ctx ends. It does not wait for suspended runs to end, because a person may need
// more time than a process has. Then it hands the remaining runs over to other processes if the log is durable;
// otherwise it ends each with a terminal event. It returns when the goroutines of all runs have ended, deliveries are
// drained and the counts of usage are stored.
func (a *Agent) Drain(ctx context.Context) {
	a.StopAccepting()
	if a.Durable {
		a.endClaims() // otherwise this process would claim the runs that it hands over
	}
	for !a.isIdle() && ctx.Err() == nil {
		select {
		case <-a.idleSignal:
		case <-ctx.Done():
		}
	}
	if a.Durable {
		// Hand over before stop: only the first cause of a context counts, and after errShutdown the runs would end here.
		a.handOverRuns()
	}
	a.stop(errShutdown)
	a.runs.Wait()
	a.Deliveries.Drain(ctx)
	a.endClaims() // without a durable log, deliveries were claimed until here
	flushing, cancel := context.WithTimeout(context.Background(), releaseTimeout)
	defer cancel()
	a.usage.Flush(flushing)
}

// endClaims ends the goroutines of claimLoop, and returns when they have ended. It may be called again.
func (a *Agent) endClaims() {
	a.stopClaims()
	a.claiming.Wait()
}
