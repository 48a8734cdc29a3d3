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

	"answerd/internal/auth/strictjson"
)

// Limits of a key set. They are not configurable, because only a broken or malicious issuer exceeds them.
const (
	maxKeys    = 32
	minRSABits = 2048 // RFC 7518 section 3.3
	maxRSABits = 8192 // verification with larger keys is slow
	maxKeyID   = 128  // length of a kid in bytes
)

// errKeySet means that a document is not a key set within these limits.
var errKeySet = errors.New("not a JSON Web Key Set of at most 32 keys")

// publicKey is one of the issuer's keys.
type publicKey struct {
	id  string // the key's kid, which may be ""
	alg string // the only algorithm that the key allows; "" allows all algorithms for its type
	key crypto.PublicKey
}

// allowsAlgorithm reports whether k may verify a signature made with alg. The key must decide that, not the token.
// Otherwise an attacker could sign with HMAC and use the public RSA key as the secret (RFC 8725 section 3.1).
func (k publicKey) allowsAlgorithm(alg string) bool {
	if k.alg != "" && k.alg != alg {
		return false
	}
	switch key := k.key.(type) {
	case *rsa.PublicKey:
		return strings.HasPrefix(alg, "RS") || strings.HasPrefix(alg, "PS")
	case *ecdsa.PublicKey: // RFC 7518 section 3.4: one curve per algorithm
		algorithms := map[elliptic.Curve]string{elliptic.P256(): "ES256", elliptic.P384(): "ES384", elliptic.P521(): "ES512"}
		return alg == algorithms[key.Curve]
	case ed25519.PublicKey:
		return alg == "EdDSA"
	}
	return false
}

// parseKeySet decodes a JSON Web Key Set (RFC 7517 section 5). As section 5 advises, it leaves out keys of unsupported
// types and keys that are not for signatures. It returns an error if no usable key remains.
func parseKeySet(body []byte) ([]publicKey, error) {
	set, err := strictjson.Parse(body)
	if err != nil {
		return nil, errKeySet
	}
	list, err := set.Objects("keys")
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
		return nil, errors.New("no usable key")
	}
	return keys, nil
}

// parseKey decodes one key (RFC 7517 section 4). ok is false if the key cannot be used. That includes keys whose use or
// key_ops does not allow verifying signatures (sections 4.2 and 4.3).
func parseKey(object strictjson.Object) (key publicKey, ok bool) {
	var kty, use string
	var err error
	for name, to := range map[string]*string{"kty": &kty, "use": &use, "alg": &key.alg, "kid": &key.id} {
		if *to, err = object.String(name); err != nil {
			return key, false
		}
	}
	ops, err := object.Strings("key_ops")
	mayVerify := !object.Has("key_ops") || slices.Contains(ops, "verify")
	isForSignatures := use == "" || use == "sig"
	if err != nil || !mayVerify || !isForSignatures || len(key.id) > maxKeyID {
		return key, false
	}
	switch kty {
	case "RSA":
		key.key, ok = parseRSAKey(object)
	case "EC":
		key.key, ok = parseECKey(object)
	case "OKP":
		key.key, ok = parseEd25519Key(object)
	}
	return key, ok
}

// parseRSAKey decodes the members of RFC 7518 section 6.3.1. It rejects an even modulus or exponent. It also rejects an
// exponent of 1, because every message would then be its own signature.
func parseRSAKey(o strictjson.Object) (crypto.PublicKey, bool) {
	n, e := new(big.Int).SetBytes(base64Member(o, "n")), new(big.Int).SetBytes(base64Member(o, "e"))
	if n.BitLen() < minRSABits || n.BitLen() > maxRSABits || n.Bit(0) == 0 {
		return nil, false
	}
	if e.BitLen() < 2 || e.BitLen() > 31 || e.Bit(0) == 0 { // crypto/rsa supports at most 31 bits
		return nil, false
	}
	return &rsa.PublicKey{N: n, E: int(e.Int64())}, true
}

// parseECKey decodes the members of RFC 7518 section 6.2.1.
func parseECKey(o strictjson.Object) (crypto.PublicKey, bool) {
	name, _ := o.String("crv")
	curve, ok := map[string]elliptic.Curve{"P-256": elliptic.P256(), "P-384": elliptic.P384(), "P-521": elliptic.P521()}[name]
	if !ok {
		return nil, false
	}
	x, y := base64Member(o, "x"), base64Member(o, "y")
	if size := (curve.Params().BitSize + 7) / 8; len(x) != size || len(y) != size {
		return nil, false
	}
	// This is the uncompressed form of SEC 1 section 2.3.3. The parser checks that the point is on the curve.
	key, err := ecdsa.ParseUncompressedPublicKey(curve, slices.Concat([]byte{4}, x, y))
	return key, err == nil
}

// parseEd25519Key decodes the members of RFC 8037 section 2.
func parseEd25519Key(o strictjson.Object) (crypto.PublicKey, bool) {
	x := base64Member(o, "x")
	if crv, _ := o.String("crv"); crv != "Ed25519" || len(x) != ed25519.PublicKeySize {
		return nil, false
	}
	return ed25519.PublicKey(x), true
}

// base64Member decodes the base64url member called name. It returns nil if the member is missing or invalid.
func base64Member(o strictjson.Object, name string) []byte {
	text, err := o.String(name)
	decoded, decodeErr := base64.RawURLEncoding.DecodeString(text)
	if err != nil || decodeErr != nil {
		return nil
	}
	return decoded
}
