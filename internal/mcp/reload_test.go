package mcp

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"answerd/internal/auth"
	"answerd/internal/mcp/config"
)

// newOKServer returns a server that answers all calls at once.
func newOKServer() *scriptedServer {
	return &scriptedServer{call: func(w http.ResponseWriter, _ *http.Request, m message) { replyJSON(w, m.ID, textResult("ok")) }}
}

func mustReload(t testing.TB, c *Client, servers ...config.Server) {
	t.Helper()
	if err := c.Reload(servers); err != nil {
		t.Fatal(err)
	}
}

// serverStates returns the names and states of all servers.
func serverStates(c *Client) string {
	var out []string
	for _, s := range c.Servers() {
		out = append(out, s.Name+" "+string(s.State))
	}
	return strings.Join(out, ", ")
}

// S4.9: new servers join, removed ones are gone, unchanged ones keep their sessions;
// tools come in the order of the new configuration.
func TestReloadChangesOnlyWhatChanged(t *testing.T) {
	scripts := map[string]*scriptedServer{}
	cfg := func(name string) config.Server {
		s := newOKServer()
		s.deletes = make(chan string, 10)
		scripts[name] = s
		return config.Server{Name: name, URL: serveHTTP(t, s).URL, ToolPrefix: name}
	}

	a, b, d := cfg("a"), cfg("b"), cfg("d")
	c := newClient(t, Options{}, a, b)
	if got := namesOf(c.Tools(t.Context())); got != "a_t b_t" {
		t.Fatalf(`tools %q, want "a_t b_t"`, got)
	}
	changed := b
	changed.Timeout = time.Minute
	mustReload(t, c, d, changed, a)
	if got := namesOf(c.Tools(t.Context())); got != "d_t b_t a_t" {
		t.Errorf(`tools %s; %+v, want "d_t b_t a_t"`, got, c.Servers())
	}
	if got, want := serverStates(c), "d connected, b connected, a connected"; got != want {
		t.Errorf("states of %q, want %q", got, want)
	}
	if id := <-scripts["b"].deletes; id != "session-1" { // the earlier b's session is ended
		t.Errorf("id %q, want session-1", id)
	}

	for _, name := range []string{"a", "b", "d"} {
		res, err := c.Call(t.Context(), Call{Tool: name + "_t"})
		mustResult(t, res, err)
	}

	if a, b := scripts["a"].initializes.Load(), scripts["b"].initializes.Load(); a != 1 || b != 2 {
		t.Errorf("%d handshakes with a, %d with b, want 1 and 2", a, b)
	}
	mustReload(t, c, a)
	if id := <-scripts["d"].deletes; id != "session-1" {
		t.Errorf("id %q, want session-1", id)
	}
	if got := namesOf(c.Tools(t.Context())); got != "a_t" || serverStates(c) != "a connected" {
		t.Errorf(`tools %q, %q, want a_t and "a connected"`, got, serverStates(c))
	}
	_, err := c.Call(t.Context(), Call{Tool: "d_t"})
	if e := mustFail(t, err); e.Kind != UnknownTool {
		t.Errorf("call error %v, want Kind UnknownTool", e)
	}
	if scripts["a"].initializes.Load() != 1 {
		t.Errorf(`the unchanged server lost its session: ["a"].shakes %d, want 1`, scripts["a"].initializes.Load())
	}
}

// A call that was sent to a server before it was removed ends as it would have; one
// that waits for its turn doesn't begin, or goes to who has the tool now.
func TestRemovedServerDrains(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		s := newOKServer()
		s.deletes = make(chan string, 10)

		s.call = func(w http.ResponseWriter, r *http.Request, m message) {
			if m.Params.Meta["do"] == "wait" {
				receive(t, release)
			}
			replyJSON(w, m.ID, textResult("ok"))
		}

		one := config.Server{Name: "a", URL: "http://localhost", MaxConcurrentCalls: 1}
		c := newClient(t, Options{Transport: inProcessTransport(s)}, one)
		c.Tools(t.Context())

		call := func(do string) chan error {
			done := make(chan error, 1)
			go func() {
				_, err := c.Call(context.Background(), Call{Tool: "t", Meta: map[string]any{"do": do}})
				done <- err
			}()
			synctest.Wait() // until it is at the server, or in the queue
			return done
		}

		first, queued := call("wait"), call("now")
		// The same server with more permits: the queued call goes there at once.
		two := one
		two.MaxConcurrentCalls = 2
		mustReload(t, c, two)
		if err := <-queued; err != nil {
			t.Error(err)
		}
		second, third, queued := call("wait"), call("wait"), call("now")
		mustReload(t, c)
		if e := mustFail(t, <-queued); e.Kind != UnknownTool || serverStates(c) != "" {
			t.Errorf("call error %v, %q, want Kind UnknownTool, no servers", e, serverStates(c))
		}
		synctest.Wait()
		if n := len(s.deletes); n != 0 {
			t.Errorf("%d sessions were ended under a call, want 0", n)
		}
		close(release)

		for _, done := range []chan error{first, second, third} {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}

		c.removals.Wait()
		if n := len(s.deletes); n != 2 {
			t.Errorf("%d sessions were ended, want 2", n)
		}
		_ = c.Close()
	})
}

