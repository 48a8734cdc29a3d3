package oauth

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
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

// proofKey is the key pair that tokens are bound to (RFC 9449).
type proofKey struct {
	key *ecdsa.PrivateKey
	jwk map[string]string
}

// proofNonces has the nonces that servers require in proofs. The zero value works.
type proofNonces struct {
	mu  sync.Mutex        // protects all
	all map[string]string // by origin
}

// newProofKey generates a P-256 key.
func newProofKey() (*proofKey, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	return proofKeyOf(key)
}

// parseProofKey reads a key that encode has written.
func parseProofKey(der []byte) (*proofKey, error) {
	key, err := x509.ParsePKCS8PrivateKey(der)
	if err != nil {
		return nil, err
	}
	pair, ok := key.(*ecdsa.PrivateKey)
	if !ok || pair.Curve != elliptic.P256() {
		return nil, errors.New("the key is not of P-256")
	}
	return proofKeyOf(pair)
}

// encode returns the key in PKCS #8; nil for none.
func (k *proofKey) encode() ([]byte, error) {
	if k == nil {
		return nil, nil
	}
	return x509.MarshalPKCS8PrivateKey(k.key)
}

// proofKeyOf returns the pair with its public key as a JWK (RFC 7518 section 6.2.1), which is in the
// header of each proof.
func proofKeyOf(key *ecdsa.PrivateKey) (*proofKey, error) {
	point, err := key.PublicKey.Bytes() // 4, x, y (SEC 1)
	if err != nil {
		return nil, err
	}
	b64 := base64.RawURLEncoding.EncodeToString
	return &proofKey{
		key: key,
		jwk: map[string]string{"kty": "EC", "crv": "P-256", "x": b64(point[1:33]), "y": b64(point[33:])},
	}, nil
}

// addProof sets r's DPoP header to a new proof (RFC 9449 section 4.2). token is the one that r
// carries; zero for a token request. nonce is the server's; "" for none.
//
// A proof is valid for one request: method, URL without query, and a jti that is never used again. It
// names the hash of the token (ath), so someone who got hold of a proof cannot use it with another
// token; and a stolen token is useless without the key. So a request that is sent again needs a new
// proof, although everything else of it stays.
func (k *proofKey) addProof(r *http.Request, token auth.Secret, nonce string) error {
	at := url.URL{Scheme: r.URL.Scheme, Host: r.URL.Host, Path: r.URL.Path, RawPath: r.URL.RawPath}
	if at.Path == "" {
		at.Path = "/" // as net/http sends it
	}
	claims := jwt.MapClaims{"jti": rand.Text(), "htm": r.Method, "htu": at.String(), "iat": time.Now().Unix()}
	if !token.IsZero() {
		sum := sha256.Sum256([]byte(token.Reveal()))
		claims["ath"] = base64.RawURLEncoding.EncodeToString(sum[:])
	}
	if nonce != "" {
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

// get returns the nonce for the origin of u, "" if there is none.
func (n *proofNonces) get(u *url.URL) string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.all[origin(u)]
}

// save stores the nonce of a reply for the next proof at its origin (RFC 9449 section 8.2). It reports
// whether it is another one than the proof of the request had: only then is it useful to send a refused
// request again. Another request may have stored the same nonce meanwhile.
func (n *proofNonces) save(u *url.URL, h http.Header, sent string) bool {
	nonce := h.Get("DPoP-Nonce")
	if nonce == "" || len(nonce) > maxNonce {
		return false
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	at := origin(u)
	_, known := n.all[at]
	isFull := !known && len(n.all) >= maxOrigins
	if isFull || n.all == nil {
		n.all = map[string]string{}
	}
	n.all[at] = nonce
	return nonce != sent
}

// requiresNonce reports whether a token endpoint refused a request because the proof lacks its
// nonce (RFC 9449 section 8).
func requiresNonce(r fetch.Reply) bool {
	var w struct {
		Error string `json:"error"`
	}
	return r.Status == http.StatusBadRequest && json.Unmarshal(r.Body, &w) == nil && w.Error == errorUseNonce
}
