package mcp

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	sdkauth "github.com/modelcontextprotocol/go-sdk/auth"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"answerd/internal/auth"
	"answerd/internal/mcp/config"
)

// iamServer is an issuer that publishes its metadata and gives out tokens which say whom they
// are for: "<subject>|<resource>|<number>".
type iamServer struct {
	*httptest.Server
	mu       sync.Mutex // protects what follows
	requests []url.Values
	given    map[string]string // the token's subject
	refuse   map[string]bool   // subject tokens that are no good
	lifetime int               // of tokens, in seconds
}

func newIAM(t testing.TB) *iamServer {
	i := &iamServer{given: map[string]string{}, refuse: map[string]bool{}, lifetime: 3600}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /.well-known/oauth-authorization-server", func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(map[string]string{"issuer": i.URL, "token_endpoint": i.URL + "/token"})
	})
	mux.HandleFunc("POST /token", i.serveToken)
	i.Server = httptest.NewServer(mux)
	t.Cleanup(i.Close)
	return i
}

func (i *iamServer) serveToken(w http.ResponseWriter, r *http.Request) {
	i.mu.Lock()
	defer i.mu.Unlock()
	id, secret, _ := r.BasicAuth()
	if r.ParseForm() != nil || id != "answerd" || secret != "client-s3cret" {
		http.Error(w, `{"error":"invalid_client"}`, http.StatusUnauthorized)
		return
	}
	i.requests = append(i.requests, r.PostForm)
	subject := "service"
	if brought := r.PostForm.Get("subject_token"); brought != "" {
		if i.refuse[brought] {
			http.Error(w, `{"error":"invalid_grant"}`, http.StatusBadRequest)
			return
		}
		subject = strings.TrimPrefix(brought, "inbound-")
	}
	token := fmt.Sprintf("%s|%s|%d", subject, r.PostForm.Get("resource"), len(i.requests))
	i.given[token] = subject
	_ = json.NewEncoder(w).Encode(map[string]any{"access_token": token, "token_type": "Bearer", "expires_in": i.lifetime})
}

// tokenRequests returns the requests for tokens so far.
func (i *iamServer) tokenRequests() []url.Values {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.requests
}

// revokeTokens revokes all tokens that were issued.
func (i *iamServer) revokeTokens() {
	i.mu.Lock()
	defer i.mu.Unlock()
	clear(i.given)
}

// verifyToken checks a bearer token as a resource server does.
func (i *iamServer) verifyToken(_ context.Context, token string, _ *http.Request) (*sdkauth.TokenInfo, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	subject, ok := i.given[token]
	if !ok {
		return nil, sdkauth.ErrInvalidToken
	}
	return &sdkauth.TokenInfo{UserID: subject, Expiration: time.Now().Add(time.Hour)}, nil
}

// serverConfig returns the configuration of a server at url that accepts the tokens of i.
func (i *iamServer) serverConfig(name, url string, kind config.AuthType) config.Server {
	return config.Server{Name: name, URL: url, ToolPrefix: name, Auth: kind,
		Grant: config.Grant{Issuer: i.URL, ClientID: "answerd", ClientSecret: auth.NewSecret("client-s3cret")}}
}

// protectedServer is a real MCP server that verifies tokens and binds sessions to users. Its
// tool says who calls.
type protectedServer struct {
	*httpServer
	mu   sync.Mutex // protects what follows
	seen []string   // every request's header and body
	// users is who called in which session.
	users map[string]map[string]bool
	runs  atomic.Int64
}

func newProtectedServer(t testing.TB, i *iamServer, prm string) *protectedServer {
	g := &protectedServer{users: map[string]map[string]bool{}}
	who := func(_ context.Context, r *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
		g.runs.Add(1)
		user := r.Extra.TokenInfo.UserID
		g.mu.Lock()
		defer g.mu.Unlock()
		if g.users[r.Session.ID()] == nil {
			g.users[r.Session.ID()] = map[string]bool{}
		}
		g.users[r.Session.ID()][user] = true
		return &sdk.CallToolResult{Content: []sdk.Content{&sdk.TextContent{Text: user}}}, nil
	}
	sessions := sdk.NewStreamableHTTPHandler(func(r *http.Request) *sdk.Server {
		s := sdk.NewServer(&sdk.Implementation{Name: "guarded", Version: "1"}, &sdk.ServerOptions{
			Instructions: "You are " + sdkauth.TokenInfoFromContext(r.Context()).UserID + ".",
		})
		addRawTool(s, "who", who)
		return s
	}, nil)
	inner := sdkauth.RequireBearerToken(i.verifyToken, &sdkauth.RequireBearerTokenOptions{ResourceMetadataURL: prm})(sessions)
	g.httpServer = serveHTTP(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body := peekBody(r)
		g.mu.Lock()
		g.seen = append(g.seen, fmt.Sprint(r.URL, r.Header, body))
		g.mu.Unlock()
		inner.ServeHTTP(w, r)
	}))
	return g
}

