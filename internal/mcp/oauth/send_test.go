package oauth

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/golang-jwt/jwt/v5"

	"answerd/internal/auth"
	"answerd/internal/mcp/oauth/oauthtest"
)

// kinds are all of them, with the grant that gets their first token, and the next.
var kinds = map[Kind]struct{ first, next, subject string }{
	ClientCredentials: {"client_credentials", "client_credentials", "service"},
	JWTBearer:         {grantJWTBearer, grantJWTBearer, "service"},
	Enterprise:        {grantJWTBearer, grantJWTBearer, "ann"},
	AuthorizationCode: {"authorization_code", "refresh_token", "ann"},
}

// testEveryKind runs a test in a fixture of each kind, where ann has a token.
func testEveryKind(t *testing.T, test func(t *testing.T, w *fixture, next, subject string)) {
	for kind, is := range kinds {
		t.Run(string(kind), func(t *testing.T) {
			w := newFixture(t, Config{Kind: kind}, nil)
			if kind == AuthorizationCode {
				w.signIn(userNamed("ann"))
			}
			w.mustSend(userNamed("ann"), is.subject+" hello")
			if n := len(w.as.Granted(is.first)); n != 1 {
				t.Fatalf("got %d requests for the first token, want 1", n)
			}
			for _, r := range w.as.Granted(is.first) {
				if got := r.Form.Get("resource"); got != w.mcp.URL+"/mcp" { // RFC 8707
					t.Errorf("resource %q, want %q", got, w.mcp.URL+"/mcp")
				}
				want := map[Kind]string{JWTBearer: "none", AuthorizationCode: "client_secret_post"} // the others: their default
				if method := cmp.Or(want[kind], "client_secret_basic"); r.Method != method {
					t.Errorf("authenticated by %s, want %s", r.Method, method)
				}
			}
			test(t, w, is.next, is.subject)
		})
	}
}

// 50 requests after a revocation cost one token request, and all go through.
func TestSendRenewsARevokedTokenOnceForAllRequests(t *testing.T) {
	testEveryKind(t, func(t *testing.T, w *fixture, next, subject string) {
		before := len(w.as.Granted(next))
		w.as.Revoke(false)
		var all sync.WaitGroup
		for range 50 {
			all.Go(func() {
				if got, err := w.sendPost(userNamed("ann")); err != nil || got != subject+" hello" {
					t.Errorf("post %q, %v, want %q and no error", got, err, subject+" hello")
				}
			})
		}
		all.Wait()
		if n := len(w.as.Granted(next)) - before; n != 1 {
			t.Errorf("got %d token requests, want 1", n)
		}
	})
}

// A server that refuses every token gets no endless row of them.
func TestSendStopsWhenTheServerRefusesEveryToken(t *testing.T) {
	testEveryKind(t, func(t *testing.T, w *fixture, next, _ string) {
		w.mcp.Lock()
		w.mcp.Refuse = true
		sent := len(w.mcp.Sent)
		w.mcp.Unlock()
		before := len(w.as.Granted(next))
		got, err := w.sendPost(userNamed("ann"))
		if w.cfg.Kind == AuthorizationCode {
			if !errors.Is(err, ErrConsent) {
				t.Errorf("%q, %v, want %v", got, err, ErrConsent)
			}
		} else if got != "401 Unauthorized" && err == nil {
			t.Errorf("post %q, %v, want an error", got, err)
		}
		if n := len(w.as.Granted(next)) - before; n > 1 {
			t.Errorf("got %d token requests, want at most 1", n)
		}
		if n := len(w.mcp.Sent) - sent; n > 2 {
			t.Errorf("sent %d times, want at most 2", n)
		}
	})
}

// If many requests come first, one of them requests the token.
func TestSendRequestsOneTokenForAllFirstRequests(t *testing.T) {
	for _, kind := range []Kind{ClientCredentials, JWTBearer, Enterprise} {
		w := newFixture(t, Config{Kind: kind}, nil)
		var all sync.WaitGroup
		for range 50 {
			all.Go(func() {
				if got, err := w.sendPost(userNamed("ann")); err != nil || !strings.HasSuffix(got, " hello") {
					t.Errorf(`post %q, %v, want it to end in " hello", no error`, got, err)
				}
			})
		}
		all.Wait()
		if n := len(w.as.Granted(kinds[kind].first)); n != 1 {
			t.Errorf("%s: got %d token requests, want 1", kind, n)
		}
	}
}

