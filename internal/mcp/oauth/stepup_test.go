package oauth

import (
	"errors"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"

	"answerd/internal/mcp/oauth/oauthtest"
)

// A user whose calls need different scopes signs in once for all of them, whether the first call has already begun a
// sign-in or not: with a sign-in for each call, the second one would replace the token that has the scopes of the first.
func TestStepUpOfTwoCallsIsOneSignIn(t *testing.T) {
	for _, hasBegun := range []bool{true, false} {
		w := newFixture(t, Config{Kind: AuthorizationCode}, nil)
		w.signIn(userNamed("ann"))
		for _, scope := range []string{"write", "admin"} {
			w.mcp.Lock()
			w.mcp.Needs = func(*http.Request) []string { return []string{scope} }
			w.mcp.Unlock()
			if hasBegun {
				w.startAuthorization(userNamed("ann"))
			} else if e := w.mustFail(userNamed("ann")); !errors.Is(e, ErrConsent) {
				t.Errorf("error of the call that needs %s: got %v, want %v", scope, e, ErrConsent)
			}
		}
		a := w.signIn(userNamed("ann"))
		if got, want := a.parameters(t).Get("scope"), "basic write admin"; got != want {
			t.Errorf("begun %v: the sign-in asks for the scopes %q, want %q", hasBegun, got, want)
		}
	}
}

// Calls that run at the same time may need different scopes. Each of them gets a token that has its own.
func TestStepUpOfConcurrentCalls(t *testing.T) {
	w := newFixture(t, Config{Kind: ClientCredentials}, nil)
	w.mustSend(userNamed("ann"), "service hello")
	w.mcp.Lock()
	w.mcp.Needs = func(r *http.Request) []string { return r.Header.Values("Needs") }
	w.mcp.Unlock()

	var refusals sync.WaitGroup // the first refusal of each call
	refusals.Add(2)
	var calls sync.WaitGroup
	for _, scope := range []string{"read", "write"} {
		calls.Go(func() {
			waitOnce := sync.OnceFunc(func() { refusals.Done(); refusals.Wait() })
			next := roundTripFunc(func(r *http.Request) (*http.Response, error) {
				resp, err := w.http.RoundTrip(r)
				waitOnce()
				return resp, err
			})
			r, err := http.NewRequest(http.MethodPost, w.mcp.URL+"/mcp", strings.NewReader("hello"))
			if err != nil {
				t.Error(err)
				return
			}
			r.Header.Set("Needs", scope)
			resp, err := w.For(userNamed("ann")).Send(next, r)
			if err != nil {
				t.Errorf("the call that needs %s: got error %v, want none", scope, err)
				return
			}
			discardBody(resp)
			if resp.StatusCode != http.StatusOK {
				t.Errorf("the call that needs %s: got status %d, want 200", scope, resp.StatusCode)
			}
		})
	}
	calls.Wait()
}

// If the authorization server refuses the scopes that one tool needs, only calls of that tool fail.
func TestStepUpThatIsRefusedKeepsTheToken(t *testing.T) {
	w := newFixture(t, Config{Kind: ClientCredentials}, nil)
	w.mustSend(userNamed("ann"), "service hello")
	w.as.Lock()
	w.as.Fail = func(r oauthtest.Request) string {
		if strings.Contains(r.Form.Get("scope"), "admin") {
			return "invalid_scope"
		}
		return ""
	}
	w.as.Unlock()
	w.mcp.Lock()
	w.mcp.Needs = func(*http.Request) []string { return []string{"admin"} }
	w.mcp.Unlock()
	if e := w.mustFail(userNamed("ann")); !errors.Is(e, ErrInsufficientScope) {
		t.Errorf("error of a call that needs more scopes: got %v, want %v", e, ErrInsufficientScope)
	}
	w.mcp.Lock()
	w.mcp.Needs = nil
	w.mcp.Unlock()
	w.mustSend(userNamed("ann"), "service hello")
}

// A server whose scopes have other names after an update: the sign-in does not ask for the old ones again after the
// authorization server has refused them.
func TestSignInForgetsScopesThatAreRefused(t *testing.T) {
	w := newFixture(t, Config{Kind: AuthorizationCode}, nil)
	w.signIn(userNamed("ann"))
	w.as.Revoke(true)
	w.mcp.Lock()
	w.mcp.Metadata["scopes_supported"] = []string{"crm"}
	w.mcp.Unlock()
	w.as.Lock()
	w.as.Response = func(response url.Values) {
		if visit := w.as.Visits[len(w.as.Visits)-1]; strings.Contains(visit.Get("scope"), "basic") {
			response.Del("code")
			response.Set("error", "invalid_scope")
		}
	}
	w.as.Unlock()
	refused := w.startAuthorization(userNamed("ann"))
	if _, found, err := w.Callback(t.Context(), oauthtest.Browse(t, refused.URL)); !found || err == nil {
		t.Fatalf("Callback = %v, %v, want true and an error", found, err)
	}
	w.signIn(userNamed("ann"))
	w.mustSend(userNamed("ann"), "ann hello")
}

// The scopes that one call needed are not part of a later sign-in for other calls: the authorization server may refuse
// them, and the user could then not sign in at all.
func TestStepUpEndsWithTheSignIn(t *testing.T) {
	w := newFixture(t, Config{Kind: AuthorizationCode}, nil)
	w.signIn(userNamed("ann"))
	w.mcp.Lock()
	w.mcp.Needs = func(*http.Request) []string { return []string{"admin"} }
	w.mcp.Unlock()
	w.mustFail(userNamed("ann"))
	w.mcp.Lock()
	w.mcp.Needs = nil
	w.mcp.Unlock()
	if had, err := w.SignOut(t.Context(), userNamed("ann")); !had || err != nil {
		t.Fatalf("SignOut = %v, %v, want true and no error", had, err)
	}
	a := w.signIn(userNamed("ann"))
	if got, want := a.parameters(t).Get("scope"), "basic"; got != want {
		t.Errorf("the sign-in asks for the scopes %q, want %q", got, want)
	}
}