// received returns everything that the server has received.
func (g *protectedServer) received() string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return strings.Join(g.seen, "\n")
}

// callerNamed returns the identity of a caller with an inbound token of their own.
func callerNamed(name string) auth.Identity {
	return auth.Identity{Issuer: "https://login.example", Subject: name, Token: auth.NewSecret("inbound-" + name)}
}

// callAs calls a tool on behalf of who.
func callAs(t testing.TB, c *Client, tool string, who auth.Identity) (string, error) {
	t.Helper()
	res, err := c.Call(t.Context(), Call{Tool: tool, Principal: who})
	if err != nil {
		return "", err
	}
	return res.Text(), nil
}

// Facts section 0, finding 3: a server whose metadata names an issuer of its own gets
// neither the client secret nor a token for somebody else.
func TestServersMetadataNamesNoIssuer(t *testing.T) {
	var stolen atomic.Int64
	thief := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		stolen.Add(1)
		_, _ = io.WriteString(w, `{"access_token":"x","expires_in":60}`)
	}))
	t.Cleanup(thief.Close)

	i := newIAM(t)
	for _, kind := range []config.AuthType{config.AuthClientCredentials, config.AuthExchange} {
		var asked atomic.Int64
		var evil *httpServer
		evil = serveHTTP(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			asked.Add(1)
			if strings.Contains(r.URL.Path, ".well-known") {
				_ = json.NewEncoder(w).Encode(map[string]any{"resource": evil.URL, "authorization_servers": []string{thief.URL}})
				return
			}
			w.Header().Set("WWW-Authenticate", `Bearer resource_metadata="`+evil.URL+`/.well-known/oauth-protected-resource"`)
			w.WriteHeader(http.StatusUnauthorized)
		}))

		c := newClient(t, Options{}, i.serverConfig("evil", evil.URL, kind))
		if err := c.RefreshFor(t.Context(), callerNamed("ann"), "evil"); err == nil {
			t.Error("Refresh = no error, want one")
		}
		if stolen.Load() != 0 || asked.Load() == 0 {
			t.Errorf("%s: the token endpoint was asked %d times, the server %d times, want 0 and at least 1", kind, stolen.Load(), asked.Load())
		}

		for _, form := range i.tokenRequests() {
			if form.Get("resource") != evil.URL && kind == config.AuthClientCredentials {
				t.Errorf("a token for %s, kind %q, want other than AuthClientCredentials", form.Get("resource"), kind)
			}
		}
	}
}

// RFC 8707: the server's own token is for that server, and goes to no other.
func TestOwnCredentialsAreForOneServer(t *testing.T) {
	i := newIAM(t)
	a, b := newProtectedServer(t, i, ""), newProtectedServer(t, i, "")

	c := newClient(t, Options{Service: newTokenSource()}, i.serverConfig("a", a.URL+"/mcp?tenant=1", config.AuthClientCredentials), i.serverConfig("b", b.URL, config.AuthClientCredentials))
	for _, tool := range []string{"a_who", "b_who"} {
		c.Tools(t.Context())
		if got, err := callAs(t, c, tool, callerNamed("ann")); err != nil || got != "service" {
			t.Errorf("%s: %q, %v, want service and no error", tool, got, err)
		}
	}

	for _, form := range i.tokenRequests() {
		if form.Get("grant_type") != "client_credentials" {
			t.Errorf(`form %v, want Get("grant_type") client_credentials`, form)
		}
	}

	if n := len(i.tokenRequests()); n != 2 {
		t.Errorf("%d tokens for two servers, want 2", n)
	}

	for name, g := range map[string]*protectedServer{a.URL + "/mcp": a, b.URL: b} {
		other := map[*protectedServer]string{a: b.URL, b: a.URL + "/mcp"}[g]
		if all := g.received(); !strings.Contains(all, "service|"+name+"|") || strings.Contains(all, "service|"+other+"|") {
			t.Errorf("%s got %s, want its own tokens only", name, all)
		}
	}
}

