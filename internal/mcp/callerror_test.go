package mcp

import (
	"net/http"
	"testing"

	"answerd/internal/mcp/config"
)

// Many frameworks redirect to the same address with a slash more or less. Who configures
// it learns that, but not where else a server redirects to: addresses may hold keys.
func TestRedirectForASlashSaysSo(t *testing.T) {
	for path, want := range map[string]string{
		"/mcp?a=1": "it redirects (HTTP 307), which is not followed: its URL must end in /",
		"/rpc/":    "it redirects (HTTP 307), which is not followed: its URL must not end in /",
		"/other":   "it redirects (HTTP 307), which is not followed",
	} {
		w := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			to := map[string]string{"/mcp": "/mcp/", "/rpc/": "/rpc", "/other": "/key-1234"}[r.URL.Path]
			http.Redirect(w, r, to, http.StatusTemporaryRedirect)
		}))
		c := open(t, Options{}, config.Server{Name: "a", URL: w.URL + path})
		c.Tools(t.Context())
		if got := c.Servers()[0].Reason; got != want {
			t.Errorf("%s: %s, want %s", path, got, want)
		}
	}
}
