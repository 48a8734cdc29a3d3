package auth

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rsa"
	"encoding/base64"
	"errors"
	"math/big"
	"slices"
	"strings"
)

// Bounds of a key set. Nothing here is an operator's choice: an issuer beyond them is
// broken, or is not the issuer.
const (
	maxKeys    = 32
	minRSABits = 2048 // RFC 7518 section 3.3
	maxRSABits = 8192 // verifying gets slow beyond
	maxKeyID   = 128  // bytes of a kid
)

var errKeySet = errors.New("not a JSON Web Key Set of at most 32 keys")

// publicKey is one key of the issuer.
type publicKey struct {
	id  string // its kid, may be ""
	alg string // the one algorithm that it is for; "" leaves it to the key's type
	key crypto.PublicKey
}

// fits reports whether a signature by alg may be checked with k. The key decides,
// not the token: otherwise a public RSA key serves as an HMAC secret that everybody
// knows (RFC 8725 section 3.1).
func (k publicKey) fits(alg string) bool {
	if k.alg != "" && k.alg != alg {
		return false
	}
	switch key := k.key.(type) {
	case *rsa.PublicKey:
		return strings.HasPrefix(alg, "RS") || strings.HasPrefix(alg, "PS")
	case *ecdsa.PublicKey: // RFC 7518 section 3.4: one curve per algorithm
		return alg == map[elliptic.Curve]string{elliptic.P256(): "ES256", elliptic.P384(): "ES384", elliptic.P521(): "ES512"}[key.Curve]
	case ed25519.PublicKey:
		return alg == "EdDSA"
	}
	return false
}

// parseKeySet reads a JSON Web Key Set (RFC 7517 section 5). Keys that we can't use or
// that aren't for signatures are left out; a set in which none is left is an error.
func parseKeySet(body []byte) ([]publicKey, error) {
	set, err := parseObject(body)
	if err != nil {
		return nil, errKeySet
	}
	list, err := set.objects("keys")
	if err != nil || len(list) > maxKeys {
		return nil, errKeySet
	}
	var keys []publicKey
	for _, o := range list {
		if k, ok := parseKey(o); ok {
			keys = append(keys, k)
		}
	}
	if len(keys) == 0 {
		return nil, errors.New("no key that can be used")
	}
	return keys, nil
}

// parseKey reads one key (RFC 7517 section 4); ok is false if it is of no use here. A
// key that is not meant for signatures must not check any (sections 4.2 and 4.3).
func parseKey(o object) (k publicKey, ok bool) {
	var kty, use string
	var err error
	for name, to := range map[string]*string{"kty": &kty, "use": &use, "alg": &k.alg, "kid": &k.id} {
		if *to, err = o.text(name); err != nil {
			return k, false
		}
	}
	ops, err := o.texts("key_ops")
	if err != nil || o.has("key_ops") && !slices.Contains(ops, "verify") || use != "" && use != "sig" || len(k.id) > maxKeyID {
		return k, false
	}
	switch kty {
	case "RSA":
		k.key, ok = o.rsaKey()
	case "EC":
		k.key, ok = o.ecKey()
	case "OKP":
		k.key, ok = o.edKey()
	}
	return k, ok
}

// rsaKey reads the members of RFC 7518 section 6.3.1. An even modulus or exponent, or an
// exponent of 1, with which everything is its own signature, is no RSA key.
func (o object) rsaKey() (crypto.PublicKey, bool) {
	n, e := new(big.Int).SetBytes(o.bytes("n")), new(big.Int).SetBytes(o.bytes("e"))
	if n.BitLen() < minRSABits || n.BitLen() > maxRSABits || n.Bit(0) == 0 {
		return nil, false
	}
	if e.BitLen() < 2 || e.BitLen() > 31 || e.Bit(0) == 0 {
		return nil, false
	}
	return &rsa.PublicKey{N: n, E: int(e.Int64())}, true
}

// ecKey reads the members of RFC 7518 section 6.2.1.
func (o object) ecKey() (crypto.PublicKey, bool) {
	name, _ := o.text("crv")
	curve, ok := map[string]elliptic.Curve{"P-256": elliptic.P256(), "P-384": elliptic.P384(), "P-521": elliptic.P521()}[name]
	if !ok {
		return nil, false
	}
	x, y := o.bytes("x"), o.bytes("y")
	if size := (curve.Params().BitSize + 7) / 8; len(x) != size || len(y) != size {
		return nil, false
	}
	// SEC 1 section 2.3.3; the parser checks that the point is on the curve.
	key, err := ecdsa.ParseUncompressedPublicKey(curve, slices.Concat([]byte{4}, x, y))
	return key, err == nil
}

// edKey reads the members of RFC 8037 section 2.
func (o object) edKey() (crypto.PublicKey, bool) {
	x := o.bytes("x")
	if crv, _ := o.text("crv"); crv != "Ed25519" || len(x) != ed25519.PublicKeySize {
		return nil, false
	}
	return ed25519.PublicKey(x), true
}

// bytes is the base64url member of that name, nil if it is none.
func (o object) bytes(name string) []byte {
	s, err := o.text(name)
	if err != nil {
		return nil
	}
	b, err := base64.RawURLEncoding.DecodeString(s)
	if err != nil {
		return nil
	}
	return b
}
