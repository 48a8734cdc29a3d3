package demo

import (
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"math/big"

	"github.com/golang-jwt/jwt/v5"
)

// keyBits is the least that RFC 7518 section 3.3 allows for RS256.
const keyBits = 2048

// jwk is a public RSA key as RFC 7517 writes it.
type jwk struct {
	Kty string `json:"kty"`
	Use string `json:"use,omitempty"`
	Alg string `json:"alg,omitempty"`
	Kid string `json:"kid"`
	N   string `json:"n"`
	E   string `json:"e"`
}

// signingKey is the IAM's key and what it publishes of it.
type signingKey struct {
	private *rsa.PrivateKey
	public  jwk
}

// newSigningKey names the key by its thumbprint (RFC 7638), so that a restarted
// IAM's new key has a new kid and verifiers know that they must fetch it.
func newSigningKey() (*signingKey, error) {
	k, err := rsa.GenerateKey(rand.Reader, keyBits)
	if err != nil {
		return nil, err
	}
	b64 := base64.RawURLEncoding.EncodeToString
	n, e := b64(k.N.Bytes()), b64(big.NewInt(int64(k.E)).Bytes())
	thumbprint := sha256.Sum256(fmt.Appendf(nil, `{"e":%q,"kty":"RSA","n":%q}`, e, n))
	return &signingKey{k, jwk{Kty: "RSA", Use: "sig", Alg: "RS256", Kid: b64(thumbprint[:]), N: n, E: e}}, nil
}

// sign makes a compact JWS of claims. The typ is RFC 9068's, which keeps an access
// token from being taken for an ID token.
func (k *signingKey) sign(claims jwt.MapClaims) (string, error) {
	t := jwt.NewWithClaims(jwt.SigningMethodRS256, claims)
	t.Header["kid"] = k.public.Kid
	t.Header["typ"] = "at+jwt"
	return t.SignedString(k.private)
}
