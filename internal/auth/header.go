package auth

import (
	"encoding/base64"
	"errors"
	"strings"
)

var errHeader = errors.New("header")

// header is what we read of a token's JOSE header (RFC 7515 section 4): which key to
// look for, and by what algorithm. jku, jwk, x5u and x5c say where to get a key from;
// nobody here reads them, because nothing in a token decides how it is checked.
type header struct {
	alg, kid, typ string
	haveKid       bool
}

// parseHeader reads the first part of token. golang-jwt reads it again, but takes the
// last of two members of one name, any typ, and ignores crit.
func parseHeader(token string) (header, error) {
	segment, _, _ := strings.Cut(token, ".")
	raw, err := base64.RawURLEncoding.Strict().DecodeString(segment)
	if err != nil {
		return header{}, errHeader
	}
	o, err := parseObject(raw)
	if err != nil {
		return header{}, errHeader
	}
	// RFC 7515 section 4.1.11: what crit names must be understood, and we understand
	// no extension. b64 (RFC 7797) would change what is signed.
	if o.has("crit") || o.has("b64") {
		return header{}, errHeader
	}
	h := header{haveKid: o.has("kid")}
	for name, to := range map[string]*string{"alg": &h.alg, "kid": &h.kid, "typ": &h.typ} {
		if *to, err = o.text(name); err != nil {
			return header{}, errHeader
		}
	}
	if len(h.kid) > maxKeyID || o.has("typ") && !isTokenType(h.typ) {
		return header{}, errHeader
	}
	return h, nil
}

// isTokenType tells access tokens from other JWTs of the same issuer, a logout token
// for one (RFC 8725 section 3.11). An ID token may be a "JWT" too: it is for another
// audience.
func isTokenType(typ string) bool { return strings.EqualFold(typ, "jwt") || isAccessType(typ) }

// isAccessType reports whether typ is that of RFC 9068 section 2.1. Media types compare in
// any case (RFC 7515 section 4.1.9), and "application/" may be left out.
func isAccessType(typ string) bool {
	return strings.EqualFold(typ, "at+jwt") || strings.EqualFold(typ, "application/at+jwt")
}
