package mcp

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"answerd/internal/mcp/config"
)

// reportOutcome admits a call and ends it at once with that outcome.
func reportOutcome(t *testing.T, b *breaker, v callOutcome) {
	t.Helper()
	p, f := b.admitCall()
	if f != nil {
		t.Fatalf("failure %v, want nil", f)
	}
	b.recordOutcome(p, v, 0)
}

// passTime lets fake time pass.
func passTime(d time.Duration) { <-time.After(d) }

func TestBreakerOpensAfterFiveFailuresInARow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b breaker
		for range 3 {
			for range maxStreak - 1 {
				reportOutcome(t, &b, outcomeFailure)
			}
			reportOutcome(t, &b, outcomeSuccess)
			passTime(sampleWindow) // so that their share doesn't matter
		}
		for range maxStreak {
			reportOutcome(t, &b, outcomeNeutral)
			reportOutcome(t, &b, outcomeFailure)
		}
		if f := b.openFailure(); f == nil || f.Public != "it failed too often; tried again in 5 s" {
			t.Errorf(`openFailure() = %v, want "it failed too often; tried again in 5 s"`, f)
		}
	})
}

func TestBreakerOpensWhenHalfOfTwentyFail(t *testing.T) {
	for name, test := range map[string]struct {
		pause time.Duration // between calls
		calls int           // until it opens; 0: never
	}{
		"at once": {0, 20}, "in 8 s": {400 * time.Millisecond, 20}, "in 20 s": {time.Second, 0},
	} {
		synctest.Test(t, func(t *testing.T) {
			var b breaker
			opened := 0
			for i := range 100 {
				// In turns, so that no streak builds up; the first works.
				reportOutcome(t, &b, map[bool]callOutcome{true: outcomeFailure, false: outcomeSuccess}[i%2 == 1])
				if b.openFailure() != nil {
					opened = i + 1
					break
				}
				passTime(test.pause)
			}
			if opened != test.calls {
				t.Errorf("%s: open after %d calls, want %d", name, opened, test.calls)
			}
		})
	}
}

// One call tries, the others are refused meanwhile; what it finds decides.
func TestBreakerTriesOneCallAfterFiveSeconds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b breaker
		for range maxStreak {
			reportOutcome(t, &b, outcomeFailure)
		}

		begin, _, _ := b.currentState()
		for _, trial := range []struct {
			after time.Duration // of being refused
			found callOutcome
		}{{openTime, outcomeFailure}, {openTime, outcomeNeutral}, {0, outcomeFailure}, {openTime, outcomeSuccess}} {
			if trial.after > 0 {
				passTime(trial.after - time.Nanosecond)
				if b.openFailure() == nil {
					t.Error("openFailure() = nil before the pause is over, want a failure")
				}
				passTime(time.Nanosecond)
			}

			p, f := b.admitCall()
			if f != nil {
				t.Fatalf("failure %v, want nil", f)
			}
			if _, f := b.admitCall(); f == nil || f.Kind != Unavailable || !f.NotRun {
				t.Errorf("admitCall during the trial = %v, want Unavailable, not run", f)
			}
			if since, _, _ := b.currentState(); since != begin {
				t.Errorf("open since %s, want %s", since, begin)
			}
			b.recordOutcome(p, trial.found, 0)
		}

		for range maxStreak - 1 {
			reportOutcome(t, &b, outcomeFailure) // counted anew
		}
	})
}

// Calls that began before the breaker opened say nothing about the server now.
func TestBreakerIgnoresCallsFromBefore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b breaker
		old, _ := b.admitCall()

		for range maxStreak {
			reportOutcome(t, &b, outcomeFailure)
		}

		b.recordOutcome(old, outcomeSuccess, 0)
		if b.openFailure() == nil {
			t.Error("openFailure() = nil after a success from before, want a failure")
		}
		passTime(openTime)
		trial, _ := b.admitCall()
		b.recordOutcome(old, outcomeSuccess, 0)
		b.recordOutcome(trial, outcomeFailure, 0)
		if b.openFailure() == nil {
			t.Error("openFailure() = nil after the trial failed, want a failure")
		}
	})
}

