package mcp

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"answerd/internal/auth"
	"answerd/internal/mcp/config"
	"answerd/internal/mcp/content"
	"answerd/internal/mcp/oauth/oauthtest"
)

// consentFixture has a real MCP server whose callers must give their consent, and a Client for it.
type consentFixture struct {
	*Client
	t   *testing.T
	as  *oauthtest.Server
	mcp *oauthtest.Resource
	log syncBuffer
	// runs is how often the tool ran.
	runs atomic.Int64
	// asked counts the questions to people, and visits their browsers' ways.
	asked, visits atomic.Int64
}

const redirectURL = "http://127.0.0.1:7/oauth/callback" // nobody listens there

// newConsentFixture returns a fixture with an authorization server of its own. The server's tool says whose token came with the call.
func newConsentFixture(t *testing.T, change func(*config.Server), o *sdk.StreamableHTTPOptions) *consentFixture {
	t.Helper()
	as := oauthtest.New(t)
	as.Clients["answerd"] = oauthtest.Client{Secret: "client-s3cret"}
	return newConsentFixtureAt(t, as, change, o)
}

func newConsentFixtureAt(t *testing.T, as *oauthtest.Server, change func(*config.Server), o *sdk.StreamableHTTPOptions) *consentFixture {
	t.Helper()
	c := &consentFixture{t: t, as: as}
	server := sdk.NewServer(&sdk.Implementation{Name: "consented", Version: "1"}, nil)
	addRawTool(server, "who", func(_ context.Context, r *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
		c.runs.Add(1)
		return &sdk.CallToolResult{Content: []sdk.Content{&sdk.TextContent{Text: r.Extra.Header.Get("X-Subject")}}}, nil
	})
	c.mcp = c.as.Protect(t, streamableHandler(t, server, o))
	cfg := config.Server{Name: "crm", URL: c.mcp.URL + "/mcp", ToolPrefix: "crm", Auth: config.AuthAuthorizationCode, MaxConcurrentCalls: 4}
	if change != nil {
		change(&cfg)
	}
	c.Client = newClient(t, Options{RedirectURL: redirectURL, Logger: textLog(&c.log)}, cfg)
	return c
}

// visit opens the authorization URL in a browser and returns from it. If two browsers use one URL
// at the same time, the second one finds that the state was used.
func (c *consentFixture) visit(name, address string) {
	c.visits.Add(1)
	c.as.Lock()
	c.as.Subject = name
	c.as.Unlock()
	if q := oauthtest.Browse(c.t, address); q != nil {
		if _, found, err := c.Callback(c.t.Context(), q); found && err != nil {
			c.t.Errorf("error %v, want no error", err)
		}
	}
}

// callWith makes a call as package agent does: answer is asked where the user must sign in, and returns
// what they say.
func (c *consentFixture) callWith(ctx context.Context, call Call, answer func(*content.SignIn) string) (*content.Result, error) {
	call.Waiter = "run_1 int_1"
	for {
		res, err := c.Call(ctx, call)
		if err != nil || res.SignIn == nil {
			return res, err
		}
		call.SignIn = res.SignIn
		if err := c.AwaitSignIn(ctx, call, answer(res.SignIn)); err != nil {
			return nil, err
		}
	}
}

// callAs calls a tool on behalf of name, who signs in.
func (c *consentFixture) callAs(tool, name string) (string, error) {
	res, err := c.callWith(c.t.Context(), Call{Tool: tool, Principal: callerNamed(name)}, func(in *content.SignIn) string {
		c.asked.Add(1)
		if !strings.HasPrefix(in.URL, c.as.URL+"/authorize?") || !strings.Contains(in.Message, "crm") || in.Server != "crm" || !in.InMemory {
			c.t.Errorf("asked %+v, want URL starting with %q, Message containing crm, Server crm, InMemory", in, c.as.URL+"/authorize?")
		}
		c.visit(name, in.URL)
		return Accept
	})
	if err != nil {
		return "", err
	}
	return res.Text(), nil
}

