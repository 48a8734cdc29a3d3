package demo

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/golang-jwt/jwt/v5"

	"answerd/internal/auth"
	"answerd/internal/auth/authtest"
)

const (
	testClient = "answerd"
	testSecret = "s3cret:with %+ signs"
)

// startIAM serves an IAM on a loopback address that is its issuer.
func startIAM(t *testing.T, c IAMConfig) (*IAM, *httptest.Server) {
	t.Helper()
	srv := httptest.NewUnstartedServer(nil)
	c.Issuer = "http://" + srv.Listener.Addr().String()
	c.ClientID, c.ClientSecret, c.Key = testClient, testSecret, authtest.RSAKey()
	iam, err := NewIAM(c)
	if err != nil {
		t.Fatal(err)
	}
	srv.Config.Handler = iam
	srv.Start()
	t.Cleanup(srv.Close)
	return iam, srv
}

// requestToken posts form with the client's credentials, form-encoded as RFC 6749
// section 2.3.1 says, and gives status and decoded answer.
func requestToken(t *testing.T, srv *httptest.Server, secret string, form url.Values) (int, map[string]any, http.Header) {
	t.Helper()
	req, err := http.NewRequest(http.MethodPost, srv.URL+TokenPath, strings.NewReader(form.Encode()))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	if secret != "" {
		req.SetBasicAuth(url.QueryEscape(testClient), url.QueryEscape(secret))
	}
	return doJSON(t, srv, req)
}

func doJSON(t *testing.T, srv *httptest.Server, req *http.Request) (int, map[string]any, http.Header) {
	t.Helper()
	resp, err := srv.Client().Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	var v map[string]any
	if err := json.Unmarshal(b, &v); err != nil {
		t.Fatalf("the answer is %q, want JSON", b)
	}
	return resp.StatusCode, v, resp.Header
}

func TestIAMTokenVerifiesAgainstThePublishedKey(t *testing.T) {
	_, srv := startIAM(t, IAMConfig{})
	status, answer, header := requestToken(t, srv, testSecret, url.Values{"grant_type": {"client_credentials"}, "scope": {Scope}})
	if status != http.StatusOK || answer["token_type"] != "Bearer" || answer["expires_in"] != 300.0 || answer["scope"] != Scope {
		t.Fatalf("token endpoint: status %d, answer %v, want 200 and a token", status, answer)
	}
	if header.Get("Cache-Control") != "no-store" {
		t.Errorf("headers of a token are %v, want Cache-Control: no-store", header)
	}
	raw := answer["access_token"].(string)
	verifier, err := auth.NewVerifier(auth.VerifierConfig{Issuer: srv.URL, Audience: Audience, JWKSURL: srv.URL + JWKSPath})
	if err != nil {
		t.Fatal(err)
	}
	defer verifier.Close()
	if id, err := verifier.Verify(t.Context(), raw); err != nil || id.Subject != testClient || len(id.Scopes) != 1 || id.Scopes[0] != Scope {
		t.Errorf("Verify of the token = %+v, %v, want the client's identity", id, err)
	}
	var c jwt.MapClaims
	token, _, err := jwt.NewParser().ParseUnverified(raw, &c)
	if err != nil {
		t.Fatal(err)
	}
	if token.Header["typ"] != "at+jwt" || token.Header["kid"] == "" || token.Header["alg"] != "RS256" {
		t.Errorf("the JWS header is %v, want the kid and typ at+jwt", token.Header)
	}

	for _, name := range []string{"iss", "aud", "sub", "client_id", "scope", "iat", "nbf", "exp", "jti"} {
		if c[name] == nil {
			t.Errorf("the claims are %v, want %s among them", c, name)
		}
	}

	_, again, _ := requestToken(t, srv, testSecret, url.Values{"grant_type": {"client_credentials"}})
	if again["access_token"] == raw {
		t.Error("two requests got the same token, want two")
	}
}

