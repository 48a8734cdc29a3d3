package mcp

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"answerd/internal/auth"
	"answerd/internal/mcp/config"
	"answerd/internal/mcp/oauth/oauthtest"
)

// tokenSource issues token-1, token-2, ….
type tokenSource struct {
	mu      sync.Mutex // protects now
	now     int
	fetches atomic.Int64
}

func newTokenSource() *tokenSource { return &tokenSource{now: 1} }

func (s *tokenSource) Token(context.Context) (auth.Secret, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fetches.CompareAndSwap(0, 1)
	return s.current(), nil
}

func (s *tokenSource) Renew(_ context.Context, rejected auth.Secret) (auth.Secret, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.current() == rejected {
		s.now++
		s.fetches.Add(1)
	}
	return s.current(), nil
}

func (s *tokenSource) current() auth.Secret { return auth.NewSecret(fmt.Sprintf("token-%d", s.now)) }

// S2.2: the token is on every request to the server, the last DELETE included, and
// wins over a configured Authorization header.
func TestTokenIsOnEveryRequest(t *testing.T) {
	var all, bad atomic.Int64
	s := &scriptedServer{
		deletes: make(chan string, 1),
		before: func(_ http.ResponseWriter, r *http.Request) bool {
			all.Add(1)
			if r.Header.Get("Authorization") != "Bearer token-1" || r.Header.Get("X-Key") != "k" {
				bad.Add(1)
			}
			return false
		},
		call: func(w http.ResponseWriter, _ *http.Request, m message) { replyJSON(w, m.ID, textResult("ok")) },
	}

	c := newClient(t, Options{Service: newTokenSource()}, config.Server{
		Name: "a", URL: serveHTTP(t, s).URL, Auth: config.AuthJWT,
		Headers: map[string]auth.Secret{"authorization": auth.NewSecret("Basic no"), "X-Key": auth.NewSecret("k")},
	})
	res, err := c.Call(t.Context(), Call{Tool: "t"})
	mustResult(t, res, err)
	_ = c.Close()
	<-s.deletes
	if all.Load() < 6 || bad.Load() != 0 {
		t.Errorf("%d of %d requests without the token, want all at least 6, bad 0", bad.Load(), all.Load())
	}
}

// A server without auth gets no token, and one with a token of its own gets that.
func TestTokenIsThatOfTheConfiguredAuth(t *testing.T) {
	for want, cfg := range map[string]config.Server{
		"":           {},
		"Bearer own": {BearerToken: auth.NewSecret("own")},
	} {
		var got atomic.Value
		s := &scriptedServer{call: func(w http.ResponseWriter, r *http.Request, m message) {
			got.Store(r.Header.Get("Authorization"))
			replyJSON(w, m.ID, textResult("ok"))
		}}
		cfg.Name, cfg.URL = "a", serveHTTP(t, s).URL
		c := newClient(t, Options{Service: newTokenSource()}, cfg)
		res, err := c.Call(t.Context(), Call{Tool: "t"})
		mustResult(t, res, err)
		if got.Load() != want {
			t.Errorf("%q, want %q", got.Load(), want)
		}
	}
}

// S2.2, F18: refused once: one renewal, one more request, and the tool runs once.
func TestRefusedTokenIsRenewedOnce(t *testing.T) {
	source := newTokenSource()
	var runs atomic.Int64
	s := &scriptedServer{
		before: func(w http.ResponseWriter, r *http.Request) bool {
			if strings.Contains(peekBody(r), "tools/call") && r.Header.Get("Authorization") == "Bearer token-1" {
				http.Error(w, "expired", http.StatusUnauthorized)
				return true
			}
			return false
		},
		call: func(w http.ResponseWriter, _ *http.Request, m message) {
			runs.Add(1)
			replyJSON(w, m.ID, textResult("ok"))
		},
	}

	c := newClient(t, Options{Service: source, MaxConcurrentCalls: 20}, config.Server{Name: "a", URL: serveHTTP(t, s).URL, Auth: config.AuthJWT})
	c.Tools(t.Context())

	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			if _, err := c.Call(t.Context(), Call{Tool: "t"}); err != nil {
				t.Error(err)
			}
		})
	}

	wg.Wait()
	if source.fetches.Load() != 2 || runs.Load() != 20 || s.initializes.Load() != 1 {
		t.Errorf("%d fetches, %d runs, %d handshakes, want 2, 20 and 1", source.fetches.Load(), runs.Load(), s.initializes.Load())
	}
}

