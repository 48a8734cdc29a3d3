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
// If the log outlives the process (Options.Durable), the log has a job for every run. The job contains the run's
// checkpoint, and has a lease that the executing process renews. A process stops executing a run that has not ended in
// one of three ways:
//
//   - It relinquishes the run: it seals its writer, writes NoteLeft, and releases the job, or parks the job until a
//     person answers.
//   - It dies. Its lease expires, and another process claims the job.
//   - It loses its lease, for example after a long pause. The log then refuses its events (event.ErrFenced), since another
//     process appends the run's events now.
//
// The other process claims the job, reads the checkpoint and the events, and replays the run up to the point where it
// stopped. So each event occurs once, and a tool call that must not be repeated is not sent again.

const (
	// maxCrashes is how many processes may die while executing the same run, because the run itself may be the cause.
	maxCrashes = 5
	// claimRetry is how long claimLoop waits after a failed claim.
	claimRetry = time.Second
)

// releaseTimeout limits the use of the log when a run is taken over, released or ended after a panic, and at the end of
// Drain. It is longer than the log's own timeout for an append.
const releaseTimeout = 40 * time.Second

// claimWorkers is how many jobs are claimed concurrently. A claim can take long, because the log must find out whether
// the previous process is alive, and other jobs must not wait for that.
const claimWorkers = 4

// errJobLost means that the log has lost a run's job, and perhaps also events. No process continues the run, because it
// could repeat calls that were made already.
var errJobLost = errors.New("the log has lost the job of the run")

// unrecoverableError reports that no process can continue a run.
type unrecoverableError struct {
	public string // the message of the run's terminal event
	err    error  // the reason, for the process's log
}

func (e *unrecoverableError) Error() string { return "go on with a run: " + e.err.Error() }

func (e *unrecoverableError) Unwrap() error { return e.err }

// checkpoint holds what another process needs to execute the run, and what readers must not see. It does not contain
// the caller's access token, which was given to one process only. It contains the caller's scopes and claims only if
// there are access rules, which need them. Without rules, its only claim is that of CostClaim, in Account.
type checkpoint struct {
	Version     int     `json:"version"`
	Request     Request `json:"request"`
	TraceParent string  `json:"traceparent,omitempty"`

	Agent  *definition.Agent `json:"agent,omitempty"` // the definition when the run started; nil without AGENTS_FILE
	Parent parentCall        `json:"parent,omitzero"`
	Thread []Message         `json:"thread,omitempty"` // the earlier turns, as the run read them
	Beside bool              `json:"beside,omitempty"` // run.isBeside

	Account usage.Account `json:"account,omitzero"`
	Group   string        `json:"group,omitempty"` // the caller's group, for the limits of the process that takes over

	Scopes []string                   `json:"scopes,omitempty"`
	Claims map[string]json.RawMessage `json:"claims,omitempty"`
}

// checkpointVersion must be raised when older processes can no longer read the checkpoints of newer ones.
const checkpointVersion = 1

// saveCheckpoint creates the run's job with its checkpoint, sets r.job, and starts to receive inputs. It does nothing
// if the log is not durable.
func (r *run) saveCheckpoint(ctx context.Context) error {
	if !r.agent.Durable {
		return nil
	}
	encoded, err := json.Marshal(r.checkpoint())
	if err != nil {
		return fmt.Errorf("encode a checkpoint: %w", err)
	}
	if r.job, err = r.agent.Log.CreateJob(ctx, r.ID, encoded); err != nil {
		return fmt.Errorf("create the job of a run: %w", err)
	}
	r.inbox.startListening()
	return nil
}

// checkpoint returns the run's checkpoint. It leaves out what the run's record has (event.Run).
func (r *run) checkpoint() checkpoint {
	carrier := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(r.ctx, carrier)
	saved := checkpoint{
		Version: checkpointVersion, Request: r.req, TraceParent: carrier["traceparent"],
		Parent: r.req.parent, Thread: r.req.earlier, Beside: r.isBeside, Account: r.account, Group: r.caller.Group,
	}
	saved.Request.IdempotencyKey = ""
	saved.Request.Fingerprint = [32]byte{}
	saved.Request.Record = nil
	if r.req.Agent != "" {
		saved.Agent = &r.req.namedAgent.Agent
	}
	if r.agent.Rules != nil {
		saved.Scopes = r.caller.Scopes
		saved.Claims = r.caller.Claims
	}
	return saved
}

// decodeCheckpoint decodes a checkpoint that another process saved. If the job has none, the error is errJobLost. A
// panic becomes an error, since the run would otherwise crash every process that claims it.
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

// claimLoop claims jobs and continues their runs until ctx ends. These are runs of processes that died or are shutting
// down, parked runs whose question was answered or has expired, and deliveries.
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

