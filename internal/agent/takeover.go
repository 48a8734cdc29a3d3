package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"go.opentelemetry.io/otel/propagation"

	"answerd/internal/auth"
	"answerd/internal/event"
)

const (
	// maxDeaths is how many processes may die with a run. It may be what kills them.
	maxDeaths = 5
	// claimers is how many runs are claimed at a time. A log may ask for a while whether
	// the owner of one is alive, and the next one's owner may be another.
	claimers = 4
	// claimRetry is how long a log is left alone that cannot say what there is to do.
	claimRetry = time.Second
)

// claims goes through the runs that somebody has to go on with, until its context ends:
// those of processes that died or are leaving, and those that waited for a person.
func (a *Agent) claims(ctx context.Context) {
	pause(ctx, a.ClaimDelay)
	for a.awaitRoom(ctx) {
		job, err := a.claim(ctx)
		if err == nil {
			a.takeUp(job)
			continue
		}
		if ctx.Err() == nil {
			a.Logger.LogAttrs(ctx, slog.LevelWarn, "no run could be claimed", faultOf(err)...)
		}
		pause(ctx, claimRetry)
	}
}

// claim is the log's. A panic in it is an error: no run is on this goroutine, and all of
// them would go with the process.
func (a *Agent) claim(ctx context.Context) (_ event.Job, err error) {
	defer recovered(&err)
	return a.Log.Claim(ctx)
}

// pause returns after a time, or when ctx ends.
func pause(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// awaitRoom waits until there are fewer runs than there may be; false when ctx ends
// first.
func (a *Agent) awaitRoom(ctx context.Context) bool {
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

// takeUp goes on with the run of a job, in a goroutine of its own.
func (a *Agent) takeUp(job event.Job) {
	a.runs.Go(func() {
		r, unread, err := a.adopt(job)
		if err != nil {
			a.Logger.LogAttrs(a.ctx, slog.LevelWarn, "a run could not be taken up", append(faultOf(err), slog.String("run_id", job.Run()))...)
			pause(a.ctx, claimRetry) // or it would come right back
		}
		if r == nil {
			a.giveBack(job)
			return
		}
		err = r.resume(unread)
		if errors.Is(err, event.ErrUnavailable) {
			r.leave(errHandedOver)
		}
		a.expectReader(r)
		a.execute(r, err)
	})
}

// adopt makes the run of a job one of ours: nil where nothing is begun any more. unread is
// why its request cannot be read.
func (a *Agent) adopt(job event.Job) (_ *run, unread, err error) {
	defer recovered(&err)
	ctx, cancel := context.WithTimeout(context.Background(), departTime)
	rec, err := a.Log.Run(ctx, job.Run())
	cancel()
	if err != nil {
		return nil, nil, fmt.Errorf("read the record of a run: %w", err)
	}
	h, unread := unhold(job.Request())
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

func (a *Agent) giveBack(job event.Job) {
	ctx, cancel := context.WithTimeout(context.Background(), departTime)
	defer cancel()
	err := func() (err error) {
		defer recovered(&err)
		return job.Release(ctx)
	}()
	if err != nil {
		a.Logger.Warn("a run could not be given up in an orderly way", "run_id", job.Run(), "error", err)
	}
}

// lostError is a run that nobody can go on with.
type lostError struct {
	public string
	err    error
}

func (e *lostError) Error() string { return "go on with a run: " + e.err.Error() }
func (e *lostError) Unwrap() error { return e.err }

// resume reads what the run did so far, and makes ready to go on from there. Its context
// bounds nothing here: a run that was cancelled has to end in an orderly way, too.
// unread is why its request cannot be read, nil if it can.
func (r *run) resume(unread error) (err error) {
	defer recovered(&err) // or the run would be the end of one process after the other
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.ctx), departTime)
	defer cancel()
	a := r.agent
	events, err := a.eventsOf(ctx, r.ID)
	if err == nil && len(events) == 0 && unread == nil {
		// Its process died before it could begin.
		r.inbox.listen()
		return r.start(ctx)
	}
	if err == nil {
		r.out, err = event.WriterAfter(a.Log, r.ID, events)
	}
	switch {
	case errors.Is(err, event.ErrGone):
		return &lostError{"What the run did so far is no longer kept.", err}
	case errors.Is(err, event.ErrUnavailable):
		return err
	case err != nil:
		return &lostError{"What the run did so far cannot be read.", err}
	case unread != nil:
		return &lostError{"What was asked cannot be read.", unread}
	}
	notes, err := a.Log.Notes(ctx, r.ID)
	if err != nil {
		return fmt.Errorf("read the notes of a run: %w", err)
	}
	if n := deaths(notes); n >= maxDeaths {
		return &lostError{"The run was given up, since it was cut short too often.", fmt.Errorf("%d processes died with it", n)}
	}
	if err := r.note(ctx, noteTaken); err != nil {
		return err
	}
	inputs, _, err := r.inbox.load(ctx)
	if err != nil {
		return fmt.Errorf("read the inputs of a run: %w", err)
	}
	r.inbox.listen()
	r.past = readPast(events, notes, inputs)
	if r.past.ending && context.Cause(r.ctx) == nil {
		return &lostError{"The process that executed the run died while it ended it.", errors.New("its end has no cause")}
	}
	if r.req.Awaited && r.past.waited {
		a.mu.Lock()
		r.Background = true
		a.mu.Unlock()
	}
	a.Logger.InfoContext(ctx, "run taken up", "run_id", r.ID, "attempt", r.job.Attempt(), "events", len(events), "steps", len(r.past.steps))
	return nil
}

// eventsOf are all events of a run so far.
func (a *Agent) eventsOf(ctx context.Context, id string) (events []event.Event, _ error) {
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
