package main

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// patient bounds a test that waits for take-overs.
func patient(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// each runs f for numbers up to n at the same time, and fails with what they say.
func each(t *testing.T, n int, f func(i int) error) {
	t.Helper()
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			if err := f(i); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
}

// A client that is cut at random points, and goes to another replica each time, reads
// every event once and in order. ANSWERD_TEST_RUNS of them.
func TestAReaderWhoChangesReplicasMissesNothing(t *testing.T) {
	t.Parallel()
	f, ctx := newFleet(t, 2, ""), patient(t)
	runs := count("ANSWERD_TEST_RUNS", 40)
	begin := time.Now()
	each(t, runs, func(i int) error {
		j := f.journey(fmt.Sprintf("hop%d", i), "work work", 100)
		if err := j.travel(ctx, i%2, ""); err != nil {
			return err
		}
		if e := j.last(); e.Event != "final_answer" {
			return fmt.Errorf("ended with %s", e.Data)
		}
		return j.check(ctx)
	})
	t.Logf("%d runs, read in pieces from two replicas in %v", runs, time.Since(begin).Round(time.Millisecond))
}

// A run is not abandoned that is read on another replica than the one that executes it.
func TestAReaderOnAnotherReplicaKeepsTheRunAlive(t *testing.T) {
	t.Parallel()
	f, ctx := newFleet(t, 2, "", "DISCONNECT_GRACE=100ms"), patient(t)
	j := f.journey("far", strings.Repeat("work ", 9), 0)
	if err := j.travel(ctx, 0, "step_start"); err != nil {
		t.Fatal(err)
	}
	// He leaves the one, and the other is where he stays; three graces are over soon.
	if err := j.travel(ctx, 1, ""); err != nil {
		t.Fatal(err)
	}
	if e := j.last(); e.Event != "final_answer" {
		t.Errorf("ended with %s", e.Data)
	}
}

// What is asked on A is answered on B, once; while it waits nobody holds the run.
func TestAnApprovalIsGivenOnAnyReplica(t *testing.T) {
	t.Parallel()
	f, ctx := newFleet(t, 2, ""), patient(t)
	each(t, 8, func(i int) error {
		j := f.journey(fmt.Sprintf("ask%d", i), "careful", 0)
		if err := j.travel(ctx, 0, "suspended"); err != nil {
			return err
		}
		var waits struct{ Interrupts []struct{ ID string } }
		if err := json.Unmarshal(j.last().Data, &waits); err != nil {
			return err
		}
		taken := 0
		for range 2 {
			status, err := f.post(ctx, 1, "/runs/"+j.run+"/input", fmt.Sprintf(`{"id":%q,"approved":true}`, waits.Interrupts[0].ID))
			if err != nil {
				return err
			}
			if status == http.StatusOK {
				taken++
			} else if status != http.StatusConflict {
				return fmt.Errorf("the answer: %d", status)
			}
		}
		if err := j.travel(ctx, 1, ""); err != nil {
			return err
		}
		if n := f.ledger.times(fmt.Sprintf("ask%d-0", i)); taken != 1 || n != 1 || j.last().Event != "final_answer" {
			return fmt.Errorf("%d answers taken, %d calls, ended with %s", taken, n, j.last().Data)
		}
		return j.check(ctx)
	})
}

// post asks a replica for something, and returns the status.
func (f *fleet) post(ctx context.Context, replica int, path, body string) (int, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, f.url(replica)+path, strings.NewReader(body))
	if err != nil {
		return 0, err
	}
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	resp, err := f.client.Do(req)
	if err != nil {
		return 0, err
	}
	return resp.StatusCode, resp.Body.Close()
}

// A run is cancelled from any replica, and the answer says that it was.
func TestACancelReachesTheReplicaThatExecutesTheRun(t *testing.T) {
	t.Parallel()
	f, ctx := newFleet(t, 2, ""), patient(t)
	each(t, 4, func(i int) error {
		j := f.journey(fmt.Sprintf("stop%d", i), strings.Repeat("work ", 9), 0)
		if err := j.travel(ctx, 0, "text_delta"); err != nil {
			return err
		}
		if status, err := f.post(ctx, 1, "/runs/"+j.run+"/cancel", ""); err != nil || status != http.StatusOK {
			return fmt.Errorf("cancel: %d, %w", status, err)
		}
		if err := j.travel(ctx, 0, ""); err != nil || j.last().Event != "cancelled" {
			return fmt.Errorf("ended with %s, %w", j.last().Data, err)
		}
		return nil
	})
}

// A replica that is told to stop hands its runs over: nobody loses anything.
func TestAReplicaThatIsToldToStopHandsItsRunsOver(t *testing.T) {
	t.Parallel()
	f, ctx := newFleet(t, 2, "", "DRAIN_TIMEOUT=0s"), patient(t)
	const runs = 20
	begun := make(chan struct{}, runs)
	go func() {
		for range runs {
			<-begun
		}
		f.replicas[0].signal(t, syscall.SIGTERM)
	}()
	resets := make(chan int, runs)
	each(t, runs, func(i int) error {
		j := f.journey(fmt.Sprintf("drain%d", i), "work work work", 0)
		err := j.travel(ctx, 0, "text_delta")
		begun <- struct{}{}
		if err == nil {
			err = j.travel(ctx, 0, "")
		}
		if err != nil {
			return err
		}
		n := 0
		for _, e := range j.frames {
			if e.Event == "step_reset" {
				n++
			}
		}
		resets <- n
		if j.last().Event != "final_answer" {
			return fmt.Errorf("ended with %s", j.last().Data)
		}
		return j.check(ctx)
	})
	close(resets)
	moved := 0
	for n := range resets {
		moved += n
	}
	t.Logf("%d steps of %d runs were run again", moved, runs)
}

