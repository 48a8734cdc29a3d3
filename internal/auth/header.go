package auth

import (
	"encoding/base64"
	"errors"
	"strings"

	"answerd/internal/auth/strictjson"
)

// errHeader means that the header of a token is invalid or not supported.
var errHeader = errors.New("header")

// header has the members of a token's JOSE header (RFC 7515 section 4) that the service uses:
// which key to look for, and which algorithm. It does not have jku, jwk, x5u and x5c, which say
// where to get a key, because nothing in a token may decide how it is verified.
type header struct {
	alg, kid, typ string
	hasKid        bool // also for a kid that is ""
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
	// A recipient must reject a token whose crit names an extension that it does not support (RFC
	// 7515 section 4.1.11), and none is supported. b64 (RFC 7797) would change what is signed.
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

// isAcceptedType reports whether typ may be the type of an access token. Other JWTs of the same
// issuer, such as logout tokens, have another type (RFC 8725 section 3.11). An ID token may also
// be a "JWT"; it has another audience.
func isAcceptedType(typ string) bool { return isMediaType(typ, "jwt") || isAccessType(typ) }

// isAccessType reports whether typ is the type of access tokens (RFC 9068 section 2.1).
func isAccessType(typ string) bool { return isMediaType(typ, "at+jwt") }

// isMediaType reports whether typ is the media type application/subtype. Media types are compared
// without regard to case, and "application/" may be left out (RFC 7515 section 4.1.9).
func isMediaType(typ, subtype string) bool {
	return strings.EqualFold(typ, subtype) || strings.EqualFold(typ, "application/"+subtype)
}
