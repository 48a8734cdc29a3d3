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

// growth is what an answer costs while so many streams are open, against none, and what
// memory is left when they are gone. The log keeps next to nothing, so that it is not what
// is measured.
func growth(ctx context.Context, h *house) (_ string, err error) {
	service, err := answerd(ctx, h.answerd, append(h.environ(setting{tools: 10}),
		"EVENTS_RETENTION=1s", "MAX_STREAMS=20000", "MAX_STREAMS_PER_CALLER=0", "MAX_CONNECTIONS=20000"))
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, service.stop()) }()
	l := newLoad(service.url, row{script: script{Tokens: 64, Tools: 10}})
	defer l.client.CloseIdleConnections()
	cost := func() (float64, error) {
		// From one collection to the next, which has to follow all that is open: its share is what
		// it is, and not all or nothing.
		if _, err := turnOver(ctx, service, l); err != nil {
			return 0, err
		}
		before, err := service.cpu()
		if err != nil {
			return 0, err
		}
		answers, err := turnOver(ctx, service, l)
		if err != nil {
			return 0, err
		}
		after, err := service.cpu()
		return ms(after-before) / float64(answers), err
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
	time.Sleep(returnTime)
	for range 2 { // with new runs the old ones go, and then what they held is collected
		if _, err := turnOver(ctx, service, l); err != nil {
			return "", err
		}
	}
	time.Sleep(returnTime)
	after, err := service.resident()
	return fmt.Sprintf("%s; %.0f MB before, %.0f with all, %.0f after", strings.Join(said, ", "), float64(before)/1e6, float64(during)/1e6, float64(after)/1e6), err
}

// turnOver asks until as much was allocated as the service has memory, and so collected once
// at least, and returns how often: new memory is dearer than memory that was used before.
func turnOver(ctx context.Context, p *process, l *load) (answers int, err error) {
	size, err := p.resident()
	if err != nil {
		return 0, err
	}
	_, before, err := p.garbage()
	for now := before; err == nil && now < before+float64(size); _, now, err = p.garbage() {
		all, err := l.run(ctx, 16, time.Second)
		if err != nil {
			return 0, err
		}
		answers += len(all)
	}
	return answers, err
}