// signIn signs the first caller in.
func (c *consentFixture) signIn(name string) {
	c.t.Helper()
	if got := namesOf(c.ToolsFor(c.t.Context(), callerNamed(name))); got != "crm_sign_in" {
		c.t.Fatalf("tools %q, %+v, want crm_sign_in", got, c.Servers())
	}
	if got, err := c.callAs("crm_sign_in", name); err != nil || !strings.HasSuffix(got, "from the next question on: crm_who") {
		c.t.Fatalf("call as %q, %v\n%s, want it to end in \"from the next question on: crm_who\", no error", got, err, &c.log)
	}
	if got := namesOf(c.ToolsFor(c.t.Context(), callerNamed(name))); got != "crm_who" {
		c.t.Fatalf("tools %q, want crm_who", got)
	}
}

// The first caller signs in with the tool sign_in, because nobody can list the server's tools yet.
// Later callers are asked when they call a tool. Each caller has a session and a token of their own,
// on every kind of server.
func TestConsentIsRequestedOnceAndItsCallsContinue(t *testing.T) {
	for name, o := range flavours {
		t.Run(name, func(t *testing.T) {
			c := newConsentFixture(t, nil, o)
			if st := c.Servers()[0]; st.State != Connecting || st.Reason != awaitConsent {
				t.Errorf("server status %+v, want State Connecting, Reason %q", st, awaitConsent)
			}
			c.signIn("ann")
			if st := c.Servers()[0]; st.State != Connected {
				t.Errorf("server status %+v, want State Connected", st)
			}

			for range 2 {
				for _, who := range []string{"ann", "bob", "eve"} {
					if got, err := c.callAs("crm_who", who); err != nil || got != who {
						t.Errorf("%s called as %q, %v, want %q and no error", who, got, err, who)
					}
				}
			}

			if c.asked.Load() != 3 || c.runs.Load() != 6 || len(c.as.Granted("authorization_code")) != 3 {
				t.Errorf("asked %d times, ran %d times, %d codes, want 3, 6 and 3", c.asked.Load(), c.runs.Load(), len(c.as.Granted("authorization_code")))
			}
			if sent := strings.Join(c.mcp.Sent, " "); strings.Contains(sent, "inbound-") {
				t.Errorf("a caller's own token reached the server: sent %q, want no inbound-", sent)
			}
		})
	}
}

// More calls of one caller wait than the server has permits. There is one authorization and one token,
// and all calls continue when the browser returns.
func TestConsentContinuesAllCallsOfACaller(t *testing.T) {
	t.Parallel()
	c := newConsentFixture(t, nil, nil)
	c.signIn("ann")
	before := len(c.as.Granted("authorization_code"))
	addresses := make(chan string, 64)
	var all, questions sync.WaitGroup
	questions.Add(20)

	for range 20 {
		all.Go(func() {
			res, err := c.callWith(t.Context(), Call{Tool: "crm_who", Principal: callerNamed("bob")}, func(in *content.SignIn) string {
				addresses <- in.URL
				questions.Done()
				return Accept // before the browser is back
			})
			if err != nil || res.Text() != "bob" {
				t.Errorf("result %+v, %v, want Text bob, no error", res, err)
			}
		})
	}

	questions.Wait() // none of them holds a permit
	if got, err := c.callAs("crm_who", "ann"); err != nil || got != "ann" {
		t.Errorf("a call of another caller = %q, %v, want ann and no error", got, err)
	}

	address := <-addresses
	for range 19 {
		if other := <-addresses; other != address {
			t.Errorf("%s and %s, want %s", address, other, address)
		}
	}

	c.visit("bob", address)
	all.Wait()
	if n := len(c.as.Granted("authorization_code")) - before; n != 1 {
		t.Errorf("%d tokens, want 1", n)
	}
}

