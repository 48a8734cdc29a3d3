package oauth

import (
	"net/url"
	"testing"
	"time"

	"answerd/internal/mcp/oauth/oauthtest"
)

// TestIssuerMayDifferByASlash signs in at an authorization server whose issuer the MCP server's metadata spells with
// another end than the authorization server itself. Metadata in Python has a slash that pydantic adds.
func TestIssuerMayDifferByASlash(t *testing.T) {
	for _, spelling := range []struct{ named, own string }{{"/", ""}, {"", "/"}} {
		w := newFixture(t, Config{Kind: AuthorizationCode}, func(w *fixture) {
			w.mcp.Metadata["authorization_servers"] = []string{w.as.URL + spelling.named}
			w.as.Metadata["issuer"] = w.as.URL + spelling.own
			w.as.Response = func(q url.Values) { q.Set("iss", w.as.URL+spelling.own) }
		})
		w.signIn(userNamed("ann"))
		w.mustSend(userNamed("ann"), "ann hello")
	}
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
