package delivery

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"answerd/internal/event"
	"answerd/internal/help"
)

// startAttempt makes a delivery's next attempt in its own goroutine, and returns at once. It takes over the job: the
// job is eventually parked, released or done.
//
// If too many attempts are in flight, in total or to this receiver, startAttempt parks the delivery for 1 to 4 seconds
// instead of waiting, so that the goroutine that claimed it can claim other runs.
func (d *Deliverer) startAttempt(job event.Job, rec record) {
	target := d.urlOf(rec)
	if target == "" {
		d.reportGivenUp(d.ctx, rec, "its receiver is no longer configured")
		d.remove(job, rec)
		return
	}
	origin, _ := originOf(target)
	isCounted, isStopped := d.countAttempt(origin)
	switch {
	case isStopped:
		d.release(job)
	case !isCounted:
		d.park(job, time.Second+rand.N(3*time.Second))
	default:
		go func() {
			defer d.work.Done()
			defer d.uncountAttempt(origin)
			d.attempt(job, rec)
		}()
	}
}

// countAttempt counts an attempt to the receiver origin as in flight. isCounted is false if the limits do not allow it.
// isStopped means that this process makes no more attempts. A counted attempt ends with uncountAttempt and d.work.Done.
func (d *Deliverer) countAttempt(origin string) (isCounted, isStopped bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	isLeftToOtherProcesses := !d.Local && d.draining.Err() != nil
	if d.closed || isLeftToOtherProcesses {
		return false, true
	}
	inFlight := 0
	for _, n := range d.attempts {
		inFlight += n
	}
	if inFlight >= maxAttempts || d.attempts[origin] >= maxAttemptsPerReceiver {
		return false, false
	}
	d.attempts[origin]++
	d.work.Add(1)
	return true, false
}

// uncountAttempt undoes countAttempt after the attempt has ended, except for d.work.
func (d *Deliverer) uncountAttempt(origin string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.attempts[origin]--
	if d.attempts[origin] == 0 {
		delete(d.attempts, origin)
	}
}

// urlOf returns the URL of a delivery's receiver, or "" if the configuration no longer names or allows it.
func (d *Deliverer) urlOf(rec record) string {
	switch {
	case rec.Callback == "":
		return d.URL
	case d.AllowsCallback(rec.Callback):
		return rec.Callback
	}
	return ""
}

// attempt sends a delivery once. Then it removes the delivery, or parks it for the next attempt. The first attempt is
// made by the process that just appended the run's end, so it needs no checkEnd.
func (d *Deliverer) attempt(job event.Job, rec record) {
	defer func() {
		if v := recover(); v != nil { // a panic in one delivery must not end the process with all its runs
			d.Logger.Error("delivery failed", "run_id", rec.Body.RunID, "error", fmt.Sprintf("panic: %v", v))
			d.park(job, maxDelay)
		}
	}()
	age := d.Log.Now().Sub(time.UnixMilli(rec.Created))
	if job.Attempt() > 1 && !d.checkEnd(job, rec, age) {
		return
	}
	err := d.sender.send(d.ctx, d.urlOf(rec), rec, time.Now())
	switch {
	case err == nil:
		d.results.Add(d.ctx, 1, outcomeAttribute("delivered"))
		d.Logger.Debug("run delivered", "run_id", rec.Body.RunID, "webhook_id", rec.ID, "attempt", job.Attempt())
		d.remove(job, rec)
	case d.ctx.Err() != nil: // Drain cancelled the attempt
		d.release(job)
	case age >= lifetime:
		d.reportGivenUp(d.ctx, rec, err.Error())
		d.remove(job, rec)
	default:
		d.results.Add(d.ctx, 1, outcomeAttribute("failed"))
		d.Logger.Info("delivery failed, it will be tried again",
			"run_id", rec.Body.RunID, "webhook_id", rec.ID, "attempt", job.Attempt(), "error", err)
		d.park(job, nextDelay(job.Attempt(), age))
	}
}

