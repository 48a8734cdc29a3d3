package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"
)

// S0.6: what a 2026-07-28 server asks is answered after a kill -9, by another replica or by the same
// process started again, once, and the call is made once.
func TestInputRequiredIsAnsweredAfterAKilledReplica(t *testing.T) {
	skipUnlessDurable(t)
	t.Parallel()
	for name, where := range map[string]struct {
		log      string
		replicas int
	}{"another replica": {"", 2}, "started again": {"file:" + t.TempDir(), 1}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			otlp := newRecordingServer(t, http.StatusOK, "")

			f, ctx := startReplicas(t, where.replicas, where.log, "ENABLE_TRACING=true", "OTEL_EXPORTER_OTLP_ENDPOINT="+otlp.URL), longContext(t)
			const runs = 6
			readers := make([]*runReader, runs)
			forEach(t, runs, func(i int) error {
				readers[i] = f.newRunReader(fmt.Sprintf("ask%d", i), "ask", 0)
				return readers[i].readUntil(ctx, 0, "suspended")
			})

			f.requireNoCanary(t, readers) // while the runs wait, too
			f.killReplica(0)
			if where.replicas == 1 {
				f.startReplica(t, 0)
			}

			last := where.replicas - 1
			forEach(t, runs, func(i int) error {
				j := readers[i]
				for _, want := range []int{http.StatusOK, http.StatusConflict} {
					if status, err := f.post(ctx, last, "/runs/"+j.run+"/input", j.acceptBody(`{"yes":true}`)); err != nil || status != want {
						return fmt.Errorf("%s: the answer got %d, %w, want %d", j.run, status, err, want)
					}
				}
				if err := j.readUntil(ctx, last, ""); err != nil {
					return err
				}
				if n := f.ledger.callsOf(fmt.Sprintf("ask%d-0", i)); n != 1 || j.lastFrame().Event != "final_answer" {
					return fmt.Errorf("%s: %d calls, ended with %s, want one call and final_answer", j.run, n, j.lastFrame().Data)
				}
				return j.checkFrames(ctx)
			})

			f.requireNoCanary(t, readers)
			f.stopReplica(t, last) // which exports its traces
			if traces := otlp.receivedText(); !strings.Contains(traces, "tool_call") || strings.Contains(traces, stateCanary) {
				t.Errorf("traces of %d bytes, want the span tool_call and no requestState", len(traces))
			}
		})
	}
}

// A replica is killed around the moment of the answer. The call is then made once, or it ends as
// unknown_outcome.
func TestInputRequiredIsSentOnceWhenReplicasAreKilled(t *testing.T) {
	skipUnlessDurable(t)
	t.Parallel()
	f, ctx := startReplicas(t, 2, ""), longContext(t)

	over := f.killAtRandom(t, countFromEnv("ANSWERD_TEST_KILLS", 3), 600*time.Millisecond)
	var mu sync.Mutex // guards readers
	var readers []*runReader
	forEach(t, 6, func(i int) error {
		for n := 0; n == 0 || !isClosed(over); n++ {
			j := f.newRunReader(fmt.Sprintf("asks%d-%d", i, n), "ask ask", 0)
			for range 2 {
				if err := j.readUntil(ctx, -1, "suspended"); err != nil {
					return err
				}
				if j.lastFrame().Event != "suspended" {
					break
				}
				for status := 0; status != http.StatusOK && status != http.StatusConflict; {
					status, _ = f.post(ctx, -1, "/runs/"+j.run+"/input", j.acceptBody(`{"yes":true}`)) // a replica may be gone
					if ctx.Err() != nil {
						return ctx.Err()
					}
				}
			}
			if err := j.readUntil(ctx, -1, ""); err != nil {
				return err
			}
			if e := j.lastFrame(); e.Event != "final_answer" {
				return fmt.Errorf("%s ended with %s", j.run, e.Data)
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
	f.requireNoCanary(t, readers)
	f.logPauses(t, "taken over", readers)
}

// acceptBody returns the body that accepts the first interrupt of the last frame.
func (j *runReader) acceptBody(content string) string {
	var waits struct{ Interrupts []struct{ ID string } }
	if err := json.Unmarshal(j.lastFrame().Data, &waits); err != nil || len(waits.Interrupts) == 0 {
		return ""
	}
	return fmt.Sprintf(`{"id":%q,"action":"accept","content":%s}`, waits.Interrupts[0].ID, content)
}

// requireNoCanary fails where a server's requestState was told or logged: in an event, in the state of a
// run, or in a log.
func (f *replicas) requireNoCanary(t *testing.T, readers []*runReader) {
	t.Helper()
	for _, j := range readers {
		if status, body := getBody(t, f.client, f.url(len(f.urls)-1)+"/runs/"+j.run); status != http.StatusOK || strings.Contains(body, stateCanary) {
			t.Errorf("GET /runs/%s = %d, %s, want 200 without the requestState", j.run, status, body)
		}
		for _, e := range j.frames {
			if strings.Contains(string(e.Data), stateCanary) {
				t.Errorf("the event %s has the requestState, want it without", e.Data)
			}
		}
	}
	for _, p := range f.all {
		if strings.Contains(p.log.String(), stateCanary) {
			t.Error("the requestState is in a log, want it in none")
		}
	}
}
