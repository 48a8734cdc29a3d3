package auth

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
)

// maxInbound is how long a caller's token may be, in bytes.
const maxInbound = 8 << 10

// What FromRequest and Verify fail with, beside *ScopeError. Their texts are fixed
// and name no value of the token; the reason that Verify adds is for the log, the
// caller gets Challenge and nothing more.
var (
	// ErrNoToken: the request brings no bearer token.
	ErrNoToken = errors.New("no bearer token")
	// ErrMalformed: the request doesn't carry its token as RFC 6750 says.
	ErrMalformed = errors.New("malformed authorization")
	// ErrInvalidToken: the token is expired, forged, or not for us.
	ErrInvalidToken = errors.New("invalid token")
	// ErrKeysUnavailable: there are no keys to judge by. It says nothing about the
	// token; the same one may be good in a second.
	ErrKeysUnavailable = errors.New("signing keys unavailable")
)

// ScopeError says that the token is good but lacks a scope.
type ScopeError struct {
	Required string // the scopes that are needed, spaces between
}

func (e *ScopeError) Error() string { return "the token lacks the scope " + e.Required }

// FromRequest takes the bearer token out of the one place where it may be, the
// Authorization header: a token in the URL ends up in logs, one in a cookie is sent by
// browsers unasked. Two headers are an error, because whoever stands in front of us
// may have judged by the other one. Errors are ErrNoToken and ErrMalformed.
func FromRequest(r *http.Request) (token string, err error) {
	headers := r.Header.Values("Authorization")
	switch {
	case len(headers) == 0 || len(headers) == 1 && headers[0] == "":
		return "", ErrNoToken
	case len(headers) > 1:
		return "", ErrMalformed
	}
	scheme, token, _ := strings.Cut(headers[0], " ")
	if !isBearer(scheme) {
		return "", ErrMalformed
	}
	token = strings.Trim(token, " ")
	if !strings.EqualFold(scheme, "Bearer") || token == "" {
		return "", ErrNoToken
	}
	if len(token) > maxInbound || !isB64Token(token) {
		return "", ErrMalformed
	}
	return token, nil
}

// isB64Token reports whether s is a b64token of RFC 6750 section 2.1.
func isB64Token(s string) bool {
	body := strings.TrimRight(s, "=")
	for i := range len(body) {
		c := body[i]
		letter := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
		if !letter && !strings.ContainsRune("-._~+/", rune(c)) {
			return false
		}
	}
	return body != ""
}

// Challenge turns an error of FromRequest or Verify into the HTTP status and the
// WWW-Authenticate header, "" for none, as RFC 6750 section 3 wants them. It is the one
// place that does. metadata is the address of the Metadata (RFC 9728 section 5.1), which
// must be fit for a quoted string. An error that it doesn't know is 500: never a door
// left open.
func Challenge(err error, metadata string) (status int, wwwAuthenticate string) {
	realm, more := `Bearer realm="answerd"`, `, resource_metadata="`+metadata+`"`
	var scope *ScopeError
	switch {
	case errors.As(err, &scope):
		return http.StatusForbidden, fmt.Sprintf(`%s, error="insufficient_scope", scope="%s"%s`, realm, scope.Required, more)
	case errors.Is(err, ErrNoToken):
		return http.StatusUnauthorized, realm + more // no error code: section 3.1
	case errors.Is(err, ErrInvalidToken):
		return http.StatusUnauthorized, realm + `, error="invalid_token"` + more
	case errors.Is(err, ErrMalformed):
		return http.StatusBadRequest, realm + `, error="invalid_request"` + more
	case errors.Is(err, ErrKeysUnavailable):
		return http.StatusServiceUnavailable, ""
	}
	return http.StatusInternalServerError, ""
}
