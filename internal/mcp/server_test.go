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
	"answerd/internal/mcp/session"
	"answerd/internal/mcp/transport"
)

// S3.5, S4.2: a server that is down, disabled, or speaks another transport
// is reported and keeps nothing else from working.
func TestServersAreIndependent(t *testing.T) {
	s := &scriptedServer{call: func(w http.ResponseWriter, _ *http.Request, m message) { replyJSON(w, m.ID, textResult("ok")) }}
	web := serveHTTP(t, s)
	c := newClient(t, Options{},
		config.Server{Name: "down", URL: "http://127.0.0.1:1"},
		config.Server{Name: "off", URL: web.URL, Disabled: true, ToolPrefix: "off"},
		config.Server{Name: "child", Type: config.TypeStdio, Command: "/nowhere/x"},
		config.Server{Name: "socket", Type: config.TypeWebSocket, URL: "wss://127.0.0.1:1"},
		config.Server{Name: "old", Type: config.TypeSSE, URL: web.URL},
		config.Server{Name: "good", URL: web.URL})
	if got := namesOf(c.Tools(t.Context())); got != "t" {
		t.Errorf("tools %s, want t", got)
	}

	var states []string
	for _, st := range c.Servers() {
		states = append(states, st.Name+" "+string(st.State)+" "+st.Reason)
		if st.Since.IsZero() {
			t.Errorf("status %+v, want it to have a Since", st)
		}
	}

	want := `down failed connection refused
off disabled 
child failed its command is not found
socket failed connection refused
old failed it answered HTTP 405
good connected `
	if got := strings.Join(states, "\n"); got != want {
		t.Errorf("states\n%s, want %s", got, want)
	}
	res, err := c.Call(t.Context(), Call{Tool: "t"})
	mustResult(t, res, err)
	if s.initializes.Load() != 1 {
		t.Errorf("%d handshakes, want 1", s.initializes.Load())
	}

	for name, want := range map[string]string{
		"nope": "no such MCP server", "off": "it is disabled", "child": "its command is not found", "socket": "connection refused", "down": "connection refused",
	} {
		if err := c.Refresh(t.Context(), name); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("refresh %s: %v, want error containing %s", name, err, want)
		}
	}

	if err := c.Refresh(t.Context(), "nope"); !errors.Is(err, ErrUnknownServer) {
		t.Errorf("error %v, want ErrUnknownServer", err)
	}
}

// S4.8: tools that are kept out of the list can be called by name.
func TestHiddenTools(t *testing.T) {
	s := &scriptedServer{call: func(w http.ResponseWriter, _ *http.Request, m message) { replyJSON(w, m.ID, textResult("ok")) }}
	c := newClient(t, Options{}, config.Server{Name: "a", URL: serveHTTP(t, s).URL, Hidden: true})
	if list := c.Tools(t.Context()); len(list) != 0 {
		t.Errorf("tools %v, want 0", list)
	}
	if tool, ok := c.Tool("t"); !ok || tool.Original != "t" || tool.Server != "a" {
		t.Errorf("tool %+v, want Original t, Server a", tool)
	}
	res, err := c.Call(t.Context(), Call{Tool: "t"})
	mustResult(t, res, err)
}

// Tools waits for first attempts, no longer than StartWait or the caller does, and
// a server that hangs is given up after its handshake time.
func TestToolsWaitsABoundedTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, Options{Transport: failIf(func(*http.Request) bool { return true }, hang), StartWait: 3 * time.Second}, config.Server{Name: "a", URL: "http://localhost"})
		begin, first := time.Now(), time.Now()
		if c.Ready() || len(c.Tools(t.Context())) != 0 || time.Since(begin) != 3*time.Second {
			t.Errorf("ready %v after %s, want false and no tools after 3 s", c.Ready(), time.Since(begin))
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		c.Tools(ctx)
		if took := time.Since(begin); took != 4*time.Second {
			t.Errorf("waited until %s, want 4 s", took)
		}
		<-time.After(session.HandshakeTimeout) // fake time
		synctest.Wait()
		begin = time.Now()
		c.Tools(t.Context())
		if !c.Ready() || time.Since(begin) != 0 {
			t.Errorf("ready %v, waited %s, want true at once", c.Ready(), time.Since(begin))
		}
		if st := c.Servers()[0]; st.State != Failed || st.Reason != "no answer in time" || st.Since.Sub(first) != session.HandshakeTimeout {
			t.Errorf(`%+v after %s, want State Failed, Reason "no answer in time", Since.Sub(first) HandshakeTimeout`, st, st.Since.Sub(first))
		}
		_ = c.Close()
	})
}