// Close doesn't wait for calls that a removed server still has.
func TestCloseEndsADrain(t *testing.T) {
	begun := make(chan struct{})
	s := newOKServer()
	s.call = func(_ http.ResponseWriter, r *http.Request, _ message) {
		close(begun)
		<-r.Context().Done()
	}

	c := newClient(t, Options{}, config.Server{Name: "a", URL: serveHTTP(t, s).URL})
	c.Tools(t.Context())

	failed := make(chan error, 1)
	go func() {
		_, err := c.Call(context.Background(), Call{Tool: "t"})
		failed <- err
	}()

	<-begun
	mustReload(t, c)
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	if e := mustFail(t, <-failed); e.Kind != Cancelled {
		t.Errorf("call error %v, want Kind Cancelled", e)
	}
	if err := c.Reload(nil); err == nil {
		t.Error("Configure after Close = no error, want one")
	}
}

// F36: an invalid configuration changes nothing.
func TestBadConfigurationChangesNothing(t *testing.T) {
	s := newOKServer()
	good := config.Server{Name: "a", URL: serveHTTP(t, s).URL}
	c := newClient(t, Options{}, good)
	c.Tools(t.Context())

	for _, bad := range [][]config.Server{
		{good, good},
		{{Name: "b", URL: "ftp://h"}},
		{good, {Name: ""}},
	} {
		if err := c.Reload(bad); err == nil {
			t.Errorf("%+v was taken, want an error", bad)
		}
	}

	if got := namesOf(c.Tools(t.Context())); got != "t" || serverStates(c) != "a connected" || s.initializes.Load() != 1 {
		t.Errorf(`tools %q, %q, %d, want t, "a connected" and 1`, got, serverStates(c), s.initializes.Load())
	}
}

// Callers don't notice that the configuration changes under them.
func TestCallsThroughReloads(t *testing.T) {
	url := serveHTTP(t, newOKServer()).URL
	c := newClient(t, Options{}, config.Server{Name: "a", URL: url})
	c.Tools(t.Context())

	stop, done := make(chan struct{}), make(chan error, 4)
	for range cap(done) {
		go func() {
			for {
				select {
				case <-stop:
					done <- nil
					return
				default:
				}
				if _, err := c.Call(context.Background(), Call{Tool: "t"}); err != nil {
					done <- err
					return
				}
			}
		}()
	}

	for i := range 20 {
		mustReload(t, c, config.Server{Name: "a", URL: url, MaxConcurrentCalls: i + 1})
		res, err := c.Call(t.Context(), Call{Tool: "t"})
		mustResult(t, res, err)
	}

	close(stop)
	for range cap(done) {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

// A call that is still at a server whose removal has ended is sent to the successor. It is not cancelled, as it would
// be when the client closes.
func TestCallAtARemovedServerLooksItsToolUpAgain(t *testing.T) {
	url := serveHTTP(t, newOKServer()).URL
	for name, server := range map[string]config.Server{
		"one session": {Name: "a", URL: url, MaxConcurrentCalls: 1},
		"one per user": {Name: "a", URL: url, Auth: config.AuthExchange, MaxConcurrentCalls: 1,
			Grant: config.Grant{TokenURL: "http://localhost/token", ClientID: "me", ClientSecret: auth.NewSecret("x")}},
	} {
		c := newClient(t, Options{}, server)
		removed := c.serverByName("a")
		mustReload(t, c)
		c.removals.Wait()

		call := Call{Tool: "t", Principal: callerNamed("ada")}
		for range 30 { // Go chooses one of several channels that are ready at random
			if _, failure := removed.callWithPermit(t.Context(), call); failure != errReconfigured {
				t.Fatalf("%s: got %v, want %v", name, failure, errReconfigured)
			}
		}
	}
}

// 100 reloads leave nothing behind.
func TestReloadsLeaveNothing(t *testing.T) {
	url := serveHTTP(t, newOKServer()).URL
	keep := config.Server{Name: "keep", URL: url, ToolPrefix: "keep"}
	c := newClient(t, Options{}, keep)
	c.Tools(t.Context())
	res, err := c.Call(t.Context(), Call{Tool: "keep_t"})
	mustResult(t, res, err)
	before := goleak.IgnoreCurrent()

	for i := range 100 {
		mustReload(t, c, keep, config.Server{Name: fmt.Sprint("s", i), URL: url, ToolPrefix: fmt.Sprint("s", i%7)},
			config.Server{Name: "down", URL: "http://127.0.0.1:1", Timeout: time.Duration(i+1) * time.Second})
		if i%10 == 0 {
			c.Tools(t.Context())
		}
	}

	mustReload(t, c, keep)
	c.removals.Wait()
	goleak.VerifyNone(t, before) // which waits for the servers that were left to see their connections end
}

// Browsers must know where to come back to.
func TestAuthorizationCodeNeedsARedirectURL(t *testing.T) {
	servers := []config.Server{{Name: "crm", URL: "https://h", Auth: config.AuthAuthorizationCode}}
	_, err := New(servers, Options{Logger: quietLog()})
	if want := `MCP server "crm", auth.redirectUrl: is missing, since PUBLIC_URL is not set either`; err == nil || err.Error() != want {
		t.Errorf("error %v, want error %q", err, want)
	}
	c := newClient(t, Options{})
	if err := c.Reload(servers); err == nil {
		t.Error("Configure = no error, want one")
	}
}