// When a replica is killed, another one goes on with its runs: the time that they stand
// still is printed.
func TestAnotherReplicaTakesOver(t *testing.T) {
	t.Parallel()
	f, ctx := newFleet(t, 2, ""), patient(t)
	const runs = 20
	journeys := make([]*journey, runs)
	each(t, runs, func(i int) error {
		journeys[i] = f.journey(fmt.Sprintf("take%d", i), strings.Repeat("work ", 3), 0)
		return journeys[i].travel(ctx, 0, "tool_call_start")
	})
	f.kill(0)
	f.launch(t, 0)
	each(t, runs, func(i int) error {
		if err := journeys[i].travel(ctx, 1, ""); err != nil {
			return err
		}
		if e := journeys[i].last(); e.Event != "final_answer" {
			return fmt.Errorf("ended with %s", e.Data)
		}
		return journeys[i].check(ctx)
	})
	var stood []time.Duration
	unknown := 0
	for _, j := range journeys {
		stood, unknown = append(stood, j.standstills(f.kills)...), unknown+j.unknown()
	}
	slices.Sort(stood)
	if len(stood) == 0 {
		t.Fatal("nothing was taken over")
	}
	t.Logf("%d runs taken over: median %v, worst %v; of %d calls nobody knows", len(stood), stood[len(stood)/2], stood[len(stood)-1], unknown)
}

// kill -9 of replicas at random moments, one after the other. Every run ends, with every event once and in
// order, and no call is made twice. ANSWERD_TEST_KILLS of them.
func TestKilledReplicasLoseNoRun(t *testing.T) {
	t.Parallel()
	f, ctx := newFleet(t, 3, ""), patient(t)
	kills, readers := count("ANSWERD_TEST_KILLS", 2), 12
	over := make(chan struct{})
	go func() {
		defer close(over)
		for n := range kills {
			<-time.After(time.Duration(300+rand.IntN(1000)) * time.Millisecond)
			f.kill(n % 3)
			f.launch(t, n%3)
		}
	}()
	var mu sync.Mutex // guards the sums
	ends, unknown, stood := make(map[string]int), 0, []time.Duration(nil)
	each(t, readers, func(i int) error {
		for n := 0; ; n++ {
			select {
			case <-over:
				return nil
			default:
			}
			j := f.journey(fmt.Sprintf("kill%d-%d", i, n), strings.Repeat("work ", 5), 0)
			if err := j.travel(ctx, -1, ""); err != nil {
				return err
			}
			if err := j.check(ctx); err != nil {
				return err
			}
			mu.Lock()
			ends[j.last().Event]++
			unknown += j.unknown()
			stood = append(stood, j.standstills(f.killed())...)
			mu.Unlock()
			if j.last().Event != "final_answer" {
				t.Logf("%s", j.last().Data)
			}
		}
	})
	f.ledger.mu.Lock()
	calls := len(f.ledger.made)
	for key, n := range f.ledger.made {
		if n > 1 {
			t.Errorf("%s was done %d times", key, n)
		}
	}
	f.ledger.mu.Unlock()
	slices.Sort(stood)
	if len(stood) > 0 {
		t.Logf("%d times a run stood still, while kills went on: median %v, worst %v", len(stood), stood[len(stood)/2], stood[len(stood)-1])
	}
	t.Logf("%d kills, runs that ended: %v, %d calls, %d unknown", kills, ends, calls, unknown)
}

func (f *fleet) killed() []time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.kills)
}

// A single process with its log on disk is killed and started again: no event that
// anybody has read is lost, and every run ends once. ANSWERD_TEST_KILLS times.
func TestAKilledProcessGoesOnFromItsDisk(t *testing.T) {
	t.Parallel()
	f, ctx := newFleet(t, 1, "file:"+t.TempDir()), patient(t)
	kills, readers := count("ANSWERD_TEST_KILLS", 2), 6
	over := make(chan struct{})
	go func() {
		defer close(over)
		for range kills {
			<-time.After(time.Duration(100+rand.IntN(900)) * time.Millisecond)
			f.kill(0)
			f.launch(t, 0)
		}
	}()
	ends := make(chan string, 10000)
	each(t, readers, func(i int) error {
		for n := 0; ; n++ {
			select {
			case <-over:
				return nil
			default:
			}
			j := f.journey(fmt.Sprintf("disk%d-%d", i, n), "work work work", 0)
			if err := j.travel(ctx, 0, ""); err != nil {
				return err
			}
			if err := j.check(ctx); err != nil {
				return err
			}
			ends <- j.last().Event
		}
	})
	close(ends)
	sum := make(map[string]int)
	for e := range ends {
		sum[e]++
	}
	t.Logf("%d kills, runs that ended: %v", kills, sum)
}