// awaitFreeSlot waits until this process has a free slot for a claimed run. It returns false if ctx ends first.
func (a *Agent) awaitFreeSlot(ctx context.Context) bool {
	for !a.gate.HasFreeSlot() && ctx.Err() == nil {
		select {
		case <-a.gate.Freed():
		case <-ctx.Done():
		}
	}
	return ctx.Err() == nil
}

// resumeClaimed continues the run of a claimed job, or makes the next attempt if the job is a delivery. It does not
// wait for either.
func (a *Agent) resumeClaimed(job event.Job) {
	if delivery.IsDelivery(job.Run()) {
		a.Deliveries.Resume(job)
		return
	}
	a.runs.Go(func() {
		r, badCheckpoint, err := a.loadClaimed(job)
		if err != nil {
			a.Logger.LogAttrs(a.ctx, slog.LevelWarn, "failed to load a claimed run", append(errorAttrs(err), slog.String("run_id", job.Run()))...)
			waitFor(a.ctx, claimRetry) // a released job can be claimed again at once
		}
		isRegistered := r != nil // false after an error, and if the agent is draining
		if !isRegistered {
			a.releaseClaim(job)
			return
		}
		restoreErr := r.restoreFromLog(badCheckpoint)
		if errors.Is(restoreErr, event.ErrUnavailable) {
			// Another attempt may succeed, here or in another process. executeRun then releases the job.
			r.relinquish(errHandedOver)
		}
		a.awaitReader(r)
		a.executeRun(r, restoreErr)
	})
}

// loadClaimed creates the run of a claimed job from its record and checkpoint, and adds it to Agent.active, whether or
// not a slot is free. It returns a nil run after an error, and also, without an error, if the agent is draining.
// badCheckpoint says why the checkpoint cannot be used; the run is returned even then, so that it gets a terminal
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
	badCheckpoint = cmp.Or(badCheckpoint, agentErr) // the first non-nil error
	r := a.restoreRun(rec, saved, named)
	r.job = job
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.accepting.Err() != nil {
		r.cancel(nil)
		return nil, nil, nil
	}
	r.registerOverLimitLocked()
	return r, badCheckpoint, nil
}

// restoreRun returns the run with this record and checkpoint. It is not executed yet, as after newRun.
func (a *Agent) restoreRun(rec event.Run, saved checkpoint, agent *namedAgent) *run {
	saved.Request.namedAgent = agent
	saved.Request.parent = saved.Parent
	saved.Request.earlier = saved.Thread
	parent := propagation.TraceContext{}.Extract(a.ctx, propagation.MapCarrier{"traceparent": saved.TraceParent})
	caller := auth.Identity{Issuer: rec.Owner.Issuer, Subject: rec.Owner.Subject, Group: saved.Group, Scopes: saved.Scopes, Claims: saved.Claims}
	r := a.newRun(parent, rec, caller, saved.Request)
	r.account = saved.Account
	r.isBeside = saved.Beside
	return r
}

// releaseClaim releases a claimed job whose run was not started here. It only logs an error, since the job's lease
// expires anyway.
func (a *Agent) releaseClaim(job event.Job) {
	ctx, cancel := context.WithTimeout(context.Background(), releaseTimeout)
	defer cancel()
	if err := catchPanic(func() error { return job.Release(ctx) }); err != nil {
		a.Logger.Warn("failed to release a run", "run_id", job.Run(), "error", err)
	}
}

// restoreFromLog reads what the run did so far, and prepares the run to continue. It sets r.out, r.threadTurn and
// r.replayed, and starts to receive inputs. If the earlier process died before the start event, restoreFromLog appends
// that event.
//
// The error says why the run cannot continue here; it is an *unrecoverableError or errJobLost if no process can
// continue it. badCheckpoint is the result of loadClaimed. restoreFromLog does not stop when the run's context ends,
// because a cancelled run needs its state to close what is open. A panic becomes an error, since the run would
// otherwise crash every process that claims it.
func (r *run) restoreFromLog(badCheckpoint error) (err error) {
	defer recoverTo(&err)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.ctx), releaseTimeout)
	defer cancel()
	events, err := event.ReadAll(ctx, r.agent.Log, r.ID)
	switch {
	case err != nil:
		err = fmt.Errorf("read the events of a run: %w", err)
	case len(events) == 0 && badCheckpoint == nil:
		return r.startClaimed(ctx)
	default:
		err = r.continueWriting(events)
	}
	if err := whyUnrecoverable(err, badCheckpoint); err != nil {
		return err
	}
	if len(events) == 1 { // the earlier process may have died before the log stored the turn (event.Log.BeginThread)
		if err := r.repairTurn(ctx); err != nil {
			return err
		}
	}
	if err := r.restoreState(ctx, events); err != nil {
		return err
	}
	if r.req.Awaited && r.replayed.Suspended {
		// When the run was first suspended, the client was asked to fetch the answer later. Since then, the run needs
		// no reader.
		r.agent.mu.Lock()
		r.Background = true
		r.agent.mu.Unlock()
	}
	r.agent.Logger.InfoContext(ctx, "run taken over",
		"run_id", r.ID, "attempt", r.job.Attempt(), "events", len(events), "steps", len(r.replayed.Steps))
	return nil
}

