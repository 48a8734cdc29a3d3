package auth

import (
	"errors"
	"slices"
	"strings"

	"github.com/golang-jwt/jwt/v5"
)

// refused is ErrInvalidToken with the reason, one of a fixed few: it names no value of the
// token.
type refused struct{ reason string }

func (e *refused) Error() string { return ErrInvalidToken.Error() + ": " + e.reason }
func (e *refused) Unwrap() error { return ErrInvalidToken }

// What is wrong with a token that we find ourselves.
var (
	errAlgorithm = &refused{"algorithm"}
	errType      = &refused{"type"}
	errClient    = &refused{"client"}
	errLifetime  = &refused{"lifetime"}
	errSubject   = &refused{"subject"}
)

// found is what the parser finds wrong, the first that holds. golang-jwt's own texts quote
// the token.
var found = []struct {
	is  error
	err *refused
}{
	{errHeader, &refused{"header"}},
	{errNoKey, &refused{"key"}},
	{jwt.ErrTokenSignatureInvalid, &refused{"signature"}},
	{jwt.ErrTokenMalformed, &refused{"malformed"}},
	{jwt.ErrTokenRequiredClaimMissing, &refused{"a required claim is missing"}},
	{jwt.ErrTokenExpired, &refused{"expired"}},
	{jwt.ErrTokenNotValidYet, &refused{"not valid yet"}},
	{jwt.ErrTokenUsedBeforeIssued, &refused{"issued in the future"}},
	{jwt.ErrTokenInvalidAudience, &refused{"audience"}},
	{jwt.ErrTokenInvalidIssuer, &refused{"issuer"}},
}

// invalid is ErrInvalidToken with the reason of the parser's error.
func invalid(err error) error {
	for _, known := range found {
		if errors.Is(err, known.is) {
			return known.err
		}
	}
	return ErrInvalidToken
}

// Reason is why somebody was not let in, in a word or a few with underscores between, for
// a metric: one of Reasons, whatever the error.
func Reason(err error) string {
	var scope *ScopeError
	token, ok := errors.AsType[*refused](err)
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

// Reasons are all that Reason says.
func Reasons() []string {
	all := []string{"no_token", "malformed", "scope", "keys_unavailable", "other"}
	for _, e := range []*refused{errAlgorithm, errType, errClient, errLifetime, errSubject} {
		all = append(all, Reason(e))
	}
	for _, known := range found {
		all = append(all, Reason(known.err))
	}
	slices.Sort(all)
	return slices.Compact(all)
}