// A caller that waits for a handshake leaves when it likes, and the handshake goes
// on for the others.
func TestHandshakeOutlivesItsCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		shakes := 0
		slow := func(http.RoundTripper) http.RoundTripper {
			return fakeServer(func(_ *http.Request, m message) (string, error) {
				if m.Method == "initialize" {
					shakes++
					<-time.After(5 * time.Second) // fake time
				}
				return textResult("ok"), nil
			})
		}

		c := newClient(t, Options{Transport: slow}, config.Server{Name: "a", URL: "http://localhost"})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := c.Refresh(ctx, "a"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("error %v, want context.DeadlineExceeded", err)
		}
		if err := c.Refresh(t.Context(), "a"); err != nil || shakes != 1 {
			t.Errorf("%v after %d handshakes, want 1 and no error", err, shakes)
		}
		_ = c.Close()
	})
}

// A server that never answers server/discover, which it doesn't know, still gets to
// initialize.
func TestServerThatHangsOnDiscover(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		isDiscover := func(r *http.Request) bool {
			return r.Method == http.MethodPost && strings.Contains(peekBody(r), methodDiscover)
		}
		c := newClient(t, Options{Transport: failIf(isDiscover, hang)}, config.Server{Name: "a", URL: "http://localhost"})
		begin := time.Now()
		if got := namesOf(c.Tools(t.Context())); got != "t" || time.Since(begin) != session.HandshakeTimeout/2 {
			t.Errorf("tools %q after %s; %+v, want t and %v", got, time.Since(begin), c.Servers(), session.HandshakeTimeout/2)
		}
		_ = c.Close()
	})
}

// Close is bounded even if the server answers nothing any more. (Without a call: the
// SDK sends its DELETE under a mutex, and a bubble's time stands still while somebody
// waits for one.)
func TestCloseIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var dead atomic.Bool
		isDead := func(*http.Request) bool { return dead.Load() }
		c := newClient(t, Options{Transport: failIf(isDead, hang)}, config.Server{Name: "a", URL: "http://localhost"})
		if got := namesOf(c.Tools(t.Context())); got != "t" {
			t.Fatalf("tools %q, want t", got)
		}
		dead.Store(true)
		begin := time.Now()
		_ = c.Close()
		if took := time.Since(begin); took > 2*transport.NotifyTimeout {
			t.Errorf("took %s, want at most %v", took, 2*transport.NotifyTimeout)
		}
	})
}

// A server that was down is connected as soon as a call gets through, on the session that
// it has, not when the supervisor looks for it again.
func TestCallThatGetsThroughEndsTheOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var away atomic.Bool
		isAway := func(*http.Request) bool { return away.Load() }
		c := newClient(t, Options{Transport: failIf(isAway, refuse)}, config.Server{Name: "a", URL: "http://localhost"})
		c.Tools(t.Context())
		away.Store(true)
		if _, err := c.Call(t.Context(), Call{Tool: "t"}); mustFail(t, err).Kind != Unavailable {
			t.Errorf("error %v, want Kind Unavailable", err)
		}
		<-time.After(time.Minute) // fake time, in which the waits grow
		if st := c.Servers()[0]; st.State != Degraded {
			t.Errorf("server status %+v, want State Degraded", st)
		}
		away.Store(false)
		res, err := c.Call(t.Context(), Call{Tool: "t"})
		mustResult(t, res, err)
		synctest.Wait()
		if st := c.Servers()[0]; st.State != Connected {
			t.Errorf("server status %+v, want State Connected", st)
		}
		_ = c.Close()
	})
}
