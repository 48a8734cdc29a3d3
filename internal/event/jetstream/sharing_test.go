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
	js "github.com/nats-io/nats.go/jetstream"

	"answerd/internal/event"
	"answerd/internal/event/eventtest"
	"answerd/internal/event/jetstream"
)

// lease is long enough for a slow machine not to lose it, and short enough to wait for.
const lease = time.Second

// startRun creates a run with a start event and a job.
func startRun(t testing.TB, log event.Log, id string) event.Job {
	t.Helper()
	if err := log.Create(t.Context(), event.Run{ID: id, Owner: event.Owner{Subject: "ada"}, Created: time.Now()}); err != nil {
		t.Fatal(err)
	}
	appendEvent(t, log, id, event.Start{Question: "?"})
	job, err := log.CreateJob(t.Context(), id, []byte("request"))
	if err != nil {
		t.Fatal(err)
	}
	return job
}

// appendEvent appends an event.
func appendEvent(t testing.TB, log event.Log, id string, b event.Body) {
	t.Helper()
	if _, err := log.Append(t.Context(), id, b); err != nil {
		t.Fatal(err)
	}
}

// claimJob claims a job within 30 s.
func claimJob(t testing.TB, log event.Log) event.Job {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	job, err := log.Claim(ctx)
	if err != nil {
		t.Fatalf("Claim: %v", err)
	}
	return job
}

