package demo

import (
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// The IAM's paths. TokenPath and SigningCertPath are those of an OCI identity domain.
const (
	TokenPath       = "/oauth2/v1/token"
	JWKSPath        = "/.well-known/jwks.json"
	SigningCertPath = "/admin/v1/SigningCert/jwk"
)

// IAMConfig says whom the IAM knows and what it issues.
type IAMConfig struct {
	Issuer       string        // iss of the tokens and base of the advertised URLs; required
	Audience     string        // aud of the tokens; "" is DefaultAudience
	ClientID     string        // the one client; required
	ClientSecret string        // its secret; required
	Scope        string        // what the client may ask for, separated by spaces; "" is DefaultScope
	Lifetime     time.Duration // of a token; 0 is five minutes, so that a longer demo sees refreshes
	Logger       *slog.Logger  // nil discards; tokens and secrets are never logged
}

// IAM is an OAuth 2.0 authorization server for client credentials (RFC 6749 section
// 4.4). Its key lives as long as the process: after a restart old tokens are void.
type IAM struct {
	config IAMConfig
	key    *signingKey
	client [2][32]byte // digests of the client's id and secret
	mux    *http.ServeMux
}

// NewIAM makes the signing key, which takes a moment, and refuses a configuration
// that would issue tokens to anybody.
func NewIAM(c IAMConfig) (*IAM, error) {
	switch {
	case c.Issuer == "":
		return nil, errors.New("demo IAM: the issuer is missing")
	case c.ClientID == "" || c.ClientSecret == "":
		return nil, errors.New("demo IAM: the client's id or secret is missing")
	case c.Lifetime < 0:
		return nil, errors.New("demo IAM: the tokens' lifetime is negative")
	}
	if c.Audience == "" {
		c.Audience = DefaultAudience
	}
	if c.Scope == "" {
		c.Scope = DefaultScope
	}
	if c.Lifetime == 0 {
		c.Lifetime = 5 * time.Minute
	}
	c.Logger = logger(c.Logger)
	key, err := newSigningKey()
	if err != nil {
		return nil, fmt.Errorf("demo IAM: make the signing key: %w", err)
	}
	m := &IAM{config: c, key: key, mux: http.NewServeMux()}
	m.client = [2][32]byte{sha256.Sum256([]byte(c.ClientID)), sha256.Sum256([]byte(c.ClientSecret))}
	m.mux.HandleFunc("POST "+TokenPath, m.token)
	m.mux.HandleFunc("GET "+JWKSPath, m.jwks)
	m.mux.HandleFunc("GET "+SigningCertPath, m.jwks)
	m.mux.HandleFunc("GET /.well-known/openid-configuration", m.metadata)
	m.mux.HandleFunc("GET /.well-known/oauth-authorization-server", m.metadata)
	m.mux.HandleFunc("GET /healthz", healthz)
	return m, nil
}

// ServeHTTP implements http.Handler.
func (m *IAM) ServeHTTP(w http.ResponseWriter, r *http.Request) { m.mux.ServeHTTP(w, r) }

// isClient checks HTTP Basic client authentication. RFC 6749 section 2.3.1 has id
// and secret form-encoded before they are joined, so they are decoded here. Digests
// are compared, in constant time, so that neither content nor length leaks.
func (m *IAM) isClient(r *http.Request) bool {
	id, secret, ok := r.BasicAuth()
	if !ok {
		return false
	}
	id, errID := url.QueryUnescape(id)
	secret, errSecret := url.QueryUnescape(secret)
	if errID != nil || errSecret != nil {
		return false
	}
	gotID, gotSecret := sha256.Sum256([]byte(id)), sha256.Sum256([]byte(secret))
	same := subtle.ConstantTimeCompare(gotID[:], m.client[0][:]) & subtle.ConstantTimeCompare(gotSecret[:], m.client[1][:])
	return same == 1
}

// jwks publishes the key. The age is short against the key's life and long against
// that of a token.
func (m *IAM) jwks(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Cache-Control", "public, max-age=300")
	writeJSON(w, http.StatusOK, map[string]any{"keys": []jwk{m.key.public}})
}

// metadata is RFC 8414 and OpenID discovery at once: the fields agree.
func (m *IAM) metadata(w http.ResponseWriter, _ *http.Request) {
	base := strings.TrimSuffix(m.config.Issuer, "/")
	writeJSON(w, http.StatusOK, map[string]any{
		"issuer":                                m.config.Issuer,
		"token_endpoint":                        base + TokenPath,
		"jwks_uri":                              base + JWKSPath,
		"grant_types_supported":                 []string{"client_credentials"},
		"token_endpoint_auth_methods_supported": []string{"client_secret_basic"},
		"scopes_supported":                      strings.Fields(m.config.Scope),
		"response_types_supported":              []string{},
		"subject_types_supported":               []string{"public"},
		"id_token_signing_alg_values_supported": []string{"RS256"},
	})
}
