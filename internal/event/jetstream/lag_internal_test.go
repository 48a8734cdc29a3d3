package jetstream

import (
	"context"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"answerd/internal/event"
	"answerd/internal/event/eventtest"
)

// A server that lags behind may have the record of a run but none of its events. Retention must not
// delete such a run as one that was never started. Only some of the tries meet that moment.
func TestRetentionKeepsRunsThatALaggingReplicaLacks(t *testing.T) {
	if os.Getenv("ANSWERD_TEST_LONG") == "" {
		t.Skip("waits 10 s for the end of a retention; make durable runs it")
	}
	t.Parallel()
	cluster := eventtest.StartCluster(t)

	const retention = 10 * time.Second
	open := func(url string, retention time.Duration) *Log {
		l, err := Open(t.Context(), Options{URL: url, Retention: retention})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = l.Close() })
		return l
	}

	a := open(cluster.URL(), time.Hour)
	cluster.AwaitReplicas(t)
	lagging := (cluster.Leader(t) + 1) % 3
	b := open(cluster.URLs[lagging], retention)

	const runs, events = 20, 20
	runID := func(i int) string { return fmt.Sprintf("run_%d", i) }
	for i := range runs {
		if err := a.Create(t.Context(), event.Run{ID: runID(i), Created: a.Now()}); err != nil {
			t.Fatal(err)
		}
	}

	created := time.Now()
	cluster.AwaitReplicas(t)
	cluster.Isolate(lagging, false)

	text := string(make([]byte, 64<<10))
	for i := range runs {
		for range events {
			if _, err := a.Append(t.Context(), runID(i), event.Start{Question: text}); err != nil {
				t.Fatal(err)
			}
		}
	}

	<-time.After(time.Until(created.Add(retention)))
	ctx, cancel := context.WithCancel(t.Context())
	var expiring sync.WaitGroup
	for range 8 {
		expiring.Go(func() {
			for ctx.Err() == nil {
				_ = b.expireRuns(ctx) // fails while the server is isolated
			}
		})
	}

	cluster.Heal()
	cluster.AwaitReplicas(t)
	cancel()
	expiring.Wait()

	for i := range runs {
		if run, err := a.Run(t.Context(), runID(i)); err != nil || run.Last.Seq != events {
			t.Errorf("Run(%s) = %d events, %v, want %d", runID(i), run.Last.Seq, err, events)
		}
	}
}