// checkEnd reports whether the run has ended in the way that the delivery says, so that it may be sent. If not,
// checkEnd parks or removes the delivery. The two can differ if a process died after it stored the delivery but before
// it appended the run's end. The process that takes over the run then stores another delivery with the same webhook-id.
// The first one is still sent if the run ended in the same way, and removed otherwise.
func (d *Deliverer) checkEnd(job event.Job, rec record, age time.Duration) bool {
	hasEnded, matches := d.compareEnd(rec)
	switch {
	case hasEnded && matches:
		return true
	case hasEnded: // the process that took over the run has stored another delivery
		d.remove(job, rec)
	case age < lifetime:
		d.park(job, endDelay)
	default:
		d.reportGivenUp(d.ctx, rec, "the run has not ended, or its log cannot be read")
		d.remove(job, rec)
	}
	return false
}

// nextDelay returns how long to wait before the next attempt. attempt is the number of the attempt that just failed,
// from 1, and age the time since the delivery was created. After the first attempt the delay is firstDelay. Later it is
// age, but at least firstDelay and at most maxDelay. Up to a quarter of the delay is added or removed at random.
func nextDelay(attempt int, age time.Duration) time.Duration {
	delay := firstDelay
	if attempt > 1 {
		delay = min(max(age, firstDelay), maxDelay)
	}
	shortest := delay * 3 / 4
	return shortest + rand.N(delay/2)
}

// compareEnd reports whether the run has ended, and whether it ended as the delivery says. If the log no longer has the
// run, both results are true. If the log cannot be read, both are false.
func (d *Deliverer) compareEnd(rec record) (hasEnded, matches bool) {
	ctx, cancel := context.WithTimeout(d.ctx, logTimeout)
	defer cancel()
	run, err := d.Log.Run(ctx, rec.Body.RunID)
	switch {
	case errors.Is(err, event.ErrGone), errors.Is(err, event.ErrNotFound), errors.Is(err, event.ErrLost):
		return true, true
	case err != nil || !run.Last.Terminal():
		return false, false
	}
	return true, fingerprint(run.Last.Body) == rec.End
}

// reportGivenUp counts and logs that a delivery is given up. It does not remove the delivery from the log.
func (d *Deliverer) reportGivenUp(ctx context.Context, rec record, why string) {
	origin, _ := originOf(d.urlOf(rec))
	d.results.Add(context.WithoutCancel(ctx), 1, outcomeAttribute("given_up"))
	d.Logger.ErrorContext(ctx, "delivery given up",
		"run_id", rec.Body.RunID, "webhook_id", rec.ID, "receiver", origin, "error", why, help.Webhooks.Attr())
}

// park makes the next attempt due after delay. Any process that reads the log may then claim it.
func (d *Deliverer) park(job event.Job, delay time.Duration) {
	ctx, cancel := context.WithTimeout(context.Background(), logTimeout)
	defer cancel()
	if err := job.Park(ctx, 0, d.Log.Now().Add(delay)); err != nil {
		// The lease expires, and another process finds the job.
		d.Logger.Warn("a delivery could not be stored for its next attempt", "error", err)
	}
	if !d.Local {
		d.forgetLocal(job)
	}
}

// release gives up the job, so that any process that reads the log may claim it at once. After Drain no process reads a
// local log; release then does nothing, and Drain reports the delivery as lost.
func (d *Deliverer) release(job event.Job) {
	d.mu.Lock()
	cannotBeClaimed := d.closed && d.Local
	d.mu.Unlock()
	if cannotBeClaimed {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), logTimeout)
	defer cancel()
	if err := job.Release(ctx); err != nil {
		d.Logger.Warn("a delivery could not be released", "error", err)
	}
	if !d.Local {
		d.forgetLocal(job)
	}
}

// remove deletes a delivery that needs no further attempt from the log. If that fails, the delivery may be sent again.
func (d *Deliverer) remove(job event.Job, rec record) {
	ctx, cancel := context.WithTimeout(context.Background(), logTimeout)
	defer cancel()
	deleteErr := d.Log.Delete(ctx, job.Run())
	doneErr := job.Done(ctx)
	if err := errors.Join(deleteErr, doneErr); err != nil {
		d.Logger.Warn("a delivery could not be removed; it may be sent again", "run_id", rec.Body.RunID, "error", err)
	}
	d.countRemoved(int64(len(job.Request())))
	d.forgetLocal(job)
}

// forgetLocal removes a delivery from d.local, so that Drain does not wait for it.
func (d *Deliverer) forgetLocal(job event.Job) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.local, job.Run())
	if len(d.local) == 0 && d.idle != nil {
		close(d.idle)
		d.idle = nil
	}
}
