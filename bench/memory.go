package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"
)

// memoryBound is the EVENTS_MAX_BYTES of a service whose memory is measured.
const memoryBound = "256MiB"

// idleTime is how long a service must be idle until its memory counts as that of an idle process: the Go
// runtime collects garbage two minutes after the last collection, and what it returns to the operating
// system depends on the collection before.
const idleTime = 5*time.Minute + 30*time.Second

// memoryPhase is a load after which the memory of a service is measured.
type memoryPhase struct {
	name    string
	answers int
	callers int
	script  script
}

// memoryPhases has the loads in their order.
var memoryPhases = []memoryPhase{
	{"100,000 small answers", 100_000, 16, script{Tokens: 4, Tools: 10}},
	{"20,000 with a call", 20_000, 16, script{Tokens: 64, Rounds: 1, Calls: 1, Result: 1000, Tools: 10}},
	{"600 results of 1 MB", 600, 8, script{Tokens: 64, Rounds: 1, Calls: 1, Result: 1_000_000, Tools: 10}},
	{"20,000 with a call again", 20_000, 16, script{Tokens: 64, Rounds: 1, Calls: 1, Result: 1000, Tools: 10}},
}

// measureMemory returns the resident memory of a service after each phase of load, its live heap, and its
// resident memory after idleTime. With -quick, a phase has a tenth of its answers and there is no wait.
func measureMemory(ctx context.Context, fx *fixture, eventsURL string) (_ string, err error) {
	p, err := startService(ctx, fx.answerd, append(fx.serviceEnv(setting{tools: 10}), "EVENTS_URL="+eventsURL, "EVENTS_MAX_BYTES="+memoryBound))
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, p.kill()) }()
	line, idle := "", idleTime
	measure := func(what string) error {
		resident, err := p.residentBytes()
		line += fmt.Sprintf("%.0f MB %s, ", float64(resident)/1e6, what)
		return err
	}
	for _, phase := range memoryPhases {
		if fx.quick {
			phase.answers, idle = phase.answers/10, 0
		}
		l := newLoad(p.url, row{script: phase.script})
		err := l.askTimes(ctx, phase.callers, phase.answers)
		l.client.CloseIdleConnections()
		if err = errors.Join(err, measure("after "+phase.name)); err != nil {
			return "", err
		}
	}
	select {
	case <-time.After(idle):
	case <-ctx.Done():
		return "", ctx.Err()
	}
	if err := measure("idle"); err != nil {
		return "", err
	}
	values, err := p.readMetrics("go_memstats_heap_alloc_bytes")
	if err != nil {
		return "", err
	}
	return line + fmt.Sprintf("of which %.0f MB heap", values[0]/1e6), nil
}

// measureMemoryLog measures a service with the log in memory.
func measureMemoryLog(ctx context.Context, fx *fixture) (string, error) {
	return measureMemory(ctx, fx, "")
}

// measureMemoryFile measures a service with file:.
func measureMemoryFile(ctx context.Context, fx *fixture) (string, error) {
	dir, err := os.MkdirTemp(fx.work, "events")
	if err != nil {
		return "", err
	}
	return measureMemory(ctx, fx, "file:"+dir)
}
