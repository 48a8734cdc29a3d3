package jetstream

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"

	"answerd/internal/event"
	"answerd/internal/event/eventtest"
	"answerd/internal/event/jetstream/embedded"
)

func openEmbedded(t testing.TB, o Options) *Log {
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

func createRun(t testing.TB, l *Log, id string, bodies ...event.Body) {
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

// countMessages returns how many messages each stream has.
func countMessages(t *testing.T, l *Log) (runs, index, jobs uint64) {
	t.Helper()
	r, err1 := l.runsStream.Info(t.Context())
	i, err2 := l.indexStream.Info(t.Context())
	j, err3 := l.jobsStream.Info(t.Context())
	if err := errors.Join(err1, err2, err3); err != nil {
		t.Fatal(err)
	}
	return r.State.Msgs, i.State.Msgs, j.State.Msgs
}

func TestRetentionLeavesATombstone(t *testing.T) {
	t.Parallel()
	l := openEmbedded(t, Options{Retention: time.Nanosecond})
	createRun(t, l, "run_open", event.Start{})
	createRun(t, l, "run_a", event.Start{})
	if err := l.SaveResult(t.Context(), "run_a", "call_1", make([]byte, 3*embedded.MaxPayload)); err != nil {
		t.Fatal(err)
	}
	if err := l.AddInput(t.Context(), "run_a", "int_1", nil); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Append(t.Context(), "run_a", event.FinalAnswer{}); err != nil {
		t.Fatal(err)
	}

	for _, when := range []string{"expired", "deleted"} {
		if r, err := l.Run(t.Context(), "run_a"); !errors.Is(err, event.ErrGone) || r.Owner.Subject != "ada" {
			t.Errorf("Run of a run that is %s = owner %q, %v, want owner ada, %v", when, r.Owner.Subject, err, event.ErrGone)
		}
		if _, err := l.After(t.Context(), "run_a", 0); !errors.Is(err, event.ErrGone) {
			t.Errorf("After of a run that is %s = %v, want %v", when, err, event.ErrGone)
		}
		if err := l.expireRuns(t.Context()); err != nil {
			t.Fatal(err)
		}
		l.pollRuns(time.Now().Add(2 * evictAfter)) // evicts the cached run
	}

	if page, err := l.After(t.Context(), "run_open", 0); err != nil || len(page.Events) != 1 {
		t.Errorf("After of a run that has not ended = %d events, %v, want 1", len(page.Events), err)
	}

	// One event; two records, one entry by owner and one key.
	if runs, index, jobs := countMessages(t, l); runs != 1 || index != 4 || jobs != 0 {
		t.Errorf("the streams have %d messages of runs, %d of the index, %d jobs, want 1, 4, 0", runs, index, jobs)
	}
}

// A process may die while it creates a run, or before it appends the first event.
func TestRetentionDeletesRunsWithoutEvents(t *testing.T) {
	t.Parallel()
	l := openEmbedded(t, Options{Retention: time.Nanosecond})
	createRun(t, l, "run_a")
	if _, err := l.publishOnce(t.Context(), nats.NewMsg(ownerSubject(event.Run{ID: "run_half"}))); err != nil {
		t.Fatal(err)
	}
	// The log's clock may be a moment behind that of the server.
	eventtest.Await(t, "the index to have one message", func() bool {
		if err := l.expireRuns(t.Context()); err != nil {
			t.Fatal(err)
		}
		_, index, _ := countMessages(t, l)
		return index == 1
	})
}

func TestRetentionDeletesEndedRunsFirstWhenSpaceIsShort(t *testing.T) {
	t.Parallel()
	l := openEmbedded(t, Options{MaxBytes: 4 << 20 / 3})
	large := event.Start{Question: strings.Repeat("x", 90<<10)}
	createRun(t, l, "run_open", large)
	for i := range 9 {
		createRun(t, l, fmt.Sprintf("run_%d", i), large, event.FinalAnswer{})
	}
	if err := l.expireRuns(t.Context()); err != nil {
		t.Fatal(err)
	}
	for id, want := range map[string]error{"run_0": event.ErrGone, "run_open": nil, "run_8": nil} {
		if _, err := l.After(t.Context(), id, 0); !errors.Is(err, want) {
			t.Errorf("After of %s = %v, want %v", id, err, want)
		}
	}
}

// A stream at its size limit drops its oldest messages, which readers must learn.
func TestFullStreamDropsTheOldestEvents(t *testing.T) {
	t.Parallel()
	l := openEmbedded(t, Options{MaxBytes: 4 << 20 / 3})
	createRun(t, l, "run_idle", event.Start{})
	createRun(t, l, "run_a", event.Start{})

	for range 40 {
		if _, err := l.Append(t.Context(), "run_a", event.LogMessage{Data: []byte(`"` + strings.Repeat("x", 40<<10) + `"`)}); err != nil {
			t.Fatal(err)
		}
	}

	if _, err := l.Append(t.Context(), "run_idle", event.FinalAnswer{}); !errors.Is(err, event.ErrGone) {
		t.Errorf("Append to a run whose events were dropped = %v, want %v", err, event.ErrGone)
	}
	if _, err := l.Run(t.Context(), "run_idle"); !errors.Is(err, event.ErrGone) {
		t.Errorf("Run of a run whose events were dropped = %v, want %v", err, event.ErrGone)
	}
	l.pollRuns(time.Now().Add(2 * evictAfter))
	l.mu.Lock()
	l.runs["run_a"].tail, l.runs["run_a"].tailPos = nil, nil
	l.mu.Unlock()
	if _, err := l.After(t.Context(), "run_a", 0); !errors.Is(err, event.ErrGone) {
		t.Errorf("After(0) = %v, want %v", err, event.ErrGone)
	}
	if page, err := l.After(t.Context(), "run_a", 35); err != nil || len(page.Events) == 0 {
		t.Errorf("After(35) = %d events, %v, want some", len(page.Events), err)
	}
}

// Short runs must not fill the memory.
func TestCacheEvictsUnusedRuns(t *testing.T) {
	t.Parallel()
	l := openEmbedded(t, Options{})
	for i := range 50 {
		id := fmt.Sprintf("run_%d", i)
		createRun(t, l, id, event.Start{}, event.FinalAnswer{})
		if _, err := l.After(t.Context(), id, 0); err != nil {
			t.Fatal(err)
		}
	}

	createRun(t, l, "run_open", event.Start{})
	l.pollRuns(time.Now().Add(2 * evictAfter))
	if len(l.runs) != 1 || l.runs["run_open"] == nil {
		t.Errorf("the cache has %d runs, want run_open alone", len(l.runs))
	}
	if n := l.read.NumSubscriptions(); n > 2 {
		t.Errorf("%d subscriptions are left, want at most 2", n)
	}
}

// openSecond opens a second log on the server of l, which receives live messages.
func openSecond(t *testing.T, l *Log) *Log {
	t.Helper()
	b := newLog(Options{})
	b.embedded = nil
	t.Cleanup(func() { _ = b.Close() })
	b.write, b.read = l.write, l.read
	if err := b.openStreams(t.Context()); err != nil {
		t.Fatal(err)
	}
	b.write, b.read = nil, nil
	b.read = l.read
	b.wg.Go(b.dispatchLoop)
	t.Cleanup(func() { b.stop(); b.wg.Wait(); b.read, b.js = nil, nil })
	return b
}

// No other live message follows the lost one, which would show the gap.
func TestPollFindsALostLiveMessage(t *testing.T) {
	t.Parallel()
	l := openEmbedded(t, Options{})
	createRun(t, l, "run_a", event.Start{})
	b := openSecond(t, l)
	page, err := b.After(t.Context(), "run_a", 1)
	if err != nil || page.More == nil {
		t.Fatalf("After(1) = %+v, %v, want a page that waits", page, err)
	}
	r := b.cachedRun("run_a")
	if err := r.eventSub.Unsubscribe(); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Append(t.Context(), "run_a", event.FinalAnswer{}); err != nil {
		t.Fatal(err)
	}

	select {
	case <-page.More:
		t.Fatal("the live message came, want it lost")
	default:
	}

	b.pollRuns(time.Now().Add(pollInterval))
	<-page.More
	r.mu.Lock()
	r.lastRead = r.lastRead.Add(-pollInterval)
	r.mu.Unlock()
	if page, err = b.After(t.Context(), "run_a", 1); err != nil || !page.Ended || len(page.Events) != 1 {
		t.Errorf("After(1) = %+v, %v, want one event and the end", page, err)
	}
}

// One live message of three is lost. The last event is in parts, which do not come live.
func TestReaderFillsAGapInLiveMessages(t *testing.T) {
	t.Parallel()
	l := openEmbedded(t, Options{})
	createRun(t, l, "run_a", event.Start{})
	b := openSecond(t, l)
	page, err := b.After(t.Context(), "run_a", 1)
	if err != nil {
		t.Fatal(err)
	}
	r := b.cachedRun("run_a")
	r.mu.Lock()
	r.lastPos-- // the next live message seems not to follow
	r.mu.Unlock()

	for range 2 {
		if _, err := l.Append(t.Context(), "run_a", event.StepStart{Step: 1}); err != nil {
			t.Fatal(err)
		}
	}

	if _, err := l.Append(t.Context(), "run_a", event.FinalAnswer{Answer: strings.Repeat("x", embedded.MaxPayload)}); err != nil {
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
		t.Errorf("read up to event %d, want 4", seq)
	}
}

func TestCancelledContextEndsClaimAndRun(t *testing.T) {
	t.Parallel()
	l := openEmbedded(t, Options{})
	createRun(t, l, "run_a", event.Start{})
	l.pollRuns(time.Now())
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := l.Claim(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("Claim = %v, want %v", err, context.Canceled)
	}
	if _, err := l.Run(ctx, "run_x"); !errors.Is(err, event.ErrUnavailable) || !errors.Is(err, context.Canceled) {
		t.Errorf("Run = %v, want %v and %v", err, event.ErrUnavailable, context.Canceled)
	}
}

// logBuffer keeps what a Logger writes.
type logBuffer struct {
	mu   sync.Mutex // guards text
	text bytes.Buffer
}

func (b *logBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

// A panic over one run or message must not end the log's goroutines, which serve all runs (fault F32).
func TestLoopsRecoverFromPanics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var logged logBuffer
		l := newLog(Options{Retention: 10 * time.Second, Logger: slog.New(slog.NewTextHandler(&logged, nil))})
		healthy := &run{log: l, id: "run_healthy", lastUsed: time.Now()}
		healthy.more = make(chan struct{})
		woken := healthy.more
		l.runs["run_bad"], l.runs["run_healthy"] = nil, healthy // and the log has no streams
		l.jobs["run_bad"] = nil

		for _, f := range []func(){l.dispatchLoop, l.pollLoop, l.expireLoop, l.heartbeatLoop} {
			l.wg.Go(f)
		}

		for range 2 {
			l.live <- nil
		}

		l.live <- &nats.Msg{Subject: "answerd.live.0.run_healthy.in.x"}
		<-time.After(20 * time.Second)

		select {
		case <-woken:
		default:
			t.Error("the readers of the healthy run were not woken, want them woken")
		}

		l.stop()
		l.wg.Wait()

		for _, doing := range []string{"accept a live message", "poll a run", "delete expired runs", "keep a lease"} {
			if n := strings.Count(logged.text.String(), fmt.Sprintf("doing=%q", doing)); n < 2 {
				t.Errorf("the log has %d panics with doing=%q, want at least 2", n, doing)
			}
		}
	})
}