// The handshake was refused and so was, later, the answer to a question: each of them renews the token once.
func TestRefusedAnswerToAServersRequestIsSentAgain(t *testing.T) {
	h := streamableHandler(t, newToolServer(func(s *sdk.Server) {
		addRawTool(s, "ask", func(ctx context.Context, r *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
			res, err := r.Session.Elicit(ctx, &sdk.ElicitParams{Message: "Sure?", RequestedSchema: json.RawMessage(`{"type":"object"}`)})
			if err != nil {
				return nil, err
			}
			return &sdk.CallToolResult{Content: []sdk.Content{&sdk.TextContent{Text: res.Action}}}, nil
		})
	}), nil)
	w := serveHTTP(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		token := r.Header.Get("Authorization")
		if token == "Bearer token-1" || token == "Bearer token-2" && strings.Contains(peekBody(r), `"action"`) {
			http.Error(w, "revoked", http.StatusUnauthorized)
			return
		}
		h.ServeHTTP(w, r)
	}))
	c := newClient(t, Options{Service: newTokenSource()}, config.Server{Name: "a", URL: w.URL, Auth: config.AuthJWT, ProtocolVersion: "2025-11-25"})
	ctx, stop := context.WithTimeout(t.Context(), 5*time.Second)
	defer stop()
	res, err := c.Call(ctx, Call{Tool: "ask", Elicit: acceptDefaults})
	if got := mustResult(t, res, err).Text(); got != "accept" {
		t.Errorf("got %q, want accept", got)
	}
}

// F18: refused always: an error after at most two fetches, and the session lives.
func TestTokenThatIsAlwaysRefused(t *testing.T) {
	source := newTokenSource()
	var asked atomic.Int64
	s := &scriptedServer{call: func(w http.ResponseWriter, _ *http.Request, _ message) {
		asked.Add(1)
		http.Error(w, "no", http.StatusUnauthorized)
	}}
	c := newClient(t, Options{Service: source}, config.Server{Name: "a", URL: serveHTTP(t, s).URL, Auth: config.AuthJWT})
	_, err := c.Call(t.Context(), Call{Tool: "t"})
	e := mustFail(t, err)
	if e.Kind != Unavailable || source.fetches.Load() > 2 || asked.Load() != 2 || s.initializes.Load() != 1 {
		t.Errorf("%v: %d fetches, %d requests, %d handshakes, want Kind Unavailable, fetches at most 2, asked 2, handshakes 1", e, source.fetches.Load(), asked.Load(), s.initializes.Load())
	}
}

// F18: the same in the handshake.
func TestHandshakeThatIsAlwaysRefused(t *testing.T) {
	source := newTokenSource()
	w := serveHTTP(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "no", http.StatusUnauthorized)
	}))
	c := newClient(t, Options{Service: source}, config.Server{Name: "a", URL: w.URL, Auth: config.AuthJWT})
	c.Tools(t.Context())
	if n := source.fetches.Load(); n > 2 {
		t.Errorf("%d fetches, want at most 2", n)
	}
	if st := c.Servers()[0]; st.Reason != "it refused our credentials (HTTP 401)" {
		t.Errorf(`server status %+v, want Reason "it refused our credentials (HTTP 401)"`, st)
	}
}

// S0.1: the configured query on every request, the call's context on the call's own,
// encoded, merged with what the URL has, the call's first; and in _meta.
func TestQueryAndContext(t *testing.T) {
	var mu sync.Mutex
	seen := map[string]url.Values{}
	var metas []map[string]any

	recordQuery := func(what string, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		seen[what] = r.URL.Query()
	}

	s := &scriptedServer{
		list: func(w http.ResponseWriter, r *http.Request, m message) {
			recordQuery("list", r)
			replyJSON(w, m.ID, `{"tools":[{"name":"t"}]}`)
		},
		call: func(w http.ResponseWriter, r *http.Request, m message) {
			recordQuery("call", r)
			mu.Lock()
			metas = append(metas, m.Params.Meta)
			mu.Unlock()
			replyJSON(w, m.ID, textResult("ok"))
		},
	}

	c := newClient(t, Options{}, config.Server{
		Name: "a", URL: serveHTTP(t, s).URL + "/mcp?keep=1&over=url",
		Query: map[string]string{"tenant": "a&b", "over": "static", "context_id": "static"},
	})

	res, err := c.Call(t.Context(), Call{
		Tool: "t",
		Context: map[string]string{
			"context_id": "11 11=&?", "traceparent": "from outside",
			"io.modelcontextprotocol/protocolVersion": "1", "progressToken": "x",
		},
		Meta: map[string]any{"traceparent": "ours"},
	})
	mustResult(t, res, err)
	if q := seen["list"]; q.Get("keep") != "1" || q.Get("over") != "static" || q.Get("tenant") != "a&b" || q.Get("context_id") != "static" {
		t.Errorf(`list: %v, want Get("keep") 1, Get("over") static, Get("tenant") a&b, Get("context_id") static`, q)
	}
	if q := seen["call"]; q.Get("keep") != "1" || q.Get("tenant") != "a&b" || q.Get("context_id") != "11 11=&?" || len(q["context_id"]) != 1 {
		t.Errorf(`call: %v, want keep 1, tenant a&b, context_id "11 11=&?" once`, q)
	}
	m := metas[0]
	if m["context_id"] != "11 11=&?" || m["traceparent"] != "ours" {
		t.Errorf(`_meta %v, want ["context_id"] "11 11=&?", ["traceparent"] ours`, m)
	}
	if _, has := m["io.modelcontextprotocol/protocolVersion"]; has || m["progressToken"] != nil {
		t.Errorf("_meta %v, want no protocolVersion and no progressToken from outside", m)
	}
}

