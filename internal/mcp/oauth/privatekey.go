package oauth

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"strings"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"answerd/internal/auth/fetch"
)

const (
	assertionType = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"
	assertionLife = time.Minute
)

// assertion is a JWT that says that we are who (RFC 7523 section 2.2). Its audience is
// the issuer and nothing else (RFC 7523bis): one that was meant for another server is
// good there only.
func (c *Client) assertion(a *authority, who identity) (string, error) {
	text, err := c.cfg.PrivateKey.read("the private key")
	if err != nil {
		return "", err
	}
	key, method, err := ParsePrivateKey(text)
	if err != nil {
		return "", &fetch.Error{Public: err.Error()}
	}
	audience := a.issuer
	if audience == "" {
		audience = a.token
	}
	now := time.Now()
	signed, err := jwt.NewWithClaims(method, jwt.MapClaims{
		"iss": who.id, "sub": who.id, "aud": audience, "jti": rand.Text(),
		"iat": now.Unix(), "exp": now.Add(assertionLife).Unix(),
	}).SignedString(key)
	if err != nil {
		return "", wrong("the private key cannot sign")
	}
	return signed, nil
}

// ParsePrivateKey reads a key in PEM: PKCS #8, SEC 1 or PKCS #1, of RSA with 2048 bits or
// more, ECDSA over P-256, P-384 or P-521, or Ed25519. The error quotes nothing.
func ParsePrivateKey(text string) (crypto.Signer, jwt.SigningMethod, error) {
	block, _ := pem.Decode([]byte(strings.TrimSpace(text)))
	if block == nil {
		return nil, nil, wrong("the private key is not PEM")
	}
	var key any
	key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		if key, err = x509.ParseECPrivateKey(block.Bytes); err != nil {
			key, err = x509.ParsePKCS1PrivateKey(block.Bytes)
		}
	}
	if err != nil {
		return nil, nil, wrong("the private key cannot be read")
	}
	switch k := key.(type) {
	case *ecdsa.PrivateKey:
		methods := map[elliptic.Curve]jwt.SigningMethod{
			elliptic.P256(): jwt.SigningMethodES256, elliptic.P384(): jwt.SigningMethodES384, elliptic.P521(): jwt.SigningMethodES512,
		}
		if m := methods[k.Curve]; m != nil {
			return k, m, nil
		}
	case *rsa.PrivateKey:
		if k.N.BitLen() >= 2048 {
			return k, jwt.SigningMethodRS256, nil
		}
	case ed25519.PrivateKey:
		return k, jwt.SigningMethodEdDSA, nil
	}
	return nil, nil, wrong("the private key is of no kind that can be used")
}
