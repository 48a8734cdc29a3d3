// Package authtest has fixtures for the tests of auth and auth/token: an identity provider on a loopback port, signed
// tokens with any content, and a log that can be searched for secrets.
//
//	iam := authtest.NewIAM(t)
//	iam.AnswerToken(`{"access_token":"x","expires_in":60}`, http.StatusOK)
//	token := authtest.SignRS256(authtest.RSAKey(), authtest.HeaderJSON(nil), iam.ClaimsJSON(nil))
//
// NewIAM closes the server when the test ends. Its handlers may be replaced while requests are in flight.
package authtest

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// The canaries serve as secrets in tests. None of them may occur in a log or in an error.
const (
	SecretCanary = "s3cr:t %canary+é"
	TokenCanary  = "t0ken-canary"
	BodyCanary   = "b0dy-canary"
)

// The keys are generated only once, because that is slow with the race detector.
var (
	RSAKey      = sync.OnceValue(func() *rsa.PrivateKey { return newRSAKey(2048) })
	OtherRSAKey = sync.OnceValue(func() *rsa.PrivateKey { return newRSAKey(2048) })
	ShortRSAKey = sync.OnceValue(func() *rsa.PrivateKey { return newRSAKey(1024) })
	ECKey       = sync.OnceValue(func() *ecdsa.PrivateKey {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			panic(err)
		}
		return key
	})
)

// newRSAKey generates an RSA key of the given size. It panics if that fails.
func newRSAKey(bits int) *rsa.PrivateKey {
	key, err := rsa.GenerateKey(rand.Reader, bits)
	if err != nil {
		panic(err)
	}
	return key
}

// JSON is a JSON object.
type JSON = map[string]any

// IAM is an issuer on a loopback port. It serves /token, /jwks and its metadata, with handlers that tests can replace.
type IAM struct {
	*httptest.Server
	TokenRequests, KeyRequests atomic.Int64 // numbers of requests so far
	token, keys, metadata      atomic.Pointer[http.HandlerFunc]
}

// NewIAM starts an IAM that issues one token, TokenCanary, and publishes RSAKey as "k1" and ECKey as "e1".
func NewIAM(t testing.TB) *IAM {
	i := &IAM{}
	i.AnswerToken(`{"access_token":"`+TokenCanary+`","token_type":"Bearer","expires_in":3600}`, http.StatusOK)
	i.PublishKeys(RSAJWK("k1", &RSAKey().PublicKey), ECJWK("e1", &ECKey().PublicKey))
	i.HandleMetadata(http.NotFound)
	mux := http.NewServeMux()
	mux.HandleFunc("POST /token", func(w http.ResponseWriter, r *http.Request) {
		i.TokenRequests.Add(1)
		(*i.token.Load())(w, r)
	})
	mux.HandleFunc("GET /jwks", func(w http.ResponseWriter, r *http.Request) {
		i.KeyRequests.Add(1)
		(*i.keys.Load())(w, r)
	})
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) { (*i.metadata.Load())(w, r) })
	i.Server = httptest.NewServer(mux)
	t.Cleanup(i.Close)
	return i
}

// HandleToken replaces the handler of /token.
func (i *IAM) HandleToken(h http.HandlerFunc) { i.token.Store(&h) }

// HandleKeys replaces the handler of /jwks.
func (i *IAM) HandleKeys(h http.HandlerFunc) { i.keys.Store(&h) }

// HandleMetadata replaces the handler of every other path.
func (i *IAM) HandleMetadata(h http.HandlerFunc) { i.metadata.Store(&h) }

// AnswerToken makes /token respond with body and status.
func (i *IAM) AnswerToken(body string, status int) {
	i.HandleToken(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	})
}

// PublishKeys replaces the key set.
func (i *IAM) PublishKeys(keys ...JSON) {
	body := JWKS(keys...)
	i.HandleKeys(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(body) })
}

// RoundTripFunc is an HTTP transport without sockets. Tests with fake time need it, because sockets would stop the fake
// time.
type RoundTripFunc func(*http.Request) (*http.Response, error)

// RoundTrip implements http.RoundTripper.
func (f RoundTripFunc) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// Response returns a response without headers.
func Response(status int, body string) *http.Response {
	return &http.Response{StatusCode: status, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(body))}
}

// LogBuffer stores everything that is logged, at every level.
type LogBuffer struct {
	mu   sync.Mutex // protects text
	text bytes.Buffer
}

