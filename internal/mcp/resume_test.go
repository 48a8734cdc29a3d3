package mcp

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"answerd/internal/mcp/config"
	"answerd/internal/mcp/transport"
)

// F15: a server that is busy each time is asked to resume maxResumes times, less and less
// often, but never before its reconnection time or Retry-After, and then the call is lost.
func TestResumeThatIsNeverGranted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var gets atomic.Int64
		var last time.Time
		rest := fakeServer(func(*http.Request, message) (string, error) { return "", nil })
		newTransport := func(http.RoundTripper) http.RoundTripper {
			return roundTripFunc(func(r *http.Request) (*http.Response, error) {
				switch {
				case r.Header.Get("Last-Event-ID") == "7":
					least := 10 * time.Second
					if gets.Add(1) == 3 {
						least = 50 * time.Second
					}
					if waited := time.Since(last); waited < least {
						t.Errorf("GET %d: got it after %v, want at least %v", gets.Load(), waited, least)
					}
					last = time.Now()
					resp := emptyReply(r, http.StatusServiceUnavailable)
					if gets.Load() == 2 {
						resp.Header.Set("Retry-After", "50")
					}
					return resp, nil
				case r.Method != http.MethodPost || !strings.Contains(peekBody(r), `"tools/call"`):
					return rest.RoundTrip(r)
				}
				resp := emptyReply(r, http.StatusOK)
				resp.Header.Set("Content-Type", eventStream)
				resp.Body = io.NopCloser(strings.NewReader("id: 7\nretry: 10000\n\n"))
				last = time.Now()
				return resp, nil
			})
		}

		c := newClient(t, Options{Transport: newTransport}, config.Server{Name: "a", URL: "http://localhost", Timeout: time.Hour, MaxTime: time.Hour})
		c.Tools(t.Context())
		begin := time.Now()
		_, err := c.Call(t.Context(), Call{Tool: "t"})
		if e := mustFail(t, err); e.Kind != UnknownOutcome || gets.Load() != maxResumes || time.Since(begin) > maxResumes*transport.MaxBackoff {
			t.Errorf("%v after %s and %d GETs, want Kind UnknownOutcome, gets %d, took at most %v", e, time.Since(begin), gets.Load(), maxResumes, maxResumes*transport.MaxBackoff)
		}
		_ = c.Close()
	})
}

// A server that has not noticed yet that the connection of the stream is gone refuses the first GETs with 409
// (go-sdk and TypeScript SDK): the call is still resumed.
func TestResumeWaitsForTheEndOfTheLostConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var gets atomic.Int64
		newTransport := func(http.RoundTripper) http.RoundTripper {
			var answer *http.Response
			return roundTripFunc(func(r *http.Request) (*http.Response, error) {
				switch {
				case r.Header.Get("Last-Event-ID") == "7" && gets.Add(1) < 3:
					return emptyReply(r, http.StatusConflict), nil
				case r.Header.Get("Last-Event-ID") == "7":
					body, err := io.ReadAll(answer.Body)
					return newReply(r, http.StatusOK, eventStream, "data: "+string(body)+"\n\n"), err
				case r.Method == http.MethodPost && strings.Contains(peekBody(r), `"tools/call"`):
					answer, _ = okServer.RoundTrip(r)
					return newReply(r, http.StatusOK, eventStream, "id: 7\n\n"), nil
				}
				return okServer.RoundTrip(r)
			})
		}
		c := newClient(t, Options{Transport: newTransport}, config.Server{Name: "a", URL: "http://localhost"})
		res, err := c.Call(t.Context(), Call{Tool: "t"})
		if got := mustResult(t, res, err).Text(); got != "ok" || gets.Load() != 3 {
			t.Errorf("got %q after %d GETs, want ok after 3", got, gets.Load())
		}
		_ = c.Close()
	})
}

