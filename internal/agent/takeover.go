package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"go.opentelemetry.io/otel/propagation"

	"answerd/internal/agent/replay"
	"answerd/internal/auth"
	"answerd/internal/event"
)

// Takeover: how a run goes on in another process.
//
// Where the log outlives the process (Options.Durable), every run has a job in the log. The job
// holds the run's checkpoint, and a lease that the executing process renews. A process stops
// executing a run in one of three ways:
//
//   - It relinquishes the run: it seals its writer, notes that it left, and releases the job, or
//     parks it until a person answers.
//   - It dies. Its lease ends, and another process finds the job.
//   - It loses its lease, for example after a long pause. The log then refuses its events
//     (event.ErrFenced), since another process writes the run.
//
// Another process claims the job, reads the checkpoint and the log, and replays the run up to
// where it was left. So each event, and each tool call that must not be repeated, happens once.

const (
	// maxCrashes is how many processes may die while they execute a run. It may be the run that
	// kills them.
	maxCrashes = 5
	// claimWorkers is how many runs are claimed at a time. A claim can take a while, until the
	// log knows whether the previous process is alive, and the next run may be of another one.
	claimWorkers = 4
	// claimRetry is the pause after a claim that failed.
	claimRetry = time.Second
	// releaseTimeout bounds the work for a run that is released: the log's own timeout, and some
	// more.
	releaseTimeout = 40 * time.Second
)

// A run that is relinquished has one of these as the cause of its context. It gets no terminal
// event here: it goes on from its log, in another process or in this one.
var (
	errParked     = errors.New("the run waits for a person")
	errHandedOver = errors.New("the run is handed over")
	errTakenOver  = errors.New("the run was taken over")
)

// errJobLost says that the log has lost the job of a run, and perhaps events too. Calls that were
// made could be made again, so nobody goes on with the run.
var errJobLost = errors.New("the log has lost the job of the run")

// checkpoint is what another process needs to execute the run and readers do not see. It has no
// token of the caller: the token was given to one process. It has the claims only if there are
// rules, which would allow nothing without them.
type checkpoint struct {
	Version     int     `json:"version"`
	Request     Request `json:"request"`
	TraceParent string  `json:"traceparent,omitempty"`

	Scopes []string                   `json:"scopes,omitempty"`
	Claims map[string]json.RawMessage `json:"claims,omitempty"`
}

// checkpointVersion changes when an older process cannot go on with what a newer one wrote.
const checkpointVersion = 1

// saveCheckpoint creates the job of the run with its checkpoint. Without a durable log it does
// nothing.
func (r *run) saveCheckpoint(ctx context.Context) error {
	if !r.agent.Durable {
		return nil
	}
	c := checkpoint{Version: checkpointVersion, Request: r.req}
	c.Request.IdempotencyKey, c.Request.Fingerprint, c.Request.Record = "", [32]byte{}, nil // the run's record has them
	if r.agent.Rules != nil {
		c.Scopes, c.Claims = r.caller.Scopes, r.caller.Claims
	}
	carrier := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(r.ctx, carrier)
	c.TraceParent = carrier["traceparent"]
	encoded, err := json.Marshal(c)
	if err != nil {
		return fmt.Errorf("encode a checkpoint: %w", err)
	}
	if r.job, err = r.agent.Log.CreateJob(ctx, r.ID, encoded); err != nil {
		return fmt.Errorf("create the job of a run: %w", err)
	}
	r.inbox.startListening()
	return nil
}

// decodeCheckpoint reads the checkpoint that another process saved. A panic becomes an error, or
// the run would end one process after the other.
func decodeCheckpoint(encoded []byte) (c checkpoint, err error) {
	defer recoverTo(&err)
	if len(encoded) == 0 {
		return c, errJobLost
	}
	if err := json.Unmarshal(encoded, &c); err != nil {
		return c, fmt.Errorf("decode a checkpoint: %w", err)
	}
	if c.Version != checkpointVersion {
		return c, fmt.Errorf("a checkpoint of version %d, want %d", c.Version, checkpointVersion)
	}
	return c, nil
}

