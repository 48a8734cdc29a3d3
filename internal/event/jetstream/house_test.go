package jetstream

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"answerd/internal/event"
)

func openHere(t testing.TB, o Options) *Log {
	t.Helper()
	o.URL = "file:" + t.TempDir()
	l, err := Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	return l
}

func newRun(t testing.TB, l *Log, id string, bodies ...event.Body) {
	t.Helper()
	if err := l.Create(t.Context(), event.Run{ID: id, Owner: event.Owner{Subject: "ada"}, Key: id, Created: time.Now()}); err != nil {
		t.Fatal(err)
	}
	for _, b := range bodies {
		if _, err := l.Append(t.Context(), id, b); err != nil {
			t.Fatal(err)
		}
	}
}

// left is how many messages the streams have.
func left(t *testing.T, l *Log) (runs, index, jobs uint64) {
	t.Helper()
	r, err1 := l.runsStream.Info(t.Context())
	i, err2 := l.indexStream.Info(t.Context())
	j, err3 := l.jobsStream.Info(t.Context())
	if err := errors.Join(err1, err2, err3); err != nil {
		t.Fatal(err)
	}
	return r.State.Msgs, i.State.Msgs, j.State.Msgs
}

func TestARunIsGoneAfterItsRetentionAndLeavesATombstone(t *testing.T) {
	t.Parallel()
	l := openHere(t, Options{Retention: time.Nanosecond})
	newRun(t, l, "run_open", event.Start{})
	newRun(t, l, "run_a", event.Start{})
	if err := l.SaveResult(t.Context(), "run_a", "call_1", make([]byte, 3*embeddedPayload)); err != nil {
		t.Fatal(err)
	}
	if err := l.AddInput(t.Context(), "run_a", "int_1", nil); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Append(t.Context(), "run_a", event.FinalAnswer{}); err != nil {
		t.Fatal(err)
	}
	for _, when := range []string{"past its time", "removed"} {
		if r, err := l.Run(t.Context(), "run_a"); !errors.Is(err, event.ErrGone) || r.Owner.Subject != "ada" {
			t.Errorf("%s: %+v, %v", when, r, err)
		}
		if _, err := l.After(t.Context(), "run_a", 0); !errors.Is(err, event.ErrGone) {
			t.Errorf("%s: %v", when, err)
		}
		if err := l.expire(t.Context()); err != nil {
			t.Fatal(err)
		}
		l.sweepAt(time.Now().Add(2 * idleAfter)) // what is known here is forgotten
	}
	if page, err := l.After(t.Context(), "run_open", 0); err != nil || len(page.Events) != 1 {
		t.Errorf("a run that has not ended: %d events, %v", len(page.Events), err)
	}
	// One event; two records, an entry by owner and a key.
	if runs, index, jobs := left(t, l); runs != 1 || index != 4 || jobs != 0 {
		t.Errorf("%d messages of runs, %d of the index, %d jobs", runs, index, jobs)
	}
}

