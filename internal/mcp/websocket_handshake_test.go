package mcp

import (
	"io"
	"log"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/coder/websocket"

	"answerd/internal/auth"
	"answerd/internal/mcp/config"
)

// newWSOKServer returns a scripted server whose tool answers ok.
func newWSOKServer() *wsScriptedServer {
	return &wsScriptedServer{call: func(c *websocket.Conn, m message) { replyWS(c, m.ID, textResult("ok")) }}
}

// S4.6, S0.1: the handshake has the headers, the configured query and the token, and
// offers mcp; a call's context goes into _meta, with one warning for all calls.
func TestWebSocketHandshake(t *testing.T) {
	var shake *http.Request
	var metas []map[string]any
	s := newWSOKServer()
	s.before = func(_ http.ResponseWriter, r *http.Request) bool { shake = r; return false }

	s.call = func(c *websocket.Conn, m message) {
		metas = append(metas, m.Params.Meta)
		replyWS(c, m.ID, textResult("ok"))
	}

	var logged syncBuffer
	cfg := wsServerConfig(t, s)
	cfg.URL += "/mcp?keep=1&over=url"
	cfg.Query = map[string]string{"tenant": "a&b", "over": "static"}
	cfg.Headers = map[string]auth.Secret{"X-Key": auth.NewSecret("k"), "authorization": auth.NewSecret("Basic no")}
	cfg.Auth = config.AuthJWT

	c := newClient(t, Options{Service: newTokenSource(), Logger: slog.New(slog.NewTextHandler(&logged, nil))}, cfg)
	for _, id := range []string{"1", "2"} {
		res, err := c.Call(t.Context(), Call{Tool: "t", Context: map[string]string{"context_id": id}})
		mustResult(t, res, err)
	}

	_ = c.Close()
	if q := shake.URL.Query(); shake.URL.Path != "/mcp" || q.Get("keep") != "1" || q.Get("over") != "static" || q.Get("tenant") != "a&b" {
		t.Errorf("URL %s, keep %q, over %q, tenant %q, want shake.URL.Path /mcp, keep 1, over static, tenant a&b", shake.URL, q.Get("keep"), q.Get("over"), q.Get("tenant"))
	}

	for name, want := range map[string]string{
		"X-Key": "k", "Authorization": "Bearer token-1", "Sec-Websocket-Protocol": "mcp", "Sec-Websocket-Extensions": "",
	} {
		if got := strings.Join(shake.Header.Values(name), ";"); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}

	if len(metas) != 2 || metas[0]["context_id"] != "1" || metas[1]["context_id"] != "2" || s.dials.Load() != 1 {
		t.Errorf(`_meta %v; %d sockets, want 2 metas, metas[0]["context_id"] 1, metas[1]["context_id"] 2, dials 1`, metas, s.dials.Load())
	}
	if n := logged.count("_meta only"); n != 1 || strings.Contains(logged.String(), "token-") {
		t.Errorf("%d warnings in %s, want n 1, logged without token-", n, logged.String())
	}
}

// A server that chooses no subprotocol is taken as well.
func TestWebSocketWithoutSubprotocol(t *testing.T) {
	s := newWSOKServer()
	s.before = func(_ http.ResponseWriter, r *http.Request) bool {
		r.Header.Del("Sec-WebSocket-Protocol")
		return false
	}
	c := newClient(t, Options{}, wsServerConfig(t, s))
	res, err := c.Call(t.Context(), Call{Tool: "t"})
	mustResult(t, res, err)
}

// S2.2, F18: a token that is refused in the handshake is renewed once and sent once
// more; one that always is costs two fetches and no loop.
func TestWebSocketRefusedToken(t *testing.T) {
	for _, status := range []int{http.StatusUnauthorized, http.StatusForbidden} {
		for good, want := range map[string]State{"Bearer token-2": Connected, "never": Failed} {
			source := newTokenSource()
			s := newWSOKServer()
			s.before = func(w http.ResponseWriter, r *http.Request) bool {
				if r.Header.Get("Authorization") == good {
					return false
				}
				http.Error(w, "secret", status)
				return true
			}

			cfg := wsServerConfig(t, s)
			cfg.Auth = config.AuthJWT
			c := newClient(t, Options{Service: source}, cfg)
			c.Tools(t.Context())
			st := c.Servers()[0]
			if st.State != want || source.fetches.Load() != 2 || s.dials.Load() != 2 {
				t.Errorf("%d: %+v after %d fetches and %d handshakes, want State %q, fetches 2, dials 2", status, st, source.fetches.Load(), s.dials.Load(), want)
			}
			if want == Failed && !strings.HasPrefix(st.Reason, "it refused our credentials (HTTP ") {
				t.Errorf(`reason %q, want it to start with "it refused our credentials (HTTP "`, st.Reason)
			}
			_ = c.Close() // before it tries again
		}
	}
}

