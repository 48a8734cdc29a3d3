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

const (
	// maxCrashes is how many processes may die with a run. It may be what kills them.
	maxCrashes = 5
	// claimWorkers is how many runs are claimed at a time. A log may ask for a while whether
	// the owner of one is alive, and the next one's owner may be another.
	claimWorkers = 4
	// claimRetry is how long a log is left alone that cannot say what there is to do.
	claimRetry = time.Second
)

// claimLoop goes through the runs that somebody has to go on with, until its context ends:
// those of processes that died or are leaving, and those that waited for a person.
func (a *Agent) claimLoop(ctx context.Context) {
	waitFor(ctx, a.ClaimDelay)
	for a.awaitFreeSlot(ctx) {
		job, err := a.claimJob(ctx)
		if err == nil {
			a.resumeClaimed(job)
			continue
		}
		if ctx.Err() == nil {
			a.Logger.LogAttrs(ctx, slog.LevelWarn, "no run could be claimed", errorAttrs(err)...)
		}
		waitFor(ctx, claimRetry)
	}
}

// claimJob is the log's. A panic in it is an error: no run is on this goroutine, and all of
// them would go with the process.
func (a *Agent) claimJob(ctx context.Context) (_ event.Job, err error) {
	defer recoverTo(&err)
	return a.Log.Claim(ctx)
}

// waitFor returns after a time, or when ctx ends.
func waitFor(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// awaitFreeSlot waits until there are fewer runs than there may be; false when ctx ends
// first.
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
		r, unread, err := a.loadClaimed(job)
		if err != nil {
			a.Logger.LogAttrs(a.ctx, slog.LevelWarn, "a run could not be taken up", append(errorAttrs(err), slog.String("run_id", job.Run()))...)
			waitFor(a.ctx, claimRetry) // or it would come right back
		}
		if r == nil {
			a.releaseClaim(job)
			return
		}
		err = r.restoreFromLog(unread)
		if errors.Is(err, event.ErrUnavailable) {
			r.relinquish(errHandedOver)
		}
		a.awaitReader(r)
		a.executeRun(r, err)
	})
}

// loadClaimed makes the run of a job one of ours: nil where nothing is begun any more. unread is
// why its request cannot be read.
func (a *Agent) loadClaimed(job event.Job) (_ *run, unread, err error) {
	defer recoverTo(&err)
	ctx, cancel := context.WithTimeout(context.Background(), releaseTimeout)
	rec, err := a.Log.Run(ctx, job.Run())
	cancel()
	if err != nil {
		return nil, nil, fmt.Errorf("read the record of a run: %w", err)
	}
	h, unread := decodeCheckpoint(job.Request())
	parent := propagation.TraceContext{}.Extract(a.ctx, propagation.MapCarrier{"traceparent": h.TraceParent})
	caller := auth.Identity{Issuer: rec.Owner.Issuer, Subject: rec.Owner.Subject, Scopes: h.Scopes, Claims: h.Claims}
	r := a.newRun(parent, rec, caller, h.Request)
	r.job = job
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.draining {
		r.cancel(nil)
		return nil, nil, nil
	}
	a.active[r.ID] = r
	r.slot = a.gate.AcquireOverLimit(r.caller.Key())
	return r, unread, nil
}

func (a *Agent) releaseClaim(job event.Job) {
	ctx, cancel := context.WithTimeout(context.Background(), releaseTimeout)
	defer cancel()
	err := func() (err error) {
		defer recoverTo(&err)
		return job.Release(ctx)
	}()
	if err != nil {
		a.Logger.Warn("a run could not be given up in an orderly way", "run_id", job.Run(), "error", err)
	}
}

// unrecoverableError is a run that nobody can go on with.
type unrecoverableError struct {
	public string
	err    error
}

func (e *unrecoverableError) Error() string { return "go on with a run: " + e.err.Error() }
func (e *unrecoverableError) Unwrap() error { return e.err }

// restoreFromLog reads what the run did so far, and makes ready to go on from there. Its context
// bounds nothing here: a run that was cancelled has to end in an orderly way, too.
// unread is why its request cannot be read, nil if it can.
func (r *run) restoreFromLog(unread error) (err error) {
	defer recoverTo(&err) // or the run would be the end of one process after the other
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.ctx), releaseTimeout)
	defer cancel()
	a := r.agent
	events, err := a.allEvents(ctx, r.ID)
	if err == nil && len(events) == 0 && unread == nil {
		// Its process died before it could begin.
		r.inbox.startListening()
		return r.appendStart(ctx)
	}
	if err == nil {
		r.out, err = event.WriterAfter(a.Log, r.ID, events)
	}
	switch {
	case errors.Is(err, event.ErrGone):
		return &unrecoverableError{"What the run did so far is no longer kept.", err}
	case errors.Is(err, event.ErrUnavailable):
		return err
	case err != nil:
		return &unrecoverableError{"What the run did so far cannot be read.", err}
	case unread != nil:
		return &unrecoverableError{"What was asked cannot be read.", unread}
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
		a.mu.Lock()
		r.Background = true
		a.mu.Unlock()
	}
	a.Logger.InfoContext(ctx, "run taken up", "run_id", r.ID, "attempt", r.job.Attempt(), "events", len(events), "steps", len(r.replayed.Steps))
	return nil
}

