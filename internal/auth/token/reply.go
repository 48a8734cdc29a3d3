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
	maxReply = 64 << 10 // size of a token endpoint's reply in bytes
	maxToken = 16 << 10 // size of the token in it
	// defaultLifetime is assumed for a token whose expiry is unknown. It is short, so that a wrong assumption costs
	// little.
	defaultLifetime = time.Minute
	// maxLifetime is the longest time for which a token is cached.
	maxLifetime = 24 * time.Hour
	// maxStated is the maximum of Token.Stated. expires_in may be 1e12, which a time.Duration cannot hold.
	maxStated = 100 * 365 * 24 * time.Hour
	// minLifetime is the shortest accepted lifetime. If an expired token were accepted, every call would request a new
	// one.
	minLifetime = time.Second
)

var (
	errBadReply = errors.New("the token endpoint's reply is not the JSON of RFC 6749")
	errNoToken  = errors.New("the token endpoint's reply has no usable token of the expected type")
	errExpired  = errors.New("the token endpoint gave a token that has expired")
)

// ParseReply decodes a token endpoint's successful reply (RFC 6749 section 5.1) to a request that was sent at the time
// requested. The reply's token_type must be tokenType, which is "Bearer" or "DPoP". Case is ignored. Errors are
// *fetch.Error.
func ParseReply(r fetch.Reply, requested time.Time, tokenType string) (Token, error) {
	t, err := parseReply(r.Body, issuerTime(r.Header, requested), tokenType)
	if err != nil {
		// Some endpoints, such as GitHub's, report errors with the status 200, so the body may have an error code.
		return Token{}, &fetch.Error{Public: err.Error(), Status: r.Status, Code: ErrorCode(r.Body)}
	}
	t.Requested = requested
	return t, nil
}

// issuerTime returns the time of the issuer's clock from the reply's header Date, or localTime if there is no such
// header. The issuer sets exp by its own clock. Compared with a local clock that is 90 s off, a token would look
// expired, or would be used for too long.
func issuerTime(header http.Header, localTime time.Time) time.Time {
	if date, err := http.ParseTime(header.Get("Date")); err == nil {
		return date
	}
	return localTime
}

// parseReply decodes the body of a reply. It does not set Token.Requested. now is the time of the issuer's clock. The
// error is errBadReply, errNoToken or errExpired.
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
	// An exchange may return something other than an access token (RFC 8693 section 2.2.1).
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

// hasTokenType reports whether the reply's token_type is want, ignoring case. RFC 6749 requires the member, but some
// issuers of bearer tokens leave it out, so a missing token_type counts as Bearer. A MAC or DPoP token cannot be used
// as a bearer token. A bearer token cannot be used as a DPoP token, because it is not bound to a key (RFC 9449 section
// 5).
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

// statedLifetime returns how long the token remains valid after now, at most maxStated. That is expires_in or, for a
// JWT, the time until its exp, whichever is shorter. It may be negative. ok is false if there is neither.
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

// expiresIn returns the reply's expires_in, at most maxStated. Some issuers send it as a string. ok is false if it is
// missing, not a number, or not positive. A token that was issued just now cannot have expired, so such a value is
// wrong.
func expiresIn(reply strictjson.Object) (lifetime time.Duration, ok bool) {
	raw := string(reply["expires_in"])
	if s, err := reply.String("expires_in"); err == nil && s != "" {
		raw = s
	}
	seconds, err := strconv.ParseFloat(raw, 64)
	if err != nil || !(seconds > 0) { // NaN included
		return 0, false
	}
	if seconds > maxStated.Seconds() {
		return maxStated, true
	}
	return time.Duration(seconds * float64(time.Second)), true
}

// ErrorCode returns the error code in the body of a refusal (RFC 6749 section 5.2), for the log and for errors. It
// returns "" unless the code is defined there, in section 4.1.2.1 for temporary failures, in RFC 8707, or in RFC 7591 for
// registrations, because other text from the endpoint must not get into the log. For GitHub's bad_refresh_token, which
// means that a refresh token has expired or was revoked, it returns invalid_grant.
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
		"invalid_scope", "invalid_target", "server_error", "temporarily_unavailable",
		"invalid_redirect_uri", "invalid_client_metadata":
		return refusal.Error
	}
	return ""
}

// Error codes for refused client credentials, and for a refused grant or refresh token.
const (
	codeInvalidClient = "invalid_client"
	codeInvalidGrant  = "invalid_grant"
)
