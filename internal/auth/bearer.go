package auth

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
)

// maxTokenBytes is the maximum length of a caller's token.
const maxTokenBytes = 8 << 10

// FromRequest and Verify return these errors and *ScopeError. Their texts contain no value of the token. The reason
// that Verify adds is for the log. The HTTP client gets only what Challenge returns.
var (
	// ErrNoToken means that the request has no bearer token.
	ErrNoToken = errors.New("no bearer token")
	// ErrMalformed means that the request does not send its token as RFC 6750 requires.
	ErrMalformed = errors.New("malformed authorization")
	// ErrInvalidToken means that the token is expired, forged, or for another audience.
	ErrInvalidToken = errors.New("invalid token")
	// ErrKeysUnavailable means that there are no keys to verify signatures with. It says nothing about the token, which
	// may be accepted a second later.
	ErrKeysUnavailable = errors.New("signing keys unavailable")
)

// ScopeError means that the token is valid but lacks a scope.
type ScopeError struct {
	Required string // the required scopes, separated by spaces
}

// Error names the scopes.
func (e *ScopeError) Error() string { return "the token lacks the scope " + e.Required }

// FromRequest returns the bearer token in the Authorization header (RFC 6750 section 2.1). It looks nowhere else,
// because a token in the URL ends up in logs, and a browser sends a cookie with every request. Two headers are an
// error, because a proxy may have used the other one. The error is ErrNoToken or ErrMalformed.
func FromRequest(r *http.Request) (token string, err error) {
	headers := r.Header.Values("Authorization")
	switch {
	case len(headers) > 1:
		return "", ErrMalformed
	case len(headers) == 0, headers[0] == "":
		return "", ErrNoToken
	}
	scheme, token, _ := strings.Cut(headers[0], " ")
	if !IsVisibleASCII(scheme) {
		return "", ErrMalformed
	}
	token = strings.Trim(token, " ")
	if !strings.EqualFold(scheme, "Bearer") || token == "" {
		return "", ErrNoToken
	}
	if len(token) > maxTokenBytes || !isB64Token(token) {
		return "", ErrMalformed
	}
	return token, nil
}

// isB64Token reports whether s is a b64token (RFC 6750 section 2.1).
func isB64Token(s string) bool {
	body := strings.TrimRight(s, "=")
	isOther := func(c rune) bool {
		isLetterOrDigit := 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9'
		return !isLetterOrDigit && !strings.ContainsRune("-._~+/", c)
	}
	return body != "" && !strings.ContainsFunc(body, isOther)
}

// IsVisibleASCII reports whether s is not empty and has only printable ASCII characters other than spaces, so that it
// can be sent as a token in an Authorization header. RFC 6750 section 2.1 allows fewer characters, but some issuers of
// opaque tokens use others.
func IsVisibleASCII(s string) bool {
	isOther := func(c rune) bool { return c <= ' ' || c > '~' }
	return s != "" && !strings.ContainsFunc(s, isOther)
}

// Challenge returns the HTTP status and the WWW-Authenticate header that RFC 6750 section 3 requires for an error of
// FromRequest or Verify. The header is "" if none is required. metadata is the URL of the Metadata (RFC 9728 section
// 5.1). It must not need escaping in a quoted string. For any other error, and for nil, the status is 500, so that an
// unexpected error never admits a caller.
func Challenge(err error, metadata string) (status int, wwwAuthenticate string) {
	realm, metadataParam := `Bearer realm="answerd"`, `, resource_metadata="`+metadata+`"`
	var scope *ScopeError
	switch {
	case errors.As(err, &scope):
		return http.StatusForbidden, fmt.Sprintf(`%s, error="insufficient_scope", scope="%s"%s`, realm, scope.Required, metadataParam)
	case errors.Is(err, ErrNoToken):
		return http.StatusUnauthorized, realm + metadataParam // without an error code, see section 3.1
	case errors.Is(err, ErrInvalidToken):
		return http.StatusUnauthorized, realm + `, error="invalid_token"` + metadataParam
	case errors.Is(err, ErrMalformed):
		return http.StatusBadRequest, realm + `, error="invalid_request"` + metadataParam
	case errors.Is(err, ErrKeysUnavailable):
		return http.StatusServiceUnavailable, ""
	}
	return http.StatusInternalServerError, ""
}
