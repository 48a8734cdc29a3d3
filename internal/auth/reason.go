package auth

import (
	"errors"
	"slices"
	"strings"

	"github.com/golang-jwt/jwt/v5"
)

// invalidTokenError is ErrInvalidToken with one of a fixed set of reasons. It contains no value of the token, so it may
// be logged.
type invalidTokenError struct{ reason string }

// Error returns the text of ErrInvalidToken with the reason. Unwrap returns ErrInvalidToken.
func (e *invalidTokenError) Error() string { return ErrInvalidToken.Error() + ": " + e.reason }
func (e *invalidTokenError) Unwrap() error { return ErrInvalidToken }

// These reasons come from Verifier itself. Those for errors of the parser are in parserReasons.
var (
	errAlgorithm = &invalidTokenError{"algorithm"}
	errType      = &invalidTokenError{"type"}
	errClient    = &invalidTokenError{"client"}
	errLifetime  = &invalidTokenError{"lifetime"}
	errSubject   = &invalidTokenError{"subject"}
)

// parserReasons maps the parser's errors to reasons. The first match counts. The texts of golang-jwt are not used,
// because they quote the token.
var parserReasons = []struct {
	is  error
	err *invalidTokenError
}{
	{errHeader, &invalidTokenError{"header"}},
	{errNoKey, &invalidTokenError{"key"}},
	{jwt.ErrTokenSignatureInvalid, &invalidTokenError{"signature"}},
	{jwt.ErrTokenMalformed, &invalidTokenError{"malformed"}},
	{jwt.ErrTokenRequiredClaimMissing, &invalidTokenError{"a required claim is missing"}},
	{jwt.ErrTokenExpired, &invalidTokenError{"expired"}},
	{jwt.ErrTokenNotValidYet, &invalidTokenError{"not valid yet"}},
	{jwt.ErrTokenUsedBeforeIssued, &invalidTokenError{"issued in the future"}},
	{jwt.ErrTokenInvalidAudience, &invalidTokenError{"audience"}},
	{jwt.ErrTokenInvalidIssuer, &invalidTokenError{"issuer"}},
}

// invalidTokenReason converts an error of the parser to an invalidTokenError with the reason. It returns
// ErrInvalidToken for an unknown error.
func invalidTokenReason(err error) error {
	for _, known := range parserReasons {
		if errors.Is(err, known.is) {
			return known.err
		}
	}
	return ErrInvalidToken
}

// Reason returns why a caller was refused, as an attribute for a metric. It returns one of Reasons for every error.
func Reason(err error) string {
	var scope *ScopeError
	token, ok := errors.AsType[*invalidTokenError](err)
	switch {
	case ok:
		return strings.ReplaceAll(token.reason, " ", "_")
	case errors.As(err, &scope):
		return "scope"
	case errors.Is(err, ErrNoToken):
		return "no_token"
	case errors.Is(err, ErrMalformed):
		return "malformed"
	case errors.Is(err, ErrKeysUnavailable):
		return "keys_unavailable"
	}
	return "other"
}

// Reasons returns all values that Reason may return, sorted and without duplicates, so that a metric can start each of
// them at 0.
func Reasons() []string {
	all := []string{"no_token", "malformed", "scope", "keys_unavailable", "other"}
	for _, e := range []*invalidTokenError{errAlgorithm, errType, errClient, errLifetime, errSubject} {
		all = append(all, Reason(e))
	}
	for _, known := range parserReasons {
		all = append(all, Reason(known.err))
	}
	slices.Sort(all)
	return slices.Compact(all)
}
