package auth

import (
	"context"
	"crypto/sha256"
	"errors"
	"net/url"
	"time"

	"answerd/internal/lru"
)

// The names of RFC 8693 section 2.1 and 3.
const (
	grantExchange   = "urn:ietf:params:oauth:grant-type:token-exchange"
	typeAccessToken = "urn:ietf:params:oauth:token-type:access_token"
	typeJWT         = "urn:ietf:params:oauth:token-type:jwt"
)

const (
	maxCallers = 4096             // whose tokens an Exchange keeps at a time
	callerIdle = 30 * time.Minute // after which a caller's tokens are forgotten
)

// ExchangeConfig says where callers' tokens are exchanged.
type ExchangeConfig struct {
	// As whom to ask, where, and for what: the same as of a token of our own.
	ClientCredentialsConfig
	// Audience is the logical name of whom the token is for, where Resource is not
	// how the IAM knows it; "" names nobody.
	Audience string
}

// Exchange trades a caller's token for one that a server takes on behalf of that
// caller (RFC 8693), and keeps it until shortly before it expires. All calls of a
// caller share one request; a failed one costs that caller a pause, and no other.
//
// A token is kept under its caller and the SHA-256 of the whole token that he
// brought: caches that went by less have mixed callers up (CVE-2026-35030), and one
// person may come with tokens of different rights.
type Exchange struct {
	*tokenClient
	form    url.Values
	callers *lru.Cache[callerKey, *keeper]
}

type callerKey struct {
	issuer, subject string
	token           [sha256.Size]byte
}

// NewExchange checks cfg and fetches nothing. Close must be called in the end.
func NewExchange(cfg ExchangeConfig) (*Exchange, error) {
	c, err := newTokenClient(cfg.ClientCredentialsConfig)
	if err != nil {
		return nil, err
	}
	form := url.Values{
		"grant_type":           {grantExchange},
		"subject_token_type":   {typeAccessToken},
		"requested_token_type": {typeAccessToken},
	}
	cfg.target(form)
	if cfg.Audience != "" {
		form.Set("audience", cfg.Audience)
	}
	forget := func(k *keeper) { k.grants.close() } // a refresh may be under way
	return &Exchange{tokenClient: c, form: form, callers: lru.New[callerKey](maxCallers, callerIdle, forget)}, nil
}

// For is the source of tokens on behalf of id, which must have a Token. It holds
// nothing and need not be closed. Its errors are *FetchError, or the context's.
func (e *Exchange) For(id Identity) TokenSource { return onBehalf{e, id} }

// onBehalf is the TokenSource of one caller.
type onBehalf struct {
	exchange *Exchange
	id       Identity
}

func (o onBehalf) Token(ctx context.Context) (Secret, error) {
	return o.use(func(k *keeper) (Secret, error) { return k.token(ctx) })
}

func (o onBehalf) Renew(ctx context.Context, rejected Secret) (Secret, error) {
	return o.use(func(k *keeper) (Secret, error) { return k.renew(ctx, rejected) })
}

// use calls get with the keeper of the caller's token, made now if there is none.
func (o onBehalf) use(get func(*keeper) (Secret, error)) (Secret, error) {
	if o.id.Token.IsZero() {
		return Secret{}, &FetchError{Public: "the caller brought no token"}
	}
	key := callerKey{o.id.Issuer, o.id.Subject, sha256.Sum256([]byte(o.id.Token.Reveal()))}
	k, err := o.exchange.callers.Acquire(key, func() *keeper {
		return newKeeper(func(ctx context.Context) (Fresh, error) { return o.exchange.ask(ctx, o.id.Token) })
	})
	switch {
	case errors.Is(err, lru.ErrClosed):
		return Secret{}, errClosed
	case err != nil:
		return Secret{}, &FetchError{Public: "too many callers wait for their tokens"}
	}
	defer o.exchange.callers.Release(key)
	return get(k)
}

// ask is one exchange: the form of RFC 8693 section 2.1 with the token that the caller
// brought.
func (e *Exchange) ask(ctx context.Context, subject Secret) (Fresh, error) {
	form := url.Values{"subject_token": {subject.Reveal()}}
	for name, values := range e.form {
		form[name] = values
	}
	return e.fetch(ctx, form)
}

// Close ends the requests under way, waits for them, and lets no other start. Tokens
// that are there are still given while they are valid.
func (e *Exchange) Close() {
	e.callers.Close()
	e.tokenClient.close()
}
