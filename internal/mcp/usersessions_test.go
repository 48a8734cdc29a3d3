package mcp

import (
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"answerd/internal/auth"
	"answerd/internal/auth/token"
	"answerd/internal/mcp/config"
	"answerd/internal/mcp/session"
	"answerd/internal/mcp/transport"
)

func textLog(w io.Writer) *slog.Logger {
	return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

// newTestExchange returns an Exchange whose IAM needs no socket: it gives "for-ann" for what ann
// brought.
func newTestExchange(t *testing.T) *token.Exchange {
	t.Helper()
	iam := roundTripFunc(func(r *http.Request) (*http.Response, error) {
		if err := r.ParseForm(); err != nil {
			return nil, err
		}
		who := strings.TrimPrefix(r.PostForm.Get("subject_token"), "inbound-")
		return &http.Response{StatusCode: http.StatusOK, Header: http.Header{},
			Body: io.NopCloser(strings.NewReader(`{"access_token":"for-` + who + `","expires_in":86400}`))}, nil
	})
	ex, err := token.NewExchange(token.ExchangeConfig{ClientCredentialsConfig: token.ClientCredentialsConfig{
		TokenURL: "https://iam.example/t", ClientID: "me", Secret: token.FixedSecret(auth.NewSecret("x")), HTTPClient: &http.Client{Transport: iam}}})
	if err != nil {
		t.Fatal(err)
	}
	return ex
}

// newTestSessions returns the user sessions of a server that is never dialed.
func newTestSessions(t *testing.T) *userSessions {
	t.Helper()
	ex := newTestExchange(t)
	t.Cleanup(ex.Close)
	return newUserSessions(&server{life: t.Context(), log: quietLog()}, delegation{senderFor: func(who auth.Identity) transport.Sender { return transport.Bearer{Source: ex.For(who)} }, needsCallerToken: true})
}

// The number of principals is bounded: the one that has been idle for longest is removed, and one
// with a call in flight stays.
func TestPrincipalsOfAServerAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newTestSessions(t)
		useSession := func(n int) *userSession {
			s, f := c.acquireSession(callerNamed(fmt.Sprint(n)))
			if f != nil {
				t.Fatalf("failure %v, want nil", f)
			}
			return s
		}

		busy := useSession(-1)
		first := useSession(0)
		c.releaseSession(first)

		for n := 1; n < maxUserSessions+5; n++ {
			<-time.After(time.Second) // fake time
			c.releaseSession(useSession(n))
		}

		if c.sessions.Len() != maxUserSessions {
			t.Errorf("%d sessions, want %d", c.sessions.Len(), maxUserSessions)
		}
		if useSession(-1) != busy || useSession(0) == first {
			t.Error("the session in use was replaced, or the oldest idle one was not, want it the other way round")
		}
		c.closeAll()
		if _, f := c.acquireSession(callerNamed("late")); f == nil || f.Kind != Cancelled {
			t.Errorf("acquireSession after closeAll = %v, want Cancelled", f)
		}
	})
}

// While calls of maxUserSessions users are in flight, another user is refused at once,
func TestUserSessionsInUseAreLimited(t *testing.T) {
	c := newTestSessions(t)
	defer c.closeAll()
	for n := range maxUserSessions {
		if _, f := c.acquireSession(callerNamed(fmt.Sprint(n))); f != nil {
			t.Fatalf("failure %v, want nil", f)
		}
	}
	if _, f := c.acquireSession(callerNamed("one more")); f == nil || f.Kind != Unavailable || !f.NotRun {
		t.Errorf("acquireSession = %v, want Unavailable, not run", f)
	}
	if _, f := c.acquireSession(callerNamed("0")); f != nil { // who is there already
		t.Errorf("failure %v, want nil", f)
	}
}

