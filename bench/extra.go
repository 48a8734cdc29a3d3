package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"
)

// extra is a measurement that is no load.
type extra struct {
	name    string
	measure func(context.Context, *house) (string, error)
}

var extras = []extra{
	{"idle memory; start to listening (at most 45 MB, 0.3 s)", idle},
	{"memory of an open stream (at most 135 kB)", openStreams},
	{"3,000 clients gone (must 1 s, goal 0.5 s)", clientsGone},
	{"CPU per answer beside open streams; memory after them", growth},
}

// idle starts the service some times and lets it rest.
func idle(ctx context.Context, h *house) (string, error) {
	var memory, start []float64
	for range 3 {
		p, err := answerd(ctx, h.answerd, h.environ(setting{tools: 10}))
		if err != nil {
			return "", err
		}
		r := row{script: script{Tokens: 4, Tools: 10}}
		l := newLoad(p.url, r)
		_, err = l.ask(ctx) // connected, and has worked once
		time.Sleep(500 * time.Millisecond)
		resident, err2 := p.resident()
		l.client.CloseIdleConnections()
		if err3 := p.stop(); err != nil || err2 != nil || err3 != nil {
			return "", fmt.Errorf("%w, %w, %w", err, err2, err3)
		}
		memory, start = append(memory, float64(resident)/1e6), append(start, p.started.Seconds())
	}
	return fmt.Sprintf("%.1f MB; %.2f s", median(memory), median(start)), nil
}

// openStreams is what 1,000 streams in mid-answer take, in processes that held none before.
func openStreams(ctx context.Context, h *house) (string, error) {
	const streams = 1000
	floor, err := self(ctx, "floor", h.model.url+"/v1/chat/completions", h.toolsURL(setting{tools: 10}))
	if err != nil {
		return "", err
	}
	defer floor.stop()
	service, err := answerd(ctx, h.answerd, h.environ(setting{tools: 10}))
	if err != nil {
		return "", err
	}
	defer service.stop()
	var each [2]float64
	for i, p := range []*process{floor, service} {
		warm := newLoad(p.url, row{stream: true, script: script{Tokens: 64, Tools: 10}})
		if _, err := warm.run(ctx, 16, 200*time.Millisecond); err != nil {
			return "", err
		}
		before, err := p.resident()
		if err != nil {
			return "", err
		}
		hold, err := hang(ctx, p, streams)
		if err != nil {
			return "", err
		}
		time.Sleep(500 * time.Millisecond)
		after, err := p.resident()
		if i == 1 && h.profiles != "" {
			for _, profile := range []string{"heap?debug=1", "goroutine"} {
				err = errors.Join(err, h.keep(h.door(setting{tools: 10}), profile, "open-streams."+profile))
			}
		}
		hold.release()
		if err != nil {
			return "", err
		}
		each[i] = float64(after-before) / streams / 1000
	}
	return fmt.Sprintf("%.0f kB (floor %.0f)", each[1], each[0]), nil
}

// held are streams that stopped in mid-answer.
type held struct {
	load   *load
	cancel context.CancelFunc
	bodies []*http.Response
}

// hang opens n streams and reads each up to its first words.
func hang(ctx context.Context, p *process, n int) (*held, error) {
	ctx, cancel := context.WithCancel(ctx)
	h := &held{load: newLoad(p.url, row{stream: true, script: script{Tokens: 64, Tools: 10, Hang: 1}}), cancel: cancel}
	h.bodies = make([]*http.Response, n)
	errs := make([]error, n)
	var wg sync.WaitGroup
	slots := make(chan struct{}, 32)
	for i := range n {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			if h.bodies[i], errs[i] = h.load.open(ctx); errs[i] == nil {
				errs[i] = untilWords(h.bodies[i])
			}
		})
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			h.release()
			return nil, err
		}
	}
	return h, nil
}

// untilWords reads a stream up to its first delta.
func untilWords(resp *http.Response) error {
	for in := bufio.NewReaderSize(resp.Body, 512); ; {
		line, err := in.ReadString('\n')
		if err != nil {
			return fmt.Errorf("%s: %w", resp.Status, err)
		}
		if line == "event: text_delta\n" {
			return nil
		}
	}
}

// release closes all connections.
func (h *held) release() {
	h.cancel()
	for _, resp := range h.bodies {
		if resp != nil {
			_ = resp.Body.Close()
		}
	}
	h.load.client.CloseIdleConnections()
}

// clientsGone is how long after 3,000 clients left the model knows, and the descriptors
// are back.
func clientsGone(ctx context.Context, h *house) (string, error) {
	clients := min(3000, (descriptorsAllowed()-500)/3)
	service, err := answerd(ctx, h.answerd, h.environ(setting{tools: 10}))
	if err != nil {
		return "", err
	}
	defer service.stop()
	warm := newLoad(service.url, row{stream: true, script: script{Tokens: 64, Tools: 10}})
	if _, err := warm.run(ctx, 16, 200*time.Millisecond); err != nil {
		return "", err
	}
	warm.client.CloseIdleConnections()
	before, err := service.descriptors()
	if err != nil {
		return "", err
	}
	hold, err := hang(ctx, service, clients)
	if err != nil {
		return "", err
	}
	began := time.Now()
	hold.release()
	closed := time.Since(began)
	for over := began.Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		stats, err := h.model.get("/stats")
		if err != nil {
			return "", err
		}
		now, err := service.descriptors()
		if err != nil {
			return "", err
		}
		if stats["open"] == 0 && now <= before+32 {
			break
		}
		if time.Now().After(over) {
			return "", fmt.Errorf("10 s later, %d requests at the model are open, and %d descriptors more than before", stats["open"], now-before)
		}
	}
	return fmt.Sprintf("%.2f s after %d (to close them took the client %.2f s)", time.Since(began).Seconds(), clients, closed.Seconds()), nil
}