// The header of a damaged message can declare any number of parts.
func TestPayloadWithMissingPartsIsAnError(t *testing.T) {
	t.Parallel()
	l := openEmbedded(t, Options{})
	for i := range 2 {
		part := nats.NewMsg(runSubject("run_a", fmt.Sprintf("%s.nonce.%d", partToken, i)))
		part.Data = []byte("x")
		if _, err := l.publishOnce(t.Context(), part); err != nil {
			t.Fatal(err)
		}
	}
	for declared, want := range map[string]string{"nonce 2": "xx", "nonce 1": "x", "nonce 3": "", "nonce 1000000000": "", "nonce -1": "", "nonce 0": ""} {
		m := message{Subject: runSubject("run_a", eventToken), Header: nats.Header{partsHeader: {declared}}}
		payload, err := l.readPayload(t.Context(), m)
		if string(payload) != want || (err == nil) != (want != "") {
			t.Errorf("readPayload of %q = %q, %v, want %q, or an error for nothing", declared, payload, err, want)
		}
	}
}

// Runs that have ended stay cached for their readers, but not more than the memory allows.
func TestCacheOfEndedRunsIsBounded(t *testing.T) {
	t.Parallel()
	l := openEmbedded(t, Options{Memory: 6 << 20}) // 1 MiB of it for the cache
	createRun(t, l, "run_open", event.Start{Question: strings.Repeat("x", 100<<10)})

	for i := range 20 {
		createRun(t, l, fmt.Sprintf("run_%d", i), event.Start{}, event.FinalAnswer{Answer: strings.Repeat("x", 100<<10)})
	}

	for late := time.After(time.Minute); l.cached.Load() > l.maxCached; {
		select {
		case <-time.After(10 * time.Millisecond):
		case <-late:
			t.Fatalf("%d bytes are cached, want at most %d", l.cached.Load(), l.maxCached)
		}
	}

	for id, want := range map[string]bool{"run_0": false, "run_19": true, "run_open": true} {
		if got := l.cachedRun(id) != nil; got != want {
			t.Errorf("%s is cached: %t, want %t", id, got, want)
		}
	}

	for _, id := range []string{"run_0", "run_19", "run_open"} {
		if page, err := l.After(t.Context(), id, 0); err != nil || len(page.Events) == 0 {
			t.Errorf("After(%s) = %d events, %v, want some", id, len(page.Events), err)
		}
	}

	l.forEachRun(func(r *run) { r.evictLocked() })
	if got := l.cached.Load(); got != 0 {
		t.Errorf("%d bytes are counted of an empty cache, want 0", got)
	}
}