// Every user has a token of their own, and the token that they sent reaches no server.
func TestSendSharesNoTokenBetweenUsers(t *testing.T) {
	for _, kind := range []Kind{Enterprise, AuthorizationCode} {
		w := newFixture(t, Config{Kind: kind}, nil)
		for _, name := range []string{"ann", "bob"} {
			if kind == AuthorizationCode {
				w.as.Lock()
				w.as.Subject = name
				w.as.Unlock()
				w.signIn(userNamed(name))
			}
			w.mustSend(userNamed(name), name+" hello")
		}
		w.mustSend(userNamed("ann"), "ann hello")
		if all := fmt.Sprint(w.mcp.Sent); strings.Contains(all, "inbound-") {
			t.Errorf("requests %q, want no inbound-", all)
		}
	}

	w := newFixture(t, Config{Kind: Enterprise}, nil)
	other := userNamed("ann") // with a token of other rights
	other.Token = userNamed("admin").Token
	w.mustSend(userNamed("ann"), "ann hello")
	w.mustSend(other, "admin hello")
	w.mustSend(userNamed("ann"), "ann hello")
	if n := len(w.as.Granted(grantExchange)); n != 2 {
		t.Errorf("got %d exchanges, want 2", n)
	}
	other.Token = auth.Secret{}
	w.mustFail(other)
}

// A configured issuer is asked before the server refuses anything, and what the server
// says about others is not.
func TestDiscoveryPrefersTheConfiguredIssuer(t *testing.T) {
	w := newFixture(t, Config{Kind: ClientCredentials, Scope: "crm"}, func(w *fixture) {
		w.cfg.Issuer = w.as.URL
		w.mcp.Metadata["authorization_servers"] = []string{"https://thief.example"}
	})
	w.mustSend(userNamed("ann"), "service hello")
	if w.mcp.Refusals != 0 || w.mcp.Reads != 0 {
		t.Errorf("got %d refusals, %d reads, want 0, 0", w.mcp.Refusals, w.mcp.Reads)
	}
	if got := w.as.Granted("client_credentials")[0].Form.Get("scope"); got != "crm" {
		t.Errorf("scope %q, want %q", got, "crm")
	}
}

// Without a challenge the metadata is where it is when nothing else is said.
func TestDiscoveryWithoutAChallengeUsesTheWellKnownURL(t *testing.T) {
	w := newFixture(t, Config{Kind: ClientCredentials}, func(w *fixture) { w.mcp.Silent = true })
	w.mustSend(userNamed("ann"), "service hello")
	if got := w.as.Granted("client_credentials")[0].Form.Get("scope"); got != "basic" { // of scopes_supported
		t.Errorf("scope %q, want basic", got)
	}
}

