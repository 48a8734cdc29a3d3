package main

import (
	"fmt"
	"testing"
	"time"

	"answerd/internal/event/eventtest"
)

// A replica that cannot reach the log while others can loses its runs to them. When it
// can again, nothing of what it has to say gets in, and nothing is done twice.
func TestReplicaInAPartitionDoesNotWrite(t *testing.T) {
	t.Parallel()
	nats := newNATS(t)
	gate := eventtest.StartProxy(t, nats)
	f, ctx := newReplicas(t, nats), longContext(t)
	f.own[0] = []string{"EVENTS_URL=" + gate.URL()}
	f.startAll(t, 2)
	const runs = 12
	journeys := make([]*runReader, runs)
	forEach(t, runs, func(i int) error {
		tools := "work work work"
		if i%2 == 0 {
			journeys[i] = f.newRunReader(fmt.Sprintf("held%d", i), tools, 0) // is cut within a step
			return journeys[i].readUntil(ctx, 0, "text_delta")
		}
		journeys[i] = f.newRunReader(fmt.Sprintf("cut%d", i), tools, 0) // wherever it is then
		return journeys[i].readUntil(ctx, 0, "tool_call")
	})
	f.mu.Lock()
	f.kills = append(f.kills, time.Now())
	f.mu.Unlock()
	gate.Stop()
	close(f.gate) // and its models go on talking to it
	forEach(t, runs, func(i int) error {
		journeys[i].stays = true
		if err := journeys[i].readUntil(ctx, 1, ""); err != nil {
			return err
		}
		if e := journeys[i].lastFrame(); e.Event != "final_answer" {
			return fmt.Errorf("ended with %s", e.Data)
		}
		return nil
	})
	gate.Resume()
	// What was held back gets through now, and what it repeats; then it knows.
	forEach(t, runs, func(i int) error {
		again := f.newRunReader(journeys[i].name, "", 0)
		again.body, again.stays = journeys[i].body, true
		if err := again.readUntil(ctx, 0, ""); err != nil {
			return err
		}
		if len(again.frames) != len(journeys[i].frames) {
			return fmt.Errorf("%s: %d events here, %d there", again.run, len(again.frames), len(journeys[i].frames))
		}
		return journeys[i].checkFrames(ctx)
	})
	f.ledger.checkCalls(t)
	f.requireComplete(t, "taken over", journeys)
}

// A NATS server that is killed, and comes back, costs nothing but time.
func TestNATSServerKilledLosesNothing(t *testing.T) {
	t.Parallel()
	nats := spawnNATS(t)
	f, ctx := startReplicas(t, 2, nats.url), longContext(t)
	const runs = 20
	journeys := make([]*runReader, runs)
	forEach(t, runs, func(i int) error {
		journeys[i] = f.newRunReader(fmt.Sprintf("held%d", i), "work work work", 0)
		return journeys[i].readUntil(ctx, i%2, "text_delta")
	})
	f.mu.Lock()
	f.kills = append(f.kills, time.Now())
	f.mu.Unlock()
	nats.kill()
	close(f.gate) // the runs go on meanwhile, as far as they can
	nats.start(t)
	forEach(t, runs, func(i int) error {
		if err := journeys[i].readUntil(ctx, i%2, ""); err != nil {
			return err
		}
		if e := journeys[i].lastFrame(); e.Event != "final_answer" || journeys[i].countFrames("unknown_outcome") > 0 {
			return fmt.Errorf("ended with %s", e.Data)
		}
		return journeys[i].checkFrames(ctx)
	})
	f.ledger.checkCalls(t)
	f.requireComplete(t, "stood still", journeys)
}
