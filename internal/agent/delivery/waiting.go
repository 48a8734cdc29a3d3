package delivery

import (
	"context"
	"strconv"
	"time"

	"answerd/internal/event"
)

// count adjusts what is known of the deliveries that wait.
func (d *Deliverer) count(n, bytes int64) {
	d.waiting.Add(n)
	d.bytes.Add(bytes)
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

// countStored counts the deliveries in the log.
func (d *Deliverer) countStored() {
	ctx, cancel := context.WithTimeout(d.draining, logTimeout)
	defer cancel()
	var n, bytes int64
	for f := (event.Filter{Owner: deliveryOwner, Limit: event.MaxPage}); n < maxWaiting; {
		page, err := d.Log.Runs(ctx, f)
		if err != nil {
			return // the last count stays
		}
		for _, r := range page.Runs {
			size, _ := strconv.ParseInt(r.Metadata[sizeKey], 10, 64)
			n, bytes = n+1, bytes+size
		}
		if f.Before = page.Next; f.Before == "" {
			break
		}
	}
	d.waiting.Store(n)
	d.bytes.Store(bytes)
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
		d.Logger.Error("deliveries lost: the event log is in memory, and the process ends", "deliveries", lost)
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
