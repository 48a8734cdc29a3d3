package auth

import (
	"encoding/base64"
	"errors"
	"strings"

	"answerd/internal/auth/strictjson"
)

var errHeader = errors.New("header")

// header has the members of a token's JOSE header (RFC 7515 section 4) that we use: which
// key to look for, and which algorithm. jku, jwk, x5u and x5c say where to get a key; we do
// not read them, because nothing in a token may decide how it is checked.
type header struct {
	alg, kid, typ string
	haveKid       bool
}

// parseHeader reads the first part of token. golang-jwt reads it again, but it takes the
// last of two members of one name and any typ, and ignores crit.
func parseHeader(token string) (header, error) {
	segment, _, _ := strings.Cut(token, ".")
	raw, err := base64.RawURLEncoding.Strict().DecodeString(segment)
	if err != nil {
		return header{}, errHeader
	}
	o, err := strictjson.Parse(raw)
	if err != nil {
		return header{}, errHeader
	}
	// RFC 7515 section 4.1.11: we must understand what crit names, and we know no
	// extension. b64 (RFC 7797) would change what is signed.
	if o.Has("crit") || o.Has("b64") {
		return header{}, errHeader
	}
	h := header{haveKid: o.Has("kid")}
	for name, to := range map[string]*string{"alg": &h.alg, "kid": &h.kid, "typ": &h.typ} {
		if *to, err = o.String(name); err != nil {
			return header{}, errHeader
		}
	}
	if len(h.kid) > maxKeyID || o.Has("typ") && !isAcceptedType(h.typ) {
		return header{}, errHeader
	}
	return h, nil
}

// isAcceptedType reports whether typ may be that of an access token, and not that of another
// JWT of the same issuer, such as a logout token (RFC 8725 section 3.11). An ID token may
// be a "JWT" too; it has another audience.
func isAcceptedType(typ string) bool { return strings.EqualFold(typ, "jwt") || isAccessType(typ) }

// isAccessType reports whether typ is that of RFC 9068 section 2.1. Media types compare
// without regard to case, and "application/" may be left out (RFC 7515 section 4.1.9).
func isAccessType(typ string) bool {
	return strings.EqualFold(typ, "at+jwt") || strings.EqualFold(typ, "application/at+jwt")
}
