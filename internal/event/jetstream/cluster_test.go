package jetstream_test

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"answerd/internal/event"
	"answerd/internal/event/eventtest"
	"answerd/internal/event/jetstream"
)

// An append that is in flight when the leader dies may be stored, or not, or on one server
// only. Its repetition must not take it for the message of another writer.
func TestClusterLosesNoEventWithItsLeader(t *testing.T) {
	t.Parallel()
	cluster := eventtest.StartCluster(t)

	a, b := openLog(t, jetstream.Options{URL: cluster.URL()}), openLog(t, jetstream.Options{URL: cluster.URL()})
	const runs, steps = 4, 40
	var readers sync.WaitGroup
	for i := range runs {
		id := fmt.Sprintf("run_%d", i)
		startRun(t, a, id)
		readers.Go(func() {
			all, err := readUntil(t.Context(), b, id, nil)
			if err != nil || len(all) != steps+2 {
				t.Errorf("reader of %s got %d events, %v, want %d", id, len(all), err, steps+2)
			}
		})
	}

	cluster.AwaitReplicas(t)
	leader := cluster.Leader(t)
	var writers sync.WaitGroup
	for i := range runs {
		writers.Go(func() {
			id, longest := fmt.Sprintf("run_%d", i), time.Duration(0)
			for step := range steps {
				if i == 0 && step == steps/2 {
					cluster.StopServer(leader)
				}
				from := time.Now()
				if _, err := a.Append(t.Context(), id, event.StepStart{Step: step}); err != nil {
					t.Errorf("Append to %s: %v", id, err)
					return
				}
				longest = max(longest, time.Since(from))
			}
			if _, err := a.Append(t.Context(), id, event.FinalAnswer{}); err != nil {
				t.Errorf("Append to %s: %v", id, err)
			}
			t.Logf("%s: longest append %v", id, longest)
		})
	}

	writers.Wait()
	readers.Wait()

	// The log asks the leader before it denies something: a replica may lag behind.
	if _, err := b.After(t.Context(), "run_0", steps+3); !errors.Is(err, event.ErrInvalidPosition) {
		t.Errorf("After beyond the end = %v, want %v", err, event.ErrInvalidPosition)
	}
	if _, err := b.Run(t.Context(), "run_unknown"); !errors.Is(err, event.ErrNotFound) {
		t.Errorf("Run of an unknown id = %v, want %v", err, event.ErrNotFound)
	}
}

// A server that is isolated from its cluster keeps its clients. A log must leave it, or it is
// unavailable for as long as the partition lasts.
func TestLogLeavesAnIsolatedServer(t *testing.T) {
	skipUnlessLong(t, "waits up to 10 s for the log to notice a partition")
	t.Parallel()
	cluster := eventtest.StartCluster(t)
	log := openLog(t, jetstream.Options{URL: cluster.URL()})
	cluster.AwaitReplicas(t)
	startRun(t, log, "run_a")

	isolated := 0
	for i := range cluster.URLs {
		if cluster.Clients(i) > 0 { // each of the two connections may have its own server
			isolated = i
		}
	}

	cluster.Isolate(isolated, false)
	began := time.Now()
	eventtest.Await(t, "the isolated server to have no clients", func() bool { return cluster.Clients(isolated) == 0 })
	t.Logf("left after %s", time.Since(began))
	appendEvent(t, log, "run_a", event.FinalAnswer{})
}

// A server whose cluster has no majority answers a request for the state of a stream itself.
func TestLogWithoutAMajorityIsNotReady(t *testing.T) {
	t.Parallel()
	cluster := eventtest.StartCluster(t)
	log := openLog(t, jetstream.Options{URL: cluster.URL()})
	cluster.AwaitReplicas(t)

	for i := range cluster.URLs {
		cluster.Isolate(i, false)
	}

	eventtest.Await(t, "Ready to fail three times in a row", func() bool {
		for range 3 {
			if log.Ready(t.Context()) == nil {
				return false
			}
		}
		return true
	})

	cluster.Heal()
	eventtest.Await(t, "Ready to succeed", func() bool { return log.Ready(t.Context()) == nil })
}
