package jetstream_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	js "github.com/nats-io/nats.go/jetstream"

	"answerd/internal/event"
	"answerd/internal/event/eventtest"
	"answerd/internal/event/jetstream"
)

// An input is stored, but the queue is full when the run is to be woken, so the caller gets an error. The run must not
// stay parked, whether the caller gives the input again or not.
func TestInputWakesAParkedRunAfterTheQueueWasFull(t *testing.T) {
	skipUnlessDurable(t)
	t.Parallel()
	for name, repeats := range map[string]bool{"the caller repeats it and the process has ended": true, "the caller does not repeat it": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := startCluster(t)
			log := openLog(t, jetstream.Options{URL: url, Lease: lease, MaxBytes: 1 << 20})
			other := openLog(t, jetstream.Options{URL: url, Lease: lease, MaxBytes: 1 << 20})
			if err := startRun(t, log, "run_a").Park(t.Context(), 0, time.Time{}); err != nil {
				t.Fatal(err)
			}
			parked, cancel := context.WithTimeout(t.Context(), 2*lease)
			defer cancel()
			if job, err := log.Claim(parked); err == nil { // the message of the job is delayed from now on
				t.Fatalf("Claim = %s, want none, since the run is parked", job.Run())
			}
			empty := fillQueue(t, url)
			full, cancel := context.WithCancel(t.Context())
			defer cancel()
			added := make(chan error, 1)
			go func() { added <- other.AddInput(full, "run_a", event.CancelID, nil) }()

			eventtest.Await(t, "the input", func() bool {
				page, err := log.Inputs(t.Context(), "run_a", 0)
				return err == nil && len(page.Inputs) > 0
			})

			cancel() // the append of the input may not have returned yet
			if err := <-added; !errors.Is(err, event.ErrUnavailable) {
				t.Fatalf("AddInput while the queue is full = %v, want %v", err, event.ErrUnavailable)
			}
			if repeats {
				_ = other.Close()
			}
			empty()

			if repeats {
				if err := log.AddInput(t.Context(), "run_a", event.CancelID, nil); !errors.Is(err, event.ErrDuplicateInput) {
					t.Fatalf("AddInput again = %v, want %v", err, event.ErrDuplicateInput)
				}
			}

			if job := claimJob(t, log); job.Run() != "run_a" {
				t.Errorf("Claim = %s, want run_a", job.Run())
			}
		})
	}
}

// fillQueue adds messages to the stream of jobs until it is full, and returns a function that removes them.
func fillQueue(t *testing.T, url string) (empty func()) {
	t.Helper()
	const filler = "answerd.job.filler_"
	queue, err := js.New(connect(t, url))
	if err != nil {
		t.Fatal(err)
	}
	stream, err := queue.Stream(t.Context(), "ANSWERD_JOBS")
	if err != nil {
		t.Fatal(err)
	}
	for i, size := 0, 128<<10; size > 0; i++ {
		if _, err := queue.Publish(t.Context(), fmt.Sprint(filler, i), make([]byte, size)); err != nil {
			size /= 2
		}
	}
	return func() {
		for _, subject := range subjectsOf(t, stream) {
			if strings.HasPrefix(subject, filler) {
				if err := stream.Purge(t.Context(), js.WithPurgeSubject(subject)); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
}

// A server may lose the consumer of the queue with a damaged file. The jobs in the queue must still be claimed.
func TestClaimMakesTheConsumerThatTheServerLost(t *testing.T) {
	t.Parallel()
	url := startCluster(t)
	log := openLog(t, jetstream.Options{URL: url, Lease: lease})
	job := startRun(t, log, "run_a")
	queue, err := js.New(connect(t, url))
	if err != nil {
		t.Fatal(err)
	}
	if err := queue.DeleteConsumer(t.Context(), "ANSWERD_JOBS", "workers"); err != nil {
		t.Fatal(err)
	}
	if err := job.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	if job := claimJob(t, log); job.Run() != "run_a" {
		t.Errorf("Claim = %s, want run_a", job.Run())
	}
}