// A server that cuts its stream after each event, and wants to be asked again at once, is not
// asked without a pause for as long as the call may take.
func TestResumeAtOnceDoesNotLoopTightly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var gets atomic.Int64
		rest := fakeServer(func(*http.Request, message) (string, error) { return "", nil })
		newTransport := func(http.RoundTripper) http.RoundTripper {
			return roundTripFunc(func(r *http.Request) (*http.Response, error) {
				if r.Header.Get("Last-Event-ID") == "" && (r.Method != http.MethodPost || !strings.Contains(peekBody(r), `"tools/call"`)) {
					return rest.RoundTrip(r)
				}
				resp := emptyReply(r, http.StatusOK)
				resp.Header.Set("Content-Type", eventStream)
				resp.Body = io.NopCloser(strings.NewReader(fmt.Sprintf("id: %d\nretry: 0\n\n", gets.Add(1))))
				return resp, nil
			})
		}

		c := newClient(t, Options{Transport: newTransport}, config.Server{Name: "a", URL: "http://localhost", Timeout: 10 * time.Second, MaxTime: 10 * time.Second})
		c.Tools(t.Context())
		_, err := c.Call(t.Context(), Call{Tool: "t"})
		if e := mustFail(t, err); e.Kind != Timeout || gets.Load() < 2 || gets.Load() > 101 {
			t.Errorf("%v after %d streams, want Kind Timeout, gets at least 2, gets at most 101", e, gets.Load())
		}
		_ = c.Close()
	})
}

// A server may end the stream again before it sends an event. The id and the reconnection time of the
// streams before still hold (WHATWG HTML, "Server-sent events"), so the call is resumed once more.
func TestResumeContinuesAfterAStreamWithoutEvents(t *testing.T) {
	t.Parallel()
	var id atomic.Value
	var gets atomic.Int64
	s := &scriptedServer{before: func(w http.ResponseWriter, r *http.Request) bool {
		if r.Method != http.MethodGet || r.Header.Get("Last-Event-ID") != "7" {
			return false
		}
		send := startEventStream(w)
		if gets.Add(1) < 3 {
			send(": nothing yet\n\n")
		} else {
			send(fmt.Sprintf("data: {\"jsonrpc\":\"2.0\",\"id\":%s,\"result\":%s}\n\n", id.Load(), textResult("ok")))
		}
		return true
	}}

	s.call = func(w http.ResponseWriter, _ *http.Request, m message) {
		id.Store(string(m.ID))
		startEventStream(w)("id: 7\nretry: 1\n\n")
	}

	c := newClient(t, Options{}, config.Server{Name: "a", URL: serveHTTP(t, s).URL})
	res, err := c.Call(t.Context(), Call{Tool: "t"})
	mustResult(t, res, err)
	if gets.Load() != 3 {
		t.Errorf("got %d GETs, want 3", gets.Load())
	}
}

// A stream that breaks off after an event with an id is resumed (2025-11-25
// basic/transports), and the tool runs once.
func TestBrokenStreamIsResumed(t *testing.T) {
	t.Parallel()
	var calls atomic.Int64
	var id atomic.Value
	s := &scriptedServer{}
	s.call = func(w http.ResponseWriter, _ *http.Request, m message) {
		calls.Add(1)
		id.Store(string(m.ID))
		startEventStream(w)("id: 7\nretry: 1\ndata: \n\n")
	}

	s.before = func(w http.ResponseWriter, r *http.Request) bool {
		if r.Method != http.MethodGet {
			return false
		}
		if r.Header.Get("Last-Event-ID") != "7" {
			http.Error(w, "which?", http.StatusBadRequest)
			return true
		}
		startEventStream(w)("data: {\"jsonrpc\":\"2.0\",\"id\":" + id.Load().(string) + ",\"result\":" + textResult("late") + "}\n\n")
		return true
	}

	c := newClient(t, Options{}, config.Server{Name: "a", URL: serveHTTP(t, s).URL})
	res, err := c.Call(t.Context(), Call{Tool: "t"})
	if got := mustResult(t, res, err).Text(); got != "late" || calls.Load() != 1 {
		t.Errorf("%q after %d calls, want late and 1", got, calls.Load())
	}
}

