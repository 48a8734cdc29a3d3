package delivery

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"answerd/internal/event"
)

// Prepared holds the stored deliveries about one run's end. Call Send or Release once. A nil *Prepared has none.
type Prepared struct {
	d          *Deliverer
	deliveries []pending
}

// pending is a stored delivery before its first attempt.
type pending struct {
	job event.Job
	rec record
}

// Prepare stores the deliveries about a run's end, before the terminal event end is appended. callback is "" if the
// question has none. If the log is unavailable, Prepare returns an error that wraps event.ErrUnavailable, and the run
// must not end yet. After another error, the delivery is given up. For a child run, Prepare returns nil.
func (d *Deliverer) Prepare(ctx context.Context, run event.Run, agent, callback string, end event.Body) (*Prepared, error) {
	if d == nil || run.ParentID != "" { // receivers are informed only about runs that API clients started
		return nil, nil
	}
	rec := record{Version: recordVersion, Created: d.Log.Now().UnixMilli(), End: fingerprint(end), Body: newBody(run, agent, end)}
	var records []record // one for each receiver
	if d.URL != "" {
		rec.ID = webhookID(run.ID, "")
		records = append(records, rec)
	}
	if callback != "" {
		rec.ID, rec.Callback = webhookID(run.ID, callback), callback
		records = append(records, rec)
	}
	prepared := &Prepared{d: d}
	for _, rec := range records {
		job, err := d.storeDelivery(ctx, run, rec)
		switch {
		case errors.Is(err, event.ErrUnavailable):
			prepared.Release()
			return nil, fmt.Errorf("store a delivery: %w", err)
		case err != nil:
			d.reportGivenUp(ctx, rec, err.Error())
		default:
			prepared.deliveries = append(prepared.deliveries, pending{job, rec})
		}
	}
	return prepared, nil
}

// errTooMany means that too many deliveries are waiting already.
var errTooMany = errors.New("too many deliveries wait")

// storeDelivery stores a delivery and returns its job, which this process holds: other processes can claim it only
// after this one has parked or released it, or has died. After an error (errTooMany or the log's), nothing is stored.
func (d *Deliverer) storeDelivery(ctx context.Context, run event.Run, rec record) (event.Job, error) {
	text, err := json.Marshal(rec)
	if err != nil {
		return nil, fmt.Errorf("encode a delivery: %w", err)
	}
	size := int64(len(text))
	if !d.reserve(size) {
		return nil, errTooMany
	}

	job, err := d.createRun(ctx, run.TraceID, text)
	if err != nil {
		d.cancelReserved(size)
		return nil, err
	}
	d.confirmReserved(size)
	d.mu.Lock()
	d.local[job.Run()] = true
	d.mu.Unlock()
	return job, nil
}

// createRun creates the run that stores a delivery, with its job, whose request is text. If it fails, it removes what
// it has created.
func (d *Deliverer) createRun(ctx context.Context, traceID string, text []byte) (event.Job, error) {
	run := event.Run{
		ID:         idPrefix + strings.ToLower(rand.Text()),
		Owner:      deliveryOwner,
		Created:    d.Log.Now(),
		Background: true,
		TraceID:    traceID,
		Metadata:   map[string]string{sizeKey: strconv.Itoa(len(text))},
	}
	if err := d.Log.Create(ctx, run); err != nil {
		return nil, fmt.Errorf("create a delivery: %w", err)
	}
	job, err := d.Log.CreateJob(ctx, run.ID, text)
	if err == nil {
		_, err = d.Log.Append(ctx, run.ID, event.Start{TraceID: traceID})
	}
	if err != nil {
		cleanup := context.WithoutCancel(ctx)
		_ = d.Log.Delete(cleanup, run.ID)
		if job != nil {
			_ = job.Done(cleanup)
		}
		return nil, fmt.Errorf("create the job of a delivery: %w", err)
	}
	return job, nil
}

// webhookID returns the webhook-id header of all attempts to deliver a run's end to its callback or, if callback is "",
// to Options.URL. It is the same if another process stores the delivery again, so that receivers can ignore duplicates.
func webhookID(run, callback string) string {
	isCallback := callback != ""
	sum := sha256.Sum256([]byte(fmt.Sprintf("run %t %s", isCallback, run)))
	return idPrefix + hex.EncodeToString(sum[:16])
}

// Send begins the first attempts, and returns at once.
func (p *Prepared) Send() {
	if p == nil {
		return
	}
	for _, delivery := range p.deliveries {
		p.d.startAttempt(delivery.job, delivery.rec)
	}
}

// Release lets any process claim the deliveries. Call it instead of Send if it is unknown whether the terminal event
// was appended; the process that claims a delivery finds out (checkEnd).
func (p *Prepared) Release() {
	if p == nil {
		return
	}
	for _, delivery := range p.deliveries {
		p.d.release(delivery.job)
	}
}

// Resume makes the next attempt of a claimed delivery, and returns at once. With a nil Deliverer, the delivery is
// parked until a process with a Deliverer claims it. A delivery that a newer version of answerd stored is parked until
// a process can read it, but only for lifetime. If a record cannot be read for another reason, the delivery is removed.
func (d *Deliverer) Resume(job event.Job) {
	if d == nil {
		ctx, cancel := context.WithTimeout(context.Background(), logTimeout)
		defer cancel()
		_ = job.Park(ctx, 0, time.Now().Add(maxDelay)) // if that fails, the lease expires later, with the same effect
		return
	}
	var common struct { // the members that records of all versions have
		Version int   `json:"version"`
		Created int64 `json:"created"`
	}
	isNewer := json.Unmarshal(job.Request(), &common) == nil && common.Version > recordVersion
	if age := d.Log.Now().Sub(time.UnixMilli(common.Created)); isNewer && age < lifetime {
		d.park(job, newerDelay)
		return
	}
	var rec record
	if err := json.Unmarshal(job.Request(), &rec); err != nil || rec.Version != recordVersion {
		d.reportGivenUp(d.ctx, rec, "its record cannot be read")
		d.remove(job, rec)
		return
	}
	d.mu.Lock()
	d.local[job.Run()] = true
	d.mu.Unlock()
	d.startAttempt(job, rec)
}
