package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
)

// crowds are the numbers of open streams beside which an answer is measured.
var crowds = []int{1000, 3000, 10_000}

// returnTime is how long memory that is no longer used has to go back to the system.
const returnTime = 15 * time.Second

// growth is what an answer costs while so many streams are open, against a process of the
// same binary that has none, in turns, and what memory is left when they are gone. The log
// keeps next to nothing, so that it is not what is measured, and no stream ends by itself.
func growth(ctx context.Context, h *house) (_ string, err error) {
	environ := append(h.environ(setting{tools: 10}), "EVENTS_RETENTION=1s", "LLM_IDLE_TIMEOUT=1h", "TIMEOUT=1h",
		"MAX_STREAMS=20000", "MAX_STREAMS_PER_CALLER=0", "MAX_CONNECTIONS=20000")
	var sides [2]*busy // without and with streams
	for i := range sides {
		p, err := answerd(ctx, h.answerd, environ)
		if err != nil {
			return "", err
		}
		defer func() { err = errors.Join(err, p.stop()) }()
		sides[i] = &busy{p, newLoad(p.url, row{script: script{Tokens: 64, Tools: 10}})}
		defer sides[i].load.client.CloseIdleConnections()
	}
	alone, crowded := sides[0], sides[1]
	if _, err := crowded.cost(ctx); err != nil {
		return "", err
	}
	before, err := crowded.resident()
	if err != nil {
		return "", err
	}
	var holds []*held
	release := func() {
		for _, hold := range holds {
			hold.release()
		}
	}
	defer func() { release() }()
	var said []string
	open := 0
	for _, crowd := range crowds {
		// Each takes two descriptors of the service: its client's, and the model's.
		crowd = min(crowd, (descriptorsAllowed()-400)/2)
		hold, err := hang(ctx, crowded.process, crowd-open)
		if err != nil {
			return "", err
		}
		holds, open = append(holds, hold), crowd
		var ratios []float64
		for range crowdSlices {
			with, err := crowded.cost(ctx)
			if err != nil {
				return "", err
			}
			without, err := alone.cost(ctx)
			if err != nil {
				return "", err
			}
			ratios = append(ratios, with/without)
		}
		said = append(said, fmt.Sprintf("%.2f × beside %d", median(ratios), crowd))
	}
	during, err := crowded.resident()
	if err != nil {
		return "", err
	}
	release()
	holds = nil
	time.Sleep(returnTime)
	for range 2 { // with new runs the old ones go, and then what they held is collected
		if _, err := crowded.cost(ctx); err != nil {
			return "", err
		}
	}
	time.Sleep(returnTime)
	after, err := crowded.resident()
	return fmt.Sprintf("%s; %.0f MB before, %.0f with all, %.0f after", strings.Join(said, ", "), float64(before)/1e6, float64(during)/1e6, float64(after)/1e6), err
}

// crowdSlices is how often the two take turns beside each crowd.
const crowdSlices = 3

// busy is a service and what asks it.
type busy struct {
	*process
	load *load
}

// cost is the CPU time of an answer in ms, from the end of one collection to that of a later
// one: beside 9,800 streams collections are seconds apart, and each takes as much as thousands
// of answers, so a slice of any other length has all or nothing of one.
func (b *busy) cost(ctx context.Context) (float64, error) {
	if _, err := b.askUntilCollected(ctx, 0); err != nil {
		return 0, err
	}
	before, err := b.cpu()
	if err != nil {
		return 0, err
	}
	answers, err := b.askUntilCollected(ctx, 2*time.Second)
	if err != nil {
		return 0, err
	}
	after, err := b.cpu()
	return ms(after-before) / float64(answers), err
}

// askUntilCollected asks until a collection has ended, for at least so long, and returns how
// often.
func (b *busy) askUntilCollected(ctx context.Context, atLeast time.Duration) (answers int, err error) {
	before, err := b.metrics("go_gc_duration_seconds_count")
	if err != nil {
		return 0, err
	}
	for began, now := time.Now(), before; err == nil && (now[0] == before[0] || time.Since(began) < atLeast); now, err = b.metrics("go_gc_duration_seconds_count") {
		all, err := b.load.run(ctx, 16, 100*time.Millisecond)
		if err != nil {
			return 0, err
		}
		answers += len(all)
	}
	return answers, err
}
