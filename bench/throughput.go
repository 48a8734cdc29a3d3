package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// throughputCallers lists the numbers of callers that measureThroughput measures.
var throughputCallers = []int{1, 4, 16, 64, 256}

// measureThroughput measures a service with each kind of event log. For each number of callers, it returns the answers
// per second and how many processors the service used. The callers, the model, the tool and the NATS server run on the
// same machine as the service.
func measureThroughput(ctx context.Context, fx *fixture) (string, error) {
	length := 5 * time.Second
	if fx.quick {
		length = time.Second
	}
	dir, err := os.MkdirTemp(fx.work, "throughput")
	if err != nil {
		return "", err
	}
	nats, err := startSelf(ctx, "nats", filepath.Join(dir, "nats"))
	if err != nil {
		return "", err
	}
	defer nats.kill()
	var lines []string
	for _, log := range []struct{ name, url string }{
		{"in memory", ""}, {"file:", "file:" + filepath.Join(dir, "file")}, {"nats:", strings.Replace(nats.url, "http:", "nats:", 1)},
	} {
		line, err := fx.throughputOf(ctx, log.url, length)
		if err != nil {
			return "", fmt.Errorf("%s: %w", log.name, err)
		}
		lines = append(lines, log.name+" "+line)
	}
	return strings.Join(lines, "; "), nil
}

// throughputOf measures a new service with the event log at url, for the time length at each number of callers.
func (fx *fixture) throughputOf(ctx context.Context, url string, length time.Duration) (string, error) {
	p, err := startService(ctx, fx.answerd, append(fx.serviceEnv(setting{tools: 10}), "EVENTS_URL="+url, "EVENTS_MAX_BYTES=1GiB"))
	if err != nil {
		return "", err
	}
	defer p.kill()
	l := newLoad(p.url, row{script: script{Tokens: 64, Rounds: 1, Calls: 1, Result: 1000, Tools: 10}})
	defer l.client.CloseIdleConnections()
	var parts []string
	for _, callers := range throughputCallers {
		if _, err := l.askRepeatedly(ctx, callers, length/5); err != nil { // opens the connections
			return "", err
		}
		before, err := p.cpuTime()
		if err != nil {
			return "", err
		}
		began := time.Now()
		all, err := l.askRepeatedly(ctx, callers, length)
		if err != nil {
			return "", err
		}
		took := time.Since(began).Seconds()
		after, err := p.cpuTime()
		if err != nil {
			return "", err
		}
		parts = append(parts, fmt.Sprintf("%d: %.0f/s, %.2f", callers, float64(len(all))/took, (after-before).Seconds()/took))
	}
	return strings.Join(parts, ", "), nil
}
