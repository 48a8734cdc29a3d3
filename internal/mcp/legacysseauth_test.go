package mcp

import (
	"bytes"
	"context"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
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

// endpointRewriter is a server over HTTP+SSE whose endpoint event has another URL than that of the
// go-sdk, which is the path of the stream with a query.
type endpointRewriter struct {
	inner   http.Handler
	rewrite func(sessionID string) string
}

func (e endpointRewriter) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodGet {
		w = &endpointWriter{ResponseWriter: w, rewrite: e.rewrite}
	}
	e.inner.ServeHTTP(w, r)
}

// endpointWriter replaces the URL in the first event.
type endpointWriter struct {
	http.ResponseWriter
	rewrite func(string) string
	past    bool
}

func (w *endpointWriter) Write(b []byte) (int, error) {
	if _, id, ok := bytes.Cut(b, []byte("sessionid=")); ok && !w.past {
		w.past = true
		id, _, _ = bytes.Cut(id, []byte("\n"))
		_, err := fmt.Fprintf(w.ResponseWriter, "event: endpoint\ndata: %s\n\n", w.rewrite(string(id)))
		return len(b), err
	}
	return w.ResponseWriter.Write(b)
}

func (w *endpointWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }
func (w *endpointWriter) Flush()                      { _ = http.NewResponseController(w.ResponseWriter).Flush() }

// The endpoint event may name the URL for messages in any form that a URL reference has, and its
// query comes with each message beside the configured one.
func TestLegacySSEEndpointForms(t *testing.T) {
	for name, c := range map[string]struct {
		path    string // of the stream
		rewrite func(base, id string) string
		want    string // the path of messages
	}{
		"query only":    {"/sse", func(_, id string) string { return "?sessionid=" + id }, "/sse"},
		"relative path": {"/app/sse", func(_, id string) string { return "messages/?sessionid=" + id }, "/app/messages/"},
		"absolute path": {"/app/sse", func(_, id string) string { return "/messages?x=a%2Fb&sessionid=" + id }, "/messages"},
		"absolute URL":  {"/sse", func(base, id string) string { return base + "/messages?sessionid=" + id }, "/messages"},
		"host in upper case": {"/sse", func(base, id string) string {
			return strings.Replace(base, "localhost", "LOCALHOST", 1) + "/m?sessionid=" + id
		}, "/m"},
		"a session in a path": {"/sse", func(_, id string) string { return "/m/" + id }, "/m/"},
	} {
		t.Run(name, func(t *testing.T) {
			s, base := newLegacyServer(), ""
			var mu sync.Mutex // protects posts
			var posts []string
			web := serveHTTP(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.Method == http.MethodPost {
					mu.Lock()
					posts = append(posts, r.URL.String())
					mu.Unlock()
					if id, ok := strings.CutPrefix(r.URL.Path, "/m/"); ok {
						r.URL.RawQuery = "sessionid=" + id
					}
				}
				endpointRewriter{s, func(id string) string { return c.rewrite(base, id) }}.ServeHTTP(w, r)
			}))

			base = strings.Replace(web.URL, "127.0.0.1", "localhost", 1)
			client := newClient(t, Options{}, config.Server{Name: "a", Type: config.TypeSSE, URL: base + c.path + "?k=1", Query: map[string]string{"tenant": "t"}})
			res, err := client.Call(t.Context(), Call{Tool: "count"})
			mustResult(t, res, err)
			mu.Lock()
			defer mu.Unlock()

			for _, p := range posts {
				if !strings.HasPrefix(p, c.want) || !strings.Contains(p, "tenant=t") || name == "absolute path" && !strings.Contains(p, "x=a%2Fb") {
					t.Errorf("got a POST to %s, want %s with the tenant", p, c.want)
				}
			}
		})
	}
}

