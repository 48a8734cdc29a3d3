package openai

import (
	"bytes"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"answerd/internal/llm"
	"answerd/internal/llm/llmtest"
)

// Streams share one connection pool. An endpoint ends its reply only some time after
// [DONE], and a connection whose reply was not read to its end is lost.
func TestConnectionIsReusedAfterAnAnswer(t *testing.T) {
	finished := make(chan struct{})
	s, m := newEndpoint(t, Config{}, func(w http.ResponseWriter, r *http.Request) {
		sendStream(helloStream)(w, r)
		<-finished
	})
	for range 10 {
		for p, err := range m.Stream(t.Context(), testRequest) {
			if err != nil {
				t.Fatal(err)
			}
			if _, ok := p.(llm.Finish); ok {
				finished <- struct{}{}
			}
		}
	}
	for _, r := range s.receivedRequests() {
		if r.from != s.receivedRequests()[0].from {
			t.Fatalf("got connections from %s and %s, want one", r.from, s.receivedRequests()[0].from)
		}
	}
}

// What is left of an error's text is read, within bounds: the next request need not connect anew.
func TestConnectionIsReusedAfterAnError(t *testing.T) {
	s, m := newEndpoint(t, Config{}, replyStatus(400, strings.Repeat("no ", 10<<10)), sendStream(helloStream))
	_, err := llmtest.Collect(t.Context(), m, testRequest)
	requireError(t, err, llm.ModelError)
	if _, err := llmtest.Collect(t.Context(), m, testRequest); err != nil {
		t.Fatal(err)
	}
	if r := s.receivedRequests(); r[0].from != r[1].from {
		t.Errorf("got connections from %s and %s, want one", r[0].from, r[1].from)
	}
}

// closeConnection reads the request and closes its connection without a reply: with a FIN, or with
// an RST if reset is set.
func closeConnection(reset bool) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		conn, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			panic(err)
		}
		if reset {
			_ = conn.(*net.TCPConn).SetLinger(0)
		}
		conn.Close()
	}
}

// An endpoint may close an idle connection in the moment in which the next request is sent on it.
// That is not a failure: it needs no retry and no warning. A new connection that is closed is one.
func TestIdleConnectionClosedByTheEndpointIsReplacedWithoutARetry(t *testing.T) {
	hello := sendStream(helloStream)
	for name, reset := range map[string]bool{"FIN": false, "RST": true} {
		closes := closeConnection(reset)
		for what, c := range map[string]struct {
			steps    []http.HandlerFunc
			answered []bool
			fresh    []bool // whether a request comes on a new connection
		}{
			"the idle connection":         {[]http.HandlerFunc{hello, closes, hello}, []bool{true, true}, []bool{true, false, true}},
			"the new connection too":      {[]http.HandlerFunc{hello, closes, closes}, []bool{true, false}, []bool{true, false, true}},
			"the first connection of all": {[]http.HandlerFunc{closes, hello}, []bool{false, true}, []bool{true, true}},
		} {
			var log bytes.Buffer
			s, m := newEndpoint(t, Config{Logger: slog.New(slog.NewTextHandler(&log, nil))}, c.steps...)
			for i, answered := range c.answered {
				_, err := llmtest.Collect(t.Context(), m, testRequest)
				if answered != (err == nil) {
					t.Errorf("%s closes %s, request %d: got error %v, want one: %t", name, what, i+1, err, !answered)
				}
				if err != nil {
					requireError(t, err, llm.ModelError)
				}
			}

			var fresh []bool
			known := make(map[string]bool)
			for _, r := range s.receivedRequests() {
				fresh = append(fresh, !known[r.from])
				known[r.from] = true
			}
			if !slices.Equal(fresh, c.fresh) {
				t.Errorf("%s closes %s: got requests on new connections %v, want %v", name, what, fresh, c.fresh)
			}
			if log.Len() > 0 {
				t.Errorf("%s closes %s: got a log, want none:\n%s", name, what, log.String())
			}
		}
	}
}

// An endpoint that was restarted, or that has an idle timeout, closes all of its connections.
func TestIdleConnectionsAreReplacedTogether(t *testing.T) {
	var both sync.WaitGroup
	both.Add(2)

	waitForOthers := func(w http.ResponseWriter, r *http.Request) {
		both.Done()
		both.Wait() // so that each request has a connection of its own
		sendStream(helloStream)(w, r)
	}

	s, m := newEndpoint(t, Config{}, waitForOthers, waitForOthers, closeConnection(false), sendStream(helloStream))
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			if _, err := llmtest.Collect(t.Context(), m, testRequest); err != nil {
				t.Error(err)
			}
		})
	}

	wg.Wait()
	if _, err := llmtest.Collect(t.Context(), m, testRequest); err != nil {
		t.Error(err)
	}
	requests := s.receivedRequests()
	if len(requests) != 4 {
		t.Fatalf("got %d requests, want 4", len(requests))
	}

	for _, r := range requests[:2] {
		if r.from == requests[3].from {
			t.Errorf("got the last request on the connection from %s, want a new one", r.from)
		}
	}
}