// A stream whose bytes end in the middle of an event, as a reply without chunks may (HTTP/1.0 behind nginx),
// is resumed after the event before: the client does not have this one.
func TestResumeRepeatsTheEventThatWasCut(t *testing.T) {
	t.Parallel()
	resumedAfter := make(chan string, 10)
	s := &scriptedServer{before: func(w http.ResponseWriter, r *http.Request) bool {
		after := r.Header.Get("Last-Event-ID")
		if after == "" {
			return false
		}
		resumedAfter <- after
		w.WriteHeader(http.StatusMethodNotAllowed)
		return true
	}}
	for _, cut := range []string{
		`{"jsonrpc":"2.0","id":1,"resu`,
		`{"jsonrpc":"2.0","id":1,"method":"elicitation/create","params":{}}`, // could be complete, and comes again
	} {
		s.call = func(w http.ResponseWriter, _ *http.Request, _ message) {
			startEventStream(w)("id: 7\nretry: 1\n\nid: 8\ndata: " + cut)
		}
		c := newClient(t, Options{}, config.Server{Name: "a", URL: serveHTTP(t, s).URL})
		_, err := c.Call(t.Context(), Call{Tool: "t"})
		if e := mustFail(t, err); e.Kind != UnknownOutcome {
			t.Errorf("%s: got %v, want Kind UnknownOutcome", cut, e)
		}
		if after := <-resumedAfter; after != "7" {
			t.Errorf("%s: got the stream resumed after event %s, want 7", cut, after)
		}
	}
}

// From 2026-07-28 on no stream can be resumed (basic/transports/streamable-http): the call fails at once, and
// a GET could open a stream of an earlier version that never has its answer.
func TestStreamOfAStatelessServerIsNotResumed(t *testing.T) {
	t.Parallel()
	s := &scriptedServer{stateless: true}
	s.before = func(_ http.ResponseWriter, r *http.Request) bool {
		if r.Method == http.MethodGet {
			t.Error("got a GET, want none")
		}
		return false
	}
	s.call = func(w http.ResponseWriter, _ *http.Request, _ message) { startEventStream(w)("id: 7\nretry: 1\n\n") }
	c := newClient(t, Options{}, config.Server{Name: "a", URL: serveHTTP(t, s).URL})
	_, err := c.Call(t.Context(), Call{Tool: "t"})
	if e := mustFail(t, err); e.Kind != UnknownOutcome {
		t.Errorf("got %v, want Kind UnknownOutcome", e)
	}
}

// A stream that cannot be resumed ends its own call alone.
func TestRefusedResumeFailsTheCall(t *testing.T) {
	t.Parallel()
	for _, status := range []int{http.StatusNotFound, http.StatusMethodNotAllowed, http.StatusBadRequest} {
		s := &scriptedServer{}
		s.call = func(w http.ResponseWriter, _ *http.Request, m message) {
			if m.Params.Meta["do"] == "bad" {
				startEventStream(w)("id: 7\nretry: 1\ndata: \n\n")
				return
			}
			replyJSON(w, m.ID, textResult("ok"))
		}

		s.before = func(w http.ResponseWriter, r *http.Request) bool {
			if r.Method == http.MethodGet {
				http.Error(w, "no", status)
			}
			return r.Method == http.MethodGet
		}

		c := newClient(t, Options{}, config.Server{Name: "a", URL: serveHTTP(t, s).URL})
		_, err := c.Call(t.Context(), Call{Tool: "t", Meta: map[string]any{"do": "bad"}})
		if e := mustFail(t, err); e.Kind != UnknownOutcome {
			t.Errorf("%d: %v, want Kind UnknownOutcome", status, e)
		}
		res, err := c.Call(t.Context(), Call{Tool: "t"})
		mustResult(t, res, err)
	}
}