// Neither the log nor an error that a caller sees holds a token, a session id, a
// configured secret, or what a server wrote.
func TestSecretsAreNotInLogsAndMessages(t *testing.T) {
	var log syncBuffer
	logger := slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelInfo}))

	s := &scriptedServer{
		call: func(w http.ResponseWriter, r *http.Request, _ message) {
			http.Error(w, "upstream-body "+r.Header.Get("Authorization"), http.StatusBadRequest)
		},
		before: func(w http.ResponseWriter, r *http.Request) bool {
			if strings.Contains(peekBody(r), "tools/list") && r.URL.Query().Get("key") == "" {
				http.Error(w, "upstream-body", http.StatusInternalServerError)
				return true
			}
			return false
		},
	}

	c := newClient(t, Options{Service: newTokenSource(), Logger: logger}, config.Server{
		Name: "a", URL: serveHTTP(t, s).URL, Auth: config.AuthJWT, Query: map[string]string{"key": "query-secret"},
		Headers: map[string]auth.Secret{"X-Key": auth.NewSecret("header-secret")},
	}, config.Server{Name: "b", URL: serveHTTP(t, s).URL, BearerToken: auth.NewSecret("token-own")})
	_, err := c.Call(t.Context(), Call{Tool: "t", Context: map[string]string{"id": "context-secret"}})
	all := mustFail(t, err).Message + fmt.Sprint(c.Servers()) + fmt.Sprintf("%+v", c.Tools(t.Context())) + log.String()

	for _, secret := range []string{"token-", "session-1", "session-2", "query-secret", "header-secret", "context-secret", "upstream-body"} {
		if strings.Contains(all, secret) {
			t.Errorf("%q in %s, want no %q", secret, all, secret)
		}
	}
}

// A reply that is not HTTP may repeat the request. The error, which is logged with the call, does not quote it.
func TestReplyThatIsNotHTTPIsNotQuoted(t *testing.T) {
	s := &scriptedServer{call: func(w http.ResponseWriter, r *http.Request, _ message) {
		conn, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		fmt.Fprintf(conn, "%s %s\r\n\r\n", r.Header.Get("Authorization"), r.URL)
		_ = conn.Close()
	}}
	c := newClient(t, Options{}, config.Server{
		Name: "a", URL: serveHTTP(t, s).URL, BearerToken: auth.NewSecret("token-own"), Query: map[string]string{"key": "query-secret"},
	})
	_, err := c.Call(t.Context(), Call{Tool: "t"})
	if text := mustFail(t, err).Error(); strings.Contains(text, "token-own") || strings.Contains(text, "query-secret") {
		t.Errorf("error %q, want neither the token nor the query of the request", text)
	}
}

// A tool that needs more scopes than the configured ones fails alone: the server stays connected.
func TestMissingScopeDoesNotMarkTheServerAsFailed(t *testing.T) {
	as := oauthtest.New(t)
	as.Clients["answerd"] = oauthtest.Client{Secret: "client-s3cret"}
	protected := as.Protect(t, &scriptedServer{})
	protected.Needs = func(r *http.Request) []string {
		if strings.Contains(peekBody(r), methodCall) {
			return []string{"admin"}
		}
		return nil
	}
	var log syncBuffer
	c := newClient(t, Options{Logger: textLog(&log)}, config.Server{
		Name: "a", URL: protected.URL + "/mcp", Auth: config.AuthClientCredentials,
		Grant: config.Grant{ClientID: "answerd", ClientSecret: auth.NewSecret("client-s3cret"), Scope: "basic"},
	})
	for range 2 * maxStreak {
		_, err := c.Call(t.Context(), Call{Tool: "t"})
		if e := mustFail(t, err); e.Kind != Unavailable || !strings.Contains(e.Message, "more scopes") {
			t.Fatalf("error %v with the message %q, want %s and that more scopes are needed", e, e.Message, Unavailable)
		}
	}
	if st := c.Servers()[0]; st.State != Connected || strings.Contains(log.String(), "is down") {
		t.Errorf("server status %+v, want %s without a failure in the log\n%s", st, Connected, log.String())
	}
}
