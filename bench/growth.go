package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
)

// streamCounts are the numbers of open streams beside which measureGrowth measures answers.
var streamCounts = []int{1000, 3000, 10_000}

// returnTime is how long memory that is no longer used has to go back to the system.
const returnTime = 15 * time.Second

// measureGrowth compares the cost of an answer beside many open streams with that of a process
// of the same binary without streams, in turns, and measures the memory before, with and after
// the streams. The log keeps next to nothing, so that it does not count, and no stream ends by
// itself.
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
	var holds []*hangingStreams
	release := func() {
		for _, hold := range holds {
			hold.release()
		}
	}
	defer func() { release() }()
	var lines []string
	open := 0
	for _, streams := range streamCounts {
		// Each takes two descriptors of the service: its client's, and the model's.
		streams = min(streams, (descriptorsAllowed()-400)/2)
		hold, err := openHangingStreams(ctx, loaded.process, streams-open)
		if err != nil {
			return "", err
		}
		holds, open = append(holds, hold), streams
		var ratios []float64
		for range growthSlices {
			with, err := loaded.cpuPerAnswer(ctx)
			if err != nil {
				return "", err
			}
			without, err := alone.cpuPerAnswer(ctx)
			if err != nil {
				return "", err
			}
			ratios = append(ratios, with/without)
		}
		lines = append(lines, fmt.Sprintf("%.2f × beside %d", median(ratios), streams))
	}
	during, err := loaded.residentBytes()
	if err != nil {
		return "", err
	}
	release()
	holds = nil
	time.Sleep(returnTime)
	for range 2 { // with new runs the old ones go, and then what they hangingStreams is collected
		if _, err := loaded.cpuPerAnswer(ctx); err != nil {
			return "", err
		}
	}
	time.Sleep(returnTime)
	after, err := loaded.residentBytes()
	return fmt.Sprintf("%s; %.0f MB before, %.0f with all, %.0f after", strings.Join(lines, ", "), float64(before)/1e6, float64(during)/1e6, float64(after)/1e6), err
}

// growthSlices is how often the two processes take turns at each number of streams.
const growthSlices = 3

// measuredService is a service and what asks it.
type measuredService struct {
	*process
	load *load
}

// cpuPerAnswer returns the CPU time of an answer in ms, from the end of one collection to that of a later
// one: beside 9,800 streams collections are seconds apart, and each takes as much as thousands
// of answers, so a slice of any other length has all or nothing of one.
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

// askUntilCollected asks until a collection has ended, for at least so long, and returns how
// often.
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
