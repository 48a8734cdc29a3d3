package jetstream_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"answerd/internal/event"
	"answerd/internal/event/eventtest"
	"answerd/internal/event/jetstream"
)

// lease is long enough for a slow machine not to lose it, and short enough to wait for.
const lease = time.Second

func begin(t testing.TB, log event.Log, id string) event.Job {
	t.Helper()
	if err := log.Create(t.Context(), event.Run{ID: id, Owner: event.Owner{Subject: "ada"}, Created: time.Now()}); err != nil {
		t.Fatal(err)
	}
	add(t, log, id, event.Start{Question: "?"})
	job, err := log.CreateJob(t.Context(), id, []byte("request"))
	if err != nil {
		t.Fatal(err)
	}
	return job
}

func add(t testing.TB, log event.Log, id string, b event.Body) {
	t.Helper()
	if _, err := log.Append(t.Context(), id, b); err != nil {
		t.Fatal(err)
	}
}

func claim(t testing.TB, log event.Log) event.Job {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	job, err := log.Claim(ctx)
	if err != nil {
		t.Fatalf("claim: %v", err)
	}
	return job
}

// read follows a run until an event pleases, or to its end.
func read(ctx context.Context, log event.Log, id string, pleases func(event.Event) bool) ([]event.Event, error) {
	var all []event.Event
	for {
		page, err := log.After(ctx, id, int64(len(all)))
		if err != nil {
			return all, err
		}
		for _, e := range page.Events {
			if e.Seq != int64(len(all))+1 {
				return all, fmt.Errorf("number %d follows %d", e.Seq, len(all))
			}
			if all = append(all, e); pleases != nil && pleases(e) {
				return all, nil
			}
		}
		if page.Ended {
			return all, nil
		}
		if len(page.Events) == 0 {
			select {
			case <-page.More:
			case <-ctx.Done():
				return all, ctx.Err()
			}
		}
	}
}

// claiming makes four claims at a time in the background until the test ends, as every
// process does.
func claiming(t testing.TB, log event.Log) <-chan event.Job {
	ctx, cancel := context.WithCancel(context.Background())
	jobs := make(chan event.Job, 1000)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for {
				job, err := log.Claim(ctx)
				if err != nil {
					return
				}
				jobs <- job
			}
		})
	}
	t.Cleanup(func() { cancel(); wg.Wait() })
	return jobs
}

func TestWhatOneProcessWritesAnotherReads(t *testing.T) {
	t.Parallel()
	url := cluster(t)
	a, b := open(t, jetstream.Options{URL: url}), open(t, jetstream.Options{URL: url})
	begin(t, a, "run_a")
	const events, readers = 2000, 8
	var wg sync.WaitGroup
	for range readers {
		wg.Go(func() {
			if all, err := read(t.Context(), b, "run_a", nil); len(all) != events+2 || err != nil {
				t.Errorf("%d events, %v", len(all), err)
			}
		})
	}
	for i := range events {
		add(t, a, "run_a", event.StepStart{Step: i})
	}
	add(t, a, "run_a", event.FinalAnswer{})
	wg.Wait()
	if _, err := b.Append(t.Context(), "run_a", event.Start{}); !errors.Is(err, event.ErrEnded) {
		t.Errorf("append elsewhere after the end: %v", err)
	}
	begin(t, a, "run_b")
	if _, err := b.Append(t.Context(), "run_b", event.StepStart{}); !errors.Is(err, event.ErrFenced) {
		t.Errorf("append elsewhere: %v", err)
	}
	if _, err := b.CreateJob(t.Context(), "run_b", nil); !errors.Is(err, event.ErrFenced) {
		t.Errorf("hold elsewhere: %v", err)
	}
}

