package jetstream

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	js "github.com/nats-io/nats.go/jetstream"

	"answerd/internal/event"
	"answerd/internal/event/eventtest"
	"answerd/internal/event/jetstream/threads"
)

// deleteWithShortTime calls remove for many ids, each time with a little more time, so that the context of some calls ends
// in the middle. It calls remove again, with enough time, for the ids that exists reports.
func deleteWithShortTime(t *testing.T, remove func(ctx context.Context, id string) error, exists func(id string) bool) {
	t.Helper()
	for i := range deletions {
		id := fmt.Sprintf("id_%d", i)
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i)*5*time.Microsecond)
		err := remove(ctx, id)
		cancel()
		if err != nil && exists(id) {
			err = remove(t.Context(), id)
		} else if errors.Is(err, event.ErrUnavailable) {
			err = nil
		}
		if err != nil {
			t.Fatalf("the deletion of %s = %v, want no error", id, err)
		}
	}
}

// deletions is how many runs or threads a test deletes.
const deletions = 200

func wantEmpty(t *testing.T, s js.Stream) {
	t.Helper()
	info, err := s.Info(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if info.State.Msgs > 0 {
		t.Errorf("stream %s has %d messages of what was deleted, want none", info.Config.Name, info.State.Msgs)
	}
}

// A caller may go away while their thread is being deleted. No list has the thread then, so its turns must not stay.
func TestDeletionOfAThreadIsCompleteIfTheCallerLeaves(t *testing.T) {
	t.Parallel()
	l, owner := openEmbedded(t, Options{}), event.Owner{Subject: "ada"}
	for i := range deletions {
		id, run := fmt.Sprintf("id_%d", i), fmt.Sprintf("run_%d", i)
		if _, err := l.BeginTurn(t.Context(), owner, id, run, "", "?"); err != nil {
			t.Fatal(err)
		}
		if err := l.EndTurn(t.Context(), owner, id, run, []byte("x")); err != nil {
			t.Fatal(err)
		}
	}
	deleteWithShortTime(t,
		func(ctx context.Context, id string) error { return l.DeleteThread(ctx, owner, id) },
		func(id string) bool { _, err := l.Thread(t.Context(), owner, id); return err == nil })
	wantEmpty(t, l.turnsStream)
	wantEmpty(t, l.headsStream)
}

// A caller may go away while their run is being deleted. The run is gone for everybody then, so its messages must not stay
// until its retention has passed.
func TestDeletionOfARunIsCompleteIfTheCallerLeaves(t *testing.T) {
	t.Parallel()
	l := openEmbedded(t, Options{})
	for i := range deletions {
		createRun(t, l, fmt.Sprintf("id_%d", i), event.Start{Question: "?"}, event.FinalAnswer{})
	}
	deleteWithShortTime(t, l.Delete, func(id string) bool { rec, err := l.readRecord(t.Context(), id); return err == nil && !rec.Gone })
	wantEmpty(t, l.runsStream)
}

// A call or a person may give a result or an input while the run is being deleted. It must not stay, since nothing finds it
// any more.
func TestDeletionOfARunIsCompleteAlthoughOthersAddToIt(t *testing.T) {
	t.Parallel()
	l := openEmbedded(t, Options{Lease: 50 * time.Millisecond})
	var all sync.WaitGroup
	for i := range deletions {
		id := fmt.Sprintf("run_%d", i)
		createRun(t, l, id, event.Start{Question: "?"})
		all.Go(func() { _ = l.SaveResult(t.Context(), id, "call_1", []byte("x")) }) // refused if the run is gone already
		all.Go(func() { _ = l.AddInput(t.Context(), id, event.CancelID, nil) })
		all.Go(func() {
			if err := l.Delete(t.Context(), id); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	eventtest.Await(t, "the stream to have nothing of what was deleted", func() bool {
		runs, _, _ := countMessages(t, l)
		return runs == 0
	})
}

// The server may not answer a write within the time of one attempt. Here a server without streams forwards the writes
// of the log, all but the first.
func TestDeletionOfARunIsRepeatedIfTheServerIsSlow(t *testing.T) {
	t.Parallel()
	l := openEmbedded(t, Options{})
	createRun(t, l, "run_a", event.Start{}, event.FinalAnswer{})
	between, err := server.NewServer(&server.Options{DontListen: true, NoSigs: true, NoLog: true})
	if err != nil {
		t.Fatal(err)
	}
	between.Start()
	t.Cleanup(func() { between.Shutdown(); between.WaitForShutdown() })
	b := openSecond(t, l)
	if b.write, err = nats.Connect("", nats.InProcessServer(between)); err != nil {
		t.Fatal(err)
	}
	requests := 0
	_, err = b.write.Subscribe(recordPrefix+"*", func(m *nats.Msg) {
		if requests++; requests == 1 {
			return
		}
		if answer, err := l.write.RequestMsg(&nats.Msg{Subject: m.Subject, Header: m.Header, Data: m.Data}, time.Second); err == nil {
			_ = m.Respond(answer.Data)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Delete(t.Context(), "run_a"); err != nil {
		t.Errorf("Delete = %v, want no error", err)
	}
	wantEmpty(t, l.runsStream)
}

// The process may be killed between the head of a thread and its turns. No list has the thread then, so the next process
// must find the turns. Here the deletion of the turns fails, and the process forgets that.
func TestTurnsOfAThreadDoNotStayIfTheProcessIsKilled(t *testing.T) {
	t.Parallel()
	l, owner := openEmbedded(t, Options{}), event.Owner{Subject: "ada"}
	if _, err := l.BeginTurn(t.Context(), owner, "thr_a", "run_a", "", "?"); err != nil {
		t.Fatal(err)
	}
	if err := l.EndTurn(t.Context(), owner, "thr_a", "run_a", []byte("x")); err != nil {
		t.Fatal(err)
	}
	open := func(server threads.Server) *threads.Store {
		s := threads.New(server, time.Hour, l.logger)
		if err := s.Load(t.Context()); err != nil {
			t.Fatal(err)
		}
		return s
	}
	killed := l.threadsServer()
	killed.Purge = func(context.Context, string, string) error { return event.ErrUnavailable }
	if err := open(killed).DeleteThread(t.Context(), owner, "thr_a"); !errors.Is(err, event.ErrUnavailable) {
		t.Fatalf("DeleteThread = %v, want %v", err, event.ErrUnavailable)
	}
	if err := open(l.threadsServer()).Expire(t.Context()); err != nil {
		t.Fatal(err)
	}
	wantEmpty(t, l.turnsStream)
}
