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
	maxNonce       = 1 << 10 // bytes; a longer nonce is ignored
	maxOrigins     = 16      // origins whose nonces are stored; one more drops them all
	errorUseNonce  = "use_dpop_nonce"
)

// proofKey is a key pair to which tokens are bound (RFC 9449).
type proofKey struct {
	key *ecdsa.PrivateKey // on P-256
	jwk map[string]string // the public key
}

// proofNonces has the latest nonce that each server requires in proofs. The zero value is ready to use.
type proofNonces struct {
	mu       sync.Mutex // protects byOrigin
	byOrigin map[string]string
}

// newProofKey generates a P-256 key.
func newProofKey() (*proofKey, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	return proofKeyOf(key)
}

// parseProofKey decodes a key that encode has encoded.
func parseProofKey(der []byte) (*proofKey, error) {
	key, err := x509.ParsePKCS8PrivateKey(der)
	if err != nil {
		return nil, err
	}
	private, ok := key.(*ecdsa.PrivateKey)
	if !ok || private.Curve != elliptic.P256() {
		return nil, errors.New("the key is not of P-256")
	}
	return proofKeyOf(private)
}

// encode returns the private key in PKCS #8. k may be nil, for bearer tokens; then encode returns nil.
func (k *proofKey) encode() ([]byte, error) {
	if k == nil {
		return nil, nil
	}
	return x509.MarshalPKCS8PrivateKey(k.key)
}

// proofKeyOf returns the proofKey with the private key key and its public key as a JWK (RFC 7518 section 6.2.1), which
// is in the header of each proof. key must be on P-256.
func proofKeyOf(key *ecdsa.PrivateKey) (*proofKey, error) {
	point, err := key.PublicKey.Bytes() // SEC 1: a byte 4, then x and y of 32 bytes each
	if err != nil {
		return nil, err
	}
	encode := base64.RawURLEncoding.EncodeToString
	return &proofKey{
		key: key,
		jwk: map[string]string{"kty": "EC", "crv": "P-256", "x": encode(point[1:33]), "y": encode(point[33:])},
	}, nil
}

// addProof sets r's DPoP header to a new proof (RFC 9449 section 4.2). token is the token that r carries; zero for a
// token request. nonce is the one that the server requires; "" for none.
//
// A proof is valid for one request: it has the method, the URL without query, and a jti that is never used again. So a
// request that is sent again needs a new proof. The proof also has the token's hash (ath), so that a stolen proof
// cannot be used with another token. A stolen token is useless without the key.
func (k *proofKey) addProof(r *http.Request, token auth.Secret, nonce string) error {
	target := url.URL{Scheme: r.URL.Scheme, Host: r.URL.Host, Path: r.URL.Path, RawPath: r.URL.RawPath}
	if target.Path == "" {
		target.Path = "/" // as net/http sends it
	}
	claims := jwt.MapClaims{"jti": rand.Text(), "htm": r.Method, "htu": target.String(), "iat": time.Now().Unix()}
	if !token.IsZero() {
		sum := sha256.Sum256([]byte(token.Reveal()))
		claims["ath"] = base64.RawURLEncoding.EncodeToString(sum[:])
	}
	if nonce != "" {
		claims["nonce"] = nonce
	}
	proof := jwt.NewWithClaims(jwt.SigningMethodES256, claims)
	proof.Header["typ"] = "dpop+jwt"
	proof.Header["jwk"] = k.jwk
	signed, err := proof.SignedString(k.key)
	if err != nil {
		return err
	}
	r.Header.Set("DPoP", signed)
	return nil
}

// get returns the latest nonce of the server at u's origin; "" if it has sent none.
func (n *proofNonces) get(u *url.URL) string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.byOrigin[origin(u)]
}

// save stores the nonce in h, the header of a reply from u, for the next proof at that origin (RFC 9449 section 8.2).
// sent is the nonce in the request's proof. save reports whether h has a nonce and it differs from sent: only then can
// sending a refused request again help.
func (n *proofNonces) save(u *url.URL, h http.Header, sent string) bool {
	nonce := h.Get("DPoP-Nonce")
	if nonce == "" || len(nonce) > maxNonce {
		return false
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	_, isKnown := n.byOrigin[origin(u)]
	isFull := !isKnown && len(n.byOrigin) >= maxOrigins
	if isFull || n.byOrigin == nil {
		n.byOrigin = map[string]string{}
	}
	n.byOrigin[origin(u)] = nonce
	return nonce != sent
}

// requiresNonce reports whether r, a reply of a token endpoint, refuses a request because its proof lacks the current
// nonce (RFC 9449 section 8).
func requiresNonce(r fetch.Reply) bool {
	var decoded struct {
		Error string `json:"error"`
	}
	return r.Status == http.StatusBadRequest && json.Unmarshal(r.Body, &decoded) == nil && decoded.Error == errorUseNonce
}