// readUntil reads a run up to the first event that isLast accepts; nil reads to the run's end.
func readUntil(ctx context.Context, log event.Log, id string, isLast func(event.Event) bool) ([]event.Event, error) {
	var all []event.Event
	for {
		page, err := log.After(ctx, id, int64(len(all)))
		if err != nil {
			return all, err
		}
		for _, e := range page.Events {
			if e.Seq != int64(len(all))+1 {
				return all, fmt.Errorf("event %d follows event %d", e.Seq, len(all))
			}
			all = append(all, e)
			if isLast != nil && isLast(e) {
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

// keepClaiming makes four claims at a time until the test ends, as every process does.
func keepClaiming(t testing.TB, log event.Log) <-chan event.Job {
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

func TestReadersOnAnotherInstanceReadAllEvents(t *testing.T) {
	t.Parallel()
	url := startCluster(t)
	a, b := openLog(t, jetstream.Options{URL: url}), openLog(t, jetstream.Options{URL: url})
	startRun(t, a, "run_a")

	const events, readers = 2000, 8
	var wg sync.WaitGroup
	for range readers {
		wg.Go(func() {
			if all, err := readUntil(t.Context(), b, "run_a", nil); len(all) != events+2 || err != nil {
				t.Errorf("a reader got %d events, %v, want %d", len(all), err, events+2)
			}
		})
	}

	for i := range events {
		appendEvent(t, a, "run_a", event.StepStart{Step: i})
	}

	appendEvent(t, a, "run_a", event.FinalAnswer{})
	wg.Wait()
	if _, err := b.Append(t.Context(), "run_a", event.Start{}); !errors.Is(err, event.ErrEnded) {
		t.Errorf("Append on the other instance after the end = %v, want %v", err, event.ErrEnded)
	}
	startRun(t, a, "run_b")
	if _, err := b.Append(t.Context(), "run_b", event.StepStart{}); !errors.Is(err, event.ErrFenced) {
		t.Errorf("Append on the other instance = %v, want %v", err, event.ErrFenced)
	}
	if _, err := b.CreateJob(t.Context(), "run_b", nil); !errors.Is(err, event.ErrFenced) {
		t.Errorf("CreateJob on the other instance = %v, want %v", err, event.ErrFenced)
	}
}

func TestInputFromAnotherInstanceReachesTheRun(t *testing.T) {
	t.Parallel()
	url := startCluster(t)
	a, b := openLog(t, jetstream.Options{URL: url}), openLog(t, jetstream.Options{URL: url})
	job := startRun(t, a, "run_a")
	page, err := a.Inputs(t.Context(), "run_a", 0)
	if err != nil {
		t.Fatal(err)
	}

	if err := b.AddInput(t.Context(), "run_a", event.CancelID, []byte("please")); err != nil {
		t.Fatal(err)
	}
	<-page.More
	if page, err = a.Inputs(t.Context(), "run_a", 0); err != nil || len(page.Inputs) != 1 || page.Inputs[0].ID != event.CancelID {
		t.Fatalf("Inputs = %+v, %v, want the cancel request", page, err)
	}
	if err := a.AddInput(t.Context(), "run_a", event.CancelID, nil); !errors.Is(err, event.ErrDuplicateInput) {
		t.Errorf("a second AddInput = %v, want %v", err, event.ErrDuplicateInput)
	}
	if err := job.Park(t.Context(), page.Inputs[0].Pos, time.Time{}); err != nil {
		t.Fatal(err)
	}
	if err := a.AddInput(t.Context(), "run_a", "int_1", nil); err != nil {
		t.Fatal(err)
	}
	job = claimJob(t, b)
	if job.Run() != "run_a" {
		t.Errorf("claimed %s, want run_a", job.Run())
	}
}

func TestKeyRefersToOneRunOnAllInstances(t *testing.T) {
	t.Parallel()
	url := startCluster(t)
	a, b := openLog(t, jetstream.Options{URL: url}), openLog(t, jetstream.Options{URL: url})

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
				t.Errorf("Create = %v, want a KeyError for the same request", err)
			}
		})
	}

	wg.Wait()
	page, err := b.Runs(t.Context(), event.Filter{})
	if wins != 1 || err != nil || len(page.Runs) != 1 {
		t.Errorf("%d of 20 Create succeeded, %d runs, %v, want 1 and 1", wins, len(page.Runs), err)
	}
}

// The proxy cuts the connections of a writer, and discards what the server sends to it, at
// random moments.
func TestAppendIsExactlyOnceWhenAcknowledgementsAreLost(t *testing.T) {
	t.Parallel()
	url := startCluster(t)
	proxy := eventtest.StartProxy(t, url)
	a, b := openLog(t, jetstream.Options{URL: proxy.URL()}), openLog(t, jetstream.Options{URL: url})
	startRun(t, a, "run_a")

	const events = 60
	rnd := rand.New(rand.NewPCG(1, 2))
	for i := range events {
		switch {
		case i%20 == 7:
			proxy.Cut()
		case i%25 == 13:
			proxy.DropAnswers()
			time.AfterFunc(time.Duration(rnd.IntN(100))*time.Millisecond, func() { proxy.Resume(); proxy.Cut() })
		}
		appendEvent(t, a, "run_a", event.StepStart{Step: i})
	}

	proxy.Resume()
	appendEvent(t, a, "run_a", event.FinalAnswer{})
	all, err := readUntil(t.Context(), b, "run_a", nil)
	if err != nil || len(all) != events+2 {
		t.Fatalf("the run has %d events, %v, want %d", len(all), err, events+2)
	}

	for i, e := range all[1 : events+1] {
		if e.Body != (event.StepStart{Step: i}) {
			t.Fatalf("event %d is %s, want step %d", i+2, e.JSON, i)
		}
	}
}

// Writers and readers wait for the server, and no instance takes a run over.
func TestServerRestartLosesNoEventAndNoJob(t *testing.T) {
	t.Parallel()
	o := &server.Options{Host: "127.0.0.1", Port: server.RANDOM_PORT, NoSigs: true, NoLog: true, JetStream: true, StoreDir: t.TempDir()}
	s := startServer(t, o)
	o.Port = s.Addr().(*net.TCPAddr).Port
	shared := jetstream.Options{URL: s.ClientURL(), Lease: 3 * lease} // far longer than a reconnect
	a, b := openLog(t, shared), openLog(t, shared)
	keepClaiming(t, a)
	jobs := keepClaiming(t, b)

	const runs = 10
	var readers sync.WaitGroup
	for i := range runs {
		id := fmt.Sprintf("run_%d", i)
		startRun(t, a, id)
		readers.Go(func() {
			all, err := readUntil(t.Context(), b, id, nil)
			for errors.Is(err, event.ErrUnavailable) { // a read gives up sooner than an append
				all, err = readUntil(t.Context(), b, id, nil)
			}
			if err != nil || len(all) != 22 {
				t.Errorf("the reader of %s got %d events, %v, want 22", id, len(all), err)
			}
		})
	}

	for step := range 20 {
		if step == 10 {
			s.Shutdown()
			s.WaitForShutdown()
			if err := a.Ready(t.Context()); !errors.Is(err, event.ErrUnavailable) {
				t.Errorf("Ready without a server = %v, want %v", err, event.ErrUnavailable)
			}
			if _, err := b.After(t.Context(), "run_unread", 0); !errors.Is(err, event.ErrUnavailable) {
				t.Errorf("After without a server = %v, want %v", err, event.ErrUnavailable)
			}
			time.AfterFunc(lease/2, func() { startServer(t, o) })
		}
		for i := range runs {
			appendEvent(t, a, fmt.Sprintf("run_%d", i), event.StepStart{Step: step})
		}
	}

	for i := range runs {
		appendEvent(t, a, fmt.Sprintf("run_%d", i), event.FinalAnswer{})
	}

	readers.Wait()
	select {
	case j := <-jobs:
		t.Errorf("another instance claimed %s, want no claim", j.Run())
	default:
	}

	if err := a.Ready(t.Context()); err != nil {
		t.Errorf("Ready after the restart: %v", err)
	}
}

// startServer starts a NATS server that ends with the test.
func startServer(t testing.TB, o *server.Options) *server.Server {
	s, err := server.NewServer(o)
	if err != nil {
		t.Error(err)
		return nil
	}
	s.Start()
	t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
	if !s.ReadyForConnections(10 * time.Second) {
		t.Error("the NATS server was not ready after 10 s, want it ready")
	}
	return s
}

// An instance that lost a run may claim it again while it still has the job that it lost.
func TestClaimReturnsARunToTheInstanceThatLostIt(t *testing.T) {
	t.Parallel()
	url := startCluster(t)
	proxy := eventtest.StartProxy(t, url)
	a := openLog(t, jetstream.Options{URL: proxy.URL(), Lease: lease})
	b := openLog(t, jetstream.Options{URL: url, Lease: lease})
	lost := startRun(t, a, "run_a")
	proxy.Stop()
	taken := claimJob(t, b)
	proxy.Resume()
	if _, err := a.Append(t.Context(), "run_a", event.StepStart{Step: 1}); !errors.Is(err, event.ErrFenced) {
		t.Fatalf("Append of the instance that was replaced = %v, want %v", err, event.ErrFenced)
	}
	if err := taken.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	again := claimJob(t, a) // before the lost job is released
	if again.Attempt() != 3 {
		t.Errorf("Attempt = %d, want 3", again.Attempt())
	}
	if err := lost.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	appendEvent(t, a, "run_a", event.FinalAnswer{})
	if err := again.Done(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// The agent cancels a run without readers, and asks the other instances before.
func TestHasRemoteReaderFindsReadersOfOtherInstances(t *testing.T) {
	t.Parallel()
	url := startCluster(t)
	a, b := openLog(t, jetstream.Options{URL: url}), openLog(t, jetstream.Options{URL: url})
	startRun(t, a, "run_a")
	page, err := a.After(t.Context(), "run_a", 1) // a reader of the same instance does not count
	if err != nil || page.More == nil {
		t.Fatalf("After(1) = %+v, %v, want a page that waits", page, err)
	}

	if _, err := b.Run(t.Context(), "run_a"); err != nil { // a call of Run is not a reader
		t.Fatal(err)
	}
	if a.HasRemoteReader(t.Context(), "run_a") {
		t.Error("HasRemoteReader = true without a reader on another instance, want false")
	}
	if page, err = b.After(t.Context(), "run_a", 1); err != nil || page.More == nil {
		t.Fatalf("After(1) = %+v, %v, want a page that waits", page, err)
	}
	if !a.HasRemoteReader(t.Context(), "run_a") {
		t.Error("HasRemoteReader = false with a reader on another instance, want true")
	}
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	if a.HasRemoteReader(canceled, "run_a") {
		t.Error("HasRemoteReader = true with a canceled context, want false")
	}
}

// A server restarts while the agent asks for readers. It must not cancel the run because nobody can be asked for a moment.
func TestHasRemoteReaderFindsAReaderAfterARestart(t *testing.T) {
	t.Parallel()
	o := &server.Options{Host: "127.0.0.1", Port: server.RANDOM_PORT, NoSigs: true, NoLog: true, JetStream: true, StoreDir: t.TempDir()}
	s := startServer(t, o)
	o.Port = s.Addr().(*net.TCPAddr).Port
	a, b := openLog(t, jetstream.Options{URL: s.ClientURL()}), openLog(t, jetstream.Options{URL: s.ClientURL()})
	startRun(t, a, "run_a")
	if page, err := b.After(t.Context(), "run_a", 1); err != nil || page.More == nil {
		t.Fatalf("After(1) = %+v, %v, want a page that waits", page, err)
	}
	s.Shutdown()
	s.WaitForShutdown()
	if err := a.Ready(t.Context()); !errors.Is(err, event.ErrUnavailable) {
		t.Errorf("Ready without a server = %v, want %v", err, event.ErrUnavailable)
	}
	found := make(chan bool, 1)
	go func() { found <- a.HasRemoteReader(t.Context(), "run_a") }()
	startServer(t, o)
	if !<-found {
		t.Error("HasRemoteReader = false during a restart, want true")
	}
}

// A run may be deleted by another instance than the one that executes it, or that takes an answer for it. What these add
// before they notice must not stay, since nothing finds it any more.
func TestNothingStaysOfARunThatAnotherInstanceDeleted(t *testing.T) {
	t.Parallel()
	url := startCluster(t)
	o := jetstream.Options{URL: url, Lease: 50 * time.Millisecond}
	a, b, c := openLog(t, o), openLog(t, o), openLog(t, o)
	startRun(t, a, "run_a")
	if _, err := c.After(t.Context(), "run_a", 1); err != nil { // c has a reader
		t.Fatal(err)
	}
	if err := b.Delete(t.Context(), "run_a"); err != nil {
		t.Fatal(err)
	}
	if err := a.SaveResult(t.Context(), "run_a", "call_1", []byte("x")); err != nil {
		t.Errorf("SaveResult of a writer that has not noticed = %v, want no error", err)
	}
	if _, err := a.Append(t.Context(), "run_a", event.FinalAnswer{}); !errors.Is(err, event.ErrGone) {
		t.Errorf("Append = %v, want %v", err, event.ErrGone)
	}
	if err := c.AddInput(t.Context(), "run_a", event.CancelID, nil); err != nil {
		t.Errorf("AddInput through an instance that has not noticed = %v, want no error", err)
	}
	j, err := js.New(connect(t, url))
	if err != nil {
		t.Fatal(err)
	}
	eventtest.Await(t, "the stream to have nothing of the run", func() bool {
		s, err := j.Stream(t.Context(), "ANSWERD_RUNS")
		return err == nil && s.CachedInfo().State.Msgs == 0
	})
}

// Another instance may delete a run before the run's creator has appended the first event. Such a run must not begin: its
// owner could not read it, and nothing would delete its events.
func TestRunThatAnotherInstanceDeletedBeforeItsFirstEventDoesNotBegin(t *testing.T) {
	t.Parallel()
	url := startCluster(t)
	o := jetstream.Options{URL: url, Lease: lease}
	a, b := openLog(t, o), openLog(t, o)
	if err := a.Create(t.Context(), event.Run{ID: "run_a", Owner: ada, Created: a.Now()}); err != nil {
		t.Fatal(err)
	}
	if err := b.Delete(t.Context(), "run_a"); err != nil {
		t.Fatal(err)
	}
	if _, err := a.Append(t.Context(), "run_a", event.Start{Question: "?"}); !errors.Is(err, event.ErrFenced) {
		t.Errorf("first Append = %v, want %v", err, event.ErrFenced)
	}
	if run, err := a.Run(t.Context(), "run_a"); !errors.Is(err, event.ErrGone) {
		t.Errorf("Run at the creator = event %d, %v, want %v", run.Last.Seq, err, event.ErrGone)
	}
}

// A caller may go away while their run is being created. They never learn its id, so the run must not be listed.
func TestRunOfACallerWhoWentAwayIsNotListed(t *testing.T) {
	t.Parallel()
	log := openLog(t, jetstream.Options{URL: startCluster(t), Lease: lease})
	created := make(map[string]bool)
	for i := range 150 {
		id := fmt.Sprintf("run_%d", i)
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i)*4*time.Microsecond)
		created[id] = log.Create(ctx, event.Run{ID: id, Owner: ada, Created: log.Now()}) == nil
		cancel()
	}
	page, err := log.Runs(t.Context(), event.Filter{Owner: ada, Limit: event.MaxPage})
	if err != nil {
		t.Fatal(err)
	}
	for _, run := range page.Runs {
		if !created[run.ID] {
			t.Errorf("%s is listed, want only runs that were created", run.ID)
		}
	}
}
