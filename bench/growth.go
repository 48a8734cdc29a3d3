package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
)

// streamCounts lists how many streams are open each time that measureGrowth compares the cost of answers.
var streamCounts = []int{1000, 3000, 10_000}

// returnTime is how long measureGrowth waits for unused memory to be returned to the operating system.
const returnTime = 15 * time.Second

// measureGrowth compares, in turns, what an answer costs in two processes of the same binary: one has many open
// streams, the other none. It also measures the memory before, with and after the streams. The retention of 1s keeps
// the log's memory out of the measurement, and the long timeouts keep the streams open.
func measureGrowth(ctx context.Context, fx *fixture) (_ string, err error) {
	environ := append(fx.serviceEnv(setting{tools: 10}), "EVENTS_RETENTION=1s", "LLM_IDLE_TIMEOUT=1h", "TIMEOUT=1h",
		"MAX_STREAMS=20000", "MAX_STREAMS_PER_CALLER=0", "MAX_CONNECTIONS=20000")

	var sides [2]*measuredService // without and with streams
	for i := range sides {
		p, err := startService(ctx, fx.answerd, environ)
		if err != nil {
			return "", err
		}
		defer func() { err = errors.Join(err, p.kill()) }()
		sides[i] = &measuredService{p, newLoad(p.url, row{script: script{Tokens: 64, Tools: 10}})}
		defer sides[i].load.client.CloseIdleConnections()
	}

	alone, loaded := sides[0], sides[1]
	if _, err := loaded.cpuPerAnswer(ctx); err != nil {
		return "", err
	}
	before, err := loaded.residentBytes()
	if err != nil {
		return "", err
	}
	ratios, during, err := compareBesideStreams(ctx, alone, loaded)
	if err != nil {
		return "", err
	}
	time.Sleep(returnTime)

	for range 2 { // new runs make the log drop the old ones, and then a collection frees their memory
		if _, err := loaded.cpuPerAnswer(ctx); err != nil {
			return "", err
		}
	}

	time.Sleep(returnTime)
	after, err := loaded.residentBytes()
	return fmt.Sprintf("%s; %.0f MB before, %.0f with all, %.0f after", ratios, float64(before)/1e6, float64(during)/1e6, float64(after)/1e6), err
}

// compareBesideStreams opens more and more streams on loaded. At each number of streams, it compares the CPU time of
// loaded's answers with that of alone's. It returns the ratios, and loaded's memory with all streams. It closes the
// streams before it returns.
func compareBesideStreams(ctx context.Context, alone, loaded *measuredService) (ratios string, during int64, err error) {
	var opened []*hangingStreams
	defer func() {
		for _, h := range opened {
			h.closeAll()
		}
	}()
	var lines []string
	open := 0
	for _, streams := range streamCounts {
		// Each stream takes two descriptors of the service: one to its client and one to the model.
		streams = min(streams, (descriptorLimit()-400)/2)
		h, err := openHangingStreams(ctx, loaded.process, streams-open)
		if err != nil {
			return "", 0, err
		}
		opened, open = append(opened, h), streams
		var ratios []float64
		for range growthSlices {
			with, err := loaded.cpuPerAnswer(ctx)
			if err != nil {
				return "", 0, err
			}
			without, err := alone.cpuPerAnswer(ctx)
			if err != nil {
				return "", 0, err
			}
			ratios = append(ratios, with/without)
		}
		lines = append(lines, fmt.Sprintf("%.2f × beside %d", median(ratios), streams))
	}
	during, err = loaded.residentBytes()
	return strings.Join(lines, ", "), during, err
}

// growthSlices is how often each of the two processes is measured at each number of streams.
const growthSlices = 3

// measuredService is a service with the load that it is measured under.
type measuredService struct {
	*process
	load *load
}

// cpuPerAnswer returns the CPU time per answer in milliseconds. It measures from the end of one garbage collection to
// the end of a later one. With 9,800 streams, collections are seconds apart and each takes as much time as thousands of
// answers, so a slice of any other length would contain all of a collection or nothing of it.
func (b *measuredService) cpuPerAnswer(ctx context.Context) (float64, error) {
	if _, err := b.askUntilCollected(ctx, 0); err != nil {
		return 0, err
	}
	before, err := b.cpuTime()
	if err != nil {
		return 0, err
	}
	answers, err := b.askUntilCollected(ctx, 2*time.Second)
	if err != nil {
		return 0, err
	}
	after, err := b.cpuTime()
	return milliseconds(after-before) / float64(answers), err
}

// askUntilCollected asks questions until a garbage collection has ended and at least the time atLeast has passed. It
// returns the number of answers.
func (b *measuredService) askUntilCollected(ctx context.Context, atLeast time.Duration) (answers int, err error) {
	before, err := b.readMetrics("go_gc_duration_seconds_count")
	if err != nil {
		return 0, err
	}
	for began, now := time.Now(), before; err == nil && (now[0] == before[0] || time.Since(began) < atLeast); now, err = b.readMetrics("go_gc_duration_seconds_count") {
		all, err := b.load.askRepeatedly(ctx, 16, 100*time.Millisecond)
		if err != nil {
			return 0, err
		}
		answers += len(all)
	}
	return answers, err
}
