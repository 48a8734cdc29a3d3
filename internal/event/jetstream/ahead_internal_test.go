package jetstream

import (
	"errors"
	"sync"
	"testing"

	"github.com/nats-io/nats.go"

	"answerd/internal/event"
	"answerd/internal/event/eventtest"
)

// Delete waits for what was sent ahead while the first event does the same.
func TestMessagesSentAheadAreAwaitedByTwoCallers(t *testing.T) {
	t.Parallel()
	l := openEmbedded(t, Options{})
	if err := l.Create(t.Context(), event.Run{ID: "run_a", Created: l.Now()}); err != nil {
		t.Fatal(err)
	}
	w, err := l.writerFor(t.Context(), "run_a")
	if err != nil {
		t.Fatal(err)
	}

	var callers sync.WaitGroup
	for range 4 {
		callers.Go(func() {
			defer func() {
				if v := recover(); v != nil {
					t.Errorf("awaitAhead panics: %v, want no panic", v)
				}
			}()
			if err := w.awaitAhead(t.Context()); err != nil {
				t.Errorf("awaitAhead = %v, want no error", err)
			}
		})
	}
	callers.Wait()
}

// The first event may be stored although the record or the job is refused.
func TestDeleteRemovesARunOfWhichAPartWasRefused(t *testing.T) {
	t.Parallel()
	for _, full := range []string{indexName, jobsName} {
		t.Run(full, func(t *testing.T) {
			t.Parallel()
			l := openEmbedded(t, Options{})
			createRun(t, l, "run_other")
			if _, err := l.CreateJob(t.Context(), "run_other", nil); err != nil {
				t.Fatal(err)
			}
			if _, err := l.Append(t.Context(), "run_other", event.Start{}); err != nil {
				t.Fatal(err)
			}
			stream, err := l.js.Stream(t.Context(), full)
			if err != nil {
				t.Fatal(err)
			}

			config := stream.CachedInfo().Config
			config.MaxMsgs = int64(stream.CachedInfo().State.Msgs)
			if _, err := l.js.UpdateStream(t.Context(), config); err != nil {
				t.Fatal(err)
			}
			if err := l.Create(t.Context(), event.Run{ID: "run_a", Created: l.Now()}); err != nil {
				t.Fatal(err)
			}
			if _, err := l.CreateJob(t.Context(), "run_a", nil); err != nil {
				t.Fatal(err)
			}
			if _, err := l.Append(t.Context(), "run_a", event.Start{}); !errors.Is(err, event.ErrUnavailable) {
				t.Errorf("Append = %v, want %v", err, event.ErrUnavailable)
			}
			if err := l.Delete(t.Context(), "run_a"); err != nil {
				t.Errorf("Delete = %v, want no error", err)
			}
			if runs, _, jobs := countMessages(t, l); runs != 1 || jobs != 1 {
				t.Errorf("the log has %d messages of runs and %d jobs, want those of the other run", runs, jobs)
			}
			if r, err := l.Run(t.Context(), "run_a"); !errors.Is(err, event.ErrGone) && !errors.Is(err, event.ErrNotFound) {
				t.Errorf("Run = %v after %d events, want %v", err, r.Last.Seq, event.ErrGone)
			}
		})
	}
}

// The client library accepts 4,000 messages without an acknowledgement, and then no other. A store that is closed, as
// when the disk is full, acknowledges nothing.
func TestMessageWithoutAnAcknowledgementIsForgotten(t *testing.T) {
	t.Parallel()
	l := openEmbedded(t, Options{})
	if _, err := l.write.SubscribeSync("silent"); err != nil {
		t.Fatal(err)
	}
	if _, err := l.send(indexName, nats.NewMsg("silent")); err != nil {
		t.Fatal(err)
	}
	eventtest.Await(t, "the client library to forget the message", func() bool { return l.js.PublishAsyncPending() == 0 })
}
