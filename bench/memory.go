package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
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

// memoryPhases are the loads, in the order in which a service gets them.
var memoryPhases = []memoryPhase{
	{"60,000 small answers", 60_000, 16, script{Tokens: 4, Tools: 10}},
	{"20,000 with a call", 20_000, 16, script{Tokens: 64, Rounds: 1, Calls: 1, Result: 1000, Tools: 10}},
	{"400 results of 1 MB", 400, 8, script{Tokens: 64, Rounds: 1, Calls: 1, Result: 1_000_000, Tools: 10}},
	{"20,000 with a call again", 20_000, 16, script{Tokens: 64, Rounds: 1, Calls: 1, Result: 1000, Tools: 10}},
}

// measureMemory measures a service with its log in memory and one with a file: log. For each, it returns the resident
// memory after each phase of load and after idleTime, and how much of it is heap at the end. With -quick, a phase has a
// tenth of its answers and measureMemory does not wait for idleTime.
func measureMemory(ctx context.Context, fx *fixture) (_ string, err error) {
	dir, err := os.MkdirTemp(fx.work, "events")
	if err != nil {
		return "", err
	}

	names, urls, lines := [2]string{"in memory", "file:"}, [2]string{"", "file:" + dir}, [2]string{}
	var services [2]*process
	for i, url := range urls {
		p, err := startService(ctx, fx.answerd, append(fx.serviceEnv(setting{tools: 10}), "EVENTS_URL="+url, "EVENTS_MAX_BYTES="+memoryBound))
		if err != nil {
			return "", err
		}
		defer func() { err = errors.Join(err, p.kill()) }()
		services[i] = p
		if lines[i], err = fx.measurePhases(ctx, p); err != nil {
			return "", err
		}
	}

	if !fx.quick {
		select {
		case <-time.After(idleTime):
		case <-ctx.Done():
			return "", ctx.Err()
		}
	}

	for i, p := range services {
		resident, err := p.residentBytes()
		if err != nil {
			return "", err
		}
		heap, err := p.readMetrics("go_memstats_heap_alloc_bytes")
		if err != nil {
			return "", err
		}
		lines[i] = fmt.Sprintf("%s: %s, %.0f idle, %.0f of it heap", names[i], lines[i], float64(resident)/1e6, heap[0]/1e6)
	}
	return strings.Join(lines[:], "; "), nil
}

// measurePhases returns the resident memory of p after each phase of load.
func (fx *fixture) measurePhases(ctx context.Context, p *process) (string, error) {
	var after []string
	for _, phase := range memoryPhases {
		if fx.quick {
			phase.answers /= 10
		}
		l := newLoad(p.url, row{script: phase.script})
		err := l.askTimes(ctx, phase.callers, phase.answers)
		l.client.CloseIdleConnections()
		if err != nil {
			return "", err
		}
		resident, err := p.residentBytes()
		if err != nil {
			return "", err
		}
		after = append(after, fmt.Sprintf("%.0f MB after %s", float64(resident)/1e6, phase.name))
	}
	return strings.Join(after, ", "), nil
}