// Write implements io.Writer.
func (b *LogBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

// String returns the log so far.
func (b *LogBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

// Logger returns a logger that writes to b.
func (b *LogBuffer) Logger() *slog.Logger {
	return slog.New(slog.NewJSONHandler(b, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

// CheckNoCanary fails the test if a canary occurs in text, either in clear or in the encoding in which it is sent.
func CheckNoCanary(t testing.TB, text string) {
	t.Helper()
	sent := base64.StdEncoding.EncodeToString([]byte("me:" + url.QueryEscape(SecretCanary)))[:12]
	for _, canary := range []string{"s3cr", "canary", base64.StdEncoding.EncodeToString([]byte(SecretCanary))[:12], sent} {
		if strings.Contains(text, canary) {
			t.Errorf("%q occurs in %q, want no secret in it", canary, text)
		}
	}
}

// JWKS returns a JSON Web Key Set (RFC 7517 section 5).
func JWKS(keys ...JSON) []byte {
	body, err := json.Marshal(JSON{"keys": keys})
	if err != nil {
		panic(err)
	}
	return body
}

// RSAJWK returns the public key as a JWK (RFC 7518 section 6.3). The key's exponent must be 65537.
func RSAJWK(kid string, key *rsa.PublicKey) JSON {
	return JSON{"kty": "RSA", "kid": kid, "n": Base64(key.N.Bytes()), "e": "AQAB"}
}

// ECJWK returns the public P-256 key as a JWK for ES256 (RFC 7518 section 6.2).
func ECJWK(kid string, key *ecdsa.PublicKey) JSON {
	point, err := key.Bytes()
	if err != nil {
		panic(err)
	}
	return JSON{"kty": "EC", "crv": "P-256", "kid": kid, "alg": "ES256", "x": Base64(point[1:33]), "y": Base64(point[33:])}
}

// Base64 returns b in base64url without padding.
func Base64(b []byte) string { return base64.RawURLEncoding.EncodeToString(b) }

// HeaderJSON returns the header of a token signed with RSAKey. change has members to set. A nil value removes the
// member.
func HeaderJSON(change JSON) string {
	return mergeJSON(JSON{"alg": "RS256", "kid": "k1", "typ": "at+jwt"}, change)
}

// ClaimsJSON returns the claims of a valid token issued by i, with the changes as in HeaderJSON.
func (i *IAM) ClaimsJSON(change JSON) string { return ClaimsOf(i.URL, change) }

// ClaimsOf returns the claims of a valid token issued by issuer, with the changes as in HeaderJSON.
func ClaimsOf(issuer string, change JSON) string {
	now := time.Now().Unix()
	return mergeJSON(JSON{"iss": issuer, "aud": []string{"other", "answerd"}, "sub": "ann", "scope": "ask read",
		"exp": now + 300, "iat": now, "nbf": now}, change)
}

// mergeJSON sets the members of change in base, and returns the result as JSON. A nil value removes the member.
func mergeJSON(base, change JSON) string {
	for name, value := range change {
		base[name] = value
		if value == nil {
			delete(base, name)
		}
	}
	text, err := json.Marshal(base)
	if err != nil {
		panic(err)
	}
	return string(text)
}

// SignRS256 returns a compact JWS (RFC 7515 section 7.1). It does not check header and claims, so that tests can create
// invalid tokens.
func SignRS256(key *rsa.PrivateKey, header, claims string) string {
	text := Base64([]byte(header)) + "." + Base64([]byte(claims))
	digest := sha256.Sum256([]byte(text))
	signature, err := rsa.SignPKCS1v15(rand.Reader, key, crypto.SHA256, digest[:])
	if err != nil {
		panic(fmt.Errorf("sign: %w", err))
	}
	return text + "." + Base64(signature)
}

// SignES256 is like SignRS256, but signs with an ECDSA key.
func SignES256(key *ecdsa.PrivateKey, header, claims string) string {
	text := Base64([]byte(header)) + "." + Base64([]byte(claims))
	digest := sha256.Sum256([]byte(text))
	r, s, err := ecdsa.Sign(rand.Reader, key, digest[:])
	if err != nil {
		panic(fmt.Errorf("sign: %w", err))
	}
	signature := make([]byte, 64)
	r.FillBytes(signature[:32])
	s.FillBytes(signature[32:])
	return text + "." + Base64(signature)
}

// Advance waits until d has passed in the fake time of a synctest bubble.
func Advance(d time.Duration) { <-time.After(d) }