// Every deleted run leaves a tombstone for a week.
func TestIndexFullOfTombstonesTakesNewRuns(t *testing.T) {
	t.Parallel()
	l := openEmbedded(t, Options{Retention: time.Nanosecond, MaxBytes: 8 << 20})
	owner := event.Owner{Subject: strings.Repeat("ada", 3000)} // is in every tombstone: 100 runs fill the index
	for i := range 10 {
		for n := range 12 {
			id := fmt.Sprintf("run_%d_%d", i, n)
			if err := l.Create(t.Context(), event.Run{ID: id, Owner: owner, Key: id, Created: time.Now()}); err != nil {
				t.Fatal(err)
			}
			if _, err := l.Append(t.Context(), id, event.FinalAnswer{}); err != nil {
				t.Fatal(err)
			}
		}
		var replicas sync.WaitGroup
		for range 3 {
			replicas.Go(func() {
				if err := l.expireRuns(t.Context()); err != nil {
					t.Error(err)
				}
			})
		}
		replicas.Wait()
	}

	s, err := l.spaceOf(t.Context(), l.indexStream)
	if err != nil || s.exceeds(shortAbove) {
		t.Errorf("the index has %d of %d bytes, %v, want at most %d %%", s.used, s.limit, err, shortAbove)
	}
}
