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

// retention is how long the service keeps a run in this measurement, and how long memory
// has afterwards to go back to the system.
const retention = 10 * time.Second

// growth is what an answer costs while so many streams are open, against none, and what
// memory is left when they are gone and their runs are no longer kept.
func growth(ctx context.Context, h *house) (_ string, err error) {
	service, err := answerd(ctx, h.answerd, append(h.environ(setting{tools: 10}),
		"EVENTS_RETENTION="+retention.String(), "MAX_STREAMS=20000", "MAX_STREAMS_PER_CALLER=0", "MAX_CONNECTIONS=20000"))
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, service.stop()) }()
	l := newLoad(service.url, row{script: script{Tokens: 64, Tools: 10}})
	defer l.client.CloseIdleConnections()
	cost := func() (float64, error) {
		var each []float64
		for range 5 {
			f, err := slice(ctx, service, l, 16, 700*time.Millisecond)
			if err != nil {
				return 0, err
			}
			each = append(each, ms(f.cpu))
		}
		return median(each), nil
	}
	alone, err := cost()
	if err != nil {
		return "", err
	}
	before, err := service.resident()
	if err != nil {
		return "", err
	}
	var said []string
	var holds []*held
	release := func() {
		for _, hold := range holds {
			hold.release()
		}
	}
	defer func() { release() }()
	open := 0
	for _, crowd := range crowds {
		// Each takes two descriptors of the service: its client's, and the model's.
		crowd = min(crowd, (descriptorsAllowed()-400)/2)
		hold, err := hang(ctx, service, crowd-open)
		if err != nil {
			return "", err
		}
		holds, open = append(holds, hold), crowd
		beside, err := cost()
		if err != nil {
			return "", err
		}
		said = append(said, fmt.Sprintf("%.2f × beside %d", beside/alone, crowd))
	}
	during, err := service.resident()
	if err != nil {
		return "", err
	}
	release()
	holds = nil
	time.Sleep(retention)
	if _, err := cost(); err != nil { // with new runs the old ones go, and what they held is collected
		return "", err
	}
	time.Sleep(retention)
	after, err := service.resident()
	return fmt.Sprintf("%s; %.0f MB before, %.0f with all, %.0f after", strings.Join(said, ", "), float64(before)/1e6, float64(during)/1e6, float64(after)/1e6), err
}
