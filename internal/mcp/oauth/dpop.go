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
	maxOrigins     = 16      // whose nonces are stored; for one more, all are dropped
	errorUseNonce  = "use_dpop_nonce"
)

// proofKey is the key pair that tokens are bound to (RFC 9449).
type proofKey struct {
	key *ecdsa.PrivateKey // of P-256
	jwk map[string]string // the public key
}

// proofNonces has the latest nonces that servers require in proofs. The zero value works.
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

// parseProofKey decodes a key that encode has returned.
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

// encode returns the private key in PKCS #8. k may be nil, for bearer tokens; then the result is nil.
func (k *proofKey) encode() ([]byte, error) {
	if k == nil {
		return nil, nil
	}
	return x509.MarshalPKCS8PrivateKey(k.key)
}

// proofKeyOf returns the pair of a private key of P-256 and its public key as a JWK (RFC 7518 section 6.2.1), which
// is in the header of each proof.
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

// addProof sets the DPoP header of the request r to a new proof (RFC 9449 section 4.2). token is the token that r
// carries; zero for a token request. nonce is the one that the server requires; "" for none.
//
// A proof is valid for one request: it has the method, the URL without query, and a jti that is never used again. So
// a request that is sent again needs a new proof. The proof also has the hash of the token (ath), so that a stolen
// proof cannot be used with another token. A stolen token is useless without the key.
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

// get returns the latest nonce of the server at the origin of u; "" if it has sent none.
func (n *proofNonces) get(u *url.URL) string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.byOrigin[origin(u)]
}

// save stores the nonce in the header h of a reply from u, if there is one, for the next proof at that origin (RFC
// 9449 section 8.2). sent is the nonce in the proof of the request. save reports whether the reply has a nonce that
// differs from sent: only then can it help to send a refused request again.
func (n *proofNonces) save(u *url.URL, h http.Header, sent string) bool {
	nonce := h.Get("DPoP-Nonce")
	if nonce == "" || len(nonce) > maxNonce {
		return false
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	at := origin(u)
	_, known := n.byOrigin[at]
	isFull := !known && len(n.byOrigin) >= maxOrigins
	if isFull || n.byOrigin == nil {
		n.byOrigin = map[string]string{}
	}
	n.byOrigin[at] = nonce
	return nonce != sent
}

// requiresNonce reports whether a token endpoint refused a request because its proof lacks the present nonce (RFC
// 9449 section 8).
func requiresNonce(r fetch.Reply) bool {
	var decoded struct {
		Error string `json:"error"`
	}
	return r.Status == http.StatusBadRequest && json.Unmarshal(r.Body, &decoded) == nil && decoded.Error == errorUseNonce
}
