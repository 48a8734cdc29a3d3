package mcp

import (
	"context"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"answerd/internal/auth"
	"answerd/internal/mcp/config"
	"answerd/internal/mcp/limiter"
)

// slowTool answers each call after 50 ms, in the bubble's time, and counts the calls in flight.
type slowTool struct{ now, most atomic.Int64 }

func (s *slowTool) transport(http.RoundTripper) http.RoundTripper {
	return fakeServer(func(_ *http.Request, m message) (string, error) {
		if m.Method == "tools/call" {
			s.most.Store(max(s.most.Load(), s.now.Add(1)))
			defer s.now.Add(-1)
			<-time.After(50 * time.Millisecond)
		}
		return textResult("ok"), nil
	})
}

// runCallers makes calls from many callers for that time.
func runCallers(c *Client, callers int, length time.Duration) {
	over := time.Now().Add(length)
	var wg sync.WaitGroup
	for range callers {
		wg.Go(func() {
			for time.Now().Before(over) {
				_, _ = c.Call(context.Background(), Call{Tool: "t"})
			}
		})
	}
	wg.Wait()
}

// Without a configured number, a server that stays fast gets more calls at a time than ten; with one, it
// never does. GET /servers and the metric show the limit.
func TestConcurrencyLimitAdapts(t *testing.T) {
	for name, c := range map[string]struct {
		fixed     int
		min, most int
	}{"adaptive": {0, 200, limiter.Max}, "fixed": {7, 7, 7}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var tool slowTool
				client := newClient(t, Options{Transport: tool.transport, MaxConcurrentCalls: c.fixed}, config.Server{Name: "a", URL: "http://localhost"})
				client.Tools(t.Context())
				runCallers(client, 400, 3*time.Second)
				got := client.Servers()[0].ConcurrencyLimit
				if got < c.min || got > c.most || tool.most.Load() > int64(c.most) {
					t.Errorf("ConcurrencyLimit = %d with at most %d calls in flight, want %d to %d", got, tool.most.Load(), c.min, c.most)
				}
				_ = client.Close()
			})
		})
	}
}

// A caller with many calls must not delay a single call of another caller until all of their own
// have ended.
func TestConcurrencyLimitIsSharedInTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var tool slowTool
		c := newClient(t, Options{Transport: tool.transport, MaxConcurrentCalls: 1}, config.Server{Name: "a", URL: "http://localhost"})
		c.Tools(t.Context())

		var wg sync.WaitGroup
		for range 100 {
			wg.Go(func() { _, _ = c.Call(t.Context(), Call{Tool: "t", Principal: auth.Identity{Subject: "noisy"}}) })
		}

		synctest.Wait()
		began := time.Now()
		res, err := c.Call(t.Context(), Call{Tool: "t", Principal: auth.Identity{Subject: "ada"}})
		mustResult(t, res, err)
		if took := time.Since(began); took > 150*time.Millisecond {
			t.Errorf("the call took %s beside 100 calls of another caller, want at most 150 ms", took)
		}
		wg.Wait()
		_ = c.Close()
	})
}

// A server that says that it is busy, or does not answer in time, gets fewer calls at a time.
func TestConcurrencyLimitOfAnOverloadedServer(t *testing.T) {
	for name, call := range map[string]func(w http.ResponseWriter, r *http.Request){
		"429":     func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTooManyRequests) },
		"503":     func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) },
		"504":     func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusGatewayTimeout) },
		"timeout": func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() },
	} {
		t.Run(name, func(t *testing.T) {
			var overloaded atomic.Bool
			s := &scriptedServer{call: func(w http.ResponseWriter, r *http.Request, m message) {
				if overloaded.Load() {
					call(w, r)
					return
				}
				<-time.After(5 * time.Millisecond)
				replyJSON(w, m.ID, textResult("ok"))
			}}

			c := newClient(t, Options{Timeout: 300 * time.Millisecond}, config.Server{Name: "a", URL: serveHTTP(t, s).URL})
			c.Tools(t.Context())

			server := c.allServers()[0]
			for over := time.Now().Add(20 * time.Second); server.callLimiter.Limit() == limiter.Min; {
				if time.Now().After(over) {
					t.Fatalf("limit after 20 s = %d, want more", server.callLimiter.Limit())
				}
				runCallers(c, 32, 100*time.Millisecond)
			}

			before := server.callLimiter.Limit()
			overloaded.Store(true)
			_, _ = c.Call(t.Context(), Call{Tool: "t"})
			if got, want := server.callLimiter.Limit(), max(before/2, limiter.Min); got != want {
				t.Errorf("limit after an overload = %d, want %d", got, want)
			}
		})
	}
}
