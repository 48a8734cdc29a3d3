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

// clockSkew is by how much the issuer's clock and ours may differ.
const clockSkew = 60 * time.Second

// ErrAlgorithm: the configuration names an algorithm by which nobody may sign.
var ErrAlgorithm = errors.New("is not a signature algorithm that can be used")

// VerifierConfig says whose tokens are good here.
type VerifierConfig struct {
	// Issuer must be the token's iss, letter by letter: a trailing slash counts.
	Issuer string
	// Audience must be among the token's aud.
	Audience string
	// JWKSURL is where the issuer publishes its keys: https, or http on the loopback
	// address. It is required, not discovered: issuers whose iss is not an address
	// (OCI's is the same for all its customers) have nothing to discover, and it
	// stands as jwks_uri in {issuer}/.well-known/openid-configuration of the others.
	JWKSURL string
	// Scope must be in the token's scope; several with spaces between, all of them
	// needed; "" needs none.
	Scope string
	// Algorithms may sign; nil means RS256 and ES256. Only asymmetric ones are taken.
	Algorithms []string
	// Clients are the only ones whose tokens are taken, by the token's azp, else its
	// client_id (RFC 9068 section 2.2); nil takes those of any.
	Clients []string
	// OnlyAccessTokens takes no token whose typ is not at+jwt (RFC 9068 section 4).
	OnlyAccessTokens bool
	// MaxLifetime is how long a token may be good in all, from its iat to its exp; 0
	// is no bound. A token without iat has no lifetime that could be judged.
	MaxLifetime time.Duration
	// HTTPClient is used with its redirects off; nil means one of our own.
	HTTPClient *http.Client
	// Logger gets a debug line per fetch of the keys and a warning per failure; nil
	// is silent. Refused tokens are the caller's to log.
	Logger *slog.Logger
}

// Verifier judges the bearer tokens of callers. Verdicts are not kept: a signature costs
// some 50 µs, and caches of them have mixed up callers before (CVE-2026-35030).
type Verifier struct {
	cfg    VerifierConfig
	scopes []string
	client *http.Client
	keys   *keyCache
	parser *jwt.Parser
}

// NewVerifier checks cfg and fetches nothing: an issuer that is down keeps nobody from
// starting. Close must be called in the end.
func NewVerifier(cfg VerifierConfig) (*Verifier, error) {
	if cfg.Issuer == "" || cfg.Audience == "" || cfg.JWKSURL == "" {
		return nil, errors.New("the issuer, the audience and the JWKS URL must be set")
	}
	if err := fetch.CheckEndpoint("the JWKS URL", cfg.JWKSURL); err != nil {
		return nil, err
	}
	// RFC 6749 section 3.3; the scope goes into a quoted string of the challenge.
	if strings.ContainsFunc(cfg.Scope, func(r rune) bool { return r < ' ' || r > '~' || r == '"' || r == '\\' }) {
		return nil, errors.New("the scope has characters that no scope may have")
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

// Close ends the renewal of the keys and waits for it.
func (v *Verifier) Close() {
	v.keys.sets.Close()
	if v.cfg.HTTPClient == nil {
		v.client.CloseIdleConnections()
	}
}

// Verify says whose token it is. Errors are ErrMalformed, ErrInvalidToken with a reason
// for the log, *ScopeError, and ErrKeysUnavailable: Challenge answers all of them.
// It waits, under ctx, only while there are no keys or the token's key is a new one.
func (v *Verifier) Verify(ctx context.Context, token string) (Identity, error) {
	if len(token) > maxTokenBytes {
		return Identity{}, ErrMalformed
	}
	h, err := parseHeader(token)
	if err != nil {
		return Identity{}, invalid(err)
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
	c, err := v.check(token, h, keys)
	// A bad signature too may mean new keys: there are issuers that give every key
	// the same kid.
	if errors.Is(err, errNoKey) || errors.Is(err, jwt.ErrTokenSignatureInvalid) {
		if rotated, ok := v.keys.newerThan(ctx, keys); ok {
			c, err = v.check(token, h, rotated)
		}
	}
	if err != nil {
		return Identity{}, invalid(err)
	}
	if err := v.refuses(c); err != nil {
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

// refuses is why the operator does not want a token that is in order otherwise; nil if he
// does.
func (v *Verifier) refuses(c *claims) error {
	if client := cmp.Or(c.authorizedParty, c.clientID); v.cfg.Clients != nil && (client == "" || !slices.Contains(v.cfg.Clients, client)) {
		return errClient
	}
	if v.cfg.MaxLifetime > 0 && (c.issuedAt == nil || c.expires.Sub(c.issuedAt.Time) > v.cfg.MaxLifetime) {
		return errLifetime
	}
	return nil
}

// check verifies the signature by keys, then the claims, in that order: what a forged
// token says is nobody's business. golang-jwt looks up the algorithm in the parser's list,
// and the key fits that algorithm or is not found.
func (v *Verifier) check(token string, h header, keys keySet) (*claims, error) {
	var c claims
	_, err := v.parser.ParseWithClaims(token, &c, func(*jwt.Token) (any, error) { return keys.find(h) })
	return &c, err
}
