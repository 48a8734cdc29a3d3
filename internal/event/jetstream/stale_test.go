package jetstream_test

import (
	"errors"
	"testing"
	"time"

	"answerd/internal/event"
	"answerd/internal/event/eventtest"
	"answerd/internal/event/jetstream"
	"answerd/internal/values"
)

// A server that is cut off leads its streams for some seconds more. It must not give out a value that was replaced
// meanwhile, such as a refresh token that was used, nor a thread without its newest turn.
func TestLeaderThatIsCutOffReturnsNothingOld(t *testing.T) {
	skipUnlessLong(t, "waits up to 20 s for a server to notice that it is cut off")
	t.Parallel()
	key := values.NewKey("grant", "ann")
	for stream, test := range map[string]struct {
		write func(l event.Log, revision uint64) error
		read  func(l event.Log) (string, error)
	}{
		"ANSWERD_VALUES": {
			func(l event.Log, revision uint64) error {
				_, err := l.SetValue(t.Context(), key, []byte("new"), revision, time.Hour)
				return err
			},
			func(l event.Log) (string, error) {
				v, _, err := l.Value(t.Context(), key)
				return string(v), err
			},
		},
		"ANSWERD_THREADS": {
			func(l event.Log, _ uint64) error {
				_, err := l.RenameThread(t.Context(), ada, "thr_a", "new")
				return err
			},
			func(l event.Log) (string, error) {
				thread, err := l.Thread(t.Context(), ada, "thr_a")
				return thread.Title, err
			},
		},
	} {
		t.Run(stream, func(t *testing.T) {
			t.Parallel()
			cluster := eventtest.StartCluster(t)
			openLog(t, jetstream.Options{URL: cluster.URL()}) // creates the streams
			isolated := cluster.LeaderOf(t, stream)
			a := openLog(t, jetstream.Options{URL: cluster.URLs[(isolated+1)%3]})
			b := openLog(t, jetstream.Options{URL: cluster.URLs[isolated]})
			revision, err := a.SetValue(t.Context(), key, []byte("old"), 0, time.Hour)
			if err != nil {
				t.Fatal(err)
			}
			addTurn(t, a, ada, "thr_a", "run_1", []byte("x"))
			cluster.AwaitReplicas(t)
			cluster.Isolate(isolated, false)
			eventtest.Await(t, "the other servers to accept a change", func() bool { return test.write(a, revision) == nil })

			for began := time.Now(); time.Since(began) < 10*time.Second; {
				if got, err := test.read(b); err == nil && got != "new" || err != nil && !errors.Is(err, event.ErrUnavailable) {
					t.Fatalf("%s after the change, the server that is cut off answers %q, %v, want %v", time.Since(began), got, err, event.ErrUnavailable)
				}
			}

			cluster.Heal()
			eventtest.Await(t, "the change to be read", func() bool { got, err := test.read(b); return err == nil && got == "new" })
		})
	}
}