// A caller who refuses, or cannot be asked, gets an error that says what to do; the state of the
// server does not change.
func TestCallWithoutConsentIsDenied(t *testing.T) {
	c := newConsentFixture(t, nil, nil)
	c.signIn("ann")

	declined := func(*content.SignIn) string { return Decline }
	for range 2 * maxStreak { // which would open the breaker
		_, nobody := c.Call(t.Context(), Call{Tool: "crm_who", Principal: callerNamed("bob")})
		_, no := c.callWith(t.Context(), Call{Tool: "crm_who", Principal: callerNamed("bob")}, declined)
		for name, err := range map[string]error{"nobody": nobody, "no": no} {
			if e := mustFail(t, err); e.Kind != Denied || !strings.Contains(e.Message, "sign-in required") {
				t.Errorf(`%s: %s: %s, want Kind Denied, Message containing "sign-in required"`, name, e.Kind, e.Message)
			}
		}
	}

	if st := c.Servers()[0]; st.State != Connected || c.runs.Load() != 0 {
		t.Errorf("%+v, ran %d times, want State Connected, runs 0", st, c.runs.Load())
	}

	// A person who has signed in after all is taken at that, not at what they say.
	res, err := c.callWith(t.Context(), Call{Tool: "crm_who", Principal: callerNamed("eve")}, func(in *content.SignIn) string {
		c.visit("eve", in.URL)
		return Decline
	})
	if err != nil || res.Text() != "eve" {
		t.Errorf("result %+v, %v, want Text eve, no error", res, err)
	}

	// The authorization server says no.
	c.as.Lock()
	c.as.Response = func(q url.Values) { q.Del("code"); q.Set("error", "access_denied") }
	c.as.Unlock()

	_, err = c.callWith(t.Context(), Call{Tool: "crm_who", Principal: callerNamed("bob")}, func(in *content.SignIn) string {
		waiters, found, err := c.Callback(t.Context(), oauthtest.Browse(t, in.URL))
		if !found || err == nil || len(waiters) != 1 || waiters[0] != "run_1 int_1" {
			t.Errorf("Callback = %q, %v, %v, want the waiter, true and an error", waiters, found, err)
		}
		return Accept
	})

	if e := mustFail(t, err); e.Kind != Denied || !strings.HasSuffix(e.Message, "signing in failed") {
		t.Errorf(`%s: %s, want Kind Denied, Message ending in "signing in failed"`, e.Kind, e.Message)
	}
}

// A caller who leaves, and the end of everything, end the wait for a person.
func TestWaitForAPersonEndsWithTheCallerOrTheClient(t *testing.T) {
	c := newConsentFixture(t, nil, nil)
	c.signIn("ann")
	ctx, cancel := context.WithCancel(t.Context())
	_, err := c.callWith(ctx, Call{Tool: "crm_who", Principal: callerNamed("bob")}, func(*content.SignIn) string { cancel(); return Accept })
	if e := mustFail(t, err); e.Kind != Cancelled {
		t.Errorf("%s: %s, want %s", e.Kind, e.Message, Cancelled)
	}

	var closing sync.WaitGroup
	_, err = c.callWith(t.Context(), Call{Tool: "crm_who", Principal: callerNamed("bob")}, func(*content.SignIn) string {
		closing.Go(func() { _ = c.Close() })
		return Accept
	})

	closing.Wait()
	if e := mustFail(t, err); e.Kind != Cancelled {
		t.Errorf("%s: %s, want %s", e.Kind, e.Message, Cancelled)
	}
}

// The tool sign_in is gone as soon as anybody has listed the server's own: a call of it that waits for
// its user continues nevertheless.
func TestSignInContinuesWithoutItsTool(t *testing.T) {
	c := newConsentFixture(t, nil, nil)
	if got := namesOf(c.ToolsFor(t.Context(), callerNamed("ann"))); got != "crm_sign_in" {
		t.Fatalf("tools %q, want crm_sign_in", got)
	}
	res, err := c.callWith(t.Context(), Call{Tool: "crm_sign_in", Principal: callerNamed("ann")}, func(in *content.SignIn) string {
		c.visit("ann", in.URL)
		if got := namesOf(c.ToolsFor(t.Context(), callerNamed("ann"))); got != "crm_who" {
			t.Errorf("tools %q, want crm_who", got)
		}
		return Accept
	})
	if err != nil || !strings.HasSuffix(res.Text(), "from the next question on: crm_who") {
		t.Errorf("result %+v, %v, want Text ending in \"from the next question on: crm_who\"", res, err)
	}
}

