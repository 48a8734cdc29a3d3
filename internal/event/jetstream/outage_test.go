package jetstream_test

import (
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/nats-io/nats-server/v2/server"

	"answerd/internal/event"
	"answerd/internal/event/eventtest"
	"answerd/internal/event/jetstream"
)

// The acknowledgements of an append are lost for longer than the append is repeated. The writer must recognize its own
// message when it tries again, and not take it for that of another process.
func TestAppendContinuesAfterALongOutage(t *testing.T) {
	skipUnlessLong(t, "waits 30 s for an append to give up")
	t.Parallel()
	proxy := eventtest.StartProxy(t, startCluster(t))
	log := openLog(t, jetstream.Options{URL: proxy.URL(), Lease: lease})
	startRun(t, log, "run_a")
	proxy.DropAnswers()
	if _, err := log.Append(t.Context(), "run_a", event.StepStart{Step: 1}); !errors.Is(err, event.ErrUnavailable) {
		t.Fatalf("Append without acknowledgements = %v, want %v", err, event.ErrUnavailable)
	}
	proxy.Resume()
	proxy.Cut() // the connection has lost part of what the server sent
	eventtest.Await(t, "the log to be ready", func() bool { return log.Ready(t.Context()) == nil })

	eventtest.Await(t, "an append to succeed", func() bool {
		_, err := log.Append(t.Context(), "run_a", event.FinalAnswer{})
		if err != nil && !errors.Is(err, event.ErrUnavailable) {
			t.Fatalf("Append after the outage = %v, want no error", err)
		}
		return err == nil
	})

	if all, err := readUntil(t.Context(), log, "run_a", nil); err != nil || len(all) != 3 {
		t.Errorf("the run has %d events, %v, want 3", len(all), err)
	}
}

// A server refuses messages while too many wait to be stored, as when its disk is slow. An append must try again.
func TestAppendContinuesAfterTheServerRefusedMessages(t *testing.T) {
	t.Parallel()
	s := startServer(t, &server.Options{
		Host: "127.0.0.1", Port: server.RANDOM_PORT, NoSigs: true, NoLog: true, JetStream: true, StoreDir: t.TempDir(), StreamMaxBufferedMsgs: 1,
	})

	log := openLog(t, jetstream.Options{URL: s.ClientURL(), Lease: lease})
	var runs sync.WaitGroup
	for i := range 16 {
		runs.Go(func() {
			id := fmt.Sprintf("run_%d", i)
			err := log.Create(t.Context(), event.Run{ID: id, Created: log.Now()})
			if err == nil {
				_, err = log.Append(t.Context(), id, event.Start{Question: "?"})
			}
			if err == nil {
				_, err = log.CreateJob(t.Context(), id, nil)
			}
			for step := 0; err == nil && step < 20; step++ {
				_, err = log.Append(t.Context(), id, event.StepStart{Step: step})
			}
			if err != nil {
				t.Errorf("run %d got %v, want no error", i, err)
			}
		})
	}
	runs.Wait()
}
