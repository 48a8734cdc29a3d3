package auth

import (
	"encoding/base64"
	"errors"
	"strings"

	"answerd/internal/auth/strictjson"
)

// errHeader means that a token's header is invalid or not supported.
var errHeader = errors.New("header")

// header has those members of a token's JOSE header (RFC 7515 section 4) that the service uses. They say which key to
// look for, and which algorithm to use. jku, jwk, x5u and x5c, which say where to get a key, are left out on purpose:
// nothing in a token may decide how it is verified.
type header struct {
	alg, kid, typ string
	hasKid        bool // true even if kid is ""
}

// parseHeader decodes and checks the header of token. The only error is errHeader. golang-jwt decodes the header again,
// but it takes the last of two members with the same name, accepts any typ, and ignores crit.
func parseHeader(token string) (header, error) {
	segment, _, _ := strings.Cut(token, ".")
	raw, err := base64.RawURLEncoding.Strict().DecodeString(segment)
	if err != nil {
		return header{}, errHeader
	}
	object, err := strictjson.Parse(raw)
	if err != nil {
		return header{}, errHeader
	}
	// A token whose crit names an unsupported extension must be rejected (RFC 7515 section 4.1.11), and no extension is
	// supported. b64 (RFC 7797) would change what is signed.
	if object.Has("crit") || object.Has("b64") {
		return header{}, errHeader
	}
	h := header{hasKid: object.Has("kid")}
	for name, to := range map[string]*string{"alg": &h.alg, "kid": &h.kid, "typ": &h.typ} {
		if *to, err = object.String(name); err != nil {
			return header{}, errHeader
		}
	}
	hasOtherType := object.Has("typ") && !isAcceptedType(h.typ)
	if len(h.kid) > maxKeyID || hasOtherType {
		return header{}, errHeader
	}
	return h, nil
}

// isAcceptedType reports whether typ may be the type of an access token. Some other JWTs of the same issuer, such as
// logout tokens, have another type (RFC 8725 section 3.11). An ID token may also have the type "JWT", but it has
// another audience.
func isAcceptedType(typ string) bool { return isMediaType(typ, "jwt") || isAccessType(typ) }

// isAccessType reports whether typ is the type of access tokens (RFC 9068 section 2.1).
func isAccessType(typ string) bool { return isMediaType(typ, "at+jwt") }

// isMediaType reports whether typ is the media type application/subtype. It ignores case, and "application/" may be
// left out (RFC 7515 section 4.1.9).
func isMediaType(typ, subtype string) bool {
	return strings.EqualFold(typ, subtype) || strings.EqualFold(typ, "application/"+subtype)
}