// If a tool needs more scopes, the person is asked for them together with those already granted. A
// tool that keeps asking for more fails soon.
func TestToolWantsMoreRights(t *testing.T) {
	c := newConsentFixture(t, nil, nil)
	c.signIn("ann")
	var wants atomic.Pointer[string]
	c.mcp.Lock()

	c.mcp.Needs = func(r *http.Request) []string {
		if w := wants.Load(); w != nil && strings.Contains(peekBody(r), "tools/call") {
			return []string{*w}
		}
		return nil
	}

	c.mcp.Unlock()
	write := "write"
	wants.Store(&write)
	asked := c.asked.Load()
	if got, err := c.callAs("crm_who", "ann"); err != nil || got != "ann" || c.asked.Load() != asked+1 {
		t.Fatalf("%q, %v, asked %d times, want got ann, asked %d, no error", got, err, c.asked.Load()-asked, asked+1)
	}
	if got := c.as.Visits[len(c.as.Visits)-1].Get("scope"); got != "basic write" {
		t.Errorf(`asked for %q, want "basic write"`, got)
	}
	c.as.Lock()
	c.as.Scope = "basic"
	c.as.Unlock()
	admin := "admin"
	wants.Store(&admin)
	asked = c.asked.Load()
	_, err := c.callAs("crm_who", "ann")
	if e := mustFail(t, err); e.Kind != Unavailable || !strings.Contains(e.Message, "the server requires more scopes than the token has") || c.asked.Load() != asked+1 {
		t.Errorf(`%s: %s, asked %d times, want Kind Unavailable, Message with "the server requires more scopes than the token has", 1`, e.Kind, e.Message, c.asked.Load()-asked)
	}
}

// Revoked: one refresh, however many calls; taken back altogether: the person is asked.
func TestRevokedConsent(t *testing.T) {
	c := newConsentFixture(t, func(cfg *config.Server) { cfg.MaxConcurrentCalls = 50 }, nil)
	c.signIn("ann")
	c.as.Revoke(false)
	asked := c.asked.Load()

	var all sync.WaitGroup
	for range 50 {
		all.Go(func() {
			if got, err := c.callAs("crm_who", "ann"); err != nil || got != "ann" {
				t.Errorf("call as %q, %v, want ann and no error", got, err)
			}
		})
	}

	all.Wait()
	if n := len(c.as.Granted("refresh_token")); n != 1 || c.asked.Load() != asked || c.runs.Load() != 50 {
		t.Errorf("%d refreshes, asked %d times, ran %d times, want 1, 0 and 50", n, c.asked.Load()-asked, c.runs.Load())
	}

	// S2.2
	if text := c.log.String(); strings.Contains(text, "canary") || strings.Contains(text, "code-") || strings.Contains(text, "state=") {
		t.Errorf("the log has %s, want text without canary, text without code-, text without state=", text)
	}
}

// A server of another type has no sign_in, and a name that is taken stays taken.
func TestReloadRemovesTheSignIn(t *testing.T) {
	c := newConsentFixture(t, nil, nil)
	if got := namesOf(c.ToolsFor(t.Context(), callerNamed("ann"))); got != "crm_sign_in" {
		t.Fatalf("tools %q, want crm_sign_in", got)
	}
	if err := c.Reload([]config.Server{{Name: "crm", URL: c.mcp.URL + "/mcp", ToolPrefix: "crm"}}); err != nil {
		t.Fatal(err)
	}
	if got := c.ToolsFor(t.Context(), callerNamed("ann")); len(got) != 0 {
		t.Errorf("tools %v, want 0", got)
	}
	_, err := c.Call(t.Context(), Call{Tool: "crm_sign_in", Principal: callerNamed("ann")})
	if e := mustFail(t, err); e.Kind != UnknownTool {
		t.Errorf("call error %v, want Kind UnknownTool", e)
	}
}

// answerd check says where callers sign in, and registers no client.
func TestSignInAt(t *testing.T) {
	c := newConsentFixture(t, nil, nil)
	c.Tools(t.Context())
	if host, err := c.SignInAt(t.Context(), "crm"); err != nil || "http://"+host != c.as.URL {
		t.Errorf("SignInAt = %q, %v, want the host of %s", host, err, c.as.URL)
	}
	if len(c.as.Clients) != 1 {
		t.Errorf("registered: %d as.Clients, want 1", len(c.as.Clients))
	}
	if _, err := c.SignInAt(t.Context(), "other"); !errors.Is(err, ErrUnknownServer) {
		t.Errorf("error %v, want ErrUnknownServer", err)
	}
}

