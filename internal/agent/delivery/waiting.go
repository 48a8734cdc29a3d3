package delivery

import (
	"context"
	"strconv"
	"time"

	"answerd/internal/event"
	"answerd/internal/help"
)

// How waiting deliveries are counted: waiting and bytes are those of all processes, as counted in the log every
// countInterval, and what this process has added or removed since. storing and added let countStored correct
// for deliveries that are stored while it reads the pages of the log. So the bound can be exceeded by what other
// processes store within countInterval.

// tally is a number of deliveries, and the bytes of their bodies.
type tally struct{ count, bytes int64 }

// reserve counts a delivery that is about to be stored. It returns false if too many wait. If it returns true,
// the caller must call stored or notStored.
func (d *Deliverer) reserve(size int64) bool {
	d.countMu.Lock()
	defer d.countMu.Unlock()
	if d.waiting.Load() >= maxWaiting || d.bytes.Load()+size > d.MaxBytes {
		return false
	}
	d.waiting.Add(1)
	d.bytes.Add(size)
	d.storing.count++
	d.storing.bytes += size
	return true
}

// stored counts a delivery that is in the log now.
func (d *Deliverer) stored(size int64) {
	d.countMu.Lock()
	defer d.countMu.Unlock()
	d.storing.count--
	d.storing.bytes -= size
	d.added.count++
	d.added.bytes += size
}

// notStored no longer counts a delivery, because the log did not store it.
func (d *Deliverer) notStored(size int64) {
	d.countMu.Lock()
	defer d.countMu.Unlock()
	d.storing.count--
	d.storing.bytes -= size
	d.waiting.Add(-1)
	d.bytes.Add(-size)
}

// removed no longer counts a delivery, because the log no longer has it.
func (d *Deliverer) removed(size int64) {
	d.countMu.Lock()
	defer d.countMu.Unlock()
	d.waiting.Add(-1)
	d.bytes.Add(-size)
}

// countLoop counts the deliveries of all processes from time to time.
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

// countStored counts the deliveries in the log. Deliveries that are stored or removed meanwhile may count
// too often until the next time, but are never left out.
func (d *Deliverer) countStored() {
	ctx, cancel := context.WithTimeout(d.draining, logTimeout)
	defer cancel()
	d.countMu.Lock()
	before := d.added
	d.countMu.Unlock()
	var n, bytes int64
	for filter := (event.Filter{Owner: deliveryOwner, Limit: event.MaxPage}); n < maxWaiting; {
		page, err := d.Log.Runs(ctx, filter)
		if err != nil {
			return // the last count stays
		}
		for _, r := range page.Runs {
			size, _ := strconv.ParseInt(r.Metadata[sizeKey], 10, 64)
			n, bytes = n+1, bytes+size
		}
		filter.Before = page.Next
		if filter.Before == "" {
			break
		}
	}
	d.countMu.Lock()
	defer d.countMu.Unlock()
	d.waiting.Store(n + d.storing.count + d.added.count - before.count)
	d.bytes.Store(bytes + d.storing.bytes + d.added.bytes - before.bytes)
}

// Drain lets attempts end, but not longer than ctx. If the log ends with the process, it also waits for
// the deliveries that failed so far, and logs those that it could not make. Otherwise other processes
// make them. The caller claims no job of the log after Drain has returned.
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
	d.cancel()
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

// awaitLocal waits until no delivery of this process is left.
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