// F16, F19: a handshake that is refused, redirected or forged is a reason, and no
// other host hears of us.
func TestWebSocketHandshakeRefused(t *testing.T) {
	var seen atomic.Int64
	other := serveHTTP(t, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { seen.Add(1) }))
	for reason, answer := range map[string]func(http.ResponseWriter, *http.Request){
		"it answered HTTP 404": func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "secret", http.StatusNotFound) },
		"it answered HTTP 200": func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("<p>hello")) },
		"it is busy (HTTP 503)": func(w http.ResponseWriter, _ *http.Request) {
			http.Error(w, "secret", http.StatusServiceUnavailable)
		},
		"it redirects (HTTP 307), which is not followed": func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, other.URL, http.StatusTemporaryRedirect)
		},
		"its answer is not MCP: its WebSocket handshake is not valid": func(w http.ResponseWriter, _ *http.Request) {
			if conn, _, err := http.NewResponseController(w).Hijack(); err == nil {
				_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\n"+
					"Upgrade: websocket\r\nSec-WebSocket-Accept: forged\r\n\r\n")
				_ = conn.Close()
			}
		},
		"it cannot be reached": func(w http.ResponseWriter, _ *http.Request) {
			if conn, _, err := http.NewResponseController(w).Hijack(); err == nil {
				_ = conn.Close()
			}
		},
	} {
		s := &wsScriptedServer{before: func(w http.ResponseWriter, r *http.Request) bool { answer(w, r); return true }}
		cfg := wsServerConfig(t, s)
		cfg.Auth = config.AuthJWT
		c := newClient(t, Options{Service: newTokenSource()}, cfg)
		c.Tools(t.Context())
		if st := c.Servers()[0]; st.State != Failed || st.Reason != reason {
			t.Errorf("%+v, want %q", st, reason)
		}
		_ = c.Close()
	}
	if seen.Load() != 0 {
		t.Errorf("the other host saw %d requests, want 0", seen.Load())
	}
}

// S3.7: wss, also where the server would rather speak HTTP/2, which has no upgrade.
func TestWebSocketOverTLS(t *testing.T) {
	w := httptest.NewUnstartedServer(newWSOKServer())
	w.EnableHTTP2 = true
	w.Config.ErrorLog = log.New(io.Discard, "", 0)
	w.StartTLS()
	t.Cleanup(func() { w.CloseClientConnections(); w.Close() })
	cfg := config.Server{Name: "a", Type: config.TypeWebSocket, URL: "wss" + strings.TrimPrefix(w.URL, "https"), BearerToken: auth.NewSecret("x")}
	trusting := cfg
	trusting.TLS = trustOnly(t, w)
	c := newClient(t, Options{}, trusting)
	res, err := c.Call(t.Context(), Call{Tool: "t"})
	mustResult(t, res, err)

	c = newClient(t, Options{}, cfg)
	c.Tools(t.Context())
	if st := c.Servers()[0]; st.Reason != "its TLS certificate is not trusted" {
		t.Errorf(`server status %+v, want Reason "its TLS certificate is not trusted"`, st)
	}
}

// S3.7: wss goes through the proxy that the environment names.
func TestWebSocketThroughProxy(t *testing.T) {
	asked := make(chan string, 10)
	proxy := serveHTTP(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked <- r.Method + " " + r.RequestURI
		http.Error(w, "no", http.StatusForbidden)
	}))

	// As ProxyFromEnvironment would, which reads the environment once per process. No test runs beside
	// this one.
	shared := http.DefaultTransport.(*http.Transport)
	before := shared.Proxy
	shared.Proxy = func(*http.Request) (*url.URL, error) { return url.Parse(proxy.URL) }
	defer func() { shared.Proxy = before }()
	c := newClient(t, Options{}, config.Server{Name: "a", Type: config.TypeWebSocket, URL: "wss://mcp.example:444/"})
	c.Tools(t.Context())
	if got := <-asked; got != "CONNECT mcp.example:444" {
		t.Errorf(`got %q, want "CONNECT mcp.example:444"`, got)
	}
}

// S3.9: a server that hangs up at server/discover, which it doesn't know, is asked
// with initialize, from then on at once.
func TestWebSocketServerThatHangsUpAtDiscover(t *testing.T) {
	s := newWSOKServer()
	s.onDiscover = func(c *websocket.Conn) { go c.Close(websocket.StatusPolicyViolation, "") }
	s.gone = make(chan error, 10)
	c := newClient(t, Options{}, wsServerConfig(t, s))
	res, err := c.Call(t.Context(), Call{Tool: "t"})
	mustResult(t, res, err)
	if s.dials.Load() != 2 || s.shakes.Load() != 1 {
		t.Errorf("%d sockets, %d handshakes, want 2 and 1", s.dials.Load(), s.shakes.Load())
	}
	s.call = func(c *websocket.Conn, m message) { go c.CloseNow() }
	_, err = c.Call(t.Context(), Call{Tool: "t"})
	if e := mustFail(t, err); e.Kind != UnknownOutcome {
		t.Errorf("call error %v, want Kind UnknownOutcome", e)
	}
	if err := c.Refresh(t.Context(), "a"); err != nil || s.dials.Load() != 3 {
		t.Errorf("%v after %d sockets, want 3 and no error", err, s.dials.Load())
	}
}

// The state does not speak of a session if the server closed the connection before it had one.
func TestWebSocketServerThatClosesAtOnce(t *testing.T) {
	c := newClient(t, Options{}, wsServerConfig(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if conn, err := websocket.Accept(w, r, nil); err == nil {
			_ = conn.Close(websocket.StatusNormalClosure, "")
		}
	})))
	c.Tools(t.Context())
	// What the reason is depends on whether initialize was sent before the end.
	if got := c.Servers()[0].Reason; got == "" || strings.Contains(got, "session") {
		t.Errorf("got the reason %q, want one without a session", got)
	}
}
