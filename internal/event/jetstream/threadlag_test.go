package jetstream_test

import (
	"slices"
	"testing"
	"time"

	"answerd/internal/event/eventtest"
	"answerd/internal/event/jetstream"
)

// A log that was cut off from its server for some seconds reads all heads again. Until it has them, it lists what it knew.
func TestThreadsStayListedWhileTheServerDoesNotAnswer(t *testing.T) {
	skipUnlessDurable(t)
	t.Parallel()
	proxy := eventtest.StartProxy(t, startCluster(t))
	log := openLog(t, jetstream.Options{URL: proxy.URL(), Lease: lease})
	addTurn(t, log, ada, "thr_a", "run_1", []byte("x"))
	proxy.Stop()
	for began := time.Now(); time.Since(began) < 8*time.Second; {
		if got := threadsOf(t, log, ada); !slices.Equal(got, []string{"thr_a"}) {
			t.Fatalf("after %s without an answer, the log lists %v, want [thr_a]", time.Since(began), got)
		}
		<-time.After(50 * time.Millisecond)
	}
	proxy.Resume()
	addTurn(t, log, ada, "thr_b", "run_2", []byte("x"))
	eventtest.Await(t, "the log to list both threads", func() bool { return slices.Equal(threadsOf(t, log, ada), []string{"thr_b", "thr_a"}) })
}