// The session of an idle principal is ended, and the principal forgotten.
func TestIdlePrincipalsAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ended := make(chan string, 2)
		source := newTestExchange(t)

		newTransport := func(http.RoundTripper) http.RoundTripper {
			return roundTripFunc(func(r *http.Request) (*http.Response, error) {
				if r.Method == http.MethodDelete {
					ended <- r.Header.Get("Authorization")
				}
				return okServer.RoundTrip(r)
			})
		}

		c := newClient(t, Options{Transport: newTransport, Logger: quietLog()}, config.Server{Name: "a", URL: "http://localhost", Auth: config.AuthExchange,
			Grant: config.Grant{TokenURL: "http://localhost/token", ClientID: "me", ClientSecret: auth.NewSecret("x")}})
		c.servers[0].userSessions.senderFor = func(who auth.Identity) transport.Sender { return transport.Bearer{Source: source.For(who)} }
		c.ToolsFor(t.Context(), callerNamed("ann"))
		if got, err := callAs(t, c, "t", callerNamed("ann")); err != nil || got != "ok" {
			t.Fatalf("call as %q, %v, want ok and no error", got, err)
		}
		<-time.After(userSessionIdle - time.Second)
		synctest.Wait()
		if len(ended) != 0 {
			t.Errorf("%d sessions ended early, want 0", len(ended))
		}
		<-time.After(userSessionIdle/10 + time.Second)
		synctest.Wait()
		if len(ended) != 1 || <-ended != "Bearer for-ann" {
			t.Errorf("%d sessions ended, want that of ann", len(ended))
		}
		if got, err := callAs(t, c, "t", callerNamed("ann")); err != nil || got != "ok" {
			t.Errorf("call as %q, %v, want ok and no error", got, err)
		}
		_ = c.Close()
		source.Close()
	})
}

// A list of tools that failed is requested again with the next caller, so that the server's state does not stay
// that of the failure.
func TestFailedListForCallersIsRepeated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var down atomic.Bool
		source := newTestExchange(t)
		isDown := func(*http.Request) bool { return down.Load() }
		c := newClient(t, Options{Transport: failIf(isDown, refuse), Logger: quietLog()}, config.Server{Name: "a", URL: "http://localhost", Auth: config.AuthExchange,
			Grant: config.Grant{TokenURL: "http://localhost/token", ClientID: "me", ClientSecret: auth.NewSecret("x")}})
		c.servers[0].userSessions.senderFor = func(who auth.Identity) transport.Sender { return transport.Bearer{Source: source.For(who)} }
		c.ToolsFor(t.Context(), callerNamed("ann"))
		down.Store(true)
		if err := c.RefreshFor(t.Context(), callerNamed("ann"), "a"); err == nil || len(c.Unavailable(true)) != 1 {
			t.Errorf("RefreshFor while the server is down = %v, %q unavailable, want an error and the server", err, c.Unavailable(true))
		}
		down.Store(false)
		<-time.After(transport.MaxBackoff)
		c.ToolsFor(t.Context(), callerNamed("ann"))
		synctest.Wait()
		if st := c.Servers()[0]; st.State != Connected || len(c.Unavailable(true)) != 0 {
			t.Errorf("status %+v, %q unavailable, want connected and none", st, c.Unavailable(true))
		}
		_ = c.Close()
		source.Close()
	})
}

// A server that hangs costs the first caller StartWait, and later ones nothing: it is
// tried again behind them, ever more rarely.
func TestServerThatHangsDelaysOnlyTheFirstCallers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		source := newTestExchange(t)
		c := newClient(t, Options{Transport: failIf(func(*http.Request) bool { return true }, hang), StartWait: 3 * time.Second, Logger: quietLog()}, config.Server{Name: "a", URL: "http://localhost",
			Auth: config.AuthExchange, Grant: config.Grant{TokenURL: "http://localhost/token", ClientID: "me", ClientSecret: auth.NewSecret("x")}})
		c.servers[0].userSessions.senderFor = func(who auth.Identity) transport.Sender { return transport.Bearer{Source: source.For(who)} }

		timeRequest := func() time.Duration {
			begin := time.Now()
			c.ToolsFor(t.Context(), callerNamed("ann"))
			return time.Since(begin)
		}

		if d := timeRequest(); d != 3*time.Second {
			t.Errorf("the first caller waited %s, want 3 s", d)
		}
		<-time.After(session.HandshakeTimeout) // fake time
		synctest.Wait()
		if st := c.Servers()[0]; st.State != Failed || st.Reason != "no answer in time" {
			t.Errorf(`server status %+v, want State Failed, Reason "no answer in time"`, st)
		}
		<-time.After(transport.MaxBackoff)

		for range 3 {
			if d := timeRequest(); d != 0 {
				t.Errorf("a later caller waited %s, want 0", d)
			}
		}

		_ = c.Close()
		source.Close()
	})
}