// restoreState stores a note that this process takes over the run, sets r.replayed from the run's notes, inputs and
// events, and starts to receive inputs. events must be all events so far. It returns an *unrecoverableError if the
// earlier process was ending the run for a reason that the log does not have.
func (r *run) restoreState(ctx context.Context, events []event.Event) error {
	notes, err := r.beginAttempt(ctx, events)
	if err != nil {
		return err
	}
	// Read the inputs before the inbox starts to listen: the inbox's goroutine also calls receiveAvailable, which only
	// one goroutine at a time may call.
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

// startClaimed starts a run that has a job but no event, because the earlier process died between the two. An error
// comes from the log.
func (r *run) startClaimed(ctx context.Context) error {
	r.inbox.startListening()
	if err := r.repairTurn(ctx); err != nil {
		return err
	}
	return r.appendStart(ctx)
}

// beginAttempt returns the run's notes, and adds one which says that this process takes over the run. If too many
// processes have died while executing the run, it returns an *unrecoverableError instead, and sets r.replayed, which
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
	// The note counts this process (replay.Crashes), so write it before the run does anything that could crash the
	// process. If this process has lost the run again, the note fails with ErrFenced.
	return notes, r.writeNote(ctx, replay.NoteTaken)
}

// continueWriting replaces r.out by a writer that continues after events, which must be all events so far. It also adds
// them to the run's turn of the thread. It returns an error if the order of events is invalid.
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

// whyUnrecoverable returns why a run cannot continue here, or nil if it can. err is the error from reading its events,
// and badCheckpoint the error from reading its checkpoint. If the log is unavailable, it returns err itself, and
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

// repairTurn begins the run's turn if its thread does not exist, because the process that began the run died before the
// log stored the thread. If the thread exists, the turn was begun, and may have ended by now. It does nothing for a
// child run, which has no turn. It returns an error only if the log is unavailable.
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

// releaseJob returns the job of a run that did not end here to the log. If the run waits for a person and no answer has
// arrived yet, the job is parked until a person answers or a question expires. An answer that arrives after
// unprocessedInput has looked has a position after pos, so the log makes the job available again. Errors are only
// logged.
//
// NoteLeft comes first: without it, the next process would count this process as having died (replay.Crashes).
func (a *Agent) releaseJob(r *run) {
	ctx, cancel := context.WithTimeout(context.Background(), releaseTimeout)
	defer cancel()
	err := r.writeNote(ctx, replay.NoteLeft)
	pos, hasInput := r.unprocessedInput(ctx)
	switch {
	case errors.Is(err, event.ErrFenced): // expected: another process already executes the run
		err = r.job.Release(ctx)
	case r.relinquished() == errParked && !hasInput:
		err = errors.Join(err, r.job.Park(ctx, pos, r.suspension.earliestExpiry()))
	default:
		err = errors.Join(err, r.job.Release(ctx))
	}
	if err != nil {
		// The lease expires, and another process finds the job.
		a.Logger.WarnContext(ctx, "failed to release a run", "run_id", r.ID, "error", err)
	}
}

// unprocessedInput reports whether the log has an input that the run has not processed: an answer to an open question,
// the end of a child run, or a cancellation. The inputs up to the position pos are processed. If the log fails, found
// is true, because the process that continues the run checks again.
func (r *run) unprocessedInput(ctx context.Context) (pos int64, found bool) {
	awaited := r.suspension.awaitedInputs()
	for {
		page, err := r.agent.Log.Inputs(ctx, r.ID, pos)
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

// HandingOver returns a channel that is closed when Drain hands over runs to other processes. Readers should then
// continue in another process.
func (a *Agent) HandingOver() <-chan struct{} { return a.handingOver }

// handOverRuns closes handingOver, makes registerChild refuse children, and relinquishes all runs of this process.
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

// Drain refuses new runs and direct calls, and waits until no direct call is in flight and all runs have ended or are
// suspended, or until ctx ends. It does not wait for suspended runs to end, because a person may take longer than a
// process can wait. Then, if the log is durable, it hands over the remaining runs to other processes; otherwise it ends
// each with a terminal event. It returns once the goroutines of all runs have ended, the deliveries are drained and the
// usage counts are stored.
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
		// Hand over before a.stop: the first cause of a context counts, and after errShutdown the runs would end here.
		a.handOverRuns()
	}
	a.stop(errShutdown)
	a.runs.Wait()
	a.Deliveries.Drain(ctx)
	a.endClaims() // without a durable log, deliveries were still claimed until here
	flushing, cancel := context.WithTimeout(context.Background(), releaseTimeout)
	defer cancel()
	a.usage.Flush(flushing)
}

// endClaims ends the goroutines of claimLoop, and waits until they have ended. It may be called more than once.
func (a *Agent) endClaims() {
	a.stopClaims()
	a.claiming.Wait()
}
