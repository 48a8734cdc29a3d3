package jetstream_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"answerd/internal/event"
	"answerd/internal/event/eventtest"
	"answerd/internal/event/jetstream"
)

// A server that is cut off has the index of runs as it was, and lacks messages for a while after the partition. A list
// must not leave out the runs that it lacks.
func TestListOfALaggingServerLeavesNoRunOut(t *testing.T) {
	skipUnlessLong(t, "waits up to 20 s for a server to notice that it is cut off")
	t.Parallel()
	cluster := eventtest.StartCluster(t)
	openLog(t, jetstream.Options{URL: cluster.URL()}) // creates the streams
	isolated := cluster.LeaderOf(t, "ANSWERD_INDEX")
	a := openLog(t, jetstream.Options{URL: cluster.URLs[(isolated+1)%3]})
	b := openLog(t, jetstream.Options{URL: cluster.URLs[isolated]})
	cluster.AwaitReplicas(t)
	cluster.Isolate(isolated, false)

	created := 0
	create := func() bool {
		id := fmt.Sprintf("run_%d", created)
		err := a.Create(t.Context(), event.Run{ID: id, Owner: ada, Created: a.Now().Add(-time.Hour)})
		if errors.Is(err, event.ErrExists) {
			err = nil
		}
		if err == nil {
			_, err = a.Append(t.Context(), id, event.Start{})
		}
		if err == nil {
			created++
		}
		return err == nil
	}

	eventtest.Await(t, "the other servers to take a run", create)
	check := func() bool {
		want := created
		page, err := b.Runs(t.Context(), event.Filter{Owner: ada, Limit: 100})
		if err != nil && !errors.Is(err, event.ErrUnavailable) || err == nil && len(page.Runs) < want {
			t.Fatalf("Runs = %d runs, %v, want %d or %v", len(page.Runs), err, want, event.ErrUnavailable)
		}
		return err == nil
	}

	for began := time.Now(); time.Since(began) < 8*time.Second; {
		check()
	}

	for created < 60 {
		create()
	}

	cluster.Heal()
	eventtest.Await(t, "the runs to be listed", check)
}