// claimLoop claims runs until ctx ends: those of processes that died or are shutting down, and
// parked runs whose person has answered.
func (a *Agent) claimLoop(ctx context.Context) {
	// A process that dies again and again right after its start would take runs with it.
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

// claimJob waits for a job. A panic of the log becomes an error: it belongs to no run, and would
// end the process with all runs.
func (a *Agent) claimJob(ctx context.Context) (_ event.Job, err error) {
	defer recoverTo(&err)
	return a.Log.Claim(ctx)
}

// waitFor returns after d, or when ctx ends.
func waitFor(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// awaitFreeSlot waits until another run may be executed here. It reports false if ctx ends first.
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

// resumeClaimed goes on with the run of a job, in a goroutine of its own.
func (a *Agent) resumeClaimed(job event.Job) {
	a.runs.Go(func() {
		r, badCheckpoint, err := a.loadClaimed(job)
		if err != nil {
			a.Logger.LogAttrs(a.ctx, slog.LevelWarn, "failed to load a claimed run", append(errorAttrs(err), slog.String("run_id", job.Run()))...)
			waitFor(a.ctx, claimRetry) // a job that is released at once comes back at once
		}
		if r == nil {
			a.releaseClaim(job)
			return
		}
		err = r.restoreFromLog(badCheckpoint)
		if errors.Is(err, event.ErrUnavailable) {
			r.relinquish(errHandedOver)
		}
		a.awaitReader(r)
		a.executeRun(r, err)
	})
}

// loadClaimed registers the run of a job as one that is executed here. It returns nil if the
// agent is draining. badCheckpoint is why the checkpoint cannot be used; the run then ends with
// an error of its own, which takes a registered run too.
func (a *Agent) loadClaimed(job event.Job) (_ *run, badCheckpoint, err error) {
	defer recoverTo(&err)
	ctx, cancel := context.WithTimeout(context.Background(), releaseTimeout)
	rec, err := a.Log.Run(ctx, job.Run())
	cancel()
	if err != nil {
		return nil, nil, fmt.Errorf("read the record of a run: %w", err)
	}
	c, badCheckpoint := decodeCheckpoint(job.Request())
	parent := propagation.TraceContext{}.Extract(a.ctx, propagation.MapCarrier{"traceparent": c.TraceParent})
	caller := auth.Identity{Issuer: rec.Owner.Issuer, Subject: rec.Owner.Subject, Scopes: c.Scopes, Claims: c.Claims}
	r := a.newRun(parent, rec, caller, c.Request)
	r.job = job
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.draining {
		r.cancel(nil)
		return nil, nil, nil
	}
	a.active[r.ID] = r
	r.slot = a.gate.AcquireOverLimit(r.caller.Key())
	return r, badCheckpoint, nil
}

// releaseClaim returns a job that was claimed and not begun.
func (a *Agent) releaseClaim(job event.Job) {
	ctx, cancel := context.WithTimeout(context.Background(), releaseTimeout)
	defer cancel()
	err := func() (err error) {
		defer recoverTo(&err)
		return job.Release(ctx)
	}()
	if err != nil {
		a.Logger.Warn("failed to release a run", "run_id", job.Run(), "error", err)
	}
}

// unrecoverableError says that no process can go on with a run.
type unrecoverableError struct {
	public string // for the caller
	err    error
}

func (e *unrecoverableError) Error() string { return "go on with a run: " + e.err.Error() }
func (e *unrecoverableError) Unwrap() error { return e.err }

// restoreFromLog reads what the run did so far and prepares to go on from there. An error is why
// it cannot go on: *unrecoverableError or errJobLost if no process can. It ignores the end of the run's
// context, since a run that was cancelled needs its state to end in order. A panic becomes an
// error, or the run would end one process after the other.
func (r *run) restoreFromLog(badCheckpoint error) (err error) {
	defer recoverTo(&err)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.ctx), releaseTimeout)
	defer cancel()
	a := r.agent
	events, err := a.allEvents(ctx, r.ID)
	if err == nil && len(events) == 0 && badCheckpoint == nil {
		// The process died between the job and the start event.
		r.inbox.startListening()
		return r.appendStart(ctx)
	}
	if err == nil {
		r.out, err = event.WriterAfter(a.Log, r.ID, events)
	}
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
	notes, err := a.Log.Notes(ctx, r.ID)
	if err != nil {
		return fmt.Errorf("read the notes of a run: %w", err)
	}
	if n := replay.Crashes(notes); n >= maxCrashes {
		return &unrecoverableError{"The run was given up, since it was cut short too often.", fmt.Errorf("%d processes died with it", n)}
	}
	if err := r.writeNote(ctx, replay.NoteTaken); err != nil {
		return err
	}
	inputs, _, err := r.inbox.receiveAvailable(ctx)
	if err != nil {
		return fmt.Errorf("read the inputs of a run: %w", err)
	}
	r.inbox.startListening()
	r.replayed = replay.Read(events, notes, inputs)
	if r.replayed.Ending && context.Cause(r.ctx) == nil {
		return &unrecoverableError{"The process that executed the run died while it ended it.", errors.New("its end has no cause")}
	}
	if r.req.Awaited && r.replayed.Suspended {
		// Its caller was told to come back for the answer, so no reader is needed.
		a.mu.Lock()
		r.Background = true
		a.mu.Unlock()
	}
	a.Logger.InfoContext(ctx, "run taken over", "run_id", r.ID, "attempt", r.job.Attempt(), "events", len(events), "steps", len(r.replayed.Steps))
	return nil
}

