package oauth

import (
	"context"
	"errors"
	"log/slog"
	"net/url"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"answerd/internal/auth"
	"answerd/internal/mcp/oauth/oauthtest"
)

// OAuth 2.1 section 4.1 with PKCE, RFC 7591, RFC 8707: the test's server checks it.
func TestAuthorizationCodeFlowGivesTheUserAToken(t *testing.T) {
	w := newFixture(t, Config{Kind: AuthorizationCode}, func(w *fixture) {
		w.as.Metadata["scopes_supported"] = []string{"basic", "offline_access"}
	})
	a := w.signIn(userNamed("ann"))

	q := a.parameters(t)
	for name, want := range map[string]string{
		"response_type": "code", "code_challenge_method": "S256", "redirect_uri": redirectURL,
		"resource": w.mcp.URL + "/mcp", "scope": "basic offline_access", "prompt": "consent",
	} {
		if got := q.Get(name); got != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}

	if len(q.Get("state")) < 43 || !strings.HasPrefix(w.as.URL, "http://"+a.Host()) {
		t.Errorf("state %q, host %s, want 43 characters and the host of %s", q.Get("state"), a.Host(), w.as.URL)
	}

	for range 3 {
		w.mustSend(userNamed("ann"), "ann hello")
	}

	if n := len(w.as.Requests); n != 1 || len(w.as.Visits) != 1 {
		t.Errorf("got %d token requests, %d visits, want 1, 1", n, len(w.as.Visits))
	}
}

// Authorization servers that are made with the Python SDK, such as those of FastMCP, look for the client in the form
// alone. Their metadata lists both methods.
func TestAuthorizationServerThatNeedsTheClientInTheForm(t *testing.T) {
	for name, cfg := range map[string]Config{
		"registered": {Kind: AuthorizationCode},
		"configured": {Kind: AuthorizationCode, ClientID: "answerd", ClientSecret: auth.NewSecret("client-s3cret")},
	} {
		w := newFixture(t, cfg, func(w *fixture) {
			w.as.NeedsClientID = true
			w.as.Metadata["token_endpoint_auth_methods_supported"] = []string{"client_secret_basic", "client_secret_post"}
			w.as.Metadata["revocation_endpoint"] = w.as.URL + "/revoke"
		})
		w.signIn(userNamed("ann"))
		w.mustSend(userNamed("ann"), "ann hello")
		w.as.Revoke(false) // so that the token is refreshed
		w.mustSend(userNamed("ann"), "ann hello")
		if had, err := w.SignOut(t.Context(), userNamed("ann")); !had || err != nil || len(w.as.Revoked) != 1 {
			t.Errorf("%s: SignOut = %v, %v with %d revocations, want true with 1", name, had, err, len(w.as.Revoked))
		}
		for _, r := range w.as.Requests {
			if r.Method != "client_secret_post" {
				t.Errorf("%s: authenticated by %s, want client_secret_post", name, r.Method)
			}
		}
	}
}

// All waiting calls of a user get the same URL; another user gets another one.
func TestAuthorizeJoinsThePendingAuthorization(t *testing.T) {
	w := newFixture(t, Config{Kind: AuthorizationCode}, nil)
	states := map[string]int{}
	var mu sync.Mutex
	var all sync.WaitGroup
	for n := range 40 {
		all.Go(func() {
			a := w.startAuthorization(userNamed([]string{"ann", "bob"}[n%2]))
			mu.Lock()
			defer mu.Unlock()
			states[a.State]++
		})
	}

	all.Wait()
	if len(states) != 2 {
		t.Errorf("got %d states, want 2", len(states))
	}
	w.mcp.Lock()
	defer w.mcp.Unlock()
	w.as.Lock()
	defer w.as.Unlock()
	if len(w.as.Clients) != 2 { // ours of the test, and one registration
		t.Errorf("%d clients, want 2", len(w.as.Clients))
	}
}

