package demo

import (
	"bytes"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"answerd/internal/auth/authtest"
)

// bearerTransport sends token with every request.
type bearerTransport struct {
	token string
	next  http.RoundTripper
}

func (b bearerTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	if b.token != "" {
		r.Header.Set("Authorization", "Bearer "+b.token)
	}
	return b.next.RoundTrip(r)
}

// lockedBuffer is a log that tests may read while it is written.
type lockedBuffer struct {
	mu sync.Mutex // protects b
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// startMCP serves the MCP server of an IAM.
func startMCP(t *testing.T, c MCPConfig) (*MCPServer, *httptest.Server) {
	t.Helper()
	s, err := NewMCPServer(c)
	if err != nil {
		t.Fatal(err)
	}
	srv := httptest.NewServer(s)
	t.Cleanup(srv.Close)
	t.Cleanup(s.Close) // before srv.Close, which waits for open streams
	return s, srv
}

// connectClient opens a session with token, and closes it at the end of the test.
func connectClient(t *testing.T, srv *httptest.Server, token string, opts *sdk.ClientOptions) (*sdk.ClientSession, error) {
	t.Helper()
	client := sdk.NewClient(&sdk.Implementation{Name: "test", Version: "1"}, opts)
	session, err := client.Connect(t.Context(), &sdk.StreamableClientTransport{
		Endpoint: srv.URL + MCPPath, HTTPClient: &http.Client{Transport: bearerTransport{token, srv.Client().Transport}},
	}, nil)
	if err == nil {
		t.Cleanup(func() { session.Close() })
	}
	return session, err
}

// openSession starts an IAM and its MCP server, and opens a session with a token of the IAM.
func openSession(t *testing.T, c MCPConfig, opts *sdk.ClientOptions) (*MCPServer, *sdk.ClientSession) {
	t.Helper()
	_, iam := startIAM(t, IAMConfig{})
	c.Issuer, c.JWKSURL = iam.URL, iam.URL+JWKSPath
	s, srv := startMCP(t, c)
	_, answer, _ := requestToken(t, iam, testSecret, url.Values{"grant_type": {"client_credentials"}})
	session, err := connectClient(t, srv, answer["access_token"].(string), opts)
	if err != nil {
		t.Fatal(err)
	}
	return s, session
}

func TestMCPServerTakesOnlyValidTokens(t *testing.T) {
	t.Parallel()
	iam, iamSrv := startIAM(t, IAMConfig{})
	var log lockedBuffer
	_, srv := startMCP(t, MCPConfig{Issuer: iamSrv.URL, JWKSURL: iamSrv.URL + JWKSPath, Logger: slog.New(slog.NewTextHandler(&log, nil))})

	// These closures make tokens that differ from a valid one.
	claims := func(change jwt.MapClaims) jwt.MapClaims {
		now := time.Now().Unix()
		c := jwt.MapClaims{"iss": iamSrv.URL, "aud": Audience, "sub": "me", "scope": Scope, "iat": now, "nbf": now, "exp": now + 60}
		for k, v := range change {
			c[k] = v
			if v == nil {
				delete(c, k)
			}
		}
		return c
	}
	sign := func(change jwt.MapClaims) string {
		s, err := iam.signClaims(claims(change))
		if err != nil {
			t.Fatal(err)
		}
		return "Bearer " + s
	}
	signWith := func(method jwt.SigningMethod, key any, header map[string]any) string {
		tok := jwt.NewWithClaims(method, claims(nil))
		tok.Header["kid"] = iam.keyID
		for k, v := range header {
			tok.Header[k] = v
		}
		s, err := tok.SignedString(key)
		if err != nil {
			t.Fatal(err)
		}
		return "Bearer " + s
	}

	foreign := authtest.OtherRSAKey()
	past := time.Now().Add(-time.Hour).Unix()
	for _, c := range []struct {
		name, authorization string
		status              int
		code                string
	}{
		{"no header", "", 401, ""},
		{"basic", "Basic eDp5", 401, ""},
		{"empty bearer", "Bearer ", 401, ""},
		{"two words", "Bearer a b", 400, "invalid_request"},
		{"garbage", "Bearer a.b.c", 401, "invalid_token"},
		{"too long", "Bearer " + strings.Repeat("a", 8<<10), 401, "invalid_token"},
		{"expired", sign(jwt.MapClaims{"exp": past}), 401, "invalid_token"},
		{"no expiry", sign(jwt.MapClaims{"exp": nil}), 401, "invalid_token"},
		{"not yet valid", sign(jwt.MapClaims{"nbf": time.Now().Add(time.Hour).Unix()}), 401, "invalid_token"},
		{"wrong audience", sign(jwt.MapClaims{"aud": "other"}), 401, "invalid_token"},
		{"no audience", sign(jwt.MapClaims{"aud": nil}), 401, "invalid_token"},
		{"wrong issuer", sign(jwt.MapClaims{"iss": iamSrv.URL + "/"}), 401, "invalid_token"},
		{"no subject", sign(jwt.MapClaims{"sub": nil}), 401, "invalid_token"},
		{"wrong scope", sign(jwt.MapClaims{"scope": "other"}), 403, "insufficient_scope"},
		{"right kid, wrong key", signWith(jwt.SigningMethodRS256, foreign, nil), 401, "invalid_token"},
		{"alg none", signWith(jwt.SigningMethodNone, jwt.UnsafeAllowNoneSignatureType, nil), 401, "invalid_token"},
		{"HS256 with the public modulus", signWith(jwt.SigningMethodHS256, iam.config.Key.N.Bytes(), nil), 401, "invalid_token"},
		{"RS512", signWith(jwt.SigningMethodRS512, iam.config.Key, nil), 401, "invalid_token"},
		{"critical extension", signWith(jwt.SigningMethodRS256, iam.config.Key, map[string]any{"crit": []string{"x"}}), 401, "invalid_token"},
		{"ID token", signWith(jwt.SigningMethodRS256, iam.config.Key, map[string]any{"typ": "logout+jwt"}), 401, "invalid_token"},
		{"no kid", signWith(jwt.SigningMethodRS256, iam.config.Key, map[string]any{"kid": ""}), 401, "invalid_token"},
		{"unknown kid", signWith(jwt.SigningMethodRS256, iam.config.Key, map[string]any{"kid": "../../keys"}), 401, "invalid_token"},
		// The guard is passed: a GET without a session is then MCP's own 400.
		{"valid", sign(nil), 400, "-"},
	} {
		t.Run(c.name, func(t *testing.T) {
			req, _ := http.NewRequest(http.MethodGet, srv.URL+MCPPath, nil)
			req.Header.Set("Accept", "text/event-stream")
			if c.authorization != "" {
				req.Header.Set("Authorization", c.authorization)
			}
			resp, err := srv.Client().Do(req)
			if err != nil {
				t.Fatal(err)
			}
			resp.Body.Close()
			challenge := resp.Header.Get("WWW-Authenticate")
			if resp.StatusCode != c.status {
				t.Errorf("status %d, want %d", resp.StatusCode, c.status)
			}

			if c.code == "-" {
				if challenge != "" {
					t.Errorf("a valid token got the challenge %s, want none", challenge)
				}
				return
			}

			if !strings.Contains(challenge, "resource_metadata=") || strings.Contains(challenge, "error=") != (c.code != "") ||
				!strings.Contains(challenge, c.code) {
				t.Errorf("challenge %q, want error %q", challenge, c.code)
			}
		})
	}
	if strings.Contains(log.String(), "eyJ") {
		t.Error("the log has a token, want none")
	}
}

func TestMCPServerConnectsOnlyWithAToken(t *testing.T) {
	_, iam := startIAM(t, IAMConfig{})
	_, srv := startMCP(t, MCPConfig{Issuer: iam.URL, JWKSURL: iam.URL + JWKSPath})
	if _, err := connectClient(t, srv, "", nil); err == nil {
		t.Fatal("connect without a token = nil, want an error")
	}
	req, _ := http.NewRequest(http.MethodGet, srv.URL+resourceMetadataPath, nil)
	if _, meta, _ := doJSON(t, srv, req); meta["resource"] != srv.URL+MCPPath || fmt.Sprint(meta["authorization_servers"]) != "["+iam.URL+"]" {
		t.Errorf(`metadata %v, want ["resource"] %q, ["authorization_servers"] %q`, meta, srv.URL+MCPPath, "["+iam.URL+"]")
	}
}

// The compose file starts both at once: the MCP server must start without an IAM, and must
// not call a good token bad meanwhile.
func TestMCPServerWithoutIAMIsUnavailable(t *testing.T) {
	iam, err := NewIAM(IAMConfig{Issuer: "http://iam", ClientID: testClient, ClientSecret: testSecret, Key: authtest.RSAKey()})
	if err != nil {
		t.Fatal(err)
	}

	away := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(away.Close)
	_, srv := startMCP(t, MCPConfig{Issuer: "http://iam", JWKSURL: away.URL + JWKSPath})
	now := time.Now().Unix()
	token, err := iam.signClaims(jwt.MapClaims{"iss": "http://iam", "aud": Audience, "sub": "me", "scope": Scope, "iat": now, "exp": now + 60})
	if err != nil {
		t.Fatal(err)
	}

	req, _ := http.NewRequest(http.MethodGet, srv.URL+MCPPath, nil)
	req.Header.Set("Authorization", "Bearer "+token)
	resp, err := srv.Client().Do(req)
	if err != nil {
		t.Fatal(err)
	}

	resp.Body.Close()
	if resp.StatusCode != http.StatusServiceUnavailable || resp.Header.Get("Retry-After") == "" {
		t.Errorf("got status %d and Retry-After %q, want 503 and some time", resp.StatusCode, resp.Header.Get("Retry-After"))
	}
}

func TestMCPServerRefusesToRunWithoutKeys(t *testing.T) {
	for _, c := range []MCPConfig{{}, {Issuer: "http://iam"}, {JWKSURL: "http://127.0.0.1/keys"}, {Issuer: "http://iam", JWKSURL: "http://iam/keys"}} {
		if _, err := NewMCPServer(c); err == nil {
			t.Errorf("the configuration %+v is accepted, want an error", c)
		}
	}
}

// Close is what lets the http.Server shut down while clients hold streams open.
func TestMCPServerCloseEndsOpenSessions(t *testing.T) {
	s, session := openSession(t, MCPConfig{}, nil)
	ended := make(chan error, 1)
	go func() { ended <- session.Wait() }()
	s.Close()
	for range s.server.Sessions() {
		t.Error("a session is open after Close, want none")
	}
	session.Close()
	<-ended
}
