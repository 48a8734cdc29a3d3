package main

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"answerd/internal/event/eventtest"
)

// longContext bounds a test that waits for take-overs.
func longContext(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// forEach runs f for numbers up to n at the same time, and fails with what they say.
func forEach(t *testing.T, n int, f func(i int) error) {
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
func TestReaderThatChangesReplicasMissesNothing(t *testing.T) {
	skipUnlessDurable(t)
	t.Parallel()
	f, ctx := startReplicas(t, 2, ""), longContext(t)
	runs := countFromEnv("ANSWERD_TEST_RUNS", 40)
	begin := time.Now()
	forEach(t, runs, func(i int) error {
		j := f.newRunReader(fmt.Sprintf("hop%d", i), "work work", 100)
		if err := j.readUntil(ctx, i%2, ""); err != nil {
			return err
		}
		if e := j.lastFrame(); e.Event != "final_answer" {
			return fmt.Errorf("ended with %s", e.Data)
		}
		return j.checkFrames(ctx)
	})
	t.Logf("%d runs, read in pieces from two replicas in %v", runs, time.Since(begin).Round(time.Millisecond))
}

// A run is not abandoned that is read on another replica than the one that executes it.
func TestReaderOnAnotherReplicaKeepsTheRunAlive(t *testing.T) {
	skipUnlessDurable(t)
	t.Parallel()
	f, ctx := startReplicas(t, 2, "", "DISCONNECT_GRACE=1s", "MAX_TURNS=50"), longContext(t)
	j := f.newRunReader("far", strings.Repeat("work ", 40), 0)
	if err := j.readUntil(ctx, 0, "step_start"); err != nil {
		t.Fatal(err)
	}
	// The reader leaves the first replica and stays with the other one. Three times the disconnect
	// grace passes soon.
	if err := j.readUntil(ctx, 1, ""); err != nil {
		t.Fatal(err)
	}
	if e := j.lastFrame(); e.Event != "final_answer" {
		t.Errorf("ended with %s %s, want final_answer", e.Event, e.Data)
	}
}

// A question asked on replica A is answered on replica B, once. While it waits, no replica executes
// the run.
func TestApprovalIsAcceptedByAnyReplica(t *testing.T) {
	skipUnlessDurable(t)
	t.Parallel()
	f, ctx := startReplicas(t, 2, ""), longContext(t)
	forEach(t, 8, func(i int) error {
		j := f.newRunReader(fmt.Sprintf("ask%d", i), "careful", 0)
		if err := j.readUntil(ctx, 0, "suspended"); err != nil {
			return err
		}
		var waits struct{ Interrupts []struct{ ID string } }
		if err := json.Unmarshal(j.lastFrame().Data, &waits); err != nil {
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
		if err := j.readUntil(ctx, 1, ""); err != nil {
			return err
		}
		if n := f.ledger.callsOf(fmt.Sprintf("ask%d-0", i)); taken != 1 || n != 1 || j.lastFrame().Event != "final_answer" {
			return fmt.Errorf("%d answers taken, %d calls, ended with %s", taken, n, j.lastFrame().Data)
		}
		return j.checkFrames(ctx)
	})
}

// post asks a replica for something, and returns the status.
func (f *replicas) post(ctx context.Context, replica int, path, body string) (int, error) {
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
func TestCancelReachesTheReplicaThatExecutesTheRun(t *testing.T) {
	t.Parallel()
	f, ctx := startReplicas(t, 2, ""), longContext(t)
	forEach(t, 4, func(i int) error {
		j := f.newRunReader(fmt.Sprintf("stop%d", i), strings.Repeat("work ", 9), 0)
		if err := j.readUntil(ctx, 0, "text_delta"); err != nil {
			return err
		}
		if status, err := f.post(ctx, 1, "/runs/"+j.run+"/cancel", ""); err != nil || status != http.StatusOK {
			return fmt.Errorf("cancel: %d, %w", status, err)
		}
		if err := j.readUntil(ctx, 0, ""); err != nil || j.lastFrame().Event != "cancelled" {
			return fmt.Errorf("ended with %s, %w", j.lastFrame().Data, err)
		}
		return nil
	})
}

// A replica that gets SIGTERM hands its runs over: no reader misses an event, only the interrupted
// step runs again, and new questions are refused with 503.
func TestReplicaThatStopsHandsItsRunsOver(t *testing.T) {
	skipUnlessDurable(t)
	t.Parallel()
	f, ctx := startReplicas(t, 2, "", "DRAIN_TIMEOUT=0s"), longContext(t)
	const runs = 20
	readers := make([]*runReader, runs)
	forEach(t, runs, func(i int) error {
		readers[i] = f.newRunReader(fmt.Sprintf("held%d", i), "work work work", 0)
		return readers[i].readUntil(ctx, 0, "text_delta")
	})

	go func() {
		f.stopReplica(t, 0)
		close(f.gate) // so that each of them was in the middle of its step
	}()

	forEach(t, 2*runs, func(i int) error {
		j := f.newRunReader(fmt.Sprintf("late%d", i), "work", 0)
		if i < runs {
			j = readers[i]
		}
		if err := j.readUntil(ctx, 0, ""); err != nil {
			return err
		}
		if n := j.countFrames("step_reset"); i < runs && n != 1 {
			return fmt.Errorf("%d steps were run again", n)
		}
		if j.lastFrame().Event != "final_answer" {
			return fmt.Errorf("ended with %s", j.lastFrame().Data)
		}
		return j.checkFrames(ctx)
	})
	f.logPauses(t, "handed over", readers)
}

// When a replica is killed, another one continues its runs.
func TestTakeoverByAnotherReplica(t *testing.T) {
	t.Parallel()
	f, ctx := startReplicas(t, 2, ""), longContext(t)
	const runs = 20
	readers := make([]*runReader, runs)
	forEach(t, runs, func(i int) error {
		readers[i] = f.newRunReader(fmt.Sprintf("held%d", i), "work work work", 0)
		return readers[i].readUntil(ctx, 0, "text_delta")
	})

	f.killReplica(0)
	close(f.gate)

	forEach(t, runs, func(i int) error {
		if err := readers[i].readUntil(ctx, 1, ""); err != nil {
			return err
		}
		if e := readers[i].lastFrame(); e.Event != "final_answer" {
			return fmt.Errorf("ended with %s", e.Data)
		}
		return readers[i].checkFrames(ctx)
	})
	f.logPauses(t, "taken over", readers)
}

// logPauses logs how long runs sent nothing after each kill, and how many calls have an unknown outcome.
func (f *replicas) logPauses(t *testing.T, what string, readers []*runReader) {
	t.Helper()
	var pauses []time.Duration
	unknown := 0
	for _, j := range readers {
		pauses, unknown = append(pauses, j.pausesAfter(f.killTimes())...), unknown+j.countFrames("unknown_outcome")
	}
	if len(pauses) == 0 {
		t.Logf("%d runs: none paused; %d calls with an unknown outcome", len(readers), unknown)
		return
	}
	slices.Sort(pauses)
	t.Logf("%d runs, %d times %s: median pause %v, longest %v; %d calls with an unknown outcome", len(readers), len(pauses), what, pauses[len(pauses)/2], pauses[len(pauses)-1], unknown)
}

// kill -9 of a replica at random moments, again and again. Every run ends, with every
// event once and in order, and no call is made twice. ANSWERD_TEST_KILLS, and
// ANSWERD_TEST_CALLS at least.
func TestTakeoverOfKilledReplicasLosesNoRun(t *testing.T) {
	if os.Getenv("ANSWERD_TEST_LONG") == "" {
		t.Skip("kills processes for a while; make durable runs it")
	}
	t.Parallel()
	t.Run("one NATS server", func(t *testing.T) {
		killReplicas(t, startReplicas(t, 2, ""))
	})
	t.Run("three NATS servers of which the leader is stopped", func(t *testing.T) {
		cluster := eventtest.StartCluster(t)
		f := startReplicas(t, 2, cluster.URL())
		cluster.AwaitReplicas(t)
		cluster.StopServer(cluster.Leader(t))
		killReplicas(t, f)
	})
}

// killReplicas kills a replica again and again while it and another one have runs.
func killReplicas(t *testing.T, f *replicas) {
	t.Helper()
	ctx := longContext(t)
	kills, calls, clients := countFromEnv("ANSWERD_TEST_KILLS", 3), countFromEnv("ANSWERD_TEST_CALLS", 0), 12
	over := f.killAtRandom(t, kills, 2*time.Second)
	var mu sync.Mutex // guards readers
	var readers []*runReader
	forEach(t, clients, func(i int) error {
		for n := 0; !isClosed(over) || f.ledger.totalCalls() < calls; n++ {
			j := f.newRunReader(fmt.Sprintf("kill%d-%d", i, n), strings.Repeat("work ", 5), 0)
			if err := j.readUntil(ctx, -1, ""); err != nil {
				return err
			}
			if err := j.checkFrames(ctx); err != nil {
				return err
			}
			mu.Lock()
			readers = append(readers, j)
			mu.Unlock()
		}
		return nil
	})
	f.ledger.checkCalls(t)
	f.logPauses(t, "taken over, while kills went on", readers)
	t.Logf("%d kills, %d calls, runs that ended: %v", kills, f.ledger.totalCalls(), countEnds(readers))
}

// killAtRandom kills the first replica, within some time, and starts it again, so many times.
func (f *replicas) killAtRandom(t *testing.T, kills int, within time.Duration) (over chan struct{}) {
	over = make(chan struct{})
	go func() {
		defer close(over)
		for range kills {
			<-time.After(rand.N(within))
			f.killReplica(0)
			f.startReplica(t, 0)
		}
	}()
	t.Cleanup(func() { <-over })
	return over
}

func isClosed(c chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// countEnds returns how many readers saw each terminal event.
func countEnds(readers []*runReader) map[string]int {
	sum := make(map[string]int)
	for _, j := range readers {
		sum[j.lastFrame().Event]++
	}
	return sum
}

func (f *replicas) killTimes() []time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.kills)
}

// A single process with its log on disk is killed and started again: no event that
// anybody has read is lost, and every run ends once. ANSWERD_TEST_DISK_KILLS times.
func TestTakeoverOfAKilledProcessFromTheFileLog(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: it kills processes for a while, which make durable does at length")
	}
	t.Parallel()
	f, ctx := startReplicas(t, 1, "file:"+t.TempDir()), longContext(t)
	kills, clients := countFromEnv("ANSWERD_TEST_DISK_KILLS", 3), 6

	over := f.killAtRandom(t, kills, 600*time.Millisecond)
	var mu sync.Mutex // guards readers
	var readers []*runReader
	forEach(t, clients, func(i int) error {
		for n := 0; !isClosed(over); n++ {
			j := f.newRunReader(fmt.Sprintf("disk%d-%d", i, n), "work work work", 0)
			if err := j.readUntil(ctx, 0, ""); err != nil {
				return err
			}
			if err := j.checkFrames(ctx); err != nil {
				return err
			}
			mu.Lock()
			readers = append(readers, j)
			mu.Unlock()
		}
		return nil
	})

	f.ledger.checkCalls(t)
	f.logPauses(t, "went on from disk, while kills went on", readers)
	t.Logf("%d kills, runs that ended: %v", kills, countEnds(readers))
}

// A replica that cannot reach the log while others can loses its runs to them. When it
// can again, nothing of what it has to say gets in, and nothing is done twice.
func TestReplicaInAPartitionDoesNotWrite(t *testing.T) {
	skipUnlessDurable(t)
	t.Parallel()
	nats := newNATS(t)
	gate := eventtest.StartProxy(t, nats)
	f, ctx := newReplicas(t, nats), longContext(t)
	f.own[0] = []string{"EVENTS_URL=" + gate.URL()}
	f.startAll(t, 2)

	const runs = 12
	readers := make([]*runReader, runs)
	forEach(t, runs, func(i int) error {
		tools := "work work work"
		if i%2 == 0 {
			readers[i] = f.newRunReader(fmt.Sprintf("held%d", i), tools, 0) // is cut within a step
			return readers[i].readUntil(ctx, 0, "text_delta")
		}
		readers[i] = f.newRunReader(fmt.Sprintf("cut%d", i), tools, 0) // wherever it is then
		return readers[i].readUntil(ctx, 0, "tool_call")
	})

	f.mu.Lock()
	f.kills = append(f.kills, time.Now())
	f.mu.Unlock()
	gate.Stop()
	close(f.gate) // and its models still send to it

	forEach(t, runs, func(i int) error {
		readers[i].stays = true
		if err := readers[i].readUntil(ctx, 1, ""); err != nil {
			return err
		}
		if e := readers[i].lastFrame(); e.Event != "final_answer" {
			return fmt.Errorf("ended with %s", e.Data)
		}
		return nil
	})

	gate.Resume()
	// What was held back gets through now, and what it repeats; then it knows.
	forEach(t, runs, func(i int) error {
		again := f.newRunReader(readers[i].name, "", 0)
		again.body, again.stays = readers[i].body, true
		if err := again.readUntil(ctx, 0, ""); err != nil {
			return err
		}
		if len(again.frames) != len(readers[i].frames) {
			return fmt.Errorf("%s: %d events here, %d there", again.run, len(again.frames), len(readers[i].frames))
		}
		return readers[i].checkFrames(ctx)
	})

	f.ledger.checkCalls(t)
	f.logPauses(t, "taken over", readers)
}

// A NATS server that is killed, and comes back, costs nothing but time.
func TestNATSServerKilledLosesNoRun(t *testing.T) {
	t.Parallel()
	nats := spawnNATS(t)

	f, ctx := startReplicas(t, 2, nats.url), longContext(t)
	const runs = 20
	readers := make([]*runReader, runs)
	forEach(t, runs, func(i int) error {
		readers[i] = f.newRunReader(fmt.Sprintf("held%d", i), "work work work", 0)
		return readers[i].readUntil(ctx, i%2, "text_delta")
	})

	f.mu.Lock()
	f.kills = append(f.kills, time.Now())
	f.mu.Unlock()
	nats.kill()
	close(f.gate) // the runs continue meanwhile, as far as they can
	nats.start(t)

	forEach(t, runs, func(i int) error {
		if err := readers[i].readUntil(ctx, i%2, ""); err != nil {
			return err
		}
		if e := readers[i].lastFrame(); e.Event != "final_answer" || readers[i].countFrames("unknown_outcome") > 0 {
			return fmt.Errorf("ended with %s", e.Data)
		}
		return readers[i].checkFrames(ctx)
	})

	f.ledger.checkCalls(t)
	f.logPauses(t, "stood still", readers)
}