// RFC 9207 and RFC 9700 section 4.4 (mix-up): a response of another issuer, or of none
// where there must be one, ends the authorization, and its code goes nowhere.
func TestCallbackRefusesAnotherIssuer(t *testing.T) {
	for name, c := range map[string]struct {
		silent bool // the metadata says nothing of iss
		change func(url.Values)
		ok     bool
	}{
		"wrong":            {change: func(q url.Values) { q.Set("iss", "https://evil.example") }},
		"missing":          {change: func(q url.Values) { q.Del("iss") }},
		"with a slash":     {change: func(q url.Values) { q.Set("iss", q.Get("iss")+"/") }},
		"in capitals":      {change: func(q url.Values) { q.Set("iss", strings.ToUpper(q.Get("iss"))) }},
		"twice":            {change: func(q url.Values) { q.Add("iss", q.Get("iss")) }},
		"wrong, unasked":   {silent: true, change: func(q url.Values) { q.Set("iss", "https://evil.example") }},
		"missing, unasked": {silent: true, change: func(q url.Values) { q.Del("iss") }, ok: true},
		"right, unasked":   {silent: true, change: func(url.Values) {}, ok: true},
		"two codes":        {change: func(q url.Values) { q.Add("code", "another") }},
		"no code":          {change: func(q url.Values) { q.Del("code") }},
		"a no":             {change: func(q url.Values) { q.Set("error", "access_denied") }},
		"a long code":      {change: func(q url.Values) { q.Set("code", strings.Repeat("c", maxCode+1)) }},
	} {
		w := newFixture(t, Config{Kind: AuthorizationCode}, func(w *fixture) {
			w.as.Response = c.change
			if c.silent {
				w.as.Metadata["authorization_response_iss_parameter_supported"] = nil
			}
		})

		a := w.startAuthorization(userNamed("ann"))
		_, found, err := w.Callback(t.Context(), oauthtest.Browse(t, a.URL))
		ended := w.Await(t.Context(), a.State, true)
		if !found || (err == nil) != c.ok || (ended == nil) != c.ok || (len(w.as.Requests) == 1) != c.ok {
			t.Errorf("%s: %v, %v, %v, %d token requests, want true and success: %v", name, found, err, ended, len(w.as.Requests), c.ok)
		}
		if e, ok := errors.AsType[*Error](err); !c.ok && (!ok || e.Public != "signing in failed") {
			t.Errorf(`%s: %v, want an Error, Public "signing in failed"`, name, err)
		}
	}
}

// The log says why an authorization server sent a user back without a code, in its words if they are those of the
// specifications.
func TestCallbackLogsTheCodeOfARefusal(t *testing.T) {
	for code, want := range map[string]string{"invalid_scope": "refused the request: invalid_scope", "forged\nline": "refused the request\""} {
		w := newFixture(t, Config{Kind: AuthorizationCode}, func(w *fixture) { w.as.Response = func(q url.Values) { q.Set("error", code) } })
		if _, found, err := w.Callback(t.Context(), oauthtest.Browse(t, w.startAuthorization(userNamed("ann")).URL)); !found || err == nil {
			t.Errorf("%q: found %v, %v, want true and an error", code, found, err)
		}
		if text := w.logs.String(); !strings.Contains(text, want) || strings.Contains(text, "forged") {
			t.Errorf("%q: log %s, want %s", code, text, want)
		}
	}
}

// A state is good once, for ten minutes, and a made-up one never.
func TestCallbackAcceptsAStateOnce(t *testing.T) {
	w := newFixture(t, Config{Kind: AuthorizationCode}, nil)
	a := w.startAuthorization(userNamed("ann"))
	q := oauthtest.Browse(t, a.URL)
	for name, stranger := range map[string]url.Values{
		"no state": {"code": q["code"]}, "another state": {"code": q["code"], "state": {"made-up"}}, "a state of this client": {"code": q["code"], "state": {w.statePrefix() + strings.Repeat("A", 52)}}, "two states": {"code": q["code"], "state": {a.State, a.State}},
	} {
		if _, found, err := w.Callback(t.Context(), stranger); found || err != nil {
			t.Errorf("%s: %v, %v, want false and no error", name, found, err)
		}
	}

	if len(w.as.Requests) != 0 {
		t.Errorf("a stranger's callback asked for a token: %d as.Requests, want 0", len(w.as.Requests))
	}
	if _, found, err := w.Callback(t.Context(), q); !found || err != nil {
		t.Fatalf("found %v, %v, want true and no error", found, err)
	}
	if _, found, err := w.Callback(t.Context(), q); found || err != nil || len(w.as.Requests) != 1 {
		t.Errorf("replayed: %v, %v, %d token requests, want false, 1 and no error", found, err, len(w.as.Requests))
	}
	late := w.startAuthorization(userNamed("bob"))
	q = oauthtest.Browse(t, late.URL)
	w.changeAuthorization(late.State, func(a *storedAuthorization) { a.Expires = time.Now().Add(-time.Minute) })
	if _, found, _ := w.Callback(t.Context(), q); found || len(w.as.Requests) != 1 {
		t.Errorf("Callback with an expired state = %v, %d token requests, want false and 1", found, len(w.as.Requests))
	}
	if err := w.Await(t.Context(), late.State, true); !errors.Is(err, ErrConsent) {
		t.Errorf("Await of an expired authorization = %v, want %v", err, ErrConsent)
	}
}