// F12: calls to a server that is gone fail at once after five, and again work within
// 10 s of its return; GET /servers shows it.
func TestBreakerOpensWhileItsServerIsDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var down atomic.Bool
		var tried atomic.Int64
		flaky := func(http.RoundTripper) http.RoundTripper {
			return fakeServer(func(_ *http.Request, m message) (string, error) {
				if m.Method == "tools/call" {
					tried.Add(1)
				}
				if down.Load() {
					return "", errors.New("connection refused")
				}
				return textResult("ok"), nil
			})
		}

		c := newClient(t, Options{Transport: flaky}, config.Server{Name: "a", URL: "http://localhost"})
		c.Tools(t.Context())
		down.Store(true)

		for range maxStreak {
			_, err := c.Call(t.Context(), Call{Tool: "t"})
			if e := mustFail(t, err); e.Kind != Unavailable || strings.Contains(e.Message, "too often") {
				t.Fatalf(`message %q, Kind %q, want Kind Unavailable, Message without "too often"`, e.Message, e.Kind)
			}
		}

		for range 100 {
			_, err := c.Call(t.Context(), Call{Tool: "t"})
			if e := mustFail(t, err); e.Kind != Unavailable || !strings.HasPrefix(e.Message, "MCP server a: it failed too often; tried again in 5 s") {
				t.Fatalf(`message %q, Kind %q, want Kind Unavailable, Message "MCP server a: it failed too often; tried again in 5 s"`, e.Message, e.Kind)
			}
		}

		if n := tried.Load(); n != maxStreak {
			t.Errorf("%d calls reached the server, want %d", n, maxStreak)
		}
		synctest.Wait() // the supervisor has listed again, which works
		if st := c.Servers()[0]; st.State != Degraded || st.Since != time.Now() || !strings.Contains(st.Reason, "too often") || st.Tools != 1 {
			t.Errorf(`server status %+v, want Degraded since now with 1 tool, Reason containing "too often"`, st)
		}
		down.Store(false)
		begin := time.Now()

		for {
			if _, err := c.Call(t.Context(), Call{Tool: "t"}); err == nil {
				break
			}
			passTime(time.Second)
		}

		if took := time.Since(begin); took > 10*time.Second {
			t.Errorf("recovered after %s, want at most 10 s", took)
		}
		if st := c.Servers()[0]; st.State != Connected || st.Reason != "" {
			t.Errorf("server status %+v, want State Connected, Reason empty", st)
		}
		_ = c.Close()
	})
}

// A tool that fails or is forbidden, bad arguments, and callers who leave are not the server's fault.
func TestBreakerKnowsWhoseFaultItIs(t *testing.T) {
	s := &scriptedServer{call: func(w http.ResponseWriter, r *http.Request, m message) {
		switch m.Params.Meta["do"] {
		case "execution":
			bodyReply(jsonType, `{"jsonrpc":"2.0","id":ID,"error":{"code":-32603,"message":"broken"}}`)(w, r, m)
		case "arguments":
			badParamsReply(w, r, m)
		case "forbidden":
			httpErrorReply(http.StatusForbidden, "not this tool")(w, r, m)
		default:
			httpErrorReply(http.StatusServiceUnavailable, "later")(w, r, m)
		}
	}}

	c := newClient(t, Options{}, config.Server{Name: "a", URL: serveHTTP(t, s).URL})
	c.Tools(t.Context())
	gone, cancel := context.WithCancel(t.Context())
	cancel()

	callTool := func(ctx context.Context, what string) *CallError {
		_, err := c.Call(ctx, Call{Tool: "t", Meta: map[string]any{"do": what}})
		return mustFail(t, err)
	}

	for range 2 * minSample {
		callTool(t.Context(), "execution")
		callTool(t.Context(), "arguments")
		callTool(gone, "busy")
	}
	for range maxStreak {
		callTool(t.Context(), "forbidden")
	}

	if st := c.Servers()[0]; st.State != Connected {
		t.Errorf("server status %+v, want State Connected", st)
	}

	for range maxStreak {
		callTool(t.Context(), "busy")
	}

	if st := c.Servers()[0]; st.State != Degraded {
		t.Errorf("server status %+v, want State Degraded", st)
	}
}
