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
	// maxStated bounds Token.Stated, because expires_in may be 1e12, which a time.Duration cannot hold.
	maxStated = 100 * 365 * 24 * time.Hour
	// minLifetime is the shortest accepted lifetime. If an expired token were accepted, each call would
	// request a new one.
	minLifetime = time.Second
)

var (
	errBadReply = errors.New("the token endpoint's reply is not the JSON of RFC 6749")
	errNoToken  = errors.New("the token endpoint's reply has no usable token of the expected type")
	errExpired  = errors.New("the token endpoint gave a token that has expired")
)

// ParseReply decodes a successful reply of a token endpoint (RFC 6749 section 5.1) to a request
// that was sent at the time requested. The reply must have that token_type, which is Bearer or DPoP, in upper or lower
// case. Errors are *fetch.Error.
func ParseReply(r fetch.Reply, requested time.Time, tokenType string) (Token, error) {
	t, err := parseReply(r.Body, issuerTime(r.Header, requested), tokenType)
	if err != nil {
		// Some endpoints, such as GitHub's, refuse a request with the status 200, so the body may have an error code.
		return Token{}, &fetch.Error{Public: err.Error(), Status: r.Status, Code: ErrorCode(r.Body)}
	}
	t.Requested = requested
	return t, nil
}

// issuerTime returns the time of the issuer's clock, which is the header Date of its reply, or else localTime.
// The issuer has set exp by its own clock. Compared with a clock that is 90 s off, a token would
// look expired, or would be used for too long.
func issuerTime(header http.Header, localTime time.Time) time.Time {
	if date, err := http.ParseTime(header.Get("Date")); err == nil {
		return date
	}
	return localTime
}

// parseReply decodes the body of a reply to a token, without Token.Requested. now is the time of the issuer's clock.
// The error is errBadReply, errNoToken or errExpired.
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

// hasTokenType reports whether token_type is want, in upper or lower case. RFC 6749 requires the member, but some
// issuers of bearer tokens leave it out, so a missing token_type counts as Bearer. A MAC or DPoP token is not a bearer
// token, and a bearer token is not a DPoP token, because it is not bound to a key (RFC 9449 section 5).
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

// statedLifetime returns how long the token is valid from now on, at most maxStated: the shorter of expires_in and, for
// a JWT, the time until its exp, which may be negative. ok is false if the reply has neither.
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

// expiresIn returns expires_in, at most maxStated. Some issuers send it as a string. ok is false if it is missing,
// zero, negative or not a number: the token was issued just now, so such a value is wrong.
func expiresIn(reply strictjson.Object) (lifetime time.Duration, ok bool) {
	raw := string(reply["expires_in"])
	if s, err := reply.String("expires_in"); err == nil && s != "" {
		raw = s
	}
	seconds, err := strconv.ParseFloat(raw, 64)
	if err != nil || !(seconds > 0) { // also NaN
		return 0, false
	}
	if seconds > maxStated.Seconds() {
		return maxStated, true
	}
	return time.Duration(seconds * float64(time.Second)), true
}

// ErrorCode returns the error code of a refusal (RFC 6749 section 5.2), for the log and for
// errors. It returns "" unless the code is one of that section or of RFC 8707, because other text of the token endpoint
// must not get into the log. It returns invalid_grant for GitHub's bad_refresh_token, which means that a refresh token
// has expired or was revoked.
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
	case "invalid_request", codeInvalidClient, codeInvalidGrant, "unauthorized_client", "unsupported_grant_type",
		"invalid_scope", "invalid_target":
		return refusal.Error
	}
	return ""
}

// The codes for refused client credentials, and for a refused grant or refresh token.
const (
	codeInvalidClient = "invalid_client"
	codeInvalidGrant  = "invalid_grant"
)
