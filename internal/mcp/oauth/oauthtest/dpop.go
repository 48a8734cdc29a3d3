package oauthtest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"sync"

	"github.com/golang-jwt/jwt/v5"
)

// proofs has the ids of the proofs that were seen. Each proof may be used once (RFC 9449 section 11.1).
var proofs sync.Map

// checkProof returns the thumbprint of proof's key, or an error code if proof is not valid for a request with this
// method, URL, token and nonce.
func checkProof(proof, method, at, token, nonce string) (thumbprint, code string) {
	claims := jwt.MapClaims{}
	_, err := jwt.ParseWithClaims(proof, claims, func(t *jwt.Token) (any, error) {
		jwk, _ := t.Header["jwk"].(map[string]any)
		x, errX := base64.RawURLEncoding.DecodeString(fmt.Sprint(jwk["x"]))
		y, errY := base64.RawURLEncoding.DecodeString(fmt.Sprint(jwk["y"]))
		if t.Header["typ"] != "dpop+jwt" || len(jwk) != 4 || errors.Join(errX, errY) != nil {
			return nil, errors.New("header")
		}
		sum := sha256.Sum256(fmt.Appendf(nil, `{"crv":"P-256","kty":"EC","x":%q,"y":%q}`, jwk["x"], jwk["y"])) // RFC 7638
		thumbprint = base64.RawURLEncoding.EncodeToString(sum[:])
		return ecdsa.ParseUncompressedPublicKey(elliptic.P256(), append(append([]byte{4}, x...), y...))
	}, jwt.WithValidMethods([]string{"ES256"}), jwt.WithIssuedAt())
	hash := sha256.Sum256([]byte(token))
	_, replayed := proofs.LoadOrStore(claims["jti"], true)
	switch {
	case err != nil, replayed, claims["htm"] != method, claims["htu"] != at,
		token != "" && claims["ath"] != base64.RawURLEncoding.EncodeToString(hash[:]):
		return "", "invalid_dpop_proof"
	case nonce != "" && claims["nonce"] != nonce:
		return "", "use_dpop_nonce"
	}
	return thumbprint, ""
}
