package jetstream

import (
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/nats-io/nats-server/v2/server"
)

const (
	mendEvery = time.Second
	// mendRoom is how much room a disk that was full must have before it is written to
	// again, in bytes.
	mendRoom = 4 << 20
)

// diskFailed reports whether the disk of an embedded log takes nothing any more, which is
// nothing to wait for: until mend has seen to it no append will do better. The server does
// not answer an append that it could not write, so it is asked after one that failed.
func (l *Log) diskFailed() bool {
	if l.embedded == nil {
		return false
	}
	if l.full.Load() {
		return true
	}
	health := l.embedded.server.Healthz(&server.HealthzOptions{})
	if health.Status == "ok" || l.ctx.Err() != nil {
		return false
	}
	if !l.full.Swap(true) {
		l.logger.Error("the event log's disk takes nothing any more; no run can begin", "error", health.Error)
	}
	return true
}

// mend brings an embedded log back after its disk was full: a store that has once failed to
// write takes nothing any more until it is opened anew. What was acknowledged is on the
// disk, and jobs come back when their lease is over.
func (l *Log) mend() {
	tick := time.NewTicker(mendEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			if l.full.Load() {
				l.reopen()
			}
		case <-l.ctx.Done():
			return
		}
	}
}

func (l *Log) reopen() {
	defer l.survived("open the event log's files again")
	if !l.embedded.hasRoom() {
		return
	}
	if err := l.embedded.restart(); err != nil {
		l.logger.Warn("the event log's files could not be opened again", "error", err)
		return
	}
	l.full.Store(false)
	l.logger.Info("the event log's disk takes events again")
	l.hint()
}

// hasRoom tries whether something can be written.
func (e *embedded) hasRoom() bool {
	f, err := os.CreateTemp(e.options.StoreDir, "room-")
	if err != nil {
		return false
	}
	defer os.Remove(f.Name())
	_, err = f.Write(make([]byte, mendRoom))
	return errors.Join(err, f.Close()) == nil
}

// restart closes what is stored and opens it again. Connections to the server stay.
func (e *embedded) restart() error {
	if err := e.server.ShutdownJetStream(); err != nil {
		return fmt.Errorf("close the embedded event log: %w", err)
	}
	err := e.server.EnableJetStream(&server.JetStreamConfig{
		StoreDir: e.options.StoreDir, MaxMemory: e.options.JetStreamMaxMemory, MaxStore: e.options.JetStreamMaxStore, Strict: true,
	})
	if err != nil {
		return fmt.Errorf("open the embedded event log: %w", err)
	}
	return nil
}
