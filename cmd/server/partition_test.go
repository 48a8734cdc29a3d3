package main

import (
	"fmt"
	"testing"
	"time"

	"answerd/internal/event/eventtest"
)

// A replica that cannot reach the log while others can loses its runs to them. When it
// can again, nothing of what it has to say gets in, and nothing is done twice.
func TestAPartitionedReplicaIsNoSecondWriter(t *testing.T) {
	t.Parallel()
	nats := newNATS(t)
	gate := eventtest.StartProxy(t, nats)
	f, ctx := planFleet(t, nats), patient(t)
	f.own[0] = []string{"EVENTS_URL=" + gate.URL()}
	f.start(t, 2)
	const runs = 12
	journeys := make([]*journey, runs)
	each(t, runs, func(i int) error {
		tools := "work work work"
		if i%2 == 0 {
			journeys[i] = f.journey(fmt.Sprintf("held%d", i), tools, 0) // is cut within a step
			return journeys[i].travel(ctx, 0, "text_delta")
		}
		journeys[i] = f.journey(fmt.Sprintf("cut%d", i), tools, 0) // wherever it is then
		return journeys[i].travel(ctx, 0, "tool_call")
	})
	f.mu.Lock()
	f.kills = append(f.kills, time.Now())
	f.mu.Unlock()
	gate.Stop()
	close(f.gate) // and its models go on talking to it
	each(t, runs, func(i int) error {
		journeys[i].stays = true
		if err := journeys[i].travel(ctx, 1, ""); err != nil {
			return err
		}
		if e := journeys[i].last(); e.Event != "final_answer" {
			return fmt.Errorf("ended with %s", e.Data)
		}
		return nil
	})
	gate.Resume()
	// What was held back gets through now, and what it repeats; then it knows.
	each(t, runs, func(i int) error {
		again := f.journey(journeys[i].name, "", 0)
		again.body, again.stays = journeys[i].body, true
		if err := again.travel(ctx, 0, ""); err != nil {
			return err
		}
		if len(again.frames) != len(journeys[i].frames) {
			return fmt.Errorf("%s: %d events here, %d there", again.run, len(again.frames), len(journeys[i].frames))
		}
		return journeys[i].check(ctx)
	})
	f.ledger.check(t)
	f.told(t, "taken over", journeys)
}

// A NATS server that is killed, and comes back, costs nothing but time.
func TestAKilledNATSServerCostsNothingButTime(t *testing.T) {
	t.Parallel()
	nats := spawnNATS(t)
	f, ctx := newFleet(t, 2, nats.url), patient(t)
	const runs = 20
	journeys := make([]*journey, runs)
	each(t, runs, func(i int) error {
		journeys[i] = f.journey(fmt.Sprintf("held%d", i), "work work work", 0)
		return journeys[i].travel(ctx, i%2, "text_delta")
	})
	f.mu.Lock()
	f.kills = append(f.kills, time.Now())
	f.mu.Unlock()
	nats.kill()
	close(f.gate) // the runs go on meanwhile, as far as they can
	nats.start(t)
	each(t, runs, func(i int) error {
		if err := journeys[i].travel(ctx, i%2, ""); err != nil {
			return err
		}
		if e := journeys[i].last(); e.Event != "final_answer" || journeys[i].count("unknown_outcome") > 0 {
			return fmt.Errorf("ended with %s", e.Data)
		}
		return journeys[i].check(ctx)
	})
	f.ledger.check(t)
	f.told(t, "stood still", journeys)
}
