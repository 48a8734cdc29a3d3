package jetstream_test

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"answerd/internal/event"
	"answerd/internal/event/eventtest"
	"answerd/internal/event/jetstream"
)

// After a partition, a server lacks messages for a while, and still answers the reads of its clients.
// A run that it lacks must not be reported as deleted. The notes of a run must be complete: without
// them, a process that takes the run over would make a call again.
func TestLaggingReplicaHidesNothing(t *testing.T) {
	skipUnlessLong(t, "waits for partitions to end")
	t.Parallel()
	cluster := eventtest.StartCluster(t)
	a := openLog(t, jetstream.Options{URL: cluster.URL()})
	cluster.AwaitReplicas(t)
	lagging := (cluster.Leader(t) + 1) % 3
	b := openLog(t, jetstream.Options{URL: cluster.URLs[lagging]})

	// Create half of the runs, and isolate one server.
	const runs, events, notes = 20, 40, 20
	runID := func(i int) string { return fmt.Sprintf("run_%d", i) }
	for i := range runs / 2 {
		startRun(t, a, runID(i))
	}
	cluster.AwaitReplicas(t)
	cluster.Isolate(lagging, false)
	for n := 0; ; n++ { // streams that the isolated server led elect another leader
		probe := fmt.Sprintf("run_probe_%d", n)
		err := a.Create(t.Context(), event.Run{ID: probe})
		if err == nil {
			_, err = a.Append(t.Context(), probe, event.Start{})
		}
		if err == nil {
			_, err = a.CreateJob(t.Context(), probe, nil)
		}
		if err == nil {
			break
		}
		if !errors.Is(err, event.ErrUnavailable) {
			t.Fatalf("create a run: %v, want no error but %v", err, event.ErrUnavailable)
		}
	}

	// Write all runs while that server lags behind.
	text := strings.Repeat("x", 64<<10)
	for i := range runs {
		if i >= runs/2 { // the lagging server does not know these at all
			startRun(t, a, runID(i))
		}
		for n := range events {
			if n < notes {
				if err := a.AddNote(t.Context(), runID(i), []byte{byte(n)}); err != nil {
					t.Fatal(err)
				}
			}
			appendEvent(t, a, runID(i), event.Start{Question: text})
		}
		appendEvent(t, a, runID(i), event.FinalAnswer{})
	}

	// Read through the lagging server: a run is complete, or it is unavailable.
	var reads, refused atomic.Int64
	var reading sync.WaitGroup
	for i := range runs {
		reading.Go(func() {
			for {
				reads.Add(1)
				all, err := readUntil(t.Context(), b, runID(i), nil)
				var got []event.Note
				if err == nil {
					got, err = b.Notes(t.Context(), runID(i))
				}
				if errors.Is(err, event.ErrUnavailable) {
					refused.Add(1)
					continue
				}
				if err != nil || len(all) != events+2 || len(got) != notes {
					t.Errorf("%s has %d events and %d notes, %v, want %d and %d", runID(i), len(all), len(got), err, events+2, notes)
				}
				return
			}
		})
	}

	cluster.Heal()
	reading.Wait()
	t.Logf("%d reads, %d unavailable", reads.Load(), refused.Load())
}

// A server that is cut off from the others leads its streams for 10 to 20 s more, in which it answers with what it had.
// A run that began meanwhile must not be reported as missing.
func TestLeaderThatIsCutOffHidesNothing(t *testing.T) {
	skipUnlessLong(t, "waits up to 20 s for a server to notice that it is cut off")
	t.Parallel()
	cluster := eventtest.StartCluster(t)
	openLog(t, jetstream.Options{URL: cluster.URL()}) // creates the streams
	isolated := cluster.LeaderOf(t, "ANSWERD_INDEX")
	a := openLog(t, jetstream.Options{URL: cluster.URLs[(isolated+1)%3]})
	b := openLog(t, jetstream.Options{URL: cluster.URLs[isolated]})
	cluster.AwaitReplicas(t)
	cluster.Isolate(isolated, false)

	id := ""
	eventtest.Await(t, "the other servers to take a run", func() bool {
		id = a.NewID()
		err := a.Create(t.Context(), event.Run{ID: id})
		if err == nil {
			_, err = a.Append(t.Context(), id, event.Start{})
		}
		return err == nil
	})

	if _, err := b.Run(t.Context(), id); err != nil && !errors.Is(err, event.ErrUnavailable) { // nil: the log moved to another server
		t.Errorf("Run at the server that is cut off = %v, want no error or %v", err, event.ErrUnavailable)
	}
	cluster.Heal()

	eventtest.Await(t, "the run to be found", func() bool {
		_, err := b.Run(t.Context(), id)
		if err != nil && !errors.Is(err, event.ErrUnavailable) {
			t.Fatalf("Run after the partition = %v, want no error or %v", err, event.ErrUnavailable)
		}
		return err == nil
	})
}
