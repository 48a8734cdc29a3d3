package oauth

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"net/url"
	"sync"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"answerd/internal/auth"
	"answerd/internal/auth/fetch"
)

const (
	proofAlg   = "ES256"
	maxNonce   = 1 << 10 // bytes; a longer one is not kept
	maxOrigins = 16      // whose nonces are kept
	useNonce   = "use_dpop_nonce"
)

// proofKey is the key that tokens are bound to (RFC 9449). It lives as long as its
// Client, as the tokens do: neither leaves the process's memory.
type proofKey struct {
	key *ecdsa.PrivateKey
	jwk map[string]string

	mu     sync.Mutex // protects nonces
	nonces map[string]string
}

func newProofKey() (*proofKey, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	point, err := key.PublicKey.Bytes() // 4, x, y (SEC 1)
	if err != nil {
		return nil, err
	}
	b64 := base64.RawURLEncoding.EncodeToString
	return &proofKey{
		key: key, nonces: map[string]string{},
		jwk: map[string]string{"kty": "EC", "crv": "P-256", "x": b64(point[1:33]), "y": b64(point[33:])},
	}, nil
}

// prove sets r's DPoP header: a new proof for every request (section 4.2). token is the
// one that r carries; zero for a token request.
func (k *proofKey) prove(r *http.Request, token auth.Secret) error {
	at := url.URL{Scheme: r.URL.Scheme, Host: r.URL.Host, Path: r.URL.Path, RawPath: r.URL.RawPath}
	claims := jwt.MapClaims{"jti": rand.Text(), "htm": r.Method, "htu": at.String(), "iat": time.Now().Unix()}
	if !token.IsZero() {
		sum := sha256.Sum256([]byte(token.Reveal()))
		claims["ath"] = base64.RawURLEncoding.EncodeToString(sum[:])
	}
	if nonce := k.nonce(r.URL); nonce != "" {
		claims["nonce"] = nonce
	}
	t := jwt.NewWithClaims(jwt.SigningMethodES256, claims)
	t.Header["typ"], t.Header["jwk"] = "dpop+jwt", k.jwk
	proof, err := t.SignedString(k.key)
	if err != nil {
		return err
	}
	r.Header.Set("DPoP", proof)
	return nil
}

func (k *proofKey) nonce(u *url.URL) string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.nonces[origin(u)]
}

// hear keeps the nonce of a reply for the next proof at its origin (section 8.2), and
// reports whether it is another one than before: only then is a refused request sent
// again.
func (k *proofKey) hear(u *url.URL, h http.Header) bool {
	nonce := h.Get("DPoP-Nonce")
	if nonce == "" || len(nonce) > maxNonce {
		return false
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	at := origin(u)
	if k.nonces[at] == nonce {
		return false
	}
	if len(k.nonces) >= maxOrigins {
		clear(k.nonces)
	}
	k.nonces[at] = nonce
	return true
}

// wantsNonce reports whether a token endpoint refused a request for want of its nonce
// (section 8).
func wantsNonce(r fetch.Reply) bool {
	var w struct {
		Error string `json:"error"`
	}
	return r.Status == http.StatusBadRequest && json.Unmarshal(r.Body, &w) == nil && w.Error == useNonce
}
