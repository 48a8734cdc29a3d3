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

// clockSkew is the tolerated difference between the clocks of the issuer and the service.
const clockSkew = 60 * time.Second

// supportedAlgorithms lists the asymmetric algorithms of golang-jwt (RFC 7518 section 3.1, RFC 8037 section 3.1).
var supportedAlgorithms = strings.Fields("RS256 RS384 RS512 PS256 PS384 PS512 ES256 ES384 ES512 EdDSA")

// ErrAlgorithm means that the configuration names an unsupported signature algorithm.
var ErrAlgorithm = errors.New("is not a supported signature algorithm")

// VerifierConfig describes which tokens are accepted.
type VerifierConfig struct {
	// Issuer must be identical to the token's iss, including a trailing slash.
	Issuer string
	// Audience must be among the token's aud.
	Audience string
	// JWKSURL is the URL of the issuer's key set: https, or http on the loopback address. If it is "", Issuer must be
	// such a URL, and the issuer's metadata must name the key set (RFC 8414, OpenID Connect Discovery). It must be set
	// for some issuers, such as OCI, whose issuer is the same for all customers.
	JWKSURL string
	// Scope has the scopes that a token must have, separated by spaces. If it is "", none is required.
	Scope string
	// Algorithms lists the accepted signature algorithms. nil means RS256 and ES256. Only asymmetric algorithms are
	// supported.
	Algorithms []string
	// Clients lists the clients whose tokens are accepted. A token's client is its azp or, without azp, its client_id
	// (RFC 9068 section 2.2). nil accepts the tokens of any client.
	Clients []string
	// OnlyAccessTokens rejects tokens whose typ is not at+jwt (RFC 9068 section 4).
	OnlyAccessTokens bool
	// MaxLifetime is the maximum time from a token's iat to its exp. 0 means no limit. If there is a limit, tokens
	// without iat are rejected.
	MaxLifetime time.Duration
	// LimitClaim names the claim that becomes Identity.Group, by which limits count callers together. It has the same
	// form as in rules. If it is "", limits count each caller separately.
	LimitClaim string
	// HTTPClient fetches the keys. Redirects are not followed. nil means a new client with its own connections.
	HTTPClient *http.Client
	// Logger gets a debug line for each fetch of the keys and a warning for each failure. nil means no log. Rejected
	// tokens are not logged here. The caller of Verify logs them.
	Logger *slog.Logger
}

// Verifier verifies callers' bearer tokens. It does not cache results, because verifying a signature takes only about
// 50 µs, and such caches have mixed up callers elsewhere (CVE-2026-35030).
type Verifier struct {
	cfg    VerifierConfig
	scopes []string // cfg.Scope, split
	client *http.Client
	keys   *keyCache
	parser *jwt.Parser
}

// NewVerifier returns a Verifier, or an error if cfg is invalid. It sends no request, so that the service can start
// while the issuer is down. Callers must call Close.
func NewVerifier(cfg VerifierConfig) (*Verifier, error) {
	if cfg.Algorithms == nil {
		cfg.Algorithms = []string{"RS256", "ES256"}
	}
	if err := cfg.check(); err != nil {
		return nil, err
	}
	cfg.Logger = cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler))
	v := &Verifier{cfg: cfg, scopes: strings.Fields(cfg.Scope), client: fetch.NewClient(cfg.HTTPClient)}
	v.keys = newKeyCache(cfg.Issuer, cfg.JWKSURL, v.client, cfg.Logger)
	v.parser = jwt.NewParser(
		jwt.WithValidMethods(cfg.Algorithms), jwt.WithStrictDecoding(),
		jwt.WithIssuer(cfg.Issuer), jwt.WithAudience(cfg.Audience),
		jwt.WithExpirationRequired(), jwt.WithIssuedAt(), jwt.WithLeeway(clockSkew),
	)
	return v, nil
}

// check returns an error for the first setting that is missing or invalid.
func (cfg *VerifierConfig) check() error {
	if cfg.Issuer == "" || cfg.Audience == "" {
		return errors.New("the issuer and the audience must be set")
	}
	endpoint, name := cfg.JWKSURL, "the JWKS URL"
	if endpoint == "" {
		endpoint, name = cfg.Issuer, "the issuer, without a JWKS URL,"
	}
	if err := fetch.CheckEndpoint(name, endpoint); err != nil {
		return err
	}
	// RFC 6749 section 3.3 allows these characters. Challenge puts the scope into a quoted string.
	if strings.ContainsFunc(cfg.Scope, func(r rune) bool { return r < ' ' || r > '~' || r == '"' || r == '\\' }) {
		return errors.New("the scope has characters that are not allowed in a scope")
	}
	for _, alg := range cfg.Algorithms {
		if !slices.Contains(supportedAlgorithms, alg) {
			return fmt.Errorf("%q %w", alg, ErrAlgorithm)
		}
	}
	return nil
}

