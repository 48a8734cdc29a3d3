package api_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"answerd/internal/api"
	"answerd/internal/llm/llmtest"
)

// Traces name the route of a request without the path of PublicURL, whether or not a proxy removes it.
func TestRoutePatternLeavesOutTheBasePath(t *testing.T) {
	h := api.New(api.Options{PublicURL: "https://answerd.example/apps/ask"})
	t.Cleanup(func() { h.Close(t.Context()) })
	for path, want := range map[string]string{
		"/runs/run_1":          "/runs/{run_id}",
		"/apps/ask/runs/run_1": "/runs/{run_id}",
		"/apps/ask/":           "",
		"/apps/asking/tools":   "",
		"/apps/runs/run_1":     "",
		"/.well-known/oauth-protected-resource/apps/ask/mcp": "/.well-known/oauth-protected-resource/mcp",
		"/.well-known/oauth-protected-resource/apps/ask":     "/.well-known/oauth-protected-resource",
	} {
		if got := h.RoutePattern(httptest.NewRequest("GET", path, nil)); got != want {
			t.Errorf("%s: got %q, want %q", path, got, want)
		}
	}
}

// What a stranger's page sends a browser here with does nothing, and nothing of it is on
// the page, which runs no script, is framed by nobody and kept by nobody.
func TestOAuthCallbackWithUnknownStateDoesNothing(t *testing.T) {
	s := serve(t, llmtest.Turns(), nil, nil)
	var page string
	for _, query := range []string{
		"", "?state=made-up&code=c", "?state=%3Cscript%3Ealert(1)%3C/script%3E&error=%3Cb%3E&error_description=%3Ci%3E", "?state=a&state=b", "?state=%zz", "?code=" + strings.Repeat("c", 9<<10),
	} {
		resp := s.do(t, "GET", "/oauth/callback"+query, "", "Sec-Fetch-Site", "cross-site", "Origin", "https://login.example")
		body, err := io.ReadAll(resp.Body)
		if page == "" {
			page = string(body)
		}
		if err != nil || resp.StatusCode != http.StatusBadRequest || string(body) != page || !strings.Contains(page, "not valid any more") {
			t.Errorf(`%.60s: %d %s, %v, page %q, want status 400, body %s, page containing "not valid any more", no error`, query, resp.StatusCode, body, err, page, page)
		}
		for name, want := range map[string]string{
			"Content-Type": "text/html; charset=utf-8", "Cache-Control": "no-store", "Referrer-Policy": "no-referrer", "X-Content-Type-Options": "nosniff",
			"Content-Security-Policy": "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
		} {
			if got := resp.Header.Get(name); got != want {
				t.Errorf("%s is %q, want %q", name, got, want)
			}
		}
	}
	// A link that is looked at is not used up, and nothing is posted here.
	for _, method := range []string{"HEAD", "POST"} {
		if resp := s.do(t, method, "/oauth/callback?state=x", ""); resp.StatusCode != http.StatusMethodNotAllowed {
			t.Errorf("%s: %d, want 405", method, resp.StatusCode)
		}
	}
	if resp := s.do(t, "GET", "/oauth/callback?state=x", "", "Host", "evil.example"); resp.StatusCode != http.StatusMisdirectedRequest {
		t.Errorf("another host: %d, want 421", resp.StatusCode)
	}
}
