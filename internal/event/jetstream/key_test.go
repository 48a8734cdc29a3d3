package jetstream_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"answerd/internal/event"
	"answerd/internal/event/eventtest"
	"answerd/internal/event/jetstream"
)

// createURL is the environment variable that has the server of a process that is to be killed
// while it creates runs.
const createURL = "ANSWERD_TEST_CREATE_URL"

// startKeyedRun creates a run with a key as the agent does.
func startKeyedRun(ctx context.Context, l *jetstream.Log, key string) (run event.Run, job event.Job, err error) {
	run = event.Run{ID: l.NewID(), Key: key, Created: time.Now()}
	if err = l.Create(ctx, run); err == nil {
		job, err = l.CreateJob(ctx, run.ID, []byte("request"))
	}
	if err == nil {
		_, err = l.Append(ctx, run.ID, event.Start{})
	}
	return run, job, err
}

// createUntilKilled creates runs and prints the key of each before.
func createUntilKilled(url string) {
	log, err := jetstream.Open(context.Background(), jetstream.Options{URL: url, Lease: lease})
	for n := 0; err == nil; n++ {
		key := fmt.Sprintf("%d-%d", os.Getpid(), n)
		fmt.Println(key)
		var run event.Run
		var job event.Job
		if run, job, err = startKeyedRun(context.Background(), log, key); err == nil {
			_, err = log.Append(context.Background(), run.ID, event.FinalAnswer{})
			err = errors.Join(err, job.Done(context.Background()))
		}
	}
	fmt.Println("failed:", err)
	os.Exit(1)
}

// keyAfterKill starts a process that creates runs, kills it after a random time, and returns the
// key of the run that it was creating.
func keyAfterKill(t *testing.T, url string) (key string) {
	t.Helper()
	p := exec.CommandContext(t.Context(), os.Args[0])
	p.Env = append(os.Environ(), createURL+"="+url)
	out, err := p.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	for n := 0; lines.Scan(); n++ {
		key = lines.Text()
		if n == 1 {
			time.AfterFunc(time.Duration(rand.IntN(20_000))*time.Microsecond, func() { _ = p.Process.Kill() })
		}
	}
	_ = p.Wait() // killed
	return key
}

// A process that dies while it creates a run leaves a key without a run, or a run without events.
// A request with the same key gets a run with an event after about one lease, or is told to come
// back meanwhile.
func TestKeyOfAKilledCreatorIsFreeAfterALease(t *testing.T) {
	t.Parallel()
	kills := 8
	if n, err := strconv.Atoi(os.Getenv("ANSWERD_TEST_KEY_KILLS")); err == nil {
		kills = n
	}

	url := startCluster(t)
	log := openLog(t, jetstream.Options{URL: url, Lease: lease})
	ctx := t.Context()
	jobs := keepClaiming(t, log)
	go func() { // what the agent does with a run that was not started
		for {
			var job event.Job
			select {
			case job = <-jobs:
			case <-ctx.Done():
				return
			}
			if run, err := log.Run(ctx, job.Run()); err == nil && run.Last.Seq == 0 {
				_, _ = log.Append(ctx, job.Run(), event.Start{}) // the request below finds out
			}
		}
	}()

	// Kill a creator in the middle, and repeat its request until it has a run.
	var (
		wg      sync.WaitGroup
		mu      sync.Mutex // guards longest and created
		longest time.Duration
		created int
		slots   = make(chan struct{}, 8)
	)
	for range kills {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			key := keyAfterKill(t, url)
			began := time.Now()
			isNew := false
			for {
				run, err := log.RunByKey(ctx, event.Owner{}, key)
				if errors.Is(err, event.ErrNotFound) {
					run, _, err = startKeyedRun(ctx, log, key)
					isNew = err == nil
				}
				if _, taken := errors.AsType[*event.KeyError](err); taken || errors.Is(err, event.ErrStarting) {
					continue // as a caller does who gets 503
				}
				if err != nil {
					t.Errorf("a request with the key %s = %v, want a run", key, err)
				}
				if page, err := log.After(ctx, run.ID, 0); err != nil || len(page.Events) == 0 {
					t.Errorf("the run of the key %s has %d events, %v, want one", key, len(page.Events), err)
				}
				break
			}
			took := time.Since(began)
			mu.Lock()
			defer mu.Unlock()
			longest = max(longest, took)
			if isNew {
				created++
			}
			if took > 4*lease {
				t.Errorf("the key %s was blocked for %s, want at most four leases of %s", key, took, lease)
			}
		})
	}

	wg.Wait()
	t.Logf("%d kills; %d runs created again; a key was blocked for %s at most, with a lease of %s", kills, created, longest.Round(time.Millisecond), lease)
}

// A run whose retention has passed is deleted while another one takes its key over. The key of the new run must stay, or
// the repetition of its request would start a third run.
func TestDeletionKeepsTheKeyOfTheNextRun(t *testing.T) {
	t.Parallel()
	url := startCluster(t)
	proxy := eventtest.StartProxy(t, url)

	deleter := openLog(t, jetstream.Options{URL: proxy.URL(), Lease: lease})
	const runs = 10
	oldID, nextID := func(i int) string { return fmt.Sprintf("run_old_%d", i) }, func(i int) string { return fmt.Sprintf("run_next_%d", i) }
	for i := range runs {
		if err := deleter.Create(t.Context(), event.Run{ID: oldID(i), Owner: ada, Key: fmt.Sprint(i), Created: deleter.Now()}); err != nil {
			t.Fatal(err)
		}
		appendEvent(t, deleter, oldID(i), event.FinalAnswer{})
	}

	// Not shorter, or it would also delete the next run before that has its first event.
	log := openLog(t, jetstream.Options{URL: url, Lease: lease, Retention: 500 * time.Millisecond})
	for {
		_, err := log.Run(t.Context(), oldID(runs-1))
		if errors.Is(err, event.ErrGone) {
			break
		}
		if err != nil {
			t.Fatalf("Run of the last old run = %v, want no error, and %v in the end", err, event.ErrGone)
		}
	}

	read := make(chan *nats.Msg, runs)
	observer := connect(t, url)
	if _, err := observer.ChanSubscribe("$JS.API.DIRECT.GET.ANSWERD_INDEX.answerd.key.*", read); err != nil {
		t.Fatal(err)
	}
	if err := observer.Flush(); err != nil { // the server knows the subscription now
		t.Fatal(err)
	}

	for i := range runs {
		deleted := make(chan error, 1)
		go func() { deleted <- deleter.Delete(context.Background(), oldID(i)) }()

		select {
		case <-read: // the deletion has read the key, or is about to
		case err := <-deleted: // it was faster than the news of its read: nothing to see in this round
			deleted <- err
		}

		proxy.Stop()
		if err := log.Create(t.Context(), event.Run{ID: nextID(i), Owner: ada, Key: fmt.Sprint(i), Created: log.Now()}); err != nil {
			t.Fatalf("Create with the key of an expired run = %v, want no error", err)
		}
		appendEvent(t, log, nextID(i), event.Start{})
		proxy.Resume()
		if err := <-deleted; err != nil {
			t.Fatal(err)
		}
		if run, err := log.RunByKey(t.Context(), ada, fmt.Sprint(i)); err != nil || run.ID != nextID(i) {
			t.Errorf("RunByKey = %q, %v, want %q", run.ID, err, nextID(i))
		}

		for len(read) > 0 {
			<-read
		}
	}
}