// allEvents returns all events of a run so far.
func (a *Agent) allEvents(ctx context.Context, id string) (events []event.Event, _ error) {
	for {
		page, err := a.Log.After(ctx, id, int64(len(events)))
		if err != nil {
			return nil, fmt.Errorf("read the events of a run: %w", err)
		}
		if events = append(events, page.Events...); page.Ended || len(page.Events) == 0 {
			return events, nil
		}
	}
}

// relinquish stops executing the run here. It seals the writer first, so that nothing that is
// still in flight can append an event.
func (r *run) relinquish(why error) {
	r.out.Seal()
	r.cancel(why)
}

// relinquished returns why this process stopped executing the run, nil if it did not.
func (r *run) relinquished() error {
	switch cause := context.Cause(r.ctx); cause {
	case errParked, errHandedOver, errTakenOver:
		return cause
	}
	return nil
}

// releaseJob returns the job of a relinquished run to the log. A run that waits for a person is
// parked until somebody answers or a question expires, unless an answer is there already.
func (a *Agent) releaseJob(r *run) {
	ctx, cancel := context.WithTimeout(context.Background(), releaseTimeout)
	defer cancel()
	err := r.writeNote(ctx, replay.NoteLeft)
	switch pos, pending := a.pendingInput(ctx, r); {
	case errors.Is(err, event.ErrFenced): // another process has the run already
		err = r.job.Release(ctx)
	case r.relinquished() == errParked && !pending:
		err = errors.Join(err, r.job.Park(ctx, pos, r.suspension.earliestExpiry()))
	default:
		err = errors.Join(err, r.job.Release(ctx))
	}
	if err != nil {
		// The lease ends by itself, and another process finds the job.
		a.Logger.WarnContext(ctx, "failed to release a run", "run_id", r.ID, "error", err)
	}
}

// pendingInput reports whether there is an input that the run still has to act on: an answer to
// an open question, or a cancellation. It returns the position up to which there is none. If the
// log does not answer, it reports true, since a run that is released looks again.
func (a *Agent) pendingInput(ctx context.Context, r *run) (pos int64, pending bool) {
	open := r.suspension.openIDs()
	for {
		page, err := a.Log.Inputs(ctx, r.ID, pos)
		if err != nil {
			return pos, true
		}
		if len(page.Inputs) == 0 {
			return pos, false
		}
		for _, in := range page.Inputs {
			if open[in.ID] || in.ID == event.CancelID {
				return pos, true
			}
			pos = in.Pos
		}
	}
}