// RFC 8693: calls are made on behalf of each caller, and the caller's own token reaches no server.
// There is one exchange for all calls of a caller. Two callers share neither a session nor a token, at
// a server that binds sessions to tokens.
func TestCallersShareNeitherSessionNorToken(t *testing.T) {
	i := newIAM(t)
	a, b := newProtectedServer(t, i, ""), newProtectedServer(t, i, "")
	c := newClient(t, Options{MaxConcurrentCalls: 40}, i.serverConfig("a", a.URL, config.AuthExchange), i.serverConfig("b", b.URL, config.AuthExchange))
	if list := c.Tools(t.Context()); len(list) != 0 {
		t.Errorf("tools without a caller: %v, want 0", list)
	}
	if got := namesOf(c.ToolsFor(t.Context(), callerNamed("ann"))); got != "a_who b_who" {
		t.Fatalf(`tools %q, %+v, want "a_who b_who"`, got, c.Servers())
	}

	var all sync.WaitGroup
	for n := range 60 {
		name := []string{"ann", "bob", "eve"}[n%3]
		all.Go(func() {
			for _, tool := range []string{"a_who", "b_who"} {
				if got, err := callAs(t, c, tool, callerNamed(name)); err != nil || got != name {
					t.Errorf("%s called as %q, %v, want %q and no error", name, got, err, name)
				}
			}
		})
	}

	all.Wait()
	if n := len(i.tokenRequests()); n != 6 {
		t.Errorf("%d exchanges for three callers of two servers, want 6", n)
	}

	for g, other := range map[*protectedServer]*protectedServer{a: b, b: a} {
		if len(g.users) != 3 {
			t.Errorf("%d sessions for three callers, want 3", len(g.users))
		}
		for id, users := range g.users {
			if len(users) != 1 || id == "" {
				t.Errorf("session %q was used by %v, want one user and an ID", id, users)
			}
		}
		if got := g.received(); strings.Contains(got, "inbound-") || strings.Contains(got, other.URL+"|") {
			t.Errorf("a token went where it must not: %s, want it without inbound- and without %s", got, other.URL+"|")
		}
	}
}

// A caller who sends another token keeps their session, and their calls carry the token that the new
// one was exchanged for.
func TestNewTokenOfACallerKeepsTheSession(t *testing.T) {
	i := newIAM(t)
	g := newProtectedServer(t, i, "")
	c := newClient(t, Options{}, i.serverConfig("a", g.URL, config.AuthExchange))
	first := callerNamed("ann")
	c.ToolsFor(t.Context(), first)
	second := first
	second.Token = auth.NewSecret("ann") // the same subject to this IAM
	for _, who := range []auth.Identity{first, first, second, second} {
		if got, err := callAs(t, c, "a_who", who); err != nil || got != "ann" {
			t.Fatalf("call as %q, %v, want ann and no error", got, err)
		}
	}
	if len(i.tokenRequests()) != 2 || len(g.users) != 1 {
		t.Errorf("%d exchanges, %d sessions, want 2 and 1", len(i.tokenRequests()), len(g.users))
	}
}

// A call goes out with what its own caller's token was exchanged for, also when the same
// person has come with a token of more rights meanwhile.
func TestCallCarriesNoOtherTokenOfItsCaller(t *testing.T) {
	i := newIAM(t)
	begun, release := make(chan struct{}), make(chan struct{})
	var limited atomic.Int64
	s := &scriptedServer{call: func(w http.ResponseWriter, r *http.Request, m message) {
		if limited.Load() == 0 && strings.HasPrefix(r.Header.Get("Authorization"), "Bearer limited|") {
			limited.Add(1)
			close(begun)
			receive(t, release)
			w.WriteHeader(http.StatusUnauthorized) // so that it goes out once more
			return
		}
		replyJSON(w, m.ID, textResult(r.Header.Get("Authorization")))
	}}

	c := newClient(t, Options{}, i.serverConfig("a", serveHTTP(t, s).URL, config.AuthExchange))
	less, more := callerNamed("ann"), callerNamed("ann")
	less.Token, more.Token = auth.NewSecret("inbound-limited"), auth.NewSecret("inbound-full")

	answer := make(chan string, 1)
	go func() {
		got, err := callAs(t, c, "a_t", less)
		answer <- fmt.Sprint(got, err)
	}()

	<-begun
	if got, err := callAs(t, c, "a_t", more); err != nil || !strings.HasPrefix(got, "Bearer full|") {
		t.Errorf(`call as %q, %v, want it to start with "Bearer full|", no error`, got, err)
	}
	close(release)
	if got := <-answer; !strings.HasPrefix(got, "Bearer limited|") || s.initializes.Load() != 1 {
		t.Errorf(`called with %s; %d handshakes, want it to start with "Bearer limited|", 1`, got, s.initializes.Load())
	}
}