func TestAnAnswerGivenElsewhereReachesTheRun(t *testing.T) {
	t.Parallel()
	url := cluster(t)
	a, b := open(t, jetstream.Options{URL: url}), open(t, jetstream.Options{URL: url})
	job := begin(t, a, "run_a")
	page, err := a.Inputs(t.Context(), "run_a", 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := b.AddInput(t.Context(), "run_a", event.CancelID, []byte("please")); err != nil {
		t.Fatal(err)
	}
	<-page.More
	if page, err = a.Inputs(t.Context(), "run_a", 0); err != nil || len(page.Inputs) != 1 || page.Inputs[0].ID != event.CancelID {
		t.Fatalf("%+v, %v", page, err)
	}
	if err := a.AddInput(t.Context(), "run_a", event.CancelID, nil); !errors.Is(err, event.ErrDuplicateInput) {
		t.Errorf("a second time: %v", err)
	}
	if err := job.Park(t.Context(), page.Inputs[0].Pos, time.Time{}); err != nil {
		t.Fatal(err)
	}
	if err := a.AddInput(t.Context(), "run_a", "int_1", nil); err != nil {
		t.Fatal(err)
	}
	if job = claim(t, b); job.Run() != "run_a" {
		t.Errorf("claimed %s", job.Run())
	}
}

func TestAKeyIsOneAcrossProcesses(t *testing.T) {
	t.Parallel()
	url := cluster(t)
	a, b := open(t, jetstream.Options{URL: url}), open(t, jetstream.Options{URL: url})
	var wg sync.WaitGroup
	var mu sync.Mutex
	wins := 0
	for i := range 20 {
		wg.Go(func() {
			log := []event.Log{a, b}[i%2]
			err := log.Create(t.Context(), event.Run{ID: fmt.Sprintf("run_%d", i), Key: "key", Fingerprint: [32]byte{1}, Created: time.Now()})
			var used *event.KeyError
			switch {
			case err == nil:
				mu.Lock()
				wins++
				mu.Unlock()
			case !errors.As(err, &used) || !used.Same:
				t.Error(err)
			}
		})
	}
	wg.Wait()
	page, err := b.Runs(t.Context(), event.Filter{})
	if wins != 1 || err != nil || len(page.Runs) != 1 {
		t.Errorf("%d won, %d runs, %v", wins, len(page.Runs), err)
	}
}

// TestALostAcknowledgementIsNoLostAndNoSecondEvent cuts the connections of a writer, and
// throws away what the server says to it, at random moments.
func TestALostAcknowledgementIsNoLostAndNoSecondEvent(t *testing.T) {
	t.Parallel()
	url := cluster(t)
	gate := eventtest.StartProxy(t, url)
	a, b := open(t, jetstream.Options{URL: gate.URL()}), open(t, jetstream.Options{URL: url})
	begin(t, a, "run_a")
	const events = 60
	rnd := rand.New(rand.NewPCG(1, 2))
	for i := range events {
		switch {
		case i%20 == 7:
			gate.Cut()
		case i%25 == 13:
			gate.Deafen()
			time.AfterFunc(time.Duration(rnd.IntN(100))*time.Millisecond, func() { gate.Resume(); gate.Cut() })
		}
		add(t, a, "run_a", event.StepStart{Step: i})
	}
	gate.Resume()
	add(t, a, "run_a", event.FinalAnswer{})
	all, err := read(t.Context(), b, "run_a", nil)
	if err != nil || len(all) != events+2 {
		t.Fatalf("%d events, %v", len(all), err)
	}
	for i, e := range all[1 : events+1] {
		if e.Body != (event.StepStart{Step: i}) {
			t.Fatalf("event %d is %s", i, e.JSON)
		}
	}
}

// TestAServerThatRestartsCostsNothingButTime: writers and readers wait for it, and nobody
// takes over from anybody.
func TestAServerThatRestartsCostsNothingButTime(t *testing.T) {
	t.Parallel()
	o := &server.Options{Host: "127.0.0.1", Port: server.RANDOM_PORT, NoSigs: true, NoLog: true, JetStream: true, StoreDir: t.TempDir()}
	s := serve(t, o)
	o.Port = s.Addr().(*net.TCPAddr).Port
	shared := jetstream.Options{URL: s.ClientURL(), Lease: 3 * lease} // far more than connecting again takes
	a, b := open(t, shared), open(t, shared)
	claiming(t, a)
	jobs := claiming(t, b)
	const runs = 10
	var readers sync.WaitGroup
	for i := range runs {
		id := fmt.Sprintf("run_%d", i)
		begin(t, a, id)
		readers.Go(func() {
			all, err := read(t.Context(), b, id, nil)
			for errors.Is(err, event.ErrUnavailable) { // a reader is not waited for as long as a writer: it comes again
				all, err = read(t.Context(), b, id, nil)
			}
			if err != nil || len(all) != 22 {
				t.Errorf("a reader of %s: %d events, %v", id, len(all), err)
			}
		})
	}
	for step := range 20 {
		if step == 10 {
			s.Shutdown()
			s.WaitForShutdown()
			if err := a.Ready(t.Context()); !errors.Is(err, event.ErrUnavailable) {
				t.Errorf("ready without a server: %v", err)
			}
			if _, err := b.After(t.Context(), "run_unread", 0); !errors.Is(err, event.ErrUnavailable) {
				t.Errorf("read without a server: %v", err)
			}
			time.AfterFunc(lease/2, func() { serve(t, o) })
		}
		for i := range runs {
			add(t, a, fmt.Sprintf("run_%d", i), event.StepStart{Step: step})
		}
	}
	for i := range runs {
		add(t, a, fmt.Sprintf("run_%d", i), event.FinalAnswer{})
	}
	readers.Wait()
	select {
	case j := <-jobs:
		t.Errorf("%s was taken from its owner", j.Run())
	default:
	}
	if err := a.Ready(t.Context()); err != nil {
		t.Errorf("ready again: %v", err)
	}
}

// serve starts a NATS server that ends with the test.
func serve(t testing.TB, o *server.Options) *server.Server {
	s, err := server.NewServer(o)
	if err != nil {
		t.Error(err)
		return nil
	}
	s.Start()
	t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
	if !s.ReadyForConnections(10 * time.Second) {
		t.Error("the server does not start")
	}
	return s
}

// A process that lost a run may well be the one that takes it up again.
func TestARunComesBackToWhomItWasTakenFrom(t *testing.T) {
	t.Parallel()
	url := cluster(t)
	gate := eventtest.StartProxy(t, url)
	a := open(t, jetstream.Options{URL: gate.URL(), Lease: lease})
	b := open(t, jetstream.Options{URL: url, Lease: lease})
	lost := begin(t, a, "run_a")
	gate.Stop()
	taken := claim(t, b)
	gate.Resume()
	if _, err := a.Append(t.Context(), "run_a", event.StepStart{Step: 1}); !errors.Is(err, event.ErrFenced) {
		t.Fatalf("the zombie appends: %v", err)
	}
	if err := taken.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	again := claim(t, a) // while the old job is still to be given up
	if again.Attempt() != 3 {
		t.Errorf("attempt %d", again.Attempt())
	}
	if err := lost.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	add(t, a, "run_a", event.FinalAnswer{})
	if err := again.Done(t.Context()); err != nil {
		t.Fatal(err)
	}
}
