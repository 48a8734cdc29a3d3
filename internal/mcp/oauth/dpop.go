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
	proofAlgorithm = "ES256"
	maxNonce       = 1 << 10 // bytes; a longer one is ignored
	maxOrigins     = 16      // whose nonces are stored
	errorUseNonce  = "use_dpop_nonce"
)

// proofKey is the key pair that tokens are bound to (RFC 9449), and the servers' nonces. It
// lives as long as its Client, as the tokens do: neither leaves the process's memory.
type proofKey struct {
	key *ecdsa.PrivateKey
	jwk map[string]string

	mu     sync.Mutex        // protects nonces
	nonces map[string]string // by origin
}

// newProofKey generates a P-256 key.
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

// addProof sets r's DPoP header to a new proof (RFC 9449 section 4.2). token is the one that r
// carries; zero for a token request.
func (k *proofKey) addProof(r *http.Request, token auth.Secret) error {
	at := url.URL{Scheme: r.URL.Scheme, Host: r.URL.Host, Path: r.URL.Path, RawPath: r.URL.RawPath}
	claims := jwt.MapClaims{"jti": rand.Text(), "htm": r.Method, "htu": at.String(), "iat": time.Now().Unix()}
	if !token.IsZero() {
		sum := sha256.Sum256([]byte(token.Reveal()))
		claims["ath"] = base64.RawURLEncoding.EncodeToString(sum[:])
	}
	if nonce := k.nonceFor(r.URL); nonce != "" {
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

// nonceFor returns the nonce for the origin of u, "" if there is none.
func (k *proofKey) nonceFor(u *url.URL) string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.nonces[origin(u)]
}

// saveNonce stores the nonce of a reply for the next proof at its origin (RFC 9449 section
// 8.2). It reports whether the nonce is a new one: only then is it useful to send a refused
// request again.
func (k *proofKey) saveNonce(u *url.URL, h http.Header) bool {
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

// requiresNonce reports whether a token endpoint refused a request because the proof lacks its
// nonce (RFC 9449 section 8).
func requiresNonce(r fetch.Reply) bool {
	var w struct {
		Error string `json:"error"`
	}
	return r.Status == http.StatusBadRequest && json.Unmarshal(r.Body, &w) == nil && w.Error == errorUseNonce
}
