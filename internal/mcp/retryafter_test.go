package mcp

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"answerd/internal/auth"
	"answerd/internal/mcp/config"
	"answerd/internal/mcp/transport"
)

// F12: a server that says for how long it is busy is left alone for that time, by calls
// once the breaker is open and by the supervisor.
func TestRetryAfterOfAServerIsRespected(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var busy atomic.Bool
		var asked atomic.Int64
		real := streamableHandler(t, newToolServer(nil), flavours["stateless json"])
		c := newClient(t, Options{Transport: inProcessTransport(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if !busy.Load() {
				real.ServeHTTP(w, r)
				return
			}
			asked.Add(1)
			w.Header().Set("Retry-After", "40")
			w.WriteHeader(http.StatusServiceUnavailable)
		}))}, config.Server{Name: "a", URL: "http://localhost"})
		c.Tools(t.Context())
		busy.Store(true)
		for range maxStreak {
			_, err := c.Call(t.Context(), Call{Tool: "echo"})
			_ = mustFail(t, err)
		}
		_, err := c.Call(t.Context(), Call{Tool: "echo"})
		if e := mustFail(t, err); !strings.Contains(e.Message, "40 s") {
			t.Errorf(`message %q, want it to contain "40 s"`, e.Message)
		}
		busy.Store(false)
		passTime(40*time.Second - time.Nanosecond)
		_, err = c.Call(t.Context(), Call{Tool: "echo"})
		_ = mustFail(t, err)
		passTime(time.Nanosecond)
		res, err := c.Call(t.Context(), Call{Tool: "echo"})
		mustResult(t, res, err)

		busy.Store(true)
		asked.Store(0)
		if err := c.Refresh(t.Context(), "a"); err == nil {
			t.Error("Refresh of a busy server = no error, want one")
		}
		n := asked.Load()
		passTime(39 * time.Second)
		if got := asked.Load(); got != n {
			t.Errorf("asked %d times more, got %d, want %d", got-n, got, n)
		}
		_ = c.Close()
	})
}

// The trial call to a failed server may ask a person, who can take long to answer. Other calls do not
// wait for that answer to learn whether the server works.
func TestBreakerTrialThatWaitsForAPersonIsReleased(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b breaker
		for range maxStreak {
			reportOutcome(t, &b, outcomeFailure)
		}

		passTime(openTime)
		asking, _ := b.admitCall()
		b.withdrawTrial(asking)
		second, f := b.admitCall()
		if f != nil {
			t.Fatalf("failure %v, want nil", f)
		}
		b.recordOutcome(asking, outcomeFailure, 0)
		if since, _, _ := b.currentState(); since.IsZero() || b.trial != second.trial {
			t.Error("the call that asks ended the trial of another, want that trial to go on")
		}
		b.recordOutcome(second, outcomeSuccess, 0)
		if b.openFailure() != nil {
			t.Errorf("openFailure() = %v after the trial worked, want nil", b.openFailure())
		}
	})

	w := serveAskTool(t, "stateful sse")
	c := newClient(t, Options{}, config.Server{Name: "a", URL: w.URL})
	c.Tools(t.Context())
	b := &c.serverByName("a").breaker
	b.mu.Lock()
	b.openedAt, b.retryAt = time.Now().Add(-time.Minute), time.Now()
	b.mu.Unlock()

	res, err := c.Call(t.Context(), Call{Tool: "ask", Elicit: func(ctx context.Context, _ Elicitation) (ElicitationResult, error) {
		res, err := c.Call(ctx, Call{Tool: "echo"})
		mustResult(t, res, err)
		return ElicitationResult{Action: Decline}, nil
	}})
	mustResult(t, res, err)
}

// A token endpoint that hangs is not a failure of the server: calls with a token continue. A caller
// for whom no token can be fetched gets that error, whatever the state of the breaker.
// It does not run beside others, because a busy processor delays the server.
func TestDelayBeforeTheServerIsNotItsFailure(t *testing.T) {
	i := newIAM(t)
	s := &scriptedServer{call: func(w http.ResponseWriter, _ *http.Request, m message) { replyJSON(w, m.ID, textResult("ok")) }}
	cfg := i.serverConfig("a", serveHTTP(t, s).URL, config.AuthExchange)
	cfg.Timeout = 2 * time.Second
	c := newClient(t, Options{}, cfg)
	c.ToolsFor(t.Context(), callerNamed("ann"))
	if _, err := callAs(t, c, "a_t", callerNamed("ann")); err != nil {
		t.Fatal(err)
	}
	server := c.serverByName("a")
	server.cfg.Timeout = 20 * time.Millisecond
	i.mu.Lock() // the token endpoint hangs

	for n := range 2 * maxStreak {
		who := callerNamed(fmt.Sprint("bob", n)) // whose handshake hangs
		if n%2 == 0 {
			who = callerNamed("ann") // whose call does
			who.Token = auth.NewSecret(fmt.Sprint("inbound-ann", n))
		}
		_, err := callAs(t, c, "a_t", who)
		if e := mustFail(t, err); e.Kind != Timeout {
			t.Errorf("%d: %v, want Kind Timeout", n, e)
		}
	}

	i.mu.Unlock()
	if since, reason, _ := server.breaker.currentState(); !since.IsZero() || server.breaker.streak != 0 {
		t.Errorf("breaker: %q, %d failures, want it closed with none", reason, server.breaker.streak)
	}
	server.breaker.openedAt, server.breaker.retryAt = time.Now(), time.Now().Add(time.Hour)
	_, err := callAs(t, c, "a_t", auth.Identity{Issuer: "https://login.example", Subject: "eve"})
	if e := mustFail(t, err); !strings.Contains(e.Message, "the caller sent none") {
		t.Errorf(`message %q, want it to contain "the caller sent none"`, e.Message)
	}
}

// F21: a page of tools that is too large costs its listing, which says so, and no call:
// the tools that were known are there, over a connection for all calls too.
func TestOversizedListFailsNoCall(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{config.TypeHTTP, config.TypeWebSocket} {
		t.Run(kind, func(t *testing.T) {
			// Without list_changed, which would make a listing of its own.
			s := sdk.NewServer(&sdk.Implementation{Name: "test", Version: "1"}, &sdk.ServerOptions{Capabilities: &sdk.ServerCapabilities{Tools: &sdk.ToolCapabilities{}}})
			addRawTool(s, "echo", func(context.Context, *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
				return &sdk.CallToolResult{}, nil
			})

			cfg := config.Server{Name: "a"}
			if kind == config.TypeHTTP {
				cfg.URL = serveHTTP(t, streamableHandler(t, s, nil)).URL
			} else {
				cfg = wsServerConfig(t, newWSSDK(t, s))
			}

			c := newClient(t, Options{MaxToolBytes: transport.MaxMessage}, cfg)
			c.Tools(t.Context())
			s.AddTool(&sdk.Tool{Name: "huge", Description: strings.Repeat("x", transport.MaxMessage), InputSchema: json.RawMessage(`{"type":"object"}`)}, nil)
			if err := c.Refresh(t.Context(), "a"); err == nil || !strings.Contains(err.Error(), "larger than 4194304 bytes") {
				t.Errorf(`refresh: %v, want error containing "larger than 4194304 bytes"`, err)
			}

			for range 20 {
				res, err := c.Call(t.Context(), Call{Tool: "echo"})
				mustResult(t, res, err)
			}

			if st := c.Servers()[0]; !strings.Contains(st.Reason, "larger than") || st.Tools != 1 {
				t.Errorf(`server status %+v, want Reason containing "larger than", Tools 1`, st)
			}
		})
	}
}
