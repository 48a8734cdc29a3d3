package token

import (
	"context"
	"crypto/sha256"
	"errors"
	"maps"
	"net/url"
	"time"

	"answerd/internal/auth"
	"answerd/internal/auth/fetch"
	"answerd/internal/lru"
)

// grantTypeExchange is the grant type of RFC 8693 section 2.1.
const grantTypeExchange = "urn:ietf:params:oauth:grant-type:token-exchange"

const (
	maxCallers        = 4096             // callers' tokens for which an Exchange caches a source
	callerIdleTimeout = 30 * time.Minute // a source that is unused for this long is dropped
)

// ExchangeConfig says how callers' tokens are exchanged.
type ExchangeConfig struct {
	ClientCredentialsConfig
	// Audience is the logical name of the server that the token is for, if the IAM does not identify the server by
	// Resource. If it is "", none is sent.
	Audience string
}

// Exchange exchanges a caller's token for one that a server accepts on the caller's behalf (RFC 8693), and caches it
// until shortly before it expires. Concurrent calls for the same caller share one request. A failed request causes a
// pause only for its caller.
//
// The cache key consists of the caller and the SHA-256 of the whole token that they sent. Caches elsewhere with a
// smaller key have mixed up callers (CVE-2026-35030), and one person may have several tokens with different rights.
type Exchange struct {
	client  *endpointClient
	form    url.Values // parameters that are the same in all requests
	callers *lru.Cache[callerKey, *CachedSource]
}

// callerKey identifies a caller together with one of their tokens.
type callerKey struct {
	issuer, subject string
	token           [sha256.Size]byte
}

// NewExchange checks cfg and returns an Exchange. It sends no request. Callers must call Close.
func NewExchange(cfg ExchangeConfig) (*Exchange, error) {
	client, err := newEndpointClient(cfg.ClientCredentialsConfig)
	if err != nil {
		return nil, err
	}
	form := url.Values{
		"grant_type":           {grantTypeExchange},
		"subject_token_type":   {typeAccessToken},
		"requested_token_type": {typeAccessToken},
	}
	cfg.addTarget(form)
	if cfg.Audience != "" {
		form.Set("audience", cfg.Audience)
	}
	closeSource := func(s *CachedSource) { s.Close() } // a refresh may be in flight
	callers := lru.New[callerKey](maxCallers, callerIdleTimeout, closeSource)
	return &Exchange{client: client, form: form, callers: callers}, nil
}

// For returns the source of tokens on behalf of id. The source need not be closed. Its errors are *fetch.Error, or the
// context's. It always fails if id.Token is zero.
func (e *Exchange) For(id auth.Identity) Source { return delegatedSource{e, id} }

// delegatedSource is the Source for one caller.
type delegatedSource struct {
	exchange *Exchange
	caller   auth.Identity
}

// Token implements Source.
func (d delegatedSource) Token(ctx context.Context) (auth.Secret, error) {
	return d.withSource(func(s *CachedSource) (auth.Secret, error) { return s.Token(ctx) })
}

// Renew implements Source.
func (d delegatedSource) Renew(ctx context.Context, rejected auth.Secret) (auth.Secret, error) {
	return d.withSource(func(s *CachedSource) (auth.Secret, error) { return s.Renew(ctx, rejected) })
}

// withSource calls get with the cached source for the caller's token, after creating the source if necessary. The
// source stays in the cache while get runs. withSource returns an error without calling get if the caller sent no
// token, or if the source has to be created but the Exchange is closed or all maxCallers sources are in use.
func (d delegatedSource) withSource(get func(*CachedSource) (auth.Secret, error)) (auth.Secret, error) {
	if d.caller.Token.IsZero() {
		return auth.Secret{}, &fetch.Error{Public: "the caller sent no token"}
	}
	key := callerKey{
		issuer:  d.caller.Issuer,
		subject: d.caller.Subject,
		token:   sha256.Sum256([]byte(d.caller.Token.Reveal())),
	}
	source, err := d.exchange.callers.Acquire(key, func() *CachedSource {
		return NewCachedSource(func(ctx context.Context) (Token, error) {
			return d.exchange.requestToken(ctx, d.caller.Token)
		})
	})
	switch {
	case errors.Is(err, lru.ErrClosed):
		return auth.Secret{}, fetch.ErrClosed
	case err != nil:
		return auth.Secret{}, &fetch.Error{Public: "too many callers are waiting for their tokens"}
	}
	defer d.exchange.callers.Release(key)
	return get(source)
}

// requestToken exchanges subject, a caller's token (RFC 8693 section 2.1).
func (e *Exchange) requestToken(ctx context.Context, subject auth.Secret) (Token, error) {
	form := maps.Clone(e.form)
	form.Set("subject_token", subject.Reveal())
	return e.client.requestToken(ctx, form)
}

// Close cancels the requests in flight, waits until they have ended, and prevents further ones. Cached tokens remain
// available while they are valid.
func (e *Exchange) Close() {
	e.callers.Close()
	e.client.close()
}
