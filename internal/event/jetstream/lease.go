package jetstream

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/nats-io/nats.go"
)

// holds asks a log whether it holds a run. A server that restarts forgets leases that
// were kept alive, and redelivers jobs whose owners are well. Nobody answering can mean
// a log that is just connecting again, so that is asked for half a lease.
func (l *Log) holds(ctx context.Context, log, run string) bool {
	if log == "" || l.embedded != nil { // whose earlier processes are dead
		return false
	}
	for try := range 3 {
		l.mu.Lock()
		dead := time.Since(l.dead[log]) < l.lease
		l.mu.Unlock()
		if dead {
			return false
		}
		asked, cancel := context.WithTimeout(ctx, 500*time.Millisecond)
		answer, err := l.read.RequestWithContext(asked, heldRoot+log, []byte(run))
		cancel()
		if err == nil {
			return string(answer.Data) == "1"
		}
		if try == 2 {
			break
		}
		select {
		case <-time.After(l.lease / 4):
		case <-ctx.Done():
			return true
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.dead) > 1000 { // names of logs that died in the course of time
		clear(l.dead)
	}
	l.dead[log] = time.Now()
	return false
}

// holder is the job of a run that this log holds, as far as it knows.
func (l *Log) holder(run string) *job {
	l.mu.Lock()
	j := l.held[run]
	l.mu.Unlock()
	if j == nil || j.isLost() {
		return nil
	}
	return j
}

func (j *job) isLost() bool {
	select {
	case <-j.writer.lost:
		return true
	default:
		return false
	}
}

// answerHeld answers such questions.
func (l *Log) answerHeld() error {
	_, err := l.read.Subscribe(heldRoot+l.name, func(m *nats.Msg) {
		defer l.survived("answer whether a run is held")
		answer := []byte("0")
		if l.holder(string(m.Data)) != nil {
			answer = []byte("1")
		}
		_ = m.Respond(answer) // whoever asked asks again
	})
	if err != nil {
		return unavailable("listen for questions", err)
	}
	return nil
}

// heartbeat keeps the leases of all jobs that are held.
func (l *Log) heartbeat() {
	tick := time.NewTicker(l.lease / 3)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			l.mu.Lock()
			held := slices.Collect(maps.Values(l.held))
			l.mu.Unlock()
			for _, j := range held {
				l.keepAlive(j)
			}
		case <-l.ctx.Done():
			return
		}
	}
}

// keepAlive keeps the leases of one job, so that whatever is wrong with it costs no other.
func (l *Log) keepAlive(j *job) {
	defer l.survived("keep a lease")
	if j.isLost() {
		return // it is the new owner's to keep alive, or to be found dead
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, lease := range j.leases {
		_ = lease.keepAlive() // the next one may get through
	}
}
