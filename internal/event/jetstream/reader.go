package jetstream

import (
	"context"
	"time"

	"github.com/nats-io/nats.go"
)

// readersWait is how long the other logs have to say that they have a reader. Silence
// is the answer of those that have none.
const readersWait = time.Second

// HasRemoteReader implements event.Log.
func (l *Log) HasRemoteReader(ctx context.Context, run string) bool {
	if l.embedded != nil {
		return false
	}
	for range 2 { // a question can get lost
		asked, cancel := context.WithTimeout(ctx, readersWait)
		m := nats.NewMsg(readRoot)
		m.Data = []byte(run)
		m.Header.Set(writerHeader, l.name)
		_, err := l.read.RequestMsgWithContext(asked, m)
		cancel()
		if err == nil {
			return true
		}
	}
	return false
}

// answerReaders answers such questions of other logs.
func (l *Log) answerReaders() error {
	_, err := l.read.Subscribe(readRoot, func(m *nats.Msg) {
		defer l.survived("answer whether a run is read")
		if m.Header.Get(writerHeader) == l.name {
			return
		}
		if r := l.known(string(m.Data)); r != nil && r.isRead() {
			_ = m.Respond(nil) // whoever asked asks again
		}
	})
	if err != nil {
		return unavailable("listen for questions", err)
	}
	return nil
}

// isRead reports whether somebody follows the run here: who waits for more is woken
// often enough to be seen.
func (r *run) isRead() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.sub != nil && time.Since(r.used) < 2*pollEvery
}
