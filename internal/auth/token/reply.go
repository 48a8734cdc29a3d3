package token

import (
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"answerd/internal/auth"
	"answerd/internal/auth/fetch"
	"answerd/internal/auth/strictjson"
)

// Types of tokens (RFC 8693 section 3).
const (
	typeAccessToken = "urn:ietf:params:oauth:token-type:access_token"
	typeJWT         = "urn:ietf:params:oauth:token-type:jwt"
)

const (
	maxReply = 64 << 10 // bytes of a token endpoint's reply
	maxToken = 16 << 10 // bytes of the token in it
	// defaultLifetime is assumed for a token of unknown expiry. It is short, so that a wrong
	// assumption costs little.
	defaultLifetime = time.Minute
	// maxLifetime is the longest time for which a token is cached.
	maxLifetime = 24 * time.Hour
	// maxStated is the longest Stated. expires_in may be 1e12, which a time.Duration cannot hold.
	maxStated = 100 * 365 * 24 * time.Hour
	// minLifetime makes a token that has already expired an error. Otherwise each call would
	// request a new one.
	minLifetime = time.Second
)

var (
	errBadReply = errors.New("the token endpoint's reply is not the JSON of RFC 6749")
	errNoToken  = errors.New("the token endpoint's reply has no usable token of the expected type")
	errExpired  = errors.New("the token endpoint gave a token that has expired")
)

// ParseReply decodes a successful reply of a token endpoint (RFC 6749 section 5.1) to a request
// that was sent at the time requested. It requires the given token_type, Bearer or DPoP, in any
// case. Errors are *fetch.Error.
func ParseReply(r fetch.Reply, requested time.Time, tokenType string) (Token, error) {
	t, err := parseReply(r.Body, issuerTime(r.Header, requested), tokenType)
	if err != nil {
		// Some endpoints refuse a request with the status 200 (GitHub).
		return Token{}, &fetch.Error{Public: err.Error(), Status: r.Status, Code: ErrorCode(r.Body)}
	}
	t.Requested = requested
	return t, nil
}

// issuerTime returns the time of the issuer's clock, from the Date header, or ours without one.
// The issuer has set exp by its own clock. Compared with a clock that is 90 s off, a token would
// look expired, or would be used for too long.
func issuerTime(header http.Header, ours time.Time) time.Time {
	if date, err := http.ParseTime(header.Get("Date")); err == nil {
		return date
	}
	return ours
}

// parseReply returns the token without Requested. now is the issuer's time.
func parseReply(body []byte, now time.Time, tokenType string) (Token, error) {
	reply, err := strictjson.Parse(body)
	if err != nil {
		return Token{}, errBadReply
	}
	text, err := reply.String("access_token")
	isToken := err == nil && auth.IsVisibleASCII(text) && len(text) <= maxToken
	if !isToken || !hasTokenType(reply, tokenType) {
		return Token{}, errNoToken
	}
	// RFC 8693 section 2.2.1: an exchange may give something other than an access token.
	issued, err := reply.String("issued_token_type")
	if err != nil || !slices.Contains([]string{"", typeAccessToken, typeJWT}, issued) {
		return Token{}, errNoToken
	}
	t := Token{Secret: auth.NewSecret(text), Lifetime: defaultLifetime}
	stated, ok := statedLifetime(reply, text, now)
	switch {
	case ok && stated < minLifetime:
		return Token{}, errExpired
	case ok:
		t.Stated, t.Lifetime = stated, min(stated, maxLifetime)
	}
	return t, nil
}

// hasTokenType reports whether token_type is want. RFC 6749 requires the member, but some issuers
// of bearer tokens leave it out. A MAC or DPoP token is not a bearer token, and a token that is
// not bound to a key is not a DPoP token (RFC 9449 section 5).
func hasTokenType(reply strictjson.Object, want string) bool {
	got, err := reply.String("token_type")
	if err != nil {
		return false
	}
	if got == "" {
		return want == "Bearer"
	}
	return strings.EqualFold(got, want)
}

// statedLifetime returns how long the token is valid, at most maxStated: the shorter of expires_in and, for
// a JWT, the time until its exp. ok is false if the reply has neither.
func statedLifetime(reply strictjson.Object, token string, now time.Time) (_ time.Duration, ok bool) {
	lifetime, ok := expiresIn(reply)
	if exp, haveExp := auth.UnverifiedExpiry(token); haveExp {
		left := min(exp.Sub(now), maxStated)
		if !ok || left < lifetime {
			return left, true
		}
	}
	return lifetime, ok
}

// expiresIn returns expires_in, which some issuers send as a string. It ignores zero, negative and
// unreadable values: the token was issued just now, so they are wrong.
func expiresIn(reply strictjson.Object) (time.Duration, bool) {
	raw := string(reply["expires_in"])
	if s, err := reply.String("expires_in"); err == nil && s != "" {
		raw = s
	}
	seconds, err := strconv.ParseFloat(raw, 64)
	if err != nil || !(seconds > 0) {
		return 0, false
	}
	if seconds > maxStated.Seconds() {
		return maxStated, true
	}
	return time.Duration(seconds * float64(time.Second)), true
}

// ErrorCode returns the error code of a refusal (RFC 6749 section 5.2), for the log and for
// errors. It returns only the codes of that section and of RFC 8707, and "" otherwise: anything
// else would be text of the other side. GitHub's code for a refresh token that has expired or was
// revoked counts as invalid_grant.
func ErrorCode(body []byte) string {
	var refusal struct {
		Error string `json:"error"`
	}
	if json.Unmarshal(body, &refusal) != nil {
		return ""
	}
	switch refusal.Error {
	case "bad_refresh_token":
		return codeInvalidGrant
	case "invalid_request", codeInvalidClient, codeInvalidGrant, "unauthorized_client", "unsupported_grant_type", "invalid_scope", "invalid_target":
		return refusal.Error
	}
	return ""
}

// The codes for refused client credentials, and for a refused grant or refresh token.
const (
	codeInvalidClient = "invalid_client"
	codeInvalidGrant  = "invalid_grant"
)
