package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"
)

// measureDefaults measures a service with the default limits. For each number of callers it returns the answers per
// second and the percentage of refused questions. Each caller asks one question after another. The model takes 200 ms
// per request and the tool 50 ms. After a refusal, a caller waits one second, which is less than Retry-After asks for.
func measureDefaults(ctx context.Context, fx *fixture) (string, error) {
	s := setting{tools: 10}
	p, err := startService(ctx, fx.answerd, append([]string{
		"LLM_BASE_URL=" + fx.model.url + "/v1", "LLM_API_KEY=key", "MCP_URL=" + fx.toolsURL(s),
	}, fx.env...))
	if err != nil {
		return "", err
	}
	defer p.kill()
	length := 10 * time.Second
	if fx.quick {
		length = 3 * time.Second
	}
	l := newLoad(p.url, row{script: script{Tokens: 64, Rounds: 1, Calls: 1, Result: 1000, Tools: 10, Delay: 200}})
	defer l.client.CloseIdleConnections()
	var parts []string
	for _, callers := range []int{16, 64, 256, 1024} {
		answers, refused, err := l.askCountingRefusals(ctx, callers, length)
		if err != nil {
			return "", fmt.Errorf("%d callers: %w", callers, err)
		}
		parts = append(parts, fmt.Sprintf("%d: %.0f/s, %.1f %%", callers, float64(answers)/length.Seconds(), 100*float64(refused)/float64(max(answers+refused, 1))))
	}
	return strings.Join(parts, "; "), nil
}

// askCountingRefusals lets that many callers ask questions for the time d. It returns how many answers arrived within
// d, and how many questions were refused with 503 or 429. Any other failure stops all callers and is returned as
// failed.
func (l *load) askCountingRefusals(ctx context.Context, callers int, d time.Duration) (answers, refused int, failed error) {
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	var mu sync.Mutex
	var wg sync.WaitGroup
	for range callers {
		wg.Go(func() {
			for ctx.Err() == nil {
				ok, err := l.askOrBeRefused(ctx)
				mu.Lock()
				switch {
				case ctx.Err() != nil:
				case err != nil:
					failed = errors.Join(failed, err)
					cancel()
				case ok:
					answers++
				default:
					refused++
				}
				mu.Unlock()
				if !ok {
					select {
					case <-ctx.Done():
					case <-time.After(time.Second):
					}
				}
			}
		})
	}
	wg.Wait()
	return answers, refused, failed
}

// askOrBeRefused asks the question once. It returns true if the status is 200, with an error if the answer is not the
// script's. It returns false and no error if answerd refuses the question with 503 or 429.
func (l *load) askOrBeRefused(ctx context.Context) (bool, error) {
	resp, err := l.sendQuestion(ctx)
	if err != nil {
		return false, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	switch {
	case err != nil:
		return false, err
	case resp.StatusCode == http.StatusServiceUnavailable || resp.StatusCode == http.StatusTooManyRequests:
		return false, nil
	case resp.StatusCode != http.StatusOK:
		return false, fmt.Errorf("%s: %.300s", resp.Status, body)
	}
	return true, l.script.checkAnswer(body)
}
