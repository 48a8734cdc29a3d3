package demo

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/golang-jwt/jwt/v5"
	sdkauth "github.com/modelcontextprotocol/go-sdk/auth"
)

// Bounds of a token, and how far two clocks may differ.
const (
	maxToken  = 8 << 10 // bytes of a bearer token
	maxKid    = 128     // bytes of a key's name
	clockSkew = 10 * time.Second
)

// verifier checks the IAM's access tokens. What is checked comes from the
// configuration alone: nothing in a token decides how it is verified.
type verifier struct {
	keys   *keySet
	parser *jwt.Parser
}

// newVerifier pins everything that golang-jwt leaves open by default: its bare
// parser takes any algorithm, issuer and audience, and a token without an expiry.
func newVerifier(issuer, audience string, keys *keySet) *verifier {
	return &verifier{keys: keys, parser: jwt.NewParser(
		jwt.WithValidMethods([]string{"RS256"}), jwt.WithIssuer(issuer), jwt.WithAudience(audience),
		jwt.WithExpirationRequired(), jwt.WithIssuedAt(), jwt.WithLeeway(clockSkew),
	)}
}

// claims are what the demo reads of a token.
type claims struct {
	jwt.RegisteredClaims
	Scope string `json:"scope"`
}

// verify gives what a valid token says. The error is errKeysUnavailable, the end of
// ctx, or what is wrong with the token, which is for the log and not for the caller.
func (v *verifier) verify(ctx context.Context, raw string) (*sdkauth.TokenInfo, error) {
	if len(raw) > maxToken {
		return nil, errors.New("the token is too long")
	}
	var c claims
	_, err := v.parser.ParseWithClaims(raw, &c, func(t *jwt.Token) (any, error) {
		kid, err := keyName(t.Header)
		if err != nil {
			return nil, err
		}
		return v.keys.key(ctx, kid)
	})
	if err != nil {
		return nil, fmt.Errorf("verify the token: %w", err)
	}
	if c.Subject == "" {
		return nil, errors.New("the token has no subject")
	}
	return &sdkauth.TokenInfo{
		Scopes: strings.Fields(c.Scope), Expiration: c.ExpiresAt.Time,
		UserID: c.Subject, // the SDK binds the session to it
	}, nil
}

// keyName reads the kid of a header, and refuses what golang-jwt lets pass: unknown
// critical extensions (RFC 7515 section 4.1.11) and tokens of another kind.
func keyName(header map[string]any) (string, error) {
	if _, has := header["crit"]; has {
		return "", errors.New("the token has critical extensions")
	}
	switch typ, _ := header["typ"].(string); strings.ToLower(strings.TrimPrefix(typ, "application/")) {
	case "", "jwt", "at+jwt":
	default:
		return "", errors.New("the token is no access token")
	}
	kid, _ := header["kid"].(string)
	if kid == "" || len(kid) > maxKid {
		return "", errors.New("the token names no key")
	}
	return kid, nil
}
