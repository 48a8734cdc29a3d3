package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// throughputCallers has the numbers of callers at which measureThroughput measures.
var throughputCallers = []int{1, 4, 16, 64, 256}

// measureThroughput returns the answers per second with each event log, by the number of callers, and how many
// processors the service used for them. The callers, the model, the tool and the NATS server share the machine with it.
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

// throughputOf measures a service with the event log at url.
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