// Close stops polling for keys, cancels a request in flight, and waits until that has ended.
func (v *Verifier) Close() {
	v.keys.sets.Close()
	if v.cfg.HTTPClient == nil {
		v.client.CloseIdleConnections()
	}
}

// FetchKeys fetches the issuer's keys unless there are some already. The error is ErrKeysUnavailable and says why.
// Verify fetches the keys by itself. FetchKeys is for reports about the configuration.
func (v *Verifier) FetchKeys(ctx context.Context) error {
	_, err := v.keys.currentKeys(ctx)
	return err
}

// Verify returns the identity of the caller to whom the token was issued. It waits, until ctx ends, only if there are
// no keys or if the token's key is new.
//
// The error is ErrMalformed, ErrInvalidToken with a reason for the log, a *ScopeError, or ErrKeysUnavailable. Challenge
// returns the HTTP response for each of them.
//
// The checks prevent the following:
//
//   - The algorithm, together with the key's allowsAlgorithm: a token without a signature, or with a signature by another kind of key (RFC 8725 sections 3.1 and 3.2).
//   - The typ (OnlyAccessTokens): an ID token of the same issuer that is used as an access token (RFC 9068 section 5).
//   - Issuer and audience: a token that was issued for another service, which could forward it to this one (RFC 8725 sections 3.8 and 3.9).
//
// The header is checked before any key is looked up, so that a token that can never be valid causes no request to the
// issuer.
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
	keys, err := v.keys.currentKeys(ctx)
	if err != nil {
		return Identity{}, err
	}
	tokenClaims, err := v.parseToken(token, h, keys)
	// The issuer may have rotated its keys. An invalid signature can also mean that, because some issuers give all
	// their keys the same kid.
	if errors.Is(err, errNoKey) || errors.Is(err, jwt.ErrTokenSignatureInvalid) {
		if rotated, ok := v.keys.newerThan(ctx, keys); ok {
			tokenClaims, err = v.parseToken(token, h, rotated)
		}
	}
	if err != nil {
		return Identity{}, invalidTokenReason(err)
	}
	return v.identify(tokenClaims)
}

// identify returns the caller that verified claims identify. It returns an error if the configuration excludes the
// token, if the claims identify no caller, or if a required scope is missing.
func (v *Verifier) identify(c *claims) (Identity, error) {
	if err := v.checkRestrictions(c); err != nil {
		return Identity{}, err
	}
	id, ok := c.toIdentity()
	if !ok {
		return Identity{}, errSubject
	}
	if v.cfg.LimitClaim != "" {
		id.Group = id.Claim(v.cfg.LimitClaim)
	}
	for _, scope := range v.scopes {
		if !slices.Contains(id.Scopes, scope) {
			return Identity{}, &ScopeError{Required: v.cfg.Scope}
		}
	}
	return id, nil
}

// checkRestrictions returns an error if the configuration excludes the token's client or lifetime.
func (v *Verifier) checkRestrictions(c *claims) error {
	if v.cfg.Clients != nil {
		client := cmp.Or(c.authorizedParty, c.clientID)
		if client == "" || !slices.Contains(v.cfg.Clients, client) {
			return errClient
		}
	}
	if v.cfg.MaxLifetime > 0 {
		if c.issuedAt == nil || c.expires.Sub(c.issuedAt.Time) > v.cfg.MaxLifetime {
			return errLifetime
		}
	}
	return nil
}

// parseToken verifies the token's signature with keys, and then its claims, so that no claim of a forged token is used.
// The claims may be used only if err is nil. h is the token's header. golang-jwt checks that the parser's list has the
// algorithm, and keysFor returns only keys for that algorithm.
func (v *Verifier) parseToken(token string, h header, keys keySet) (*claims, error) {
	var c claims
	_, err := v.parser.ParseWithClaims(token, &c, func(*jwt.Token) (any, error) { return keys.keysFor(h) })
	return &c, err
}
