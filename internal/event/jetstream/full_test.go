package jetstream_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"answerd/internal/event"
	"answerd/internal/event/eventtest"
	"answerd/internal/event/jetstream"
)

// createUntilFull creates runs until the log refuses one, and returns the ids of the others.
func createUntilFull(t *testing.T, l *jetstream.Log, prefix string) (ids []string) {
	t.Helper()
	for i := range 200 {
		id := fmt.Sprintf("%s_%d", prefix, i)
		began := time.Now()
		err := l.Create(t.Context(), event.Run{ID: id, Owner: event.Owner{Subject: "ada"}, Key: id, Created: time.Now(), Request: make([]byte, 32<<10)})
		if err != nil {
			if took := time.Since(began); !errors.Is(err, event.ErrUnavailable) || took > time.Second {
				t.Errorf("Create on a full log = %v after %s, want %v at once", err, took, event.ErrUnavailable)
			}
			return ids
		}
		appendEvent(t, l, id, event.Start{})
		ids = append(ids, id)
	}
	t.Fatal("the log did not get full, want ErrFull")
	return nil
}

// A log that is full refuses new runs at once, on every instance. All instances can read, and a
// deletion makes space.
func TestFullLogRefusesRunsAndDeletesThem(t *testing.T) {
	t.Parallel()
	for name, limit := range map[string]func(*testing.T, *server.Server){
		"account": func(t *testing.T, s *server.Server) {
			limits := server.JetStreamAccountLimits{MaxMemory: -1, MaxStore: 1 << 20, MaxStreams: -1, MaxConsumers: -1, MaxAckPending: -1, MemoryMaxStreamBytes: -1, StoreMaxStreamBytes: -1}
			if err := s.GlobalAccount().UpdateJetStreamLimits(map[string]server.JetStreamAccountLimits{"": limits}); err != nil {
				t.Fatal(err)
			}
		},
		"index": func(*testing.T, *server.Server) {}, // the bound of a stream
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := startServer(t, &server.Options{Host: "127.0.0.1", Port: server.RANDOM_PORT, NoSigs: true, NoLog: true, JetStream: true, StoreDir: t.TempDir()})
			a := openLog(t, jetstream.Options{URL: s.ClientURL(), Lease: lease, MaxBytes: 12 << 20})
			b := openLog(t, jetstream.Options{URL: s.ClientURL(), Lease: lease, MaxBytes: 12 << 20})
			limit(t, s)
			ids := createUntilFull(t, a, "run")
			if err := b.Create(t.Context(), event.Run{ID: "run_b", Created: time.Now(), Request: make([]byte, 32<<10)}); !errors.Is(err, event.ErrUnavailable) {
				t.Errorf("Create of another instance = %v, want %v", err, event.ErrUnavailable)
			}

			for _, id := range ids {
				if page, err := b.After(t.Context(), id, 0); len(page.Events) != 1 || err != nil {
					t.Errorf("%s has %d events, %v, want 1", id, len(page.Events), err)
				}
			}

			for _, id := range ids[:3] {
				if err := b.Delete(t.Context(), id); err != nil {
					t.Errorf("Delete of %s = %v, want nil", id, err)
				}
				if _, err := b.Run(t.Context(), id); !errors.Is(err, event.ErrGone) && !errors.Is(err, event.ErrNotFound) {
					t.Errorf("Run of %s after Delete = %v, want %v", id, err, event.ErrGone)
				}
			}

			if more := createUntilFull(t, b, "more"); len(more) == 0 {
				t.Errorf("no run was created after some were deleted: %d more, want non-zero", len(more))
			}
		})
	}
}

// fairMaxBytes and fairCapacity are the size of a log and how much text it holds before it deletes runs.
const (
	fairMaxBytes = 16 << 20
	fairCapacity = fairMaxBytes / 4 * 3 / 10 * 8
)

func TestFullLogOnDiskDeletesRunsByShare(t *testing.T) {
	t.Parallel()
	log := openLog(t, jetstream.Options{URL: "file:" + t.TempDir(), Lease: lease, MaxBytes: fairMaxBytes})
	eventtest.Fairness(t, fairCapacity, func(*testing.T) event.Log { return log })
}

func TestFullLogOnServerDeletesRunsByShare(t *testing.T) {
	skipUnlessDurable(t)
	t.Parallel()
	log := openLog(t, jetstream.Options{URL: startCluster(t), Lease: lease, MaxBytes: fairMaxBytes})
	eventtest.Fairness(t, fairCapacity, func(*testing.T) event.Log { return log })
}

// Two instances share the log, and both make space.
func TestFullLogOfTwoInstancesDeletesRunsByShare(t *testing.T) {
	skipUnlessDurable(t)
	t.Parallel()
	url := startCluster(t)
	eventtest.Fairness(t, fairCapacity, func(t *testing.T) event.Log {
		return openLog(t, jetstream.Options{URL: url, Lease: lease, MaxBytes: fairMaxBytes})
	})
}

func TestFullLogDeletesRunsByShareAfterARestart(t *testing.T) {
	skipUnlessDurable(t)
	t.Parallel()
	dir := t.TempDir()
	var before *jetstream.Log
	eventtest.Fairness(t, fairCapacity, func(t *testing.T) event.Log {
		if before != nil {
			if err := before.Close(); err != nil {
				t.Fatal(err)
			}
		}
		before = openLog(t, jetstream.Options{URL: "file:" + dir, Lease: lease, MaxBytes: fairMaxBytes})
		return before
	})
}

func TestFullLogOnAClusterDeletesRunsByShare(t *testing.T) {
	skipUnlessDurable(t)
	t.Parallel()
	cluster := eventtest.StartCluster(t)
	eventtest.Fairness(t, fairCapacity, func(t *testing.T) event.Log {
		return openLog(t, jetstream.Options{URL: cluster.URL(), MaxBytes: fairMaxBytes})
	})
}
