package delivery

import (
	"context"
	"strconv"
	"time"

	"answerd/internal/event"
	"answerd/internal/help"
)

// How waiting deliveries are counted: d.waiting covers all processes. countStored counts the deliveries in the log, and
// in between this process adds and subtracts its own changes. So the limits can be exceeded by what other processes
// store within countInterval.

// tally is a number of deliveries and the size of their bodies.
type tally struct{ count, bytes int64 }

// add adds count deliveries, or removes them if count is negative, whose bodies have size bytes each.
func (t *tally) add(count, size int64) {
	t.count += count
	t.bytes += count * size
}

// reserve counts a delivery that is about to be stored. It returns false, and counts nothing, if too many are waiting.
// If it returns true, the caller must call confirmReserved or cancelReserved.
func (d *Deliverer) reserve(size int64) bool {
	d.countMu.Lock()
	defer d.countMu.Unlock()
	if d.waiting.count >= maxWaiting || d.waiting.bytes+size > d.MaxBytes {
		return false
	}
	d.waiting.add(1, size)
	d.storing.add(1, size)
	return true
}

// confirmReserved records that the log has stored a delivery for which reserve was called.
func (d *Deliverer) confirmReserved(size int64) {
	d.countMu.Lock()
	defer d.countMu.Unlock()
	d.storing.add(-1, size)
	d.added.add(1, size)
}

// cancelReserved undoes reserve for a delivery that the log did not store.
func (d *Deliverer) cancelReserved(size int64) {
	d.countMu.Lock()
	defer d.countMu.Unlock()
	d.storing.add(-1, size)
	d.waiting.add(-1, size)
}

// countRemoved subtracts a delivery that was removed from the log.
func (d *Deliverer) countRemoved(size int64) {
	d.countMu.Lock()
	defer d.countMu.Unlock()
	d.waiting.add(-1, size)
}

// waitingTally returns d.waiting.
func (d *Deliverer) waitingTally() tally {
	d.countMu.Lock()
	defer d.countMu.Unlock()
	return d.waiting
}

// countLoop counts the deliveries of all processes every countInterval, until Drain begins.
func (d *Deliverer) countLoop() {
	tick := time.NewTicker(countInterval)
	defer tick.Stop()
	for {
		d.countStored()
		select {
		case <-tick.C:
		case <-d.draining.Done():
			return
		}
	}
}

// countStored sets d.waiting from the deliveries in the log, which it reads page by page. If the log cannot be read,
// d.waiting stays as it is.
//
// Deliveries that this process stores during the count may or may not be on the pages. They are added in any case, like
// those that are still being stored (d.storing). So none is missed, but some may count twice until the next call, and a
// delivery that is removed during the count may also count until then.
func (d *Deliverer) countStored() {
	ctx, cancel := context.WithTimeout(d.draining, logTimeout)
	defer cancel()
	d.countMu.Lock()
	addedBefore := d.added
	d.countMu.Unlock()
	var inLog tally
	filter := event.Filter{Owner: deliveryOwner, Limit: event.MaxPage}
	for inLog.count < maxWaiting {
		page, err := d.Log.Runs(ctx, filter)
		if err != nil {
			return
		}
		for _, run := range page.Runs {
			size, _ := strconv.ParseInt(run.Metadata[sizeKey], 10, 64)
			inLog.add(1, size)
		}
		if page.Next == "" {
			break
		}
		filter.Before = page.Next
	}
	d.countMu.Lock()
	defer d.countMu.Unlock()
	d.waiting = tally{
		count: inLog.count + d.storing.count + d.added.count - addedBefore.count,
		bytes: inLog.bytes + d.storing.bytes + d.added.bytes - addedBefore.bytes,
	}
}

// Drain waits until the attempts in flight have ended, and cancels them when ctx ends. If the log is local, it also
// waits for the next attempts of deliveries that failed, and logs how many deliveries are lost; if the log is shared,
// other processes make these attempts. The caller must not claim jobs after Drain has returned.
func (d *Deliverer) Drain(ctx context.Context) {
	if d == nil {
		return
	}
	d.stop()
	if d.Local {
		d.awaitLocal(ctx)
	}
	d.mu.Lock()
	d.closed = true
	d.mu.Unlock()
	ended := make(chan struct{})
	go func() { d.work.Wait(); close(ended) }()
	select {
	case <-ended:
	case <-ctx.Done():
	}
	d.cancel() // cancels attempts that are still in flight
	<-ended
	d.counting.Wait()
	d.mu.Lock()
	lost := len(d.local)
	d.mu.Unlock()
	if d.Local && lost > 0 {
		d.Logger.Error("deliveries lost: the event log is in memory, and the process ends", "deliveries", lost, help.Webhooks.Attr())
	}
	d.sender.close()
}

// awaitLocal waits until d.local is empty, which forgetLocal signals by closing d.idle, or until ctx ends.
func (d *Deliverer) awaitLocal(ctx context.Context) {
	d.mu.Lock()
	idle := make(chan struct{})
	if len(d.local) == 0 {
		close(idle)
	} else {
		d.idle = idle
	}
	d.mu.Unlock()
	select {
	case <-idle:
	case <-ctx.Done():
	}
}
