package oauth

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"answerd/internal/mcp/oauth/oauthtest"
)

// TestIssuerMayBeNamedWithASlash signs in at an authorization server that the MCP server's metadata names with a slash at
// the end, as pydantic writes it, while its own metadata has none.
func TestIssuerMayBeNamedWithASlash(t *testing.T) {
	w := newFixture(t, Config{Kind: AuthorizationCode}, func(w *fixture) {
		w.mcp.Metadata["authorization_servers"] = []string{w.as.URL + "/"}
		w.as.Response = func(q url.Values) { q.Set("iss", w.as.URL) }
	})
	w.signIn(userNamed("ann"))
	w.mustSend(userNamed("ann"), "ann hello")
}

// TestRegistrationIsReplacedAfterAnUnansweredAuthorization signs in at an authorization server that has lost its
// registrations. The user sees an error there and does not come back.
func TestRegistrationIsReplacedAfterAnUnansweredAuthorization(t *testing.T) {
	w := newFixture(t, Config{Kind: AuthorizationCode}, nil)
	ann := userNamed("ann")
	lost := w.startAuthorization(ann)
	w.as.Lock()
	clear(w.as.Clients)
	w.as.Unlock()

	if again := w.startAuthorization(ann); again.URL != lost.URL {
		t.Errorf("URL %s, want that of the pending authorization", again.URL)
	}
	w.changeAuthorization(lost.State, func(a *storedAuthorization) { a.Expires = a.Expires.Add(-6 * time.Minute) })
	w.signIn(ann)
	w.mustSend(ann, "ann hello")
	if n := len(w.as.Clients); n != 1 {
		t.Errorf("%d clients registered again, want 1", n)
	}
}

// TestRegistrationIsReplacedAfterItWasRefused refreshes a token at an authorization server that no longer knows the
// client.
func TestRegistrationIsReplacedAfterItWasRefused(t *testing.T) {
	for _, code := range []string{"invalid_client", "unauthorized_client"} { // the latter as in older Python SDKs
		w := newFixture(t, Config{Kind: AuthorizationCode}, nil)
		first := w.signIn(userNamed("ann"))
		w.as.Revoke(false)
		w.as.Lock()
		w.as.Fail = func(oauthtest.Request) string { return code }
		w.as.Unlock()
		second := w.startAuthorization(userNamed("ann"))
		if id := second.parameters(t).Get("client_id"); id == first.parameters(t).Get("client_id") {
			t.Errorf("%s: the next sign-in is that of the refused client %s, want another one", code, id)
		}
	}
}

// TestMetadataIsFoundBesideAWebApplication signs in at a server from before 2025-06-18 whose host answers unknown paths
// with a page or a redirect. The origin is the issuer then, but it does not get a configured secret.
func TestMetadataIsFoundBesideAWebApplication(t *testing.T) {
	page := func(out http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(out, "<!doctype html>") }
	for name, other := range map[string]http.HandlerFunc{"page": page, "redirect": http.RedirectHandler("/", http.StatusFound).ServeHTTP} {
		for _, clientID := range []string{"", "answerd"} {
			var self *httptest.Server
			self = httptest.NewServer(http.HandlerFunc(func(out http.ResponseWriter, r *http.Request) {
				switch r.URL.Path {
				case "/.well-known/oauth-authorization-server":
					_ = json.NewEncoder(out).Encode(map[string]any{
						"issuer": self.URL, "authorization_endpoint": self.URL + "/authorize", "token_endpoint": self.URL + "/token",
						"registration_endpoint": self.URL + "/register", "code_challenge_methods_supported": []string{"S256"},
					})
				case "/register":
					_, _ = io.WriteString(out, `{"client_id": "a", "token_endpoint_auth_method": "none"}`)
				default:
					other(out, r)
				}
			}))
			t.Cleanup(self.Close)
			c, err := New(Config{Kind: AuthorizationCode, URL: self.URL + "/mcp", RedirectURL: redirectURL, ClientID: clientID})
			if err != nil {
				t.Fatal(err)
			}
			a, err := c.Authorize(t.Context(), userNamed("ann"), "")
			c.Close()
			isFound := err == nil && strings.HasPrefix(a.URL, self.URL+"/authorize?")
			if want := clientID == ""; isFound != want {
				t.Errorf("%s, client %q: Authorize = %+v, %v, want the origin's sign-in page: %t", name, clientID, a, err, want)
			}
		}
	}
}