// The service's own token, from the authorization server that the server names, with a
// proof of possession or without.
func TestServiceTokenIsRequestedWhereTheServerSays(t *testing.T) {
	for name, change := range map[string]func(*config.Server){
		"http": func(*config.Server) {},
		"dpop": func(cfg *config.Server) { cfg.Grant.DPoP = true },
	} {
		c := newConsentFixture(t, func(cfg *config.Server) {
			cfg.Auth, cfg.Grant = config.AuthClientCredentials, config.Grant{ClientID: "answerd", ClientSecret: auth.NewSecret("client-s3cret")}
			change(cfg)
		}, nil)
		if list := namesOf(c.Tools(t.Context())); list != "crm_who" {
			t.Errorf("%s: tools %q, %+v\n%s, want crm_who", name, list, c.Servers(), &c.log)
		}
		if got, err := c.callAs("crm_who", "ann"); err != nil || got != "service" {
			t.Errorf("%s: %q, %v\n%s, want service and no error", name, got, err, &c.log)
		}
	}
}

// A changed time-out does not make people sign in again; a changed scope does.
func TestReloadKeepsConsent(t *testing.T) {
	c := newConsentFixture(t, nil, nil)
	c.signIn("ann")
	cfg := c.servers[0].configured
	for n, change := range []func(){func() { cfg.Timeout = time.Second * 7 }, func() { cfg.Grant.Scope = "basic" }} {
		change()
		if err := c.Reload([]config.Server{cfg}); err != nil {
			t.Fatal(err)
		}
		asked := c.asked.Load()
		if got, err := c.callAs("crm_who", "ann"); err != nil || got != "ann" || c.asked.Load()-asked != int64(n) {
			t.Errorf("%q, %v, asked %d times, want ann, %d and no error", got, err, c.asked.Load()-asked, int64(n))
		}
	}
}

// Calls on behalf of callers through their identity provider: one exchange for each caller, and the
// caller's own token does not reach the server.
func TestEnterpriseCallersShareNothing(t *testing.T) {
	as := oauthtest.New(t) // of the server, and the identity provider too
	as.Clients["answerd"] = oauthtest.Client{Secret: "client-s3cret"}

	c := newConsentFixtureAt(t, as, func(cfg *config.Server) {
		secret := auth.NewSecret("client-s3cret")
		cfg.Auth, cfg.Grant = config.AuthEnterprise, config.Grant{ClientID: "answerd", ClientSecret: secret, IdPTokenURL: as.URL + "/token", IdPClientID: "answerd", IdPClientSecret: secret}
	}, nil)

	if list := c.Tools(t.Context()); len(list) != 0 || c.Servers()[0].Reason != awaitCaller {
		t.Errorf("tools without a caller: %v, %+v, want 0 list, Servers()[0].Reason %q", list, c.Servers(), awaitCaller)
	}

	for range 2 {
		for _, who := range []string{"ann", "bob"} {
			c.ToolsFor(t.Context(), callerNamed(who))
			if got, err := c.callAs("crm_who", who); err != nil || got != who {
				t.Errorf("%s called as %q, %v\n%s, want %q and no error", who, got, err, &c.log, who)
			}
		}
	}

	if n := len(as.Granted("urn:ietf:params:oauth:grant-type:token-exchange")); n != 2 || c.asked.Load() != 0 {
		t.Errorf("%d exchanges, asked %d times, want 2 and 0", n, c.asked.Load())
	}
	if sent := strings.Join(c.mcp.Sent, " "); strings.Contains(sent, "inbound-") {
		t.Errorf("a caller's own token reached the server: sent %q, want no inbound-", sent)
	}
	_, err := c.Call(t.Context(), Call{Tool: "crm_who", Principal: auth.Identity{Subject: "ann"}})
	if e := mustFail(t, err); e.Kind != Unavailable || !strings.Contains(e.Message, "the caller sent none") {
		t.Errorf(`%s: %s, want Kind Unavailable, Message containing "the caller sent none"`, e.Kind, e.Message)
	}
}

// A server that wants something else each time has its person asked three times, no more.
func TestServerThatAlwaysAsksEndsAfterThreeRounds(t *testing.T) {
	c := newConsentFixture(t, nil, nil)
	c.signIn("ann")
	var n atomic.Int64
	c.mcp.Lock()
	c.mcp.Needs = func(*http.Request) []string { return []string{fmt.Sprint("more-", n.Add(1))} }
	c.mcp.Unlock()
	asked := c.asked.Load()
	_, err := c.callAs("crm_who", "ann")
	if e := mustFail(t, err); e.Kind != Unavailable || c.asked.Load()-asked != maxConsents {
		t.Errorf("%s: %s, asked %d times, want Unavailable and %d", e.Kind, e.Message, c.asked.Load()-asked, maxConsents)
	}
}
