package faults

import (
	"testing"
	"time"

	"answerd/internal/event/eventtest"
)

func TestF47ClusterLosesServersAndRoutes(t *testing.T) {
	r := beginFault(t, "three NATS servers: the leader is shut down and started again; each server in turn is isolated from the others, with its connections cut or silent; no server reaches another",
		"no event is lost or doubled, no call is made twice, every run ends; every replica answers again by itself")
	c := eventtest.StartCluster(t)

	f := newFleet(t, c.URL())
	for range 2 {
		f.start(t)
	}

	load := f.startLoad(t, 6, "load")
	f.waitUntilAllAnswer(t)
	c.AwaitReplicas(t)

	runStep := func(name string, lasts time.Duration, inject, heal func()) {
		inject()
		during := f.waitUntilAllAnswer(t)
		<-time.After(max(0, lasts-during))
		heal()
		after := f.waitUntilAllAnswer(t)
		c.AwaitReplicas(t)
		r.record("%s: answers after %s, and %s after its end", name, during.Round(100*time.Millisecond), after.Round(100*time.Millisecond))
	}

	leader := c.Leader(t)
	runStep("leader down", 5*time.Second, func() { c.StopServer(leader) }, func() { c.StartServer(t, leader) })

	for i := range c.URLs {
		cut := i == 0
		runStep("server isolated", 15*time.Second, func() { c.Isolate(i, cut) }, c.Heal)
	}

	// Without a majority no replica can answer.
	for i := range c.URLs {
		c.Isolate(i, false)
	}

	<-time.After(12 * time.Second)
	c.Heal()
	r.record("no majority for 12 s: answers %s after its end", f.waitUntilAllAnswer(t).Round(100*time.Millisecond))
	load.stop(t)
	r.record("%s", f.report(t))
}
