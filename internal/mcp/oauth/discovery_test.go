package oauth

import (
	"net/url"
	"testing"
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
