package api_test

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"encoding/base64"
	"encoding/json"
	"maps"
	"math/big"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"answerd/internal/auth"
)

// mint is an IAM with keys of every kind, and an attacker whose address tokens name.
type mint struct {
	mintKeys
	url      string // of the key set
	attacker *httptest.Server
	attacked atomic.Int64 // requests that the attacker got
	fetched  atomic.Int64 // of the keys
}

type mintKeys struct {
	rsa, small, rogue *rsa.PrivateKey
	ec                *ecdsa.PrivateKey
	ed                ed25519.PrivateKey
}

// keysOnce makes the keys of all mints: three of RSA take the better part of a second.
var keysOnce = sync.OnceValue(func() (k mintKeys) {
	var err error
	for to, bits := range map[**rsa.PrivateKey]int{&k.rsa: 2048, &k.rogue: 2048, &k.small: 1024} {
		if *to, err = rsa.GenerateKey(rand.Reader, bits); err != nil {
			panic(err)
		}
	}
	if k.ec, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
		panic(err)
	}
	if _, k.ed, err = ed25519.GenerateKey(rand.Reader); err != nil {
		panic(err)
	}
	return k
})

type fields = map[string]any

func base64URL(b []byte) string { return base64.RawURLEncoding.EncodeToString(b) }

func rsaJWK(kid string, key *rsa.PrivateKey) fields {
	return fields{"kty": "RSA", "kid": kid, "n": base64URL(key.N.Bytes()), "e": base64URL(big.NewInt(int64(key.E)).Bytes())}
}

func newMint(t *testing.T) *mint {
	t.Helper()
	m := &mint{mintKeys: keysOnce()}
	point, err := m.ec.PublicKey.Bytes()
	if err != nil {
		t.Fatal(err)
	}
	keys, err := json.Marshal(fields{"keys": []fields{
		rsaJWK("r", m.rsa), rsaJWK("small", m.small), mergeFields(rsaJWK("ps", m.rsa), fields{"alg": "PS256"}), {"kty": "EC", "crv": "P-256", "kid": "e", "x": base64URL(point[1:33]), "y": base64URL(point[33:])},
		{"kty": "OKP", "crv": "Ed25519", "kid": "o", "x": base64URL(m.ed.Public().(ed25519.PublicKey))},
	}})
	if err != nil {
		t.Fatal(err)
	}
	iam := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		m.fetched.Add(1)
		_, _ = w.Write(keys)
	}))
	t.Cleanup(iam.Close)
	rogue, err := json.Marshal(fields{"keys": []fields{rsaJWK("r", m.rogue)}})
	if err != nil {
		t.Fatal(err)
	}
	m.attacker = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		m.attacked.Add(1)
		_, _ = w.Write(rogue)
	}))
	t.Cleanup(m.attacker.Close)
	m.url = iam.URL
	return m
}

// sign makes a token of these changes of a good header and good claims; nil drops one.
func (m *mint) sign(method jwt.SigningMethod, key crypto.PrivateKey, header, claims fields) string {
	now := time.Now().Unix()
	h := fields{"alg": method.Alg(), "kid": "r", "typ": "at+jwt"}
	c := fields{"iss": "https://iam.example", "aud": []string{"other", "answerd"}, "sub": "ada", "scope": "ask read", "iat": now, "nbf": now, "exp": now + 300}
	for base, change := range map[*fields]fields{&h: header, &c: claims} {
		maps.Copy(*base, change)
		maps.DeleteFunc(*base, func(_ string, v any) bool { return v == nil })
	}
	return m.signRaw(method, key, jsonText(h), jsonText(c))
}

func jsonText(f fields) string {
	b, err := json.Marshal(f)
	if err != nil {
		panic(err)
	}
	return string(b)
}

func (m *mint) signRaw(method jwt.SigningMethod, key crypto.PrivateKey, header, claims string) string {
	signed := base64URL([]byte(header)) + "." + base64URL([]byte(claims))
	signature, err := method.Sign(signed, key)
	if err != nil {
		panic(err)
	}
	return signed + "." + base64URL(signature)
}

// validToken returns a token that is valid except for the changes.
func (m *mint) validToken(header, claims fields) string {
	return m.sign(jwt.SigningMethodRS256, m.rsa, header, claims)
}

// bearerToken returns the Authorization header with a valid token of that subject.
func (m *mint) bearerToken(subject string) string {
	return "Bearer " + m.validToken(nil, fields{"sub": subject})
}

// newVerifier returns a verifier that accepts the tokens of m with scope "ask".
func (m *mint) newVerifier(t *testing.T, change func(*auth.VerifierConfig)) *auth.Verifier {
	t.Helper()
	c := auth.VerifierConfig{
		Issuer: "https://iam.example", Audience: "answerd", JWKSURL: m.url, Scope: "ask", Algorithms: []string{"RS256", "ES256", "EdDSA"},
	}
	if change != nil {
		change(&c)
	}
	v, err := auth.NewVerifier(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(v.Close)
	return v
}
