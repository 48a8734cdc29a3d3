// Package token gets the bearer tokens that the service sends to other services.
//
// A Source returns a token that is valid now. There are four kinds. ClientCredentials gets the service's own token from
// the IAM (RFC 6749 section 4.4). Exchange exchanges a caller's token for one that a server accepts on that caller's
// behalf (RFC 8693). CachedSource caches the tokens of any other grant. Static returns one configured token.
//
//	source, err := token.NewClientCredentials(token.ClientCredentialsConfig{TokenURL: …, ClientID: …, Secret: …})
//	defer source.Close()
//	tok, err := source.Token(ctx)        // cached, refreshed before it expires
//	tok, err = source.Renew(ctx, tok)    // after a server answered 401 to tok
//
//	exchange, err := token.NewExchange(token.ExchangeConfig{…})
//	defer exchange.Close()
//	tok, err = exchange.For(caller).Token(ctx)
//
// At most one request is in flight per cached token, no matter how many callers wait for it. Each caller waits until
// its own context ends. Everything in this package may be used concurrently. Tokens and secrets have the type
// auth.Secret, which prints as "[redacted]".
package token

import (
	"context"
	"errors"
	"time"

	"answerd/internal/auth"
)

// Source returns the bearer token for outgoing requests.
type Source interface {
	// Token returns a token that is valid now. It blocks only if there is none, until a request for one has ended or
	// until ctx ends.
	Token(ctx context.Context) (auth.Secret, error)
	// Renew returns another token than rejected, to which a server answered 401. It blocks like Token. Callers with the
	// same rejected token share one request. A later call with that token gets the new token without another request.
	Renew(ctx context.Context, rejected auth.Secret) (auth.Secret, error)
}

// Token is a token as a token endpoint issued it.
type Token struct {
	Secret   auth.Secret
	Lifetime time.Duration // how long the token may be cached, counted from Requested; at most a day
	// Stated is how long the token is valid according to the reply, which may be longer than Lifetime. It is 0 if the
	// reply does not say.
	Stated time.Duration
	// Requested is the time just before the request was sent.
	Requested time.Time
}

// ErrNoOtherToken is the error that Renew returns for a Static source.
var ErrNoOtherToken = errors.New("the configured token was refused, and there is no other")

// Static returns a source that always returns token, whose expiry is unknown. When a server no longer accepts it and
// answers 401, Renew fails.
func Static(token auth.Secret) Source { return static{token} }

// static is the Source that Static returns.
type static struct{ token auth.Secret }

// Token implements Source.
func (s static) Token(context.Context) (auth.Secret, error) { return s.token, nil }

// Renew implements Source. It always fails, so that the request that got the 401 fails.
func (s static) Renew(context.Context, auth.Secret) (auth.Secret, error) {
	return auth.Secret{}, ErrNoOtherToken
}