// A code that another user's browser brings cannot be redeemed: PKCE binds it to the authorization
// that it was issued for.
func TestCallbackRefusesACodeOfAnotherAuthorization(t *testing.T) {
	w := newFixture(t, Config{Kind: AuthorizationCode}, nil)
	mine, theirs := w.startAuthorization(userNamed("ann")), w.startAuthorization(userNamed("eve"))
	q := oauthtest.Browse(t, theirs.URL)
	q.Set("state", mine.State)
	if _, found, err := w.Callback(t.Context(), q); !found || err == nil {
		t.Errorf("Callback with another's state = %v, %v, want true and an error", found, err)
	}
	w.mustFail(userNamed("ann"))
}

// Refresh tokens are used once each, kept when they are replaced, and given up when they
// are refused: then the person is asked again.
func TestRefreshTokenIsRotated(t *testing.T) {
	w := newFixture(t, Config{Kind: AuthorizationCode}, nil)
	w.signIn(userNamed("ann"))

	for n := range 2 {
		w.as.Revoke(false)
		if n > 0 {
			w.expireToken(userNamed("ann")) // or it would be the second forced fetch within a second
		}
		w.mustSend(userNamed("ann"), "ann hello")
	}

	if n := len(w.as.Granted("refresh_token")); n != 2 {
		t.Errorf("refreshed %d times, want 2", n)
	}
	w.as.Revoke(true)
	w.expireToken(userNamed("ann"))
	if e := w.mustFail(userNamed("ann")); !errors.Is(e, ErrConsent) {
		t.Errorf("error %v, want ErrConsent", e)
	}
	w.signIn(userNamed("ann"))
	w.mustSend(userNamed("ann"), "ann hello")
}

// expireToken drops the cached token of who, as if it had expired.
func (w *fixture) expireToken(who auth.Identity) {
	h, err := w.acquireUser(who)
	if err != nil {
		w.t.Fatal(err)
	}
	defer w.releaseUser(h)
	if token, ok := h.source.Cached(); ok {
		h.source.Forget(token)
	}
}

// Without a refresh token, an expired token requires a new sign-in.
func TestExpiredTokenWithoutRefreshTokenNeedsANewSignIn(t *testing.T) {
	w := newFixture(t, Config{Kind: AuthorizationCode}, func(w *fixture) { w.as.Refresh = false })
	w.signIn(userNamed("ann"))
	w.mustSend(userNamed("ann"), "ann hello")
	w.as.Revoke(false)
	w.signIn(userNamed("ann"))
	w.mustSend(userNamed("ann"), "ann hello")
}

// TestTokenWithoutRefreshTokenIsUsedUntilItExpires checks sign-ins that nothing renews. Some authorization
// servers do not say when their tokens expire, and GitHub's do not expire: a person must not have to sign in
// again each minute, or each day.
func TestTokenWithoutRefreshTokenIsUsedUntilItExpires(t *testing.T) {
	const day = 24 * time.Hour
	for _, test := range []struct {
		life       int // in seconds
		used, ends time.Duration
	}{
		{0, 29 * day, 31 * day}, // not stated
		{7 * 86400, 6 * day, 8 * day},
		{3600, 50 * time.Minute, 70 * time.Minute},
		{10 * 365 * 86400, 29 * day, 31 * day},
	} {
		a, store, another := newSharedFixture(t, Config{}, func(w *fixture) { w.as.Life, w.as.Refresh = test.life, false })
		a.signIn(userNamed("ann"))
		store.skew = test.used
		another().mustSend(userNamed("ann"), "ann hello")
		store.skew = test.ends
		if e := another().mustFail(userNamed("ann")); !errors.Is(e, ErrConsent) {
			t.Errorf("life %d, after %s: %v, want %v", test.life, test.ends, e, ErrConsent)
		}
		store.skew = test.used
		a.as.Revoke(false) // the server's 401 ends the sign-in too
		if e := another().mustFail(userNamed("ann")); !errors.Is(e, ErrConsent) {
			t.Errorf("life %d, a token that is refused: %v, want %v", test.life, e, ErrConsent)
		}
	}
}

// SEP-2350: agreeing to more keeps what was agreed to before.
func TestStepUpAsksTheUserForMoreScopes(t *testing.T) {
	w := newFixture(t, Config{Kind: AuthorizationCode}, func(w *fixture) {
		w.mcp.Needs = nil
	})
	w.signIn(userNamed("ann"))
	w.mustSend(userNamed("ann"), "ann hello")
	w.mcp.Lock()
	w.mcp.Needs = writeScopes
	w.mcp.Unlock()
	a := w.signIn(userNamed("ann"))
	if got := a.parameters(t).Get("scope"); got != "basic write" {
		t.Errorf("asked for %q, want %q", got, "basic write")
	}
	w.mustSend(userNamed("ann"), "ann hello")

	// He agreed to less: to ask again would get the same.
	w.as.Lock()
	w.as.Scope = "basic"
	w.as.Unlock()
	w.as.Revoke(true)
	w.signIn(userNamed("ann"))
	if e := w.mustFail(userNamed("ann")); errors.Is(e, ErrConsent) || !errors.Is(e, ErrInsufficientScope) {
		t.Errorf("error %v, want %v, not ErrConsent", e, ErrInsufficientScope)
	}
}

