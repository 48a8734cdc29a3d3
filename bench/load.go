package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// load asks one service the same question repeatedly.
type load struct {
	client *http.Client
	url    string
	script script
	stream bool
	body   []byte
}

// newLoad returns a load that asks a row's question of the service at url.
func newLoad(url string, r row) *load {
	t := &http.Transport{MaxIdleConnsPerHost: 16384, DisableCompression: true}
	path := "/answer"
	if r.stream {
		path = "/answer/stream"
	}
	return &load{client: &http.Client{Transport: t}, url: url + path, script: r.script, stream: r.stream, body: r.questionBody()}
}

// timing holds the time from a question until the first byte of its answer, and until the end.
type timing struct{ first, whole time.Duration }

// askOnce asks the question once. It returns an error if the response is not the script's answer.
func (l *load) askOnce(ctx context.Context) (t timing, err error) {
	began := time.Now()
	resp, err := l.sendQuestion(ctx)
	if err != nil {
		return t, err
	}
	defer resp.Body.Close()
	in := bufio.NewReader(resp.Body)
	if _, err := in.Peek(1); err != nil {
		return t, fmt.Errorf("%s: %w", resp.Status, err)
	}
	t.first = time.Since(began)
	body, err := io.ReadAll(in)
	t.whole = time.Since(began)
	switch {
	case err != nil:
		return t, err
	case resp.StatusCode != http.StatusOK:
		return t, fmt.Errorf("%s: %.300s", resp.Status, body)
	case l.stream:
		return t, l.script.checkStream(body)
	}
	return t, l.script.checkAnswer(body)
}

// sendQuestion sends the question. The caller must close the response's body.
func (l *load) sendQuestion(ctx context.Context) (*http.Response, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, l.url, bytes.NewReader(l.body))
	if err != nil {
		return nil, err
	}
	r.Header.Set("Content-Type", "application/json")
	return l.client.Do(r)
}

// askRepeatedly lets that many callers ask questions for the time d, each at least once. It returns the timings of all
// answers. After a failure, each caller ends with its current question, and askRepeatedly returns the last error.
func (l *load) askRepeatedly(ctx context.Context, callers int, d time.Duration) ([]timing, error) {
	ctx, cancel := context.WithTimeout(ctx, d+sliceTime)
	defer cancel()
	over := time.Now().Add(d)
	var mu sync.Mutex
	var all []timing
	var failed error
	var stopped atomic.Bool
	var wg sync.WaitGroup
	for range callers {
		wg.Go(func() {
			var own []timing
			for len(own) == 0 || time.Now().Before(over) && !stopped.Load() {
				t, err := l.askOnce(ctx)
				if err != nil {
					mu.Lock()
					failed = fmt.Errorf("%s: %w", l.url, err)
					mu.Unlock()
					stopped.Store(true)
					return
				}
				own = append(own, t)
			}
			mu.Lock()
			all = append(all, own...)
			mu.Unlock()
		})
	}
	wg.Wait()
	return all, failed
}

// askTimes asks n questions in all, from that many callers in parallel. The first failure cancels the other questions
// and is returned.
func (l *load) askTimes(ctx context.Context, callers, n int) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var left atomic.Int64
	left.Store(int64(n))
	var wg sync.WaitGroup
	for range callers {
		wg.Go(func() {
			for left.Add(-1) >= 0 {
				if _, err := l.askOnce(ctx); err != nil {
					cancel(fmt.Errorf("%s: %w", l.url, err))
					return
				}
			}
		})
	}
	wg.Wait()
	return context.Cause(ctx)
}

// sliceTime is how long after the end of a slice the last answers may still arrive.
const sliceTime = 30 * time.Second

// untruncatedBytes is how much of a tool result is in the answer at least. answerd may truncate a longer result.
const untruncatedBytes = 120_000

// checkAnswer returns an error unless body is the JSON document with the script's answer and all tool results.
func (s script) checkAnswer(body []byte) error {
	var a struct {
		Answer   string
		Metadata struct {
			ToolResults []string `json:"tool_results"`
		}
	}
	if err := json.Unmarshal(body, &a); err != nil {
		return fmt.Errorf("the answer does not decode: %w", err)
	}
	// answerd truncates a result beyond its bounds, and adds a note.
	want := resultText(min(s.Result, untruncatedBytes))
	switch results := a.Metadata.ToolResults; {
	case a.Answer != s.fullAnswer():
		return fmt.Errorf("the answer is %.80q", a.Answer)
	case len(results) != s.Rounds*s.Calls:
		return fmt.Errorf("%d results", len(results))
	case slices.ContainsFunc(results, func(r string) bool { return !strings.HasPrefix(r, want) || s.Result <= untruncatedBytes && r != want }):
		return fmt.Errorf("a result is another one")
	}
	return nil
}

// checkStream returns an error unless the deltas of the stream in body add up to the script's answer, each call has a
// tool_result, and the last event has the whole answer.
func (s script) checkStream(body []byte) error {
	var said strings.Builder
	var last []byte
	results := 0
	for frame := range bytes.SplitSeq(body, []byte("\n\n")) {
		_, rest, _ := bytes.Cut(frame, []byte("event: "))
		name, data, ok := bytes.Cut(rest, []byte("\ndata: "))
		if !ok {
			continue
		}
		switch last = data; string(name) {
		case "text_delta":
			var d struct{ Delta string }
			if err := json.Unmarshal(data, &d); err != nil {
				return fmt.Errorf("a delta does not decode: %w", err)
			}
			said.WriteString(d.Delta)
		case "tool_result":
			results++
		}
	}
	if said.String() != s.fullAnswer() || results != s.Rounds*s.Calls {
		return fmt.Errorf("the stream says %.80q, %d results", said.String(), results)
	}
	return s.checkAnswer(last)
}
