package auth

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"answerd/internal/auth/fetch"
)

// clockSkew is how much the issuer's clock and ours may differ.
const clockSkew = 60 * time.Second

// ErrAlgorithm means that the configuration names an unsupported signature algorithm.
var ErrAlgorithm = errors.New("is not a supported signature algorithm")

// VerifierConfig says which tokens are accepted.
type VerifierConfig struct {
	// Issuer must be identical to the token's iss: a trailing slash counts.
	Issuer string
	// Audience must be among the token's aud.
	Audience string
	// JWKSURL is the URL of the issuer's key set: https, or http on the loopback address. It
	// is not discovered, because some issuers' iss is not a URL (OCI's is the same for all
	// its customers). Other issuers publish it as jwks_uri in
	// {issuer}/.well-known/openid-configuration.
	JWKSURL string
	// Scope must be in the token's scope. Several are separated by spaces, and all of them
	// are required; "" requires none.
	Scope string
	// Algorithms lists the accepted signature algorithms; nil means RS256 and ES256. Only
	// asymmetric ones are supported.
	Algorithms []string
	// Clients lists the clients whose tokens are accepted, by the token's azp, else its
	// client_id (RFC 9068 section 2.2); nil accepts those of any client.
	Clients []string
	// OnlyAccessTokens refuses tokens whose typ is not at+jwt (RFC 9068 section 4).
	OnlyAccessTokens bool
	// MaxLifetime bounds the time from a token's iat to its exp; 0 means no bound. With a
	// bound, a token without iat is refused.
	MaxLifetime time.Duration
	// HTTPClient is used with its redirects off; nil means one with its own connections.
	HTTPClient *http.Client
	// Logger gets a debug line per fetch of the keys and a warning per failure; nil
	// is silent. The caller of Verify logs refused tokens.
	Logger *slog.Logger
}

// Verifier verifies the bearer tokens of callers. It does not cache outcomes: verifying a
// signature takes about 50 µs, and such caches have mixed up callers (CVE-2026-35030).
type Verifier struct {
	cfg    VerifierConfig
	scopes []string
	client *http.Client
	keys   *keyCache
	parser *jwt.Parser
}

// NewVerifier checks cfg and sends nothing, so that the service can start while the issuer is
// down. Close must be called in the end.
func NewVerifier(cfg VerifierConfig) (*Verifier, error) {
	if cfg.Issuer == "" || cfg.Audience == "" || cfg.JWKSURL == "" {
		return nil, errors.New("the issuer, the audience and the JWKS URL must be set")
	}
	if err := fetch.CheckEndpoint("the JWKS URL", cfg.JWKSURL); err != nil {
		return nil, err
	}
	// RFC 6749 section 3.3; the scope goes into a quoted string of the challenge.
	if strings.ContainsFunc(cfg.Scope, func(r rune) bool { return r < ' ' || r > '~' || r == '"' || r == '\\' }) {
		return nil, errors.New("the scope has characters that are not allowed in a scope")
	}
	if cfg.Algorithms == nil {
		cfg.Algorithms = []string{"RS256", "ES256"}
	}
	for _, alg := range cfg.Algorithms {
		if !slices.Contains(strings.Fields("RS256 RS384 RS512 PS256 PS384 PS512 ES256 ES384 ES512 EdDSA"), alg) {
			return nil, fmt.Errorf("%q %w", alg, ErrAlgorithm)
		}
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	v := &Verifier{cfg: cfg, scopes: strings.Fields(cfg.Scope), client: fetch.NewClient(cfg.HTTPClient)}
	v.keys = newKeyCache(cfg.JWKSURL, v.client, cfg.Logger)
	v.parser = jwt.NewParser(jwt.WithValidMethods(cfg.Algorithms), jwt.WithStrictDecoding(), jwt.WithLeeway(clockSkew),
		jwt.WithExpirationRequired(), jwt.WithIssuedAt(), jwt.WithIssuer(cfg.Issuer), jwt.WithAudience(cfg.Audience))
	return v, nil
}

// Close ends the polling of the keys, cancels a request in flight and waits for it.
func (v *Verifier) Close() {
	v.keys.sets.Close()
	if v.cfg.HTTPClient == nil {
		v.client.CloseIdleConnections()
	}
}

// Verify returns the identity that the token states. Errors are ErrMalformed, ErrInvalidToken with a reason
// for the log, *ScopeError, and ErrKeysUnavailable: Challenge answers all of them.
// It waits, under ctx, only while there are no keys or the token's key is a new one.
func (v *Verifier) Verify(ctx context.Context, token string) (Identity, error) {
	if len(token) > maxTokenBytes {
		return Identity{}, ErrMalformed
	}
	h, err := parseHeader(token)
	if err != nil {
		return Identity{}, invalidTokenReason(err)
	}
	if !slices.Contains(v.cfg.Algorithms, h.alg) {
		return Identity{}, errAlgorithm
	}
	if v.cfg.OnlyAccessTokens && !isAccessType(h.typ) {
		return Identity{}, errType
	}
	keys, err := v.keys.current(ctx)
	if err != nil {
		return Identity{}, err
	}
	c, err := v.parseToken(token, h, keys)
	// An invalid signature may also mean new keys: some issuers give every key the same kid.
	if errors.Is(err, errNoKey) || errors.Is(err, jwt.ErrTokenSignatureInvalid) {
		if rotated, ok := v.keys.newerThan(ctx, keys); ok {
			c, err = v.parseToken(token, h, rotated)
		}
	}
	if err != nil {
		return Identity{}, invalidTokenReason(err)
	}
	if err := v.checkRestrictions(c); err != nil {
		return Identity{}, err
	}
	id, ok := c.identity()
	if !ok {
		return Identity{}, errSubject
	}
	for _, scope := range v.scopes {
		if !slices.Contains(id.Scopes, scope) {
			return Identity{}, &ScopeError{Required: v.cfg.Scope}
		}
	}
	return id, nil
}

// checkRestrictions returns why the configuration excludes a token that is otherwise valid;
// nil if it does not.
func (v *Verifier) checkRestrictions(c *claims) error {
	if client := cmp.Or(c.authorizedParty, c.clientID); v.cfg.Clients != nil && (client == "" || !slices.Contains(v.cfg.Clients, client)) {
		return errClient
	}
	if v.cfg.MaxLifetime > 0 && (c.issuedAt == nil || c.expires.Sub(c.issuedAt.Time) > v.cfg.MaxLifetime) {
		return errLifetime
	}
	return nil
}

// parseToken verifies the signature with keys and then the claims, so that nothing is read
// from a forged token. golang-jwt requires an algorithm of the parser's list, and find
// returns only keys for that algorithm.
func (v *Verifier) parseToken(token string, h header, keys keySet) (*claims, error) {
	var c claims
	_, err := v.parser.ParseWithClaims(token, &c, func(*jwt.Token) (any, error) { return keys.find(h) })
	return &c, err
}
