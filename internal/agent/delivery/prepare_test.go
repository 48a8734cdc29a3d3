package delivery

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"

	"answerd/internal/auth/authtest"
	"answerd/internal/event"
)

// errBroken is what the log answers where a test lets it fail.
var errBroken = errors.New("broken by the test")

// refusingLog is a log that refuses the event of every delivery, and counts how many of their jobs are claimed.
type refusingLog struct {
	event.Log
	claimed map[string]bool
}

func (l *refusingLog) Append(ctx context.Context, run string, b event.Body) (int64, error) {
	if IsDelivery(run) {
		return 0, errBroken
	}
	return l.Log.Append(ctx, run, b)
}

func (l *refusingLog) CreateJob(ctx context.Context, run string, request []byte) (event.Job, error) {
	job, err := l.Log.CreateJob(ctx, run, request)
	if err == nil {
		l.claimed[run] = true
		job = countedJob{job, l}
	}
	return job, err
}

// countedJob is a job of a refusingLog.
type countedJob struct {
	event.Job
	log *refusingLog
}

func (j countedJob) Done(ctx context.Context) error {
	delete(j.log.claimed, j.Run())
	return j.Job.Done(ctx)
}

// countingLog is a log that stores no delivery, and lists runs when the test lets it.
type countingLog struct {
	event.Log
	list chan struct{}
}

func (l countingLog) Create(ctx context.Context, r event.Run) error {
	if IsDelivery(r.ID) {
		return errBroken
	}
	return l.Log.Create(ctx, r)
}

func (l countingLog) Runs(ctx context.Context, f event.Filter) (event.RunPage, error) {
	<-l.list
	return l.Log.Runs(ctx, f)
}

// A delivery that cannot be stored while the deliveries are counted does not wait.
func TestPrepareDoesNotCountADeliveryThatCannotBeStored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := countingLog{newLog(), make(chan struct{})}
		p := newProcess(t, Options{URL: target, Log: log})
		synctest.Wait() // the first count has begun
		p.endRun("", answered)
		close(log.list)
		synctest.Wait()
		if waiting := p.waitingTally(); waiting != (tally{}) {
			t.Errorf("waiting = %d with %d bytes, want 0 and 0", waiting.count, waiting.bytes)
		}
		p.stop()
	})
}

// A delivery whose event cannot be stored leaves nothing: no run, and no job that this process would keep claimed
// until its end.
func TestPrepareLeavesNoJobOfADeliveryThatCannotBeStored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var lines authtest.LogBuffer
		log := &refusingLog{Log: newLog(), claimed: make(map[string]bool)}
		p := newProcess(t, Options{URL: target, Log: log, Logger: lines.Logger()})
		p.endRun("", answered)
		if len(log.claimed) != 0 {
			t.Errorf("claimed jobs = %v, want none", log.claimed)
		}
		page, err := log.Runs(t.Context(), event.Filter{Owner: deliveryOwner})
		if err != nil || len(page.Runs) != 0 {
			t.Errorf("stored deliveries = %d, %v, want 0", len(page.Runs), err)
		}
		if got := lines.String(); !strings.Contains(got, "delivery given up") {
			t.Errorf("log = %s, want the delivery given up", got)
		}
		p.stop()
	})
}