func TestIAMRefusesAsRFC6749Says(t *testing.T) {
	t.Parallel()
	_, srv := startIAM(t, IAMConfig{})
	good := "grant_type=client_credentials"
	for _, c := range []struct {
		name, secret, body, code string
		status                   int
	}{
		{"no credentials", "", good, "invalid_client", 401},
		{"wrong secret", "wrong", good, "invalid_client", 401},
		{"wrong secret before bad grant", "wrong", "grant_type=password", "invalid_client", 401},
		{"secret in the body only", "", good + "&client_id=" + testClient + "&client_secret=" + url.QueryEscape(testSecret), "invalid_client", 401},
		{"no grant", testSecret, "scope=x", "invalid_request", 400},
		{"other grant", testSecret, "grant_type=password", "unsupported_grant_type", 400},
		{"repeated parameter", testSecret, good + "&" + good, "invalid_request", 400},
		{"foreign scope", testSecret, good + "&scope=admin", "invalid_scope", 400},
		{"broken form", testSecret, "grant_type=%zz", "invalid_request", 400},
		{"huge body", testSecret, good + "&x=" + strings.Repeat("a", 16<<10), "invalid_request", 400},
	} {
		t.Run(c.name, func(t *testing.T) {
			req, _ := http.NewRequest(http.MethodPost, srv.URL+TokenPath+"?grant_type=client_credentials", strings.NewReader(c.body))
			req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
			if c.secret != "" {
				req.SetBasicAuth(testClient, url.QueryEscape(c.secret))
			}
			status, answer, header := doJSON(t, srv, req)
			if status != c.status || answer["error"] != c.code {
				t.Errorf("status %d, %v; want %d %s", status, answer, c.status, c.code)
			}
			if header.Get("Cache-Control") != "no-store" {
				t.Error("a refusal has no Cache-Control, want no-store")
			}
			if (status == 401) != (header.Get("WWW-Authenticate") != "") {
				t.Errorf("WWW-Authenticate is %q, want Basic", header.Get("WWW-Authenticate"))
			}
		})
	}

	req, _ := http.NewRequest(http.MethodPost, srv.URL+TokenPath, strings.NewReader(`{"grant_type":"client_credentials"}`))
	req.Header.Set("Content-Type", "application/json")
	req.SetBasicAuth(testClient, url.QueryEscape(testSecret))
	if status, answer, _ := doJSON(t, srv, req); status != 400 || answer["error"] != "invalid_request" {
		t.Errorf("a JSON body got %d %v, want 400 invalid_request", status, answer)
	}
}

func TestIAMMetadataLeadsToLiveEndpoints(t *testing.T) {
	_, srv := startIAM(t, IAMConfig{})
	for _, path := range []string{"/.well-known/openid-configuration", "/.well-known/oauth-authorization-server"} {
		req, _ := http.NewRequest(http.MethodGet, srv.URL+path, nil)
		_, meta, _ := doJSON(t, srv, req)
		if meta["issuer"] != srv.URL || meta["token_endpoint"] != srv.URL+TokenPath {
			t.Errorf(`%s: %v, want ["issuer"] %s, ["token_endpoint"] %s`, path, meta, srv.URL, srv.URL+TokenPath)
		}
		req, _ = http.NewRequest(http.MethodGet, meta["jwks_uri"].(string), nil)
		if _, keys, _ := doJSON(t, srv, req); len(keys["keys"].([]any)) != 1 {
			t.Errorf("keys %v, want 1", keys)
		}
	}
	req, _ := http.NewRequest(http.MethodGet, srv.URL+"/healthz", nil)
	if _, v, _ := doJSON(t, srv, req); v["status"] != "ok" {
		t.Errorf("GET /healthz = %v, want ok", v)
	}
}

func TestIAMNeedsIssuerAndClient(t *testing.T) {
	for _, c := range []IAMConfig{
		{}, {Issuer: "http://x"}, {Issuer: "http://x", ClientID: "a"}, {ClientID: "a", ClientSecret: "b"},
	} {
		if _, err := NewIAM(c); err == nil {
			t.Errorf("the configuration %+v is accepted, want an error", c)
		}
	}
}