// Every request of a session has the credentials, over TLS: the GET that opens the stream, and each
// POST. A token that is refused is renewed, wherever that happens.
func TestLegacySSESendsCredentialsWithEveryRequest(t *testing.T) {
	i := newIAM(t)
	for name, c := range map[string]struct {
		cfg     config.Server
		service *tokenSource
		allowed func(r *http.Request) bool
		renewed bool // the first token is refused after a while
	}{
		"headers": {cfg: config.Server{Headers: map[string]auth.Secret{"X-Key": auth.NewSecret("k")}, Query: map[string]string{"key": "q"}},
			allowed: func(r *http.Request) bool { return r.Header.Get("X-Key") == "k" && r.URL.Query().Get("key") == "q" }},
		"bearerToken": {cfg: config.Server{BearerToken: auth.NewSecret("own")},
			allowed: func(r *http.Request) bool { return r.Header.Get("Authorization") == "Bearer own" }},
		"jwt": {cfg: config.Server{Auth: config.AuthJWT}, service: newTokenSource(), renewed: true,
			allowed: func(r *http.Request) bool { return strings.HasPrefix(r.Header.Get("Authorization"), "Bearer token-") }},
		"client_credentials": {cfg: i.serverConfig("", "", config.AuthClientCredentials), renewed: true},
	} {
		t.Run(name, func(t *testing.T) {
			// Serve over TLS, and refuse requests without the credentials.
			s := newLegacyServer()
			var requests, refused atomic.Int64
			var expired atomic.Bool // the first tokens
			inner := http.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				requests.Add(1)
				if c.allowed != nil && !c.allowed(r) || expired.Load() && r.Header.Get("Authorization") == "Bearer token-1" {
					refused.Add(1)
					w.WriteHeader(http.StatusUnauthorized)
					return
				}
				s.ServeHTTP(w, r)
			}))
			if c.allowed == nil {
				checked := inner
				inner = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					sdkauth.RequireBearerToken(i.verifyToken, &sdkauth.RequireBearerTokenOptions{ResourceMetadataURL: "https://" + r.Host + "/.well-known/oauth-protected-resource"})(checked).ServeHTTP(w, r)
				})
			}
			web := httptest.NewTLSServer(inner)
			t.Cleanup(func() { web.CloseClientConnections(); web.Close() })
			roots := filepath.Join(t.TempDir(), "roots.pem")
			if err := os.WriteFile(roots, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: web.Certificate().Raw}), 0o600); err != nil {
				t.Fatal(err)
			}

			// Every request of a call has them.
			o := Options{}
			if c.service != nil {
				o.Service = c.service
			}
			cfg := c.cfg
			cfg.Name, cfg.Type, cfg.URL, cfg.ToolPrefix, cfg.TLS.CAFile = "a", config.TypeSSE, web.URL+"/sse", "", roots
			client := newClient(t, o, cfg)
			res, err := client.Call(t.Context(), Call{Tool: "count"})
			mustResult(t, res, err)
			if requests.Load() < 4 || refused.Load() != 0 {
				t.Errorf("got %d requests, of which %d were refused, want at least 4 and none", requests.Load(), refused.Load())
			}
			if !c.renewed {
				return
			}

			// New tokens are used in the same session.
			expired.Store(true)
			i.revokeTokens()
			res, err = client.Call(t.Context(), Call{Tool: "count"})
			mustResult(t, res, err)
			if n := s.calls.Load(); n != 2 || s.streams.Load() != 1 {
				t.Errorf("got %d calls in %d sessions, want 2 in 1", n, s.streams.Load())
			}
		})
	}
}

// A server whose TLS certificate is not signed by a trusted root is sent nothing.
func TestLegacySSERefusesAnUnknownCertificate(t *testing.T) {
	var requests atomic.Int64
	web := httptest.NewTLSServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { requests.Add(1) }))
	web.Config.ErrorLog = nil
	t.Cleanup(web.Close)
	c := newClient(t, Options{}, config.Server{Name: "a", Type: config.TypeSSE, URL: web.URL, BearerToken: auth.NewSecret("own")})
	if err := c.Refresh(t.Context(), "a"); err == nil || requests.Load() != 0 {
		t.Errorf("Refresh() = %v after %d requests, want an error and none", err, requests.Load())
	}
}

// A stream that is lost between two calls is opened again, without a call and with the tools that
// the server has by then; a change that it announces on the new stream is noticed.
func TestLegacySSEOpensALostStreamAgain(t *testing.T) {
	t.Parallel()
	server := newToolServer(nil)
	web := serveHTTP(t, sdk.NewSSEHandler(func(*http.Request) *sdk.Server { return server }, nil))
	c := newClient(t, Options{}, config.Server{Name: "a", Type: config.TypeSSE, URL: web.URL})

	add := func(name string) {
		addRawTool(server, name, func(context.Context, *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
			return &sdk.CallToolResult{}, nil
		})
	}

	waitFor := func(want string) {
		t.Helper()
		for end := time.Now().Add(20 * time.Second); ; {
			got := namesOf(c.Tools(t.Context()))
			if got == want {
				return
			}
			if time.Now().After(end) {
				t.Fatalf("Tools() = %s, want %s; %+v", got, want, c.Servers())
			}
			<-time.After(10 * time.Millisecond)
		}
	}

	waitFor("echo")
	add("second")
	waitFor("echo second")
	web.CloseClientConnections()
	add("third")
	waitFor("echo second third")
	add("fourth")
	waitFor("echo fourth second third")
}