// F18: a revoked token is renewed once per caller, and no call fails.
func TestRevokedExchangedTokenIsRenewedOnce(t *testing.T) {
	for _, kind := range []config.AuthType{config.AuthClientCredentials, config.AuthExchange} {
		i := newIAM(t)
		g := newProtectedServer(t, i, "")
		c := newClient(t, Options{MaxConcurrentCalls: 20}, i.serverConfig("a", g.URL, kind))
		c.ToolsFor(t.Context(), callerNamed("ann"))
		if _, err := callAs(t, c, "a_who", callerNamed("ann")); err != nil {
			t.Fatal(err)
		}
		before, ran := len(i.tokenRequests()), g.runs.Load()
		i.revokeTokens()

		var all sync.WaitGroup
		for range 20 {
			all.Go(func() {
				if _, err := callAs(t, c, "a_who", callerNamed("ann")); err != nil {
					t.Error(err)
				}
			})
		}

		all.Wait()
		if n, runs := len(i.tokenRequests())-before, g.runs.Load()-ran; n != 1 || runs != 20 {
			t.Errorf("%s: %d renewals, %d runs, want 1 and 20", kind, n, runs)
		}
	}
}

// F18: refused always: at most two exchanges, and a clear end.
func TestExchangedTokenThatIsAlwaysRefused(t *testing.T) {
	i := newIAM(t)
	s := &scriptedServer{call: func(w http.ResponseWriter, _ *http.Request, _ message) { http.Error(w, "no", http.StatusUnauthorized) }}
	c := newClient(t, Options{}, i.serverConfig("a", serveHTTP(t, s).URL, config.AuthExchange))
	_, err := callAs(t, c, "a_t", callerNamed("ann"))
	if e := mustFail(t, err); e.Kind != Unavailable || len(i.tokenRequests()) > 2 {
		t.Errorf("%v after %d exchanges, want Kind Unavailable, asked at most 2", e, len(i.tokenRequests()))
	}
	if st := c.Servers()[0]; st.State != Connected {
		t.Errorf("one caller's refusal made it %+v, want State Connected", st)
	}
}

// A call without a caller's token fails with that reason, and no token is requested.
func TestCallWithoutCallersToken(t *testing.T) {
	i := newIAM(t)
	g := newProtectedServer(t, i, "")
	c := newClient(t, Options{}, i.serverConfig("a", g.URL, config.AuthExchange))
	if st := c.Servers()[0]; !c.Ready() && st.State != Connecting || st.Reason != awaitCaller {
		t.Errorf("server status %+v, want Connecting or ready, Reason %q", st, awaitCaller)
	}
	c.ToolsFor(t.Context(), callerNamed("ann"))
	before := len(g.received())
	_, err := callAs(t, c, "a_who", auth.Identity{Issuer: "https://login.example", Subject: "ann"})
	e := mustFail(t, err)
	if e.Kind != Unavailable || !strings.HasPrefix(e.Message, "MCP server a: it needs the caller's token, and the caller sent none; send another token") {
		t.Errorf(`%s: %s, want Unavailable and "MCP server a: it needs the caller's token, and the caller sent none"`, e.Kind, e.Message)
	}
	if err := c.Refresh(t.Context(), "a"); err == nil || !strings.Contains(err.Error(), "the caller sent none") {
		t.Errorf(`error %v, want error containing "the caller sent none"`, err)
	}
	if len(g.received()) != before {
		t.Errorf("%d requests reached the server, want %d", len(g.received()), before)
	}
}

