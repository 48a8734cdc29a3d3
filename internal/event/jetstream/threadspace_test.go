package jetstream_test

import (
	"fmt"
	"sync"
	"testing"

	"github.com/nats-io/nats-server/v2/server"

	"answerd/internal/event"
	"answerd/internal/event/eventtest"
	"answerd/internal/event/jetstream"
)

// Each answer of a service that is asked new questions only is a new thread, so the stream of threads gets full sooner
// or later. Old threads then have to make space while many callers begin new ones.
func TestThreadsBeginInALogFullOfThem(t *testing.T) {
	skipUnlessDurable(t)
	t.Parallel()
	for _, c := range []struct {
		name    string
		options jetstream.Options
		threads int // of each caller
	}{
		{"file", jetstream.Options{URL: "file:" + t.TempDir(), MaxBytes: 4 << 20}, 150},
		// Where other processes may be, the heads of deleted threads need space for ten seconds more.
		{"nats", jetstream.Options{URL: startCluster(t), MaxBytes: 16 << 20}, 200},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			beginManyThreads(t, openLog(t, c.options), c.threads)
		})
	}
}

// beginManyThreads lets 16 callers begin and end the first turns of so many threads each.
func beginManyThreads(t *testing.T, log event.Log, threads int) {
	var wg sync.WaitGroup
	for caller := range 16 {
		wg.Go(func() {
			for n := range threads {
				thread, run := fmt.Sprintf("thr_%d_%d", caller, n), fmt.Sprintf("run_%d_%d", caller, n)
				if _, err := log.BeginTurn(t.Context(), ada, thread, run, "", "A question"); err != nil {
					t.Errorf("BeginTurn %d of caller %d = %v, want no error", n, caller, err)
					return
				}
				if err := log.EndTurn(t.Context(), ada, thread, run, []byte(`{"question":"A question"}`)); err != nil {
					t.Errorf("EndTurn %d of caller %d = %v, want no error", n, caller, err)
					return
				}
			}
		})
	}
	wg.Wait()
}

// A server may allow smaller messages than a turn needs.
func TestThreadsOnServerWithSmallPayload(t *testing.T) {
	skipUnlessDurable(t)
	t.Parallel()
	eventtest.Threads(t, func(t *testing.T) event.Log {
		o := &server.Options{Host: "127.0.0.1", Port: server.RANDOM_PORT, NoSigs: true, NoLog: true, JetStream: true, StoreDir: t.TempDir(), MaxPayload: 16 << 10}
		return openLog(t, jetstream.Options{URL: startServer(t, o).ClientURL(), Lease: lease})
	})
}