// A run that was created and of which nothing more is known is no leak: a process may
// die between the two.
func TestARunWithoutEventsGoesToo(t *testing.T) {
	t.Parallel()
	l := openHere(t, Options{Retention: time.Nanosecond})
	newRun(t, l, "run_a")
	if err := l.claimName(t.Context(), ownSubject(event.Run{ID: "run_half"}), nil); err != nil {
		t.Fatal(err)
	}
	if err := l.expire(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, index, _ := left(t, l); index != 1 {
		t.Errorf("%d messages of the index", index)
	}
}

func TestWhenRoomIsShortEndedRunsGoFirst(t *testing.T) {
	t.Parallel()
	l := openHere(t, Options{MaxBytes: 1 << 20})
	large := event.Start{Question: strings.Repeat("x", 90<<10)}
	newRun(t, l, "run_open", large)
	for i := range 9 {
		newRun(t, l, fmt.Sprintf("run_%d", i), large, event.FinalAnswer{})
	}
	if err := l.expire(t.Context()); err != nil {
		t.Fatal(err)
	}
	for id, want := range map[string]error{"run_0": event.ErrGone, "run_open": nil, "run_8": nil} {
		if _, err := l.After(t.Context(), id, 0); !errors.Is(err, want) {
			t.Errorf("%s: %v", id, err)
		}
	}
}

// What a stream that is full drops before anybody can make room is said to be gone.
func TestAFullLogDropsTheOldestAndSaysSo(t *testing.T) {
	t.Parallel()
	l := openHere(t, Options{MaxBytes: 1 << 20})
	newRun(t, l, "run_idle", event.Start{})
	newRun(t, l, "run_a", event.Start{})
	for range 40 {
		if _, err := l.Append(t.Context(), "run_a", event.LogMessage{Data: []byte(`"` + strings.Repeat("x", 40<<10) + `"`)}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := l.Append(t.Context(), "run_idle", event.FinalAnswer{}); !errors.Is(err, event.ErrGone) {
		t.Errorf("append to a run without its past: %v", err)
	}
	if _, err := l.Run(t.Context(), "run_idle"); !errors.Is(err, event.ErrGone) {
		t.Errorf("run without its past: %v", err)
	}
	l.sweepAt(time.Now().Add(2 * idleAfter))
	l.mu.Lock()
	l.runs["run_a"].tail, l.runs["run_a"].tailAt = nil, nil
	l.mu.Unlock()
	if _, err := l.After(t.Context(), "run_a", 0); !errors.Is(err, event.ErrGone) {
		t.Errorf("an early position: %v", err)
	}
	if page, err := l.After(t.Context(), "run_a", 35); err != nil || len(page.Events) == 0 {
		t.Errorf("a late position: %d events, %v", len(page.Events), err)
	}
}

// Issue 5: short runs leave memory where it was.
func TestRunsThatNobodyAsksForAreForgotten(t *testing.T) {
	t.Parallel()
	l := openHere(t, Options{})
	for i := range 50 {
		id := fmt.Sprintf("run_%d", i)
		newRun(t, l, id, event.Start{}, event.FinalAnswer{})
		if _, err := l.After(t.Context(), id, 0); err != nil {
			t.Fatal(err)
		}
	}
	newRun(t, l, "run_open", event.Start{})
	l.sweepAt(time.Now().Add(2 * idleAfter))
	if len(l.runs) != 1 || l.runs["run_open"] == nil {
		t.Errorf("%d runs are kept in memory", len(l.runs))
	}
	if n := l.read.NumSubscriptions(); n > 2 {
		t.Errorf("%d subscriptions", n)
	}
}

// reader is a second log on the same server, which follows a run.
func reader(t *testing.T, l *Log, id string) *Log {
	t.Helper()
	b := newLog(Options{})
	b.embedded = nil
	t.Cleanup(func() { _ = b.Close() })
	b.write, b.read = l.write, l.read
	if err := b.prepare(t.Context()); err != nil {
		t.Fatal(err)
	}
	b.write, b.read = nil, nil
	b.read = l.read
	b.wg.Go(b.dispatch)
	t.Cleanup(func() { b.stop(); b.wg.Wait(); b.read, b.js = nil, nil })
	return b
}

// TestALostLiveMessageIsFound: nothing follows it that would show the gap.
func TestALostLiveMessageIsFound(t *testing.T) {
	t.Parallel()
	l := openHere(t, Options{})
	newRun(t, l, "run_a", event.Start{})
	b := reader(t, l, "run_a")
	page, err := b.After(t.Context(), "run_a", 1)
	if err != nil || page.More == nil {
		t.Fatalf("%+v, %v", page, err)
	}
	r := b.known("run_a")
	if err := r.sub.Unsubscribe(); err != nil { // nothing comes any more
		t.Fatal(err)
	}
	if _, err := l.Append(t.Context(), "run_a", event.FinalAnswer{}); err != nil {
		t.Fatal(err)
	}
	select {
	case <-page.More:
		t.Fatal("it was not lost")
	default:
	}
	b.sweepAt(time.Now().Add(pollEvery))
	<-page.More
	r.mu.Lock()
	r.checked = r.checked.Add(-pollEvery)
	r.mu.Unlock()
	if page, err = b.After(t.Context(), "run_a", 1); err != nil || !page.Ended || len(page.Events) != 1 {
		t.Errorf("%+v, %v", page, err)
	}
}

// TestAGapInLiveMessagesIsFilled: one of three is lost, and an event in parts needs the
// stream anyway.
func TestAGapInLiveMessagesIsFilled(t *testing.T) {
	t.Parallel()
	l := openHere(t, Options{})
	newRun(t, l, "run_a", event.Start{})
	b := reader(t, l, "run_a")
	page, err := b.After(t.Context(), "run_a", 1)
	if err != nil {
		t.Fatal(err)
	}
	r := b.known("run_a")
	r.mu.Lock() // as if one had been delivered between
	r.at--
	r.mu.Unlock()
	for range 2 {
		if _, err := l.Append(t.Context(), "run_a", event.StepStart{Step: 1}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := l.Append(t.Context(), "run_a", event.FinalAnswer{Answer: strings.Repeat("x", embeddedPayload)}); err != nil {
		t.Fatal(err)
	}
	seq := int64(1)
	for !page.Ended {
		if page.More != nil {
			<-page.More
		}
		if page, err = b.After(t.Context(), "run_a", seq); err != nil {
			t.Fatal(err)
		}
		seq += int64(len(page.Events))
	}
	if seq != 4 {
		t.Errorf("%d events", seq)
	}
}

func TestACancelledReadIsOver(t *testing.T) {
	t.Parallel()
	l := openHere(t, Options{})
	newRun(t, l, "run_a", event.Start{})
	l.sweepAt(time.Now())
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := l.Claim(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("claim: %v", err)
	}
	if _, err := l.Run(ctx, "run_x"); !errors.Is(err, event.ErrUnavailable) || !errors.Is(err, context.Canceled) {
		t.Errorf("run: %v", err)
	}
}