// How we show who we are is what the metadata and the configuration say.
func TestClientAuthentication(t *testing.T) {
	key, public := privateKey(t)
	for want, change := range map[string]func(*fixture){
		"client_secret_basic": func(w *fixture) { w.as.Metadata["token_endpoint_auth_methods_supported"] = nil },
		"client_secret_post": func(w *fixture) {
			w.as.Metadata["token_endpoint_auth_methods_supported"] = []string{"client_secret_post"}
		},
		"private_key_jwt": func(w *fixture) {
			w.cfg.PrivateKey, w.cfg.ClientSecret = key, Text{}.Value
			w.as.Clients["answerd"] = oauthtest.Client{Key: public}
		},
	} {
		w := newFixture(t, Config{Kind: ClientCredentials}, change)
		w.mustSend(userNamed("ann"), "service hello")
		if got := w.as.Granted("client_credentials")[0].Method; got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}

// Workload identity tokens are files that are replaced while we run.
func TestAssertionIsReadForEachRequest(t *testing.T) {
	path := filepath.Join(t.TempDir(), "token")
	write := func(text string) {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}

	write("stale\n")
	w := newFixture(t, Config{Kind: JWTBearer}, func(w *fixture) { w.cfg.Assertion = Text{File: path} })
	if e := w.mustFail(userNamed("ann")); e.Public != "no token could be obtained for this server" || strings.Contains(e.Error(), "stale") {
		t.Errorf(`error %v, want Public "no token could be obtained for this server", Error without stale`, e)
	}

	// SEP-1933: a refused assertion is not sent again, nor another grant tried.
	if n := len(w.as.Requests); n != 1 {
		t.Errorf("got %d token requests, want 1", n)
	}
	write("workload\n")
	second := newFixture(t, Config{Kind: JWTBearer}, func(w *fixture) { w.cfg.Assertion = Text{File: path} })
	second.mustSend(userNamed("ann"), "service hello")

	for _, bad := range []string{"", strings.Repeat("x", maxText+1)} {
		write(bad)
		if _, err := (Text{File: path}).readText("it"); err == nil {
			t.Errorf("got %d bytes are taken, want an error", len(bad))
		}
	}
}

// TestChallengeMayBeUnusual checks challenges with empty quoted strings (RFC 9110 section 5.6.4), empty list elements,
// spaces around the equals sign, and values in base64 (section 11.2): the parameters beside them say where the token is
// requested, and with which scopes.
func TestChallengeMayBeUnusual(t *testing.T) {
	want := challenge{metadata: "https://a/b", scopes: []string{"x"}, code: "invalid_token"}
	const others = `error="invalid_token", scope="x", resource_metadata="https://a/b"`
	for _, line := range []string{
		`Bearer realm="", ` + others,
		`Bearer error_description="", ` + others,
		`Bearer ` + others + `, realm=""`,
		`Basic realm="", Bearer ` + others,
		`Bearer realm="\"\"", error_description="a \"\" b", ` + others,
		`Bearer realm="a \\", error_description="", ` + others,
		`Bearer realm="a \\\\", ` + others,
		`Bearer realm = "a", error= "invalid_token",	scope ="x", resource_metadata = https://a/b`,
		`, Negotiate YWJj, Bearer ` + others + `,`,
		`Negotiate YWI=, Bearer ` + others,
		`Bearer error="invalid_token",, scope="x", , resource_metadata="https://a/b"`,
		`Basic realm="Bearer error=\"x\"", bearer ERROR=invalid_token, Scope=x, resource_metadata="https://a/b"`,
	} {
		if got := parseChallenge(http.Header{"Www-Authenticate": {line}}); !reflect.DeepEqual(got, want) {
			t.Errorf("%s: got %+v, want %+v", line, got, want)
		}
	}
	for _, line := range []string{`Bearer resource_metadata="", scope="", error=""`, `Bearer realm=""`, `Bearer realm="`, `Bearer "", x=""`, `"`, `""`} {
		if got := parseChallenge(http.Header{"Www-Authenticate": {line}}); !reflect.DeepEqual(got, challenge{}) {
			t.Errorf("%s: got %+v, want nothing", line, got)
		}
	}
}

// RFC 9449: tokens are bound to our key, every request has a proof of its own, and a
// nonce costs one more request at either side. The test's servers check all of it.
func TestDPoPProofs(t *testing.T) {
	for _, nonce := range []string{"", "n-1"} {
		w := newFixture(t, Config{Kind: ClientCredentials, DPoP: true}, func(w *fixture) { w.as.Nonce, w.mcp.Nonce = nonce, nonce })
		for range 3 {
			w.mustSend(userNamed("ann"), "service hello")
		}

		w.mcp.Lock()
		for _, sent := range w.mcp.Sent[1:] {
			if !strings.HasPrefix(sent, "DPoP canary-") {
				t.Errorf(`sent %q, want it to start with "DPoP canary-"`, sent)
			}
		}

		want := 4 // the first without a token
		if nonce != "" {
			want++
			w.mcp.Nonce = "n-2" // a new one is learned by the way
		}
		if n := len(w.mcp.Sent); n != want {
			t.Errorf("nonce %q: %d requests, want %d", nonce, n, want)
		}
		w.mcp.Unlock()
		w.mustSend(userNamed("ann"), "service hello")
		if n := len(w.as.Granted("client_credentials")); n != 1 {
			t.Errorf("got %d tokens, want 1", n)
		}
	}
}

// TestDPoPProofNamesTheURLThatIsRequested checks the htu of proofs: a URL without a path is requested with the
// path / (RFC 9110 section 4.2.3).
func TestDPoPProofNamesTheURLThatIsRequested(t *testing.T) {
	w := newFixture(t, Config{Kind: ClientCredentials, DPoP: true}, nil)
	w.mustSend(userNamed("ann"), "service hello")
	for requested, want := range map[string]string{
		"https://h": "https://h/", "https://h?a=b": "https://h/", "https://h/": "https://h/", "https://h/m%2Fcp/?a=b#c": "https://h/m%2Fcp/",
	} {
		var got any
		next := roundTripFunc(func(r *http.Request) (*http.Response, error) {
			claims := jwt.MapClaims{}
			if _, _, err := jwt.NewParser().ParseUnverified(r.Header.Get("DPoP"), claims); err != nil {
				t.Error(err)
			}
			got = claims["htu"]
			return &http.Response{StatusCode: http.StatusOK, Body: http.NoBody, Request: r}, nil
		})

		req, _ := http.NewRequest(http.MethodGet, requested, nil)
		resp, err := w.For(userNamed("ann")).Send(next, req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if got != want {
			t.Errorf("request of %s: htu %v, want %s", requested, got, want)
		}
	}
}

// A server that asks for another nonce each time is asked twice, not forever.
func TestDPoPNonceIsRetriedOnce(t *testing.T) {
	w := newFixture(t, Config{Kind: ClientCredentials, DPoP: true}, nil)
	w.mustSend(userNamed("ann"), "service hello")

	sent := 0
	endless := roundTripFunc(func(r *http.Request) (*http.Response, error) {
		sent++
		return &http.Response{StatusCode: http.StatusUnauthorized, Status: "401", Body: http.NoBody, Request: r, Header: http.Header{
			"Dpop-Nonce": {fmt.Sprint("n", sent)}, "Www-Authenticate": {`DPoP error="use_dpop_nonce"`}}}, nil
	})

	req, _ := http.NewRequest(http.MethodPost, w.mcp.URL+"/mcp", strings.NewReader("hello"))
	resp, err := w.For(userNamed("ann")).Send(endless, req)
	if err == nil {
		resp.Body.Close()
	}
	if sent > 3 || len(w.as.Granted("client_credentials")) > 1 {
		t.Errorf("sent %d times with %d tokens: %v, want at most 3, at most 1", sent, len(w.as.Granted("client_credentials")), err)
	}

	// RFC 9449 section 5: a token that is not bound to our key is not taken.
	w = newFixture(t, Config{Kind: ClientCredentials, DPoP: true}, func(w *fixture) {
		w.as.Metadata["dpop_signing_alg_values_supported"] = []string{"RS256"}
	})
	if e := w.mustFail(userNamed("ann")); !strings.Contains(e.Error(), "offers no DPoP with ES256") {
		t.Errorf(`error %v, want Error containing "offers no DPoP with ES256"`, e)
	}
}

// TestDPoPNonceIsForAllRequestsInFlight changes the server's nonce while two requests with the old one are
// in flight. Both are refused with the same new nonce, and both are sent again with it: neither refusal says
// anything about the token.
func TestDPoPNonceIsForAllRequestsInFlight(t *testing.T) {
	w := newFixture(t, Config{Kind: AuthorizationCode, DPoP: true}, func(w *fixture) { w.as.Refresh, w.mcp.Nonce = false, "n-1" })
	w.signIn(userNamed("ann"))
	w.mustSend(userNamed("ann"), "ann hello")
	w.mcp.Lock()
	w.mcp.Nonce = "n-2"
	w.mcp.Unlock()
	var sent sync.WaitGroup // the first attempt of each request
	sent.Add(2)

	var done sync.WaitGroup
	for range 2 {
		done.Go(func() {
			first := true
			together := roundTripFunc(func(r *http.Request) (*http.Response, error) {
				if first {
					first = false
					sent.Done()
					sent.Wait()
				}
				return w.http.RoundTrip(r)
			})
			req, _ := http.NewRequest(http.MethodPost, w.mcp.URL+"/mcp", strings.NewReader("hello"))
			resp, err := w.For(userNamed("ann")).Send(together, req)
			if err != nil {
				t.Errorf("error %v, want none", err)
				return
			}
			defer resp.Body.Close()
			if resp.StatusCode != http.StatusOK {
				t.Errorf("status %d, want 200", resp.StatusCode)
			}
		})
	}
	done.Wait()
}

type roundTripFunc func(*http.Request) (*http.Response, error)

func (f roundTripFunc) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// A 403 that asks for more gets a token of more rights, together with those that it had
// (SEP-2350), once; where that was asked for before, or the configuration says what is
// asked for, nothing.
func TestStepUpIsLimited(t *testing.T) {
	w := newFixture(t, Config{Kind: ClientCredentials}, func(w *fixture) {
		w.mcp.Needs = func(*http.Request) []string { return []string{"basic", "write"} }
	})
	w.mustSend(userNamed("ann"), "service hello")
	asked := w.as.Granted("client_credentials")
	if len(asked) != 2 || asked[0].Form.Get("scope") != "basic" || asked[1].Form.Get("scope") != "basic write" {
		t.Errorf("asked for %v, want 2, %q, %q", asked, "basic", "basic write")
	}
	w.as.Lock()
	w.as.Scope = "basic" // it gives no more, whatever is asked for
	w.as.Unlock()
	w.as.Revoke(false)

	for range 3 {
		if e := w.mustFail(userNamed("ann")); !errors.Is(e, ErrInsufficientScope) || e.Public != "the server requires more scopes than the token has" {
			t.Errorf(`error %v, want e %v, Public "the server requires more scopes than the token has"`, e, ErrInsufficientScope)
		}
	}

	if n := len(w.as.Granted("client_credentials")); n != 3 {
		t.Errorf("got %d token requests, want 3", n)
	}
	fixed := newFixture(t, Config{Kind: ClientCredentials, Scope: "basic"}, func(w *fixture) {
		w.mcp.Needs = func(*http.Request) []string { return []string{"write"} }
	})
	if e := fixed.mustFail(userNamed("ann")); !errors.Is(e, ErrInsufficientScope) || len(fixed.as.Granted("client_credentials")) != 1 {
		t.Errorf("error %v, tokens for client_credentials %d, want %v and 1", e, len(fixed.as.Granted("client_credentials")), ErrInsufficientScope)
	}

	// A server that wants something else each time.
	n := 0
	greedy := newFixture(t, Config{Kind: ClientCredentials}, func(w *fixture) {
		w.mcp.Needs = func(*http.Request) []string { n++; return []string{fmt.Sprint("more-", n)} }
	})
	greedy.mustFail(userNamed("ann"))
	if n := len(greedy.as.Granted("client_credentials")); n != 2 {
		t.Errorf("got %d token requests, want 2", n)
	}
}

// No token, secret, code or assertion is in the log or in an error.
func TestLogContainsNoSecret(t *testing.T) {
	testEveryKind(t, func(t *testing.T, w *fixture, _, _ string) {
		w.as.Lock()
		w.as.Fail = func(oauthtest.Request) string { return "invalid_grant" }
		w.as.Unlock()
		w.as.Revoke(true)
		e := w.mustFail(userNamed("ann"))
		text := w.logs.String() + e.Error() + fmt.Sprintf("%+v %#v", e, e)
		if w.cfg.Kind != AuthorizationCode && !strings.Contains(text, "token fetched") || !strings.Contains(text, "token fetch failed") {
			t.Errorf("log %s, want a failed fetch, and a fetched token unless a person signs in", text)
		}
		secrets := []string{"canary", "s3cret", "registered-", "code-", "inbound-", "workload", "jag|"}
		if i := slices.IndexFunc(secrets, func(s string) bool { return strings.Contains(text, s) }); i >= 0 {
			t.Errorf("log and error %s, want them without %q", text, secrets[i])
		}
	})
}

// Some WebSocket servers decline a handshake without a good token by 403.
func TestSendAddsATokenAfterARefusedHandshake(t *testing.T) {
	w := newFixture(t, Config{Kind: ClientCredentials}, func(w *fixture) { w.cfg.Issuer = "" })
	var sent []string
	next := roundTripFunc(func(r *http.Request) (*http.Response, error) {
		sent = append(sent, r.Header.Get("Authorization"))
		resp := &http.Response{StatusCode: http.StatusSwitchingProtocols, Body: http.NoBody, Request: r, Header: http.Header{}}
		if sent[len(sent)-1] == "" {
			resp.StatusCode = http.StatusForbidden
		}
		return resp, nil
	})

	req, _ := http.NewRequest(http.MethodGet, w.mcp.URL+"/mcp", nil)
	req.Header.Set("Upgrade", "websocket")
	resp, err := w.For(userNamed("ann")).Send(next, req)
	if err != nil || resp.StatusCode != http.StatusSwitchingProtocols || len(sent) != 2 || !strings.HasPrefix(sent[1], "Bearer canary-") {
		t.Errorf(`%v, sent %q, want status 101, 2 sent, sent[1] starting with "Bearer canary-", no error`, err, sent)
	}
}

// A server that refuses all tokens for a time, for example because it cannot fetch the keys to verify them, signs out
// no user.
func TestSignInOutlastsAServerThatRefusesEveryToken(t *testing.T) {
	for _, hasRefreshToken := range []bool{true, false} {
		w := newFixture(t, Config{Kind: AuthorizationCode}, func(w *fixture) { w.as.Refresh = hasRefreshToken })
		w.signIn(userNamed("ann"))
		w.mcp.Lock()
		w.mcp.Refuse = true
		w.mcp.Unlock()
		if e := w.mustFail(userNamed("ann")); !errors.Is(e, ErrConsent) {
			t.Errorf("with a refresh token %v: error %v, want %v", hasRefreshToken, e, ErrConsent)
		}
		w.mcp.Lock()
		w.mcp.Refuse = false
		w.mcp.Unlock()
		w.mustSend(userNamed("ann"), "ann hello")
	}
}