// A caller whose token the issuer refuses fails alone: the server is as it was, and the
// next one lists its tools.
func TestRefusedCallerDoesNotAffectOthers(t *testing.T) {
	var log syncBuffer
	i := newIAM(t)
	i.refuse["inbound-eve"] = true
	g := newProtectedServer(t, i, "")
	c := newClient(t, Options{Logger: textLog(&log)}, i.serverConfig("a", g.URL, config.AuthExchange))
	if got := c.ToolsFor(t.Context(), callerNamed("eve")); len(got) != 0 {
		t.Errorf("tools %v, want 0", got)
	}
	if st := c.Servers()[0]; st.State != Connecting || st.Reason != awaitCaller {
		t.Errorf("server status %+v, want State Connecting, Reason %q", st, awaitCaller)
	}
	if got := namesOf(c.ToolsFor(t.Context(), callerNamed("ann"))); got != "a_who" {
		t.Fatalf("tools %q, want a_who", got)
	}

	var err error
	for range 2 * maxStreak { // which would open the breaker
		_, err = callAs(t, c, "a_who", callerNamed("eve"))
	}

	e := mustFail(t, err)
	if e.Kind != Unavailable || !strings.HasPrefix(e.Message, "MCP server a: there is no token for it") {
		t.Errorf(`%s: %s, want Unavailable and "MCP server a: there is no token for it"`, e.Kind, e.Message)
	}
	if st := c.Servers()[0]; st.State != Connected {
		t.Errorf("server status %+v, want State Connected", st)
	}
	if got, err := callAs(t, c, "a_who", callerNamed("ann")); err != nil || got != "ann" {
		t.Errorf("call as %q, %v, want ann and no error", got, err)
	}

	// S2.2: never logged.
	for _, secret := range []string{"inbound-", "client-s3cret", "ann|"} {
		if strings.Contains(log.String()+e.Error(), secret) {
			t.Errorf("log %s, error %v, want them without %q", log.String(), e, secret)
		}
	}
}

// If many first callers come at once, the tools are listed once.
func TestToolsAreListedOnceForAllCallers(t *testing.T) {
	i := newIAM(t)
	var lists atomic.Int64
	s := &scriptedServer{list: func(w http.ResponseWriter, _ *http.Request, m message) {
		lists.Add(1)
		replyJSON(w, m.ID, `{"tools":[{"name":"t"}]}`)
	}}

	c := newClient(t, Options{}, i.serverConfig("a", serveHTTP(t, s).URL, config.AuthExchange))
	var all sync.WaitGroup
	for n := range 50 {
		all.Go(func() {
			if got := namesOf(c.ToolsFor(t.Context(), callerNamed(fmt.Sprint(n)))); got != "a_t" {
				t.Errorf("tools %q, want a_t", got)
			}
		})
	}

	all.Wait()
	if lists.Load() != 1 {
		t.Errorf("listed %d times, want 1", lists.Load())
	}
	if err := c.RefreshFor(t.Context(), callerNamed("ann"), "a"); err != nil || lists.Load() != 2 {
		t.Errorf("%v; listed %d times, want 2 and no error", err, lists.Load())
	}
}

// S4.9: a server that leaves the configuration ends the sessions of all its callers.
func TestReloadEndsCallersSessions(t *testing.T) {
	i := newIAM(t)
	s := &scriptedServer{deletes: make(chan string, 3), call: func(w http.ResponseWriter, _ *http.Request, m message) { replyJSON(w, m.ID, textResult("ok")) }}
	c := newClient(t, Options{}, i.serverConfig("a", serveHTTP(t, s).URL, config.AuthExchange))
	for _, name := range []string{"ann", "bob"} {
		if got, err := callAs(t, c, "a_t", callerNamed(name)); err != nil || got != "ok" {
			t.Fatalf("call as %q, %v, want ok and no error", got, err)
		}
	}
	if err := c.Reload(nil); err != nil {
		t.Fatal(err)
	}
	ended := map[string]bool{<-s.deletes: true, <-s.deletes: true}
	if !ended["session-1"] || !ended["session-2"] {
		t.Errorf(`ended %v, want ["session-1"] true, ["session-2"] true`, ended)
	}
	_, err := callAs(t, c, "a_t", callerNamed("ann"))
	if e := mustFail(t, err); e.Kind != UnknownTool {
		t.Errorf("call error %v, want Kind UnknownTool", e)
	}
}
