package auth

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

// Canaries: none of these may turn up in a log or in an error.
const (
	secretCanary = "s3cr:t %canary+é"
	tokenCanary  = "t0ken-canary"
	bodyCanary   = "b0dy-canary"
)

// Keys are made once: 2048 bits take a while under the race detector.
var (
	rsaKey   = sync.OnceValue(func() *rsa.PrivateKey { return makeRSA(2048) })
	rogueKey = sync.OnceValue(func() *rsa.PrivateKey { return makeRSA(2048) })
	smallKey = sync.OnceValue(func() *rsa.PrivateKey { return makeRSA(1024) })
	ecKey    = sync.OnceValue(func() *ecdsa.PrivateKey {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			panic(err)
		}
		return key
	})
)

func makeRSA(bits int) *rsa.PrivateKey {
	key, err := rsa.GenerateKey(rand.Reader, bits)
	if err != nil {
		panic(err)
	}
	return key
}

type fields = map[string]any

// iam is an issuer on a loopback port: /token, /jwks and the metadata, all replaceable.
type iam struct {
	*httptest.Server
	tokenCalls, keyCalls  atomic.Int64
	token, keys, metadata atomic.Pointer[http.HandlerFunc]
}

func newIAM(t testing.TB) *iam {
	i := &iam{}
	i.answerToken(`{"access_token":"`+tokenCanary+`","token_type":"Bearer","expires_in":3600}`, http.StatusOK)
	i.publish(rsaJWK("k1", &rsaKey().PublicKey), ecJWK("e1", &ecKey().PublicKey))
	mux := http.NewServeMux()
	mux.HandleFunc("POST /token", func(w http.ResponseWriter, r *http.Request) {
		i.tokenCalls.Add(1)
		(*i.token.Load())(w, r)
	})
	mux.HandleFunc("GET /jwks", func(w http.ResponseWriter, r *http.Request) {
		i.keyCalls.Add(1)
		(*i.keys.Load())(w, r)
	})
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		if h := i.metadata.Load(); h != nil {
			(*h)(w, r)
			return
		}
		http.NotFound(w, r)
	})
	i.Server = httptest.NewServer(mux)
	t.Cleanup(i.Close)
	return i
}

func (i *iam) handleToken(h http.HandlerFunc) { i.token.Store(&h) }
func (i *iam) handleKeys(h http.HandlerFunc)  { i.keys.Store(&h) }

func (i *iam) answerToken(body string, status int) {
	i.handleToken(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	})
}

func (i *iam) publish(keys ...fields) {
	body := jwks(keys...)
	i.handleKeys(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(body) })
}

// client is a ClientCredentials at i, and the log that it writes.
func (i *iam) client(t testing.TB, change func(*ClientCredentialsConfig)) (*ClientCredentials, *logBuffer) {
	t.Helper()
	logged := &logBuffer{}
	cfg := ClientCredentialsConfig{TokenURL: i.URL + "/token", ClientID: "me", Secret: Fixed(NewSecret(secretCanary)),
		Scope: "a b", Logger: logged.logger()}
	if change != nil {
		change(&cfg)
	}
	c, err := NewClientCredentials(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c, logged
}

// exchange is an Exchange at i, and the log that it writes.
func (i *iam) exchange(t testing.TB, change func(*ExchangeConfig)) (*Exchange, *logBuffer) {
	t.Helper()
	logged := &logBuffer{}
	cfg := ExchangeConfig{ClientCredentialsConfig: ClientCredentialsConfig{TokenURL: i.URL + "/token", ClientID: "me",
		Secret: Fixed(NewSecret(secretCanary)), Logger: logged.logger()}}
	if change != nil {
		change(&cfg)
	}
	e, err := NewExchange(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.Close)
	return e, logged
}

// ann and bob are callers with the token that they brought.
var (
	ann = Identity{Issuer: "https://iam.example", Subject: "ann", Token: NewSecret("brought-by-ann-" + tokenCanary)}
	bob = Identity{Issuer: "https://iam.example", Subject: "bob", Token: NewSecret("brought-by-bob-" + tokenCanary)}
)

// roundTrip is an HTTP transport without sockets, for tests whose time is fake.
type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func respond(status int, body string) *http.Response {
	return &http.Response{StatusCode: status, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(body))}
}

// logBuffer keeps what was logged, at every level.
type logBuffer struct {
	mu   sync.Mutex // protects text
	text bytes.Buffer
}

func (b *logBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *logBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

func (b *logBuffer) logger() *slog.Logger {
	return slog.New(slog.NewJSONHandler(b, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

// checkQuiet fails if a canary is in text, as it is or in the forms it is sent in.
func checkQuiet(t testing.TB, text string) {
	t.Helper()
	sent := base64.StdEncoding.EncodeToString([]byte("me:" + url.QueryEscape(secretCanary)))[:12]
	for _, canary := range []string{"s3cr", "canary", base64.StdEncoding.EncodeToString([]byte(secretCanary))[:12], sent} {
		if strings.Contains(text, canary) {
			t.Errorf("%q is in %q", canary, text)
		}
	}
}

func jwks(keys ...fields) []byte {
	body, err := json.Marshal(fields{"keys": keys})
	if err != nil {
		panic(err)
	}
	return body
}

func rsaJWK(kid string, key *rsa.PublicKey) fields {
	return fields{"kty": "RSA", "kid": kid, "n": b64(key.N.Bytes()), "e": "AQAB"}
}

func ecJWK(kid string, key *ecdsa.PublicKey) fields {
	point, err := key.Bytes()
	if err != nil {
		panic(err)
	}
	return fields{"kty": "EC", "crv": "P-256", "kid": kid, "alg": "ES256", "x": b64(point[1:33]), "y": b64(point[33:])}
}

func b64(b []byte) string { return base64.RawURLEncoding.EncodeToString(b) }

// goodHeader and goodClaims make a token that is good at a verifier of i; change
// drops members (nil) or sets them.
func goodHeader(change fields) string {
	return merged(fields{"alg": "RS256", "kid": "k1", "typ": "at+jwt"}, change)
}

func (i *iam) goodClaims(change fields) string { return claimsOf(i.URL, change) }

func claimsOf(issuer string, change fields) string {
	now := time.Now().Unix()
	return merged(fields{"iss": issuer, "aud": []string{"other", "answerd"}, "sub": "ann", "scope": "ask read",
		"exp": now + 300, "iat": now, "nbf": now}, change)
}

func merged(base, change fields) string {
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

// signRS256 makes a compact JWS by hand, so that it can be wrong in every way.
func signRS256(key *rsa.PrivateKey, header, claims string) string {
	text := b64([]byte(header)) + "." + b64([]byte(claims))
	digest := sha256.Sum256([]byte(text))
	signature, err := rsa.SignPKCS1v15(rand.Reader, key, crypto.SHA256, digest[:])
	if err != nil {
		panic(fmt.Errorf("sign: %w", err))
	}
	return text + "." + b64(signature)
}

func signES256(key *ecdsa.PrivateKey, header, claims string) string {
	text := b64([]byte(header)) + "." + b64([]byte(claims))
	digest := sha256.Sum256([]byte(text))
	r, s, err := ecdsa.Sign(rand.Reader, key, digest[:])
	if err != nil {
		panic(fmt.Errorf("sign: %w", err))
	}
	signature := make([]byte, 64)
	r.FillBytes(signature[:32])
	s.FillBytes(signature[32:])
	return text + "." + b64(signature)
}
