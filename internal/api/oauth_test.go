package api_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"answerd/internal/api"
	"answerd/internal/auth"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"answerd/internal/agent"
	"answerd/internal/auth/sealed"
	"answerd/internal/event"
	"answerd/internal/llm/llmtest"
	"answerd/internal/mcp"
	"answerd/internal/mcp/config"
	"answerd/internal/mcp/content"
	"answerd/internal/mcp/oauth/oauthtest"
	"answerd/internal/values"
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

// A callback that another page makes a browser send has no effect. The page repeats nothing of it,
// runs no script, cannot be framed and is not cached.
func TestOAuthCallbackWithUnknownStateDoesNothing(t *testing.T) {
	t.Parallel()
	s := newService(t, llmtest.Turns(), nil, nil)
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

// interruptedStore is a store of values that does not answer while it is down.
type interruptedStore struct {
	values.Memory
	down atomic.Bool
}

func (s *interruptedStore) Value(ctx context.Context, key values.Key) ([]byte, uint64, error) {
	if s.down.Load() {
		return nil, 0, fmt.Errorf("read the log: %w", event.ErrUnavailable)
	}
	return s.Memory.Value(ctx, key)
}

// newSignInService returns a service with an MCP server whose users sign in, and a store that can be down.
func newSignInService(t *testing.T) (*service, *interruptedStore) {
	t.Helper()
	as, store := oauthtest.New(t), &interruptedStore{}
	server := sdk.NewServer(&sdk.Implementation{Name: "crm", Version: "1"}, nil)
	sdk.AddTool(server, &sdk.Tool{Name: "who"}, func(context.Context, *sdk.CallToolRequest, struct{}) (*sdk.CallToolResult, any, error) {
		return &sdk.CallToolResult{}, nil, nil
	})
	crm := as.Protect(t, sdk.NewStreamableHTTPHandler(func(*http.Request) *sdk.Server { return server }, &sdk.StreamableHTTPOptions{Stateless: true}))
	path := filepath.Join(t.TempDir(), "keys")
	if err := os.WriteFile(path, []byte(strings.Repeat("07", 32)), 0o600); err != nil {
		t.Fatal(err)
	}
	keys, err := sealed.ReadKeys(path)
	if err != nil {
		t.Fatal(err)
	}
	tools, err := mcp.New([]config.Server{{Name: "crm", URL: crm.URL + "/mcp", ToolPrefix: "crm", Auth: config.AuthAuthorizationCode}}, mcp.Options{
		Logger: slog.New(slog.DiscardHandler), StartWait: time.Minute, RedirectURL: "http://127.0.0.1:7/oauth/callback",
		SignIns: sealed.New(keys, store, slog.New(slog.DiscardHandler)),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tools.Close() })
	return newService(t, llmtest.Turns(), func(o *agent.Options) { o.Tools = tools }, nil), store
}

// signInPage starts a sign-in of the caller and returns the page that they open.
func (s *service) signInPage(t *testing.T) string {
	t.Helper()
	s.Agent.ToolsFor(t.Context(), auth.Identity{})
	res, err := s.Agent.Tools.Call(t.Context(), mcp.Call{Tool: "crm_sign_in", Waiter: "run_1 int_1"})
	if err != nil || res.SignIn == nil {
		t.Fatalf("Call = %+v, %v, want SignIn", res, err)
	}
	return res.SignIn.URL
}

// While the log is away, the person is asked to come again, and their sign-in is still good then.
func TestOAuthCallbackMayBeRepeatedWhileTheLogIsUnavailable(t *testing.T) {
	s, store := newSignInService(t)
	query := oauthtest.Browse(t, s.signInPage(t)).Encode()
	for _, c := range []struct {
		down   bool
		status int
		page   string
	}{{true, http.StatusServiceUnavailable, "Reload this page"}, {false, http.StatusOK, "continues by itself"}, {false, http.StatusBadRequest, "not valid any more"}} {
		store.down.Store(c.down)
		resp := s.do(t, "GET", "/oauth/callback?"+query, "")
		body, err := io.ReadAll(resp.Body)
		if err != nil || resp.StatusCode != c.status || !strings.Contains(string(body), c.page) {
			t.Errorf("the callback with the log down: %v is answered with %d %s, %v, want %d and %q", c.down, resp.StatusCode, body, err, c.status, c.page)
		}
	}
}

// After a sign-out the caller has to sign in again.
func TestSignOutRemovesTheTokensOfTheCaller(t *testing.T) {
	s, store := newSignInService(t)
	if found, err := s.FinishSignIn(t.Context(), oauthtest.Browse(t, s.signInPage(t))); !found || err != nil {
		t.Fatalf("FinishSignIn = %v, %v, want true and no error", found, err)
	}

	call := func() *content.Result {
		t.Helper()
		res, err := s.Agent.Tools.Call(t.Context(), mcp.Call{Tool: "crm_who", Server: "crm", Waiter: "run_1 int_1"})
		if err != nil {
			t.Fatal(err)
		}
		return res
	}

	store.down.Store(true)
	if resp := s.do(t, "DELETE", "/servers/crm/sign-in", ""); resp.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("a sign-out while the log is away is answered with %d, want 503", resp.StatusCode)
	}
	store.down.Store(false)
	if res := call(); res.SignIn != nil {
		t.Errorf("the result is %+v, want none of a sign-in: the caller has signed in", res)
	}

	for range 2 { // it may be repeated
		if resp := s.do(t, "DELETE", "/servers/crm/sign-in", ""); resp.StatusCode != http.StatusNoContent {
			t.Errorf("the sign-out is answered with %d, want 204", resp.StatusCode)
		}
	}

	if res := call(); res.SignIn == nil {
		t.Errorf("the result is %+v, want that the caller has to sign in", res)
	}
	p := decodeResponse[problem](t, s.do(t, "DELETE", "/servers/none/sign-in", ""), 404)
	if want := "There is no MCP server with this name at which users sign in."; p.Detail != want {
		t.Errorf("a sign-out of an unknown server: got %q, want %q", p.Detail, want)
	}
}
