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

// measureDefaults returns the answers per second, and the share of refused questions, of callers who ask
// one question after another. The limits are the defaults; the tool takes 50 ms and the model 200 ms per
// request. A caller whose question was refused asks again after a second, which is less than Retry-After asks for.
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
		answers, refused, err := l.askUntilRefused(ctx, callers, length)
		if err != nil {
			return "", fmt.Errorf("%d callers: %w", callers, err)
		}
		parts = append(parts, fmt.Sprintf("%d: %.0f/s, %.1f %%", callers, float64(answers)/length.Seconds(), 100*float64(refused)/float64(max(answers+refused, 1))))
	}
	return strings.Join(parts, "; "), nil
}

// askUntilRefused asks questions from that many callers for the time d. It counts the answers within that
// time, and the questions that were refused with 503 or 429.
func (l *load) askUntilRefused(ctx context.Context, callers int, d time.Duration) (answers, refused int, failed error) {
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

// askOrBeRefused asks once and reports whether there was an answer. A refusal is not an error.
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