// SEP-2352: a server that moves to another authorization server: we register there, and
// what the old one gave us stays there.
func TestCredentialsStayWithTheirIssuer(t *testing.T) {
	w := newFixture(t, Config{Kind: AuthorizationCode}, nil)
	first := w.signIn(userNamed("ann"))
	w.mustSend(userNamed("ann"), "ann hello")
	other := oauthtest.New(t)
	w.mcp.Lock()
	w.mcp.As = other
	w.mcp.Unlock()
	w.as.Lock()
	refreshes := len(w.as.Requests)
	w.as.Unlock()
	second := w.signIn(userNamed("ann"))
	w.mustSend(userNamed("ann"), "ann hello")
	if a, b := first.parameters(t).Get("client_id"), second.parameters(t).Get("client_id"); a == b {
		t.Errorf("client %s at both servers, want one for each", a)
	}
	if len(w.as.Requests)-refreshes > 1 {
		t.Errorf("%d requests to the old server, want at most 1", len(w.as.Requests)-refreshes)
	}

	for _, r := range other.Requests {
		if r.Grant == "refresh_token" || r.Client == first.parameters(t).Get("client_id") {
			t.Errorf("the new one got %v, Grant %q, Client %q, want Grant other than refresh_token, Client other than %q", r.Form, r.Grant, r.Client, first.parameters(t).Get("client_id"))
		}
	}

	// Those of the configuration are good at the first issuer only.
	fixed := newFixture(t, Config{Kind: ClientCredentials}, nil)
	fixed.mustSend(userNamed("ann"), "service hello")
	fixed.mcp.Lock()
	fixed.mcp.As = other
	fixed.mcp.Unlock()
	other.Lock()
	asked := len(other.Requests)
	other.Unlock()
	if e := fixed.mustFail(userNamed("ann")); !strings.Contains(e.Error(), "names another authorization server than before") {
		t.Errorf(`error %v, want Error containing "names another authorization server than before"`, e)
	}
	if len(other.Requests) != asked {
		t.Errorf("the new one got the secret: %d Requests, want %d", len(other.Requests), asked)
	}
}

// Close ends the Client; what it has started is for other processes that share the store.
func TestCloseRefusesCallbacks(t *testing.T) {
	w := newFixture(t, Config{Kind: AuthorizationCode}, nil)
	a := w.startAuthorization(userNamed("ann"))
	q := oauthtest.Browse(t, a.URL)
	w.Close()
	if _, found, _ := w.Callback(t.Context(), q); found {
		t.Error("Callback after Close = true, want false")
	}
	if err := w.Await(t.Context(), a.State, true); !errors.Is(err, errClosed) {
		t.Errorf("Await after Close = %v, want %v", err, errClosed)
	}
	w.mustFail(userNamed("bob"))
}

// Every call that waits for a user polls the store. While it is down, they must not fill the log.
func TestAwaitBoundsTheLogWhileTheStoreIsDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		logs := &logBuffer{}
		store := &sharedStore{down: true}
		c, err := New(Config{Kind: AuthorizationCode, URL: "https://mcp.example/mcp", Store: store.secretStore(t), Logger: slog.New(slog.NewTextHandler(logs, nil))})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		ctx, stop := context.WithTimeout(t.Context(), 55*time.Second)
		defer stop()

		var waiting sync.WaitGroup
		for range 3 {
			waiting.Go(func() {
				if err := c.Await(ctx, "state", true); !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("Await = %v, want %v", err, context.DeadlineExceeded)
				}
			})
		}

		waiting.Wait()
		if got := strings.Count(logs.String(), "the store of sign-ins cannot be used"); got != 6 {
			t.Errorf("got %d lines in 55 s, want 6, one at the start of every 10 s:\n%s", got, logs)
		}
	})
}

// changeAuthorization changes a stored authorization.
func (w *fixture) changeAuthorization(state string, change func(*storedAuthorization)) {
	w.t.Helper()
	a, revision, err := w.loadAuthorization(w.t.Context(), state)
	if err != nil || a == nil {
		w.t.Fatalf("authorization %+v, %v, want one", a, err)
	}
	change(a)
	if next, err := w.saveAuthorization(w.t.Context(), a, revision, state); err != nil || next == 0 {
		w.t.Fatalf("saveAuthorization = %d, %v, want a revision", next, err)
	}
}
