package jetstream

import (
	"context"
	"time"

	"github.com/nats-io/nats.go"
	js "github.com/nats-io/nats.go/jetstream"

	"answerd/internal/help"
)

// repairTimeout bounds repairRuns.
const repairTimeout = time.Minute

// repairRuns makes an embedded log consistent after messages were lost, before the log accepts new runs. A power
// failure may lose the end of each file, and a damaged block loses its messages. A run that has lost its terminal event
// and its job would never be executed again.
//
// repairRuns deletes a run without events, unless its job has a request from which the run can start. If a run has
// events, but neither a terminal event nor a job, repairRuns gives it a job without a request. The executor of that job
// ends the run.
func (l *Log) repairRuns(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, repairTimeout)
	defer cancel()
	info, err := l.jobsStream.Info(ctx, js.WithSubjectFilter(jobPrefix+"*"))
	if err != nil {
		return unavailableError("list the jobs", err)
	}
	jobs := info.State.Subjects

	outcomes := make(map[repairOutcome]int) // number of runs
	for from := uint64(0); ; {
		entries, more, err := l.readBatch(ctx, indexName, directGet{Next: ownerPrefix + ">", From: from})
		if err != nil {
			return err
		}
		lastEvents, err := l.readLastEvents(ctx, entries)
		if err != nil {
			return err
		}
		for _, msg := range entries {
			from = msg.Pos + 1
			_, hasJob := jobs[jobPrefix+lastToken(msg.Subject)]
			outcome, err := l.repairRun(ctx, msg, lastEvents, hasJob)
			if err != nil {
				return err
			}
			outcomes[outcome]++
		}
		if !more || len(entries) == 0 {
			break
		}
	}
	if outcomes[runDeleted]+outcomes[runReleased] > 0 {
		l.logger.Warn("the event log has lost messages",
			"runs_without_events", outcomes[runDeleted], "runs_without_end", outcomes[runReleased], help.Scaling.Attr())
	}
	return nil
}

// repairOutcome says what repairRun did.
type repairOutcome int

const (
	runIntact   repairOutcome = iota // it changed nothing
	runDeleted                       // it deleted a run without events
	runReleased                      // it gave a job to a run without a terminal event
)

// repairRun repairs the run of an index entry. lastEvents holds the last messages of runs by subject, and hasJob says
// whether the run has a job.
func (l *Log) repairRun(ctx context.Context, entry message, lastEvents map[string]*message, hasJob bool) (repairOutcome, error) {
	id := lastToken(entry.Subject)
	last := lastEvents[runSubject(id, eventToken)]
	lost, err := l.isLost(ctx, id, last != nil, hasJob)
	if err != nil {
		return runIntact, err
	}
	if lost {
		return runDeleted, l.deleteRun(ctx, id, entry.Subject)
	}
	if hasJob {
		return runIntact, nil
	}
	if e, _, err := l.readEvent(ctx, *last); err != nil || e.Terminal() {
		return runIntact, nil // a run whose last event cannot be read counts as ended, and retention deletes it
	}
	return runReleased, l.releaseWithoutRequest(ctx, id)
}

// isLost reports whether a run has no events and cannot start either, because it has no job or its job has no request.
func (l *Log) isLost(ctx context.Context, id string, hasEvents, hasJob bool) (bool, error) {
	if hasEvents || !hasJob {
		return !hasEvents, nil
	}
	request, err := l.readRequest(ctx, id)
	return request == nil, err
}

// releaseWithoutRequest gives a run a job without a request, and removes the run's stored request if it has one.
func (l *Log) releaseWithoutRequest(ctx context.Context, id string) error {
	if err := purgeSubject(ctx, l.runsStream, runSubject(id, requestToken)); err != nil {
		return err
	}
	if _, err := l.publishOnce(ctx, nats.NewMsg(jobPrefix+id)); err != nil && !isDuplicate(err) {
		return unavailableError("enqueue a run", err)
	}
	return nil
}

// readLastEvents returns the last message of each entry's run, keyed by the message's subject. Runs without a message
// are missing from the map. It must not be called with more than maxBatch entries.
func (l *Log) readLastEvents(ctx context.Context, entries []message) (map[string]*message, error) {
	if len(entries) == 0 {
		return nil, nil
	}
	subjects := make([]string, len(entries))
	for i, m := range entries {
		subjects[i] = runSubject(lastToken(m.Subject), eventToken)
	}
	return l.readLastOfEach(ctx, runsName, subjects)
}
