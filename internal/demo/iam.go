package demo

import (
	"cmp"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"math/big"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/golang-jwt/jwt/v5"
)

// TokenPath is the path of the token endpoint, as with an OCI identity domain.
const TokenPath = "/oauth2/v1/token"

// JWKSPath is the path of the public key.
const JWKSPath = "/.well-known/jwks.json"

// tokenLifetime is short, so that a longer demo renews its token.
const tokenLifetime = 5 * time.Minute

// IAMConfig configures the IAM and its one client. All strings are required.
type IAMConfig struct {
	Issuer                 string          // iss of the tokens and base of the advertised URLs
	ClientID, ClientSecret string          // credentials of the only client
	Key                    *rsa.PrivateKey // signs the tokens; nil means a new one, which takes about 0.1 s of CPU
	Logger                 *slog.Logger    // nil means no log; tokens and secrets are never logged
}

// IAM is an OAuth 2.0 authorization server for client credentials (RFC 6749 section 4.4). Each IAM gives its key a new
// id. A server that has fetched the keys of the current IAM therefore refuses tokens of an earlier one, even if both
// have the same key. An IAM does not store the tokens that it issues.
type IAM struct {
	http.Handler
	config IAMConfig
	keyID  string
}

// NewIAM returns an IAM with a new key id. It returns an error if the issuer, the client's id or the client's secret is
// empty, because anyone could send an empty secret, or if it cannot generate a key.
func NewIAM(c IAMConfig) (*IAM, error) {
	if c.Issuer == "" || c.ClientID == "" || c.ClientSecret == "" {
		return nil, errors.New("demo IAM: the issuer, the client's id and its secret are required")
	}
	c.Logger = cmp.Or(c.Logger, slog.New(slog.DiscardHandler))
	if c.Key == nil {
		key, err := rsa.GenerateKey(rand.Reader, 2048)
		if err != nil {
			return nil, fmt.Errorf("demo IAM: make the signing key: %w", err)
		}
		c.Key = key
	}
	mux := http.NewServeMux()
	m := &IAM{Handler: mux, config: c, keyID: rand.Text()}
	mux.HandleFunc("POST "+TokenPath, m.serveToken)
	mux.HandleFunc("GET "+JWKSPath, m.serveJWKS)
	mux.HandleFunc("GET /.well-known/openid-configuration", m.serveMetadata)
	mux.HandleFunc("GET /.well-known/oauth-authorization-server", m.serveMetadata)
	mux.HandleFunc("GET /healthz", serveHealth)
	return m, nil
}

// serveToken serves the token endpoint. It authenticates the client before it checks the grant and the scope, so that
// clients without the credentials do not learn which ones are supported.
func (m *IAM) serveToken(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Cache-Control", "no-store") // RFC 6749 section 5.1
	refuse := func(status int, code, description string) {
		writeJSON(w, status, map[string]string{"error": code, "error_description": description})
	}
	if !m.isClient(r) {
		w.Header().Set("WWW-Authenticate", `Basic realm="demo-iam", charset="UTF-8"`)
		refuse(http.StatusUnauthorized, "invalid_client", "client authentication failed")
		return
	}
	r.Body = http.MaxBytesReader(w, r.Body, 16<<10)
	err := r.ParseForm()
	form := r.PostForm // without the parameters of the URL (RFC 6749 section 3.2)
	grant := form.Get("grant_type")
	isRepeated := len(form["grant_type"]) > 1 || len(form["scope"]) > 1
	switch {
	case err != nil || grant == "" || isRepeated:
		refuse(http.StatusBadRequest, "invalid_request", "the body must be a form with one grant_type and at most one scope")
	case grant != "client_credentials":
		refuse(http.StatusBadRequest, "unsupported_grant_type", "only client_credentials is supported")
	case form.Get("scope") != "" && form.Get("scope") != Scope:
		refuse(http.StatusBadRequest, "invalid_scope", "the client may not ask for this scope")
	default:
		m.issueToken(w)
	}
}

// isClient reports whether the request has the client's credentials, sent by HTTP Basic (RFC 6749 section 2.3.1).
func (m *IAM) isClient(r *http.Request) bool {
	id, secret, ok := r.BasicAuth()
	return ok && sameCredential(id, m.config.ClientID) && sameCredential(secret, m.config.ClientSecret)
}

// sameCredential reports whether encoded is the form-encoded value of want. OAuth clients form-encode their id and
// secret for HTTP Basic (RFC 6749 section 2.3.1). It compares digests in constant time, so that the time reveals
// neither the content nor the length of want.
func sameCredential(encoded, want string) bool {
	got, err := url.QueryUnescape(encoded)
	if err != nil {
		return false
	}
	gotDigest, wantDigest := sha256.Sum256([]byte(got)), sha256.Sum256([]byte(want))
	return subtle.ConstantTimeCompare(gotDigest[:], wantDigest[:]) == 1
}

// issueToken responds with a new token, which has the claims of RFC 9068 section 2.2.
func (m *IAM) issueToken(w http.ResponseWriter) {
	now := time.Now()
	signed, err := m.signClaims(jwt.MapClaims{
		"iss": m.config.Issuer, "aud": Audience, "sub": m.config.ClientID, "client_id": m.config.ClientID, "scope": Scope,
		"iat": now.Unix(), "nbf": now.Unix(), "exp": now.Add(tokenLifetime).Unix(), "jti": rand.Text(),
	})
	if err != nil {
		http.Error(w, "the token cannot be signed", http.StatusInternalServerError)
		return
	}
	m.config.Logger.Info("token issued", "client_id", m.config.ClientID)
	writeJSON(w, http.StatusOK, map[string]any{
		"access_token": signed, "token_type": "Bearer", "expires_in": int(tokenLifetime / time.Second), "scope": Scope,
	})
}

// signClaims returns a signed JWT with claims and with the type of an access token, at+jwt (RFC 9068 section 2.1).
func (m *IAM) signClaims(claims jwt.MapClaims) (string, error) {
	t := jwt.NewWithClaims(jwt.SigningMethodRS256, claims)
	t.Header["kid"] = m.keyID
	t.Header["typ"] = "at+jwt"
	return t.SignedString(m.config.Key)
}

// serveJWKS publishes the public key (RFC 7517).
func (m *IAM) serveJWKS(w http.ResponseWriter, _ *http.Request) {
	b64 := base64.RawURLEncoding.EncodeToString
	writeJSON(w, http.StatusOK, map[string]any{"keys": []any{map[string]string{
		"kty": "RSA", "use": "sig", "alg": "RS256", "kid": m.keyID,
		"n": b64(m.config.Key.N.Bytes()), "e": b64(big.NewInt(int64(m.config.Key.E)).Bytes()),
	}}})
}

// serveMetadata serves the authorization server metadata (RFC 8414). Clients may ask for it at the well-known URL of
// RFC 8414 or of OpenID Connect Discovery.
func (m *IAM) serveMetadata(w http.ResponseWriter, _ *http.Request) {
	base := strings.TrimSuffix(m.config.Issuer, "/")
	writeJSON(w, http.StatusOK, map[string]any{
		"issuer": m.config.Issuer, "token_endpoint": base + TokenPath, "jwks_uri": base + JWKSPath,
		"grant_types_supported": []string{"client_credentials"}, "token_endpoint_auth_methods_supported": []string{"client_secret_basic"},
		"scopes_supported": []string{Scope}, "response_types_supported": []string{},
	})
}