// TestSignInAfterTheAuthorizationServerIsGone moves a server to another authorization server, while the one that has
// issued the user's refresh token no longer exists. The user signs in at the new one, also if the access token expired
// before a restart.
func TestSignInAfterTheAuthorizationServerIsGone(t *testing.T) {
	for _, isRestarted := range []bool{false, true} {
		w, store, another := newSharedFixture(t, Config{}, nil)
		w.signIn(userNamed("ann"))
		w.as.CloseClientConnections()
		w.as.Close()
		if isRestarted {
			w = another()
			store.skew = 2 * time.Hour
		}
		w.as = oauthtest.New(t)
		w.mcp.Lock()
		w.mcp.As = w.as
		w.mcp.Unlock()
		w.signIn(userNamed("ann"))
		w.mustSend(userNamed("ann"), "ann hello")
	}
}

// TestForbiddenWithoutATokenNeedsOne signs in at a server that answers 403 and not 401 to requests without a token, as
// the class HTTPBearer of FastAPI did in its earlier versions.
func TestForbiddenWithoutATokenNeedsOne(t *testing.T) {
	w := newFixture(t, Config{Kind: AuthorizationCode}, nil)
	next := roundTripFunc(func(r *http.Request) (*http.Response, error) {
		resp, err := w.http.RoundTrip(r)
		if err == nil && r.Header.Get("Authorization") == "" {
			resp.StatusCode = http.StatusForbidden
			resp.Header.Del("WWW-Authenticate")
		}
		return resp, err
	})
	send := func() (status int, _ error) {
		r, err := http.NewRequest(http.MethodPost, w.mcp.URL+"/mcp", strings.NewReader("hello"))
		if err != nil {
			t.Fatal(err)
		}
		resp, err := w.For(userNamed("ann")).Send(next, r)
		if err != nil {
			return 0, err
		}
		discardBody(resp)
		return resp.StatusCode, nil
	}
	if status, err := send(); !errors.Is(err, ErrConsent) {
		t.Fatalf("Send without a sign-in = %d, %v, want %v", status, err, ErrConsent)
	}
	a, err := w.Authorize(t.Context(), userNamed("ann"), "")
	if err != nil {
		t.Fatal(err)
	}
	if _, found, err := w.Callback(t.Context(), oauthtest.Browse(t, a.URL)); !found || err != nil {
		t.Fatalf("Callback = %v, %v, want true and no error", found, err)
	}
	if status, err := send(); status != http.StatusOK || err != nil {
		t.Errorf("Send after the sign-in = %d, %v, want 200 and no error", status, err)
	}
}

// TestSignInAfterTheTokenEndpointHasMoved changes the path of the token endpoint. The user signs in again, because the
// stored sign-in has the endpoint that no longer exists.
func TestSignInAfterTheTokenEndpointHasMoved(t *testing.T) {
	var hasMoved atomic.Bool
	w := newFixture(t, Config{Kind: AuthorizationCode}, func(w *fixture) {
		w.as.Metadata["token_endpoint"] = w.as.URL + "/old/token"
		inner := w.as.Config.Handler
		w.as.Config.Handler = http.HandlerFunc(func(out http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/old/token" && !hasMoved.Load() {
				r.URL.Path = "/token"
			}
			inner.ServeHTTP(out, r)
		})
	})
	w.signIn(userNamed("ann"))
	hasMoved.Store(true)
	w.as.Revoke(false) // so that the token is refreshed
	w.as.Lock()
	delete(w.as.Metadata, "token_endpoint")
	w.as.Unlock()
	w.signIn(userNamed("ann"))
	w.mustSend(userNamed("ann"), "ann hello")
}