// allEvents are all events of a run so far.
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

// Why a run is left without an end of its own, as the cause of its context. It goes on
// from its log, in another process or in this one.
var (
	errParked     = errors.New("the run waits for a person")
	errHandedOver = errors.New("the run is handed over")
	errTakenOver  = errors.New("the run was taken over")
)

// releaseTimeout bounds what is left to do for a run that is left: the log's own patience,
// and some more.
const releaseTimeout = 40 * time.Second

// relinquish ends what this process does for a run, and nothing else: whatever goes on in it
// says no more.
func (r *run) relinquish(why error) {
	r.out.Seal()
	r.cancel(why)
}

// relinquished is why this process has left the run, nil if it has not.
func (r *run) relinquished() error {
	switch cause := context.Cause(r.ctx); cause {
	case errParked, errHandedOver, errTakenOver:
		return cause
	}
	return nil
}

// releaseJob gives up the job of a run that was left.
func (a *Agent) releaseJob(r *run) {
	ctx, cancel := context.WithTimeout(context.Background(), releaseTimeout)
	defer cancel()
	err := r.writeNote(ctx, replay.NoteLeft)
	switch pos, pending := a.unreadInputs(ctx, r); {
	case errors.Is(err, event.ErrFenced): // somebody has it already
		err = r.job.Release(ctx)
	case r.relinquished() == errParked && !pending:
		err = errors.Join(err, r.job.Park(ctx, pos, r.suspension.earliestExpiry()))
	default:
		err = errors.Join(err, r.job.Release(ctx))
	}
	if err != nil {
		// Its lease ends, and somebody finds it.
		a.Logger.WarnContext(ctx, "a run could not be given up in an orderly way", "run_id", r.ID, "error", err)
	}
}

// unreadInputs is up to where the inputs of a run say nothing that it still has to hear, and
// whether there are others.
func (a *Agent) unreadInputs(ctx context.Context, r *run) (pos int64, pending bool) {
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

// checkpoint is what the log keeps of a run for whoever executes it, besides what it keeps for
// readers. The caller's token is no part of it: it was lent to one process, for as long
// as it lives. What rules ask of him is, where there are rules: without it nothing would be
// allowed any more.
type checkpoint struct {
	Version     int     `json:"version"`
	Request     Request `json:"request"`
	TraceParent string  `json:"traceparent,omitempty"`

	Scopes []string                   `json:"scopes,omitempty"`
	Claims map[string]json.RawMessage `json:"claims,omitempty"`
}

// checkpointVersion changes when an older process could not go on with what a newer one wrote.
const checkpointVersion = 1

// saveCheckpoint makes the run one that others can go on with.
func (r *run) saveCheckpoint(ctx context.Context) error {
	if !r.agent.Durable {
		return nil
	}
	h := checkpoint{Version: checkpointVersion, Request: r.req}
	h.Request.IdempotencyKey, h.Request.Fingerprint, h.Request.Record = "", [32]byte{}, nil // which the log has
	if r.agent.Rules != nil {
		h.Scopes, h.Claims = r.caller.Scopes, r.caller.Claims
	}
	carrier := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(r.ctx, carrier)
	h.TraceParent = carrier["traceparent"]
	request, err := json.Marshal(h)
	if err != nil {
		return fmt.Errorf("encode a request: %w", err)
	}
	if r.job, err = r.agent.Log.CreateJob(ctx, r.ID, request); err != nil {
		return fmt.Errorf("hold a run: %w", err)
	}
	r.inbox.startListening()
	return nil
}

// decodeCheckpoint reads back what another process held.
func decodeCheckpoint(request []byte) (h checkpoint, err error) {
	defer recoverTo(&err) // or the run would be the end of one process after the other
	if err := json.Unmarshal(request, &h); err != nil {
		return h, fmt.Errorf("decode a request: %w", err)
	}
	if h.Version != checkpointVersion {
		return h, fmt.Errorf("a request of version %d", h.Version)
	}
	return h, nil
}

// appendStart appends the first event of the run.
func (r *run) appendStart(ctx context.Context) error {
	return r.out.Append(ctx, event.Start{
		Question: r.req.questionText(), Model: r.req.Model, ThreadID: r.ThreadID, TraceID: r.TraceID, Metadata: r.req.Metadata,
	})
}
