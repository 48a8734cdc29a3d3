package agent

import (
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
// stops executing a run in one of three ways:
//
//   - It relinquishes the run: it seals its writer, notes that it left, and releases the job, or
//     parks it until a person answers.
//   - It dies. Its lease ends, and another process finds the job.
//   - It loses its lease, for example after a long pause. The log then refuses its events
//     (event.ErrFenced), since another process writes the run.
//
// Another process claims the job, reads the checkpoint and the events, and replays the run up to
// the point where it stopped. So each event occurs once, and a tool call that must not be
// repeated is not sent again.

const (
	// maxCrashes bounds how many processes may die while they execute a run, because the run
	// itself may be the cause.
	maxCrashes = 5
	// claimRetry separates a failed claim from the next one.
	claimRetry = time.Second
)

// releaseTimeout bounds the release of a run. It exceeds the log's own timeout for an
// append.
const releaseTimeout = 40 * time.Second

// claimWorkers bounds the runs that are claimed at the same time. A claim can take long,
// until the log knows whether the previous process is alive. Other runs, perhaps of another
// process, must not wait for it.
const claimWorkers = 4

// errJobLost means that the log has lost the job of a run, and perhaps events too. Calls that
// were made could be made again, so no process continues the run.
var errJobLost = errors.New("the log has lost the job of the run")

// unrecoverableError reports that no process can continue a run.
type unrecoverableError struct {
	public string // for the caller
	err    error
}

func (e *unrecoverableError) Error() string { return "go on with a run: " + e.err.Error() }

func (e *unrecoverableError) Unwrap() error { return e.err }

// checkpoint holds what another process needs to execute the run and readers do not see. It does
// not contain the caller's token, which was given to one process only. It contains the caller's
// claims only if there are rules, which need them, and otherwise of the one claim that Account has.
type checkpoint struct {
	Version     int     `json:"version"`
	Request     Request `json:"request"`
	TraceParent string  `json:"traceparent,omitempty"`

	Agent  *definition.Agent `json:"agent,omitempty"` // as the run started with it; nil if it has no name
	Parent parentCall        `json:"parent,omitzero"`
	Thread []Message         `json:"thread,omitempty"` // the earlier turns that the run has read
	Beside bool              `json:"beside,omitempty"` // another run of the thread was active

	Account usage.Account `json:"account,omitzero"`
	Group   string        `json:"group,omitempty"` // of the caller, for the limits of the process that takes over

	Scopes []string                   `json:"scopes,omitempty"`
	Claims map[string]json.RawMessage `json:"claims,omitempty"`
}

// checkpointVersion changes when an older process cannot read the checkpoint of a newer one.
const checkpointVersion = 1

// saveCheckpoint creates the job of the run with its checkpoint. Without a durable log it does
// nothing.
func (r *run) saveCheckpoint(ctx context.Context) error {
	if !r.agent.Durable {
		return nil
	}
	saved := checkpoint{Version: checkpointVersion, Request: r.req, Account: r.account, Group: r.caller.Group}
	saved.Request.IdempotencyKey = ""
	saved.Request.Fingerprint = [32]byte{}
	saved.Request.Record = nil // the run's record has these
	saved.Thread, saved.Beside = r.req.earlier, r.isBeside
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

// decodeCheckpoint decodes the checkpoint that another process saved. A panic becomes an error;
// otherwise the run would crash one process after the other.
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

// claimLoop claims runs until ctx ends: those of processes that died or are shutting down, and
// parked runs whose person has answered.
func (a *Agent) claimLoop(ctx context.Context) {
	// A process that crashes shortly after each start would otherwise crash the runs that it
	// claims.
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

// claimJob waits for a job. A panic in the log becomes an error: it belongs to no run, and would
// end the process with all runs.
func (a *Agent) claimJob(ctx context.Context) (_ event.Job, err error) {
	defer recoverTo(&err)
	return a.Log.Claim(ctx)
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

// resumeClaimed continues the run of a job, or makes the next attempt of a delivery, in its own goroutine.
func (a *Agent) resumeClaimed(job event.Job) {
	if delivery.IsDelivery(job.Run()) {
		a.Deliveries.Resume(job)
		return
	}
	a.runs.Go(func() {
		r, badCheckpoint, err := a.loadClaimed(job)
		if err != nil {
			a.Logger.LogAttrs(a.ctx, slog.LevelWarn, "failed to load a claimed run", append(errorAttrs(err), slog.String("run_id", job.Run()))...)
			waitFor(a.ctx, claimRetry) // a job that is released at once is delivered again at once
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

// loadClaimed registers the run of a job as executed here. It returns nil if the agent is
// draining. badCheckpoint explains why the checkpoint cannot be used; the run must be registered
// even then, so that it ends with an error event.
func (a *Agent) loadClaimed(job event.Job) (_ *run, badCheckpoint, err error) {
	defer recoverTo(&err)
	ctx, cancel := context.WithTimeout(context.Background(), releaseTimeout)
	rec, err := a.Log.Run(ctx, job.Run())
	cancel()
	if err != nil {
		return nil, nil, fmt.Errorf("read the record of a run: %w", err)
	}
	saved, badCheckpoint := decodeCheckpoint(job.Request())
	if saved.Request.namedAgent, err = a.restoreAgent(saved.Agent); err != nil && badCheckpoint == nil {
		badCheckpoint = err
	}
	saved.Request.parent, saved.Request.earlier = saved.Parent, saved.Thread
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

// releaseClaim returns a job that was claimed but whose run was not started.
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

// restoreFromLog reads what the run did so far and prepares it to continue. Its error explains
// why the run cannot continue: *unrecoverableError or errJobLost if it cannot in any process. It
// ignores the end of the run's context, because a cancelled run needs its state to close what is
// open. A panic becomes an error; otherwise the run would crash one process after the other.
func (r *run) restoreFromLog(badCheckpoint error) (err error) {
	defer recoverTo(&err)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.ctx), releaseTimeout)
	defer cancel()
	agent := r.agent
	events, err := agent.allEvents(ctx, r.ID)
	if err == nil && len(events) == 0 && badCheckpoint == nil {
		// The process died after it created the job and before it appended the start event.
		r.inbox.startListening()
		if err := r.repairTurn(ctx); err != nil {
			return err
		}
		return r.appendStart(ctx)
	}
	if err == nil {
		err = r.continueWriting(events)
	}
	if err := whyUnrecoverable(err, badCheckpoint); err != nil {
		return err
	}
	if len(events) == 1 {
		if err := r.repairTurn(ctx); err != nil {
			return err
		}
	}

	notes, err := agent.Log.Notes(ctx, r.ID)
	if err != nil {
		return fmt.Errorf("read the notes of a run: %w", err)
	}
	if n := replay.Crashes(notes); n >= maxCrashes {
		r.replayed = replay.Read(events, notes, nil) // its child runs are cancelled
		return &unrecoverableError{"The run was given up, since it was cut short too often.", fmt.Errorf("%d processes died with it", n)}
	}
	// The note comes before anything is done for the run. So a run that kills each process is given up, and a
	// process that has lost the run again fails here with ErrFenced.
	if err := r.writeNote(ctx, replay.NoteTaken); err != nil {
		return err
	}

	// The inputs so far are part of the state that is replayed. They must be read before the inbox listens, because
	// its goroutine calls receiveAvailable too.
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
	if r.req.Awaited && r.replayed.Suspended {
		// Its caller was asked to fetch the answer later, so the run needs no reader.
		agent.mu.Lock()
		r.Background = true
		agent.mu.Unlock()
	}

	agent.Logger.InfoContext(ctx, "run taken over", "run_id", r.ID, "attempt", r.job.Attempt(), "events", len(events), "steps", len(r.replayed.Steps))
	return nil
}

// continueWriting makes the writer of the run continue after its events, and adds the events to its turn.
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

// whyUnrecoverable returns the reason why a run cannot continue, nil if it can. err is the error of reading its events,
// badCheckpoint that of reading its request.
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

// allEvents returns all events of a run so far.
func (a *Agent) allEvents(ctx context.Context, id string) (events []event.Event, _ error) {
	for {
		page, err := a.Log.After(ctx, id, int64(len(events)))
		if err != nil {
			return nil, fmt.Errorf("read the events of a run: %w", err)
		}
		events = append(events, page.Events...)
		if page.Ended || len(page.Events) == 0 {
			return events, nil
		}
	}
}

// repairTurn begins the turn of a run if its thread does not exist, because the process that began the run died before
// it was written (see appendBeginning). Where the thread exists, the turn was begun, and may have ended by now.
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

// releaseJob returns the job of a relinquished run to the log. A run that waits for a person is
// parked until a person answers or a question expires, unless an answer has already arrived.
//
// No answer is lost between the decision to park and Park. An answer that came before is found by pendingInput,
// and the job is released instead. One that comes later has a position after pos, which Park is given, and so
// wakes the run. The note comes before both: without it the next process counts this one as having died
// (replay.Crashes), and gives the run up after maxCrashes.
func (a *Agent) releaseJob(r *run) {
	ctx, cancel := context.WithTimeout(context.Background(), releaseTimeout)
	defer cancel()
	err := r.writeNote(ctx, replay.NoteLeft)
	pos, pending := a.pendingInput(ctx, r)
	switch {
	case errors.Is(err, event.ErrFenced): // another process already has the run
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

// pendingInput reports whether there is an input that the run still has to process: an answer to
// an open question, or a cancellation. pos is the position up to which there is none. If the log
// does not answer, pendingInput reports true, because a released run checks again.
func (a *Agent) pendingInput(ctx context.Context, r *run) (pos int64, pending bool) {
	open := r.suspension.awaitedInputs()
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

// HandingOver returns a channel that is closed when Drain hands runs over to other processes.
// Readers can then continue in those processes.
func (a *Agent) HandingOver() <-chan struct{} { return a.handingOver }

// handOverRuns relinquishes all runs to other processes.
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

// Drain refuses new runs, and waits until all other runs have ended or are suspended, but not
// longer than ctx. It does not wait for suspended runs, because a person may need more time than
// a process has. Then it hands the remaining runs over to other processes if the log is durable;
// otherwise it ends each with a terminal event. It returns when all of that is done.
func (a *Agent) Drain(ctx context.Context) {
	a.StopAccepting()
	if a.Durable {
		a.endClaims() // otherwise this process would claim the runs that it hands over
	}
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
		// Before stop: the first cause of a context counts, and after errShutdown the runs would end here.
		a.handOverRuns()
	}
	a.stop(errShutdown)
	<-done
	a.Deliveries.Drain(ctx)
	a.endClaims() // until here, deliveries in memory were claimed
	flushing, cancel := context.WithTimeout(context.Background(), releaseTimeout)
	defer cancel()
	a.usage.Flush(flushing)
}

// endClaims stops the claims of jobs, and returns when no more come.
func (a *Agent) endClaims() {
	a.stopClaims()
	a.claiming.Wait()
}
