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

// measureIdle starts three processes of the service, one after the other. It returns the median of their resident
// memory after one answer, and of the time until they listen.
func measureIdle(ctx context.Context, fx *fixture) (string, error) {
	var memory, start []float64
	for range 3 {
		p, err := startService(ctx, fx.answerd, fx.serviceEnv(setting{tools: 10}))
		if err != nil {
			return "", err
		}
		r := row{script: script{Tokens: 4, Tools: 10}}
		l := newLoad(p.url, r)
		_, err = l.askOnce(ctx) // opens the connections
		time.Sleep(500 * time.Millisecond)
		resident, err2 := p.residentBytes()
		l.client.CloseIdleConnections()
		if err3 := p.kill(); err != nil || err2 != nil || err3 != nil {
			return "", fmt.Errorf("%w, %w, %w", err, err2, err3)
		}
		memory, start = append(memory, float64(resident)/1e6), append(start, p.started.Seconds())
	}
	return fmt.Sprintf("%.1f MB; %.2f s", median(memory), median(start)), nil
}

// measureOpenStreams returns the memory per open stream of answerd and of the floor, measured with 1,000 streams. The
// streams stay open because the model stops in the middle of each answer. Both processes are new, so that earlier load
// does not count.
func measureOpenStreams(ctx context.Context, fx *fixture) (string, error) {
	const streams = 1000
	floor, err := startSelf(ctx, "floor", fx.model.url+"/v1/chat/completions", fx.toolsURL(setting{tools: 10}))
	if err != nil {
		return "", err
	}
	defer floor.kill()
	service, err := startService(ctx, fx.answerd, fx.serviceEnv(setting{tools: 10}))
	if err != nil {
		return "", err
	}
	defer service.kill()

	var each [2]float64
	for i, p := range []*process{floor, service} {
		warm := newLoad(p.url, row{stream: true, script: script{Tokens: 64, Tools: 10}})
		if _, err := warm.askRepeatedly(ctx, 16, 200*time.Millisecond); err != nil {
			return "", err
		}
		before, err := p.residentBytes()
		if err != nil {
			return "", err
		}
		hold, err := openHangingStreams(ctx, p, streams)
		if err != nil {
			return "", err
		}
		time.Sleep(500 * time.Millisecond)
		after, err := p.residentBytes()
		if i == 1 && fx.profiles != "" {
			for _, profile := range []string{"heap?debug=1", "goroutine"} {
				err = errors.Join(err, fx.saveProfile(fx.pprofAddrFile(setting{tools: 10}), profile, "open-streams."+profile))
			}
		}
		hold.closeAll()
		if err != nil {
			return "", err
		}
		each[i] = float64(after-before) / streams / 1000
	}
	return fmt.Sprintf("%.0f kB (floor %.0f)", each[1], each[0]), nil
}

// hangingStreams are open streams whose answers do not end, because the model has stopped in the middle of them.
type hangingStreams struct {
	load   *load
	cancel context.CancelFunc
	bodies []*http.Response
}

// openHangingStreams opens n streams, 32 at a time, and reads each up to its first delta. The caller must call
// closeAll. If a stream fails, openHangingStreams closes all of them and returns the error.
func openHangingStreams(ctx context.Context, p *process, n int) (*hangingStreams, error) {
	ctx, cancel := context.WithCancel(ctx)
	h := &hangingStreams{load: newLoad(p.url, row{stream: true, script: script{Tokens: 64, Tools: 10, Hang: 1}}), cancel: cancel}
	h.bodies = make([]*http.Response, n)
	errs := make([]error, n)
	var wg sync.WaitGroup
	slots := make(chan struct{}, 32)
	for i := range n {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			if h.bodies[i], errs[i] = h.load.sendQuestion(ctx); errs[i] == nil {
				errs[i] = readToFirstDelta(h.bodies[i])
			}
		})
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			h.closeAll()
			return nil, err
		}
	}
	return h, nil
}

// readToFirstDelta reads a stream up to its first text_delta. It returns an error if the stream ends before.
func readToFirstDelta(resp *http.Response) error {
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

// closeAll cancels the requests and closes the streams and the connections.
func (h *hangingStreams) closeAll() {
	h.cancel()
	for _, resp := range h.bodies {
		if resp != nil {
			_ = resp.Body.Close()
		}
	}
	h.load.client.CloseIdleConnections()
}

// measureDisconnects opens up to 3,000 streams, as many as the limit of file descriptors allows, and disconnects all
// clients. It returns how long answerd takes to end its requests to the model and to close the file descriptors, and an
// error if that takes more than 10 s.
func measureDisconnects(ctx context.Context, fx *fixture) (string, error) {
	clients := min(3000, (descriptorLimit()-500)/3)
	service, err := startService(ctx, fx.answerd, fx.serviceEnv(setting{tools: 10}))
	if err != nil {
		return "", err
	}
	defer service.kill()
	warm := newLoad(service.url, row{stream: true, script: script{Tokens: 64, Tools: 10}})
	if _, err := warm.askRepeatedly(ctx, 16, 200*time.Millisecond); err != nil {
		return "", err
	}
	warm.client.CloseIdleConnections()
	before, err := service.openDescriptors()
	if err != nil {
		return "", err
	}
	hold, err := openHangingStreams(ctx, service, clients)
	if err != nil {
		return "", err
	}
	began := time.Now()
	hold.closeAll()
	closed := time.Since(began)

	for over := began.Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		stats, err := fx.model.getStats("/stats")
		if err != nil {
			return "", err
		}
		now, err := service.openDescriptors()
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
