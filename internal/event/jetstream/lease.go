package jetstream

import (
	"context"
	"time"

	"github.com/nats-io/nats.go"
	js "github.com/nats-io/nats.go/jetstream"
)

// holds asks a log whether it holds a run. A server that restarts forgets leases that
// were kept alive, and redelivers jobs whose owners are well. Nobody answering can mean
// a log that is just connecting again, so that is asked twice.
func (l *Log) holds(ctx context.Context, log, run string, m js.Msg) bool {
	if log == "" {
		return false
	}
	for try := range 2 {
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
		if try == 1 {
			break
		}
		_ = m.InProgress() // if not, the lease ends and somebody else asks
		select {
		case <-time.After(l.lease / 5):
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

// answerHeld answers such questions.
func (l *Log) answerHeld() error {
	_, err := l.read.Subscribe(heldRoot+l.name, func(m *nats.Msg) {
		l.mu.Lock()
		held := l.held[string(m.Data)] != nil
		l.mu.Unlock()
		answer := []byte("0")
		if held {
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
			held := make([]*job, 0, len(l.held))
			for _, j := range l.held {
				held = append(held, j)
			}
			l.mu.Unlock()
			for _, j := range held {
				j.mu.Lock()
				if j.lease != nil {
					_ = j.lease.InProgress() // the next one may get through
				}
				j.mu.Unlock()
			}
		case <-l.ctx.Done():
			return
		}
	}
}
