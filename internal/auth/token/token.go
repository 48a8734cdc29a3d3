// Package token gets the bearer tokens that the service sends to other services.
//
// A Source returns a token that is valid now. There are four: ClientCredentials fetches the service's
// own token from the IAM (RFC 6749 section 4.4). Exchange exchanges a caller's token for one that a
// server accepts on behalf of that caller (RFC 8693). CachedSource caches the tokens of any other grant.
// Static returns one configured token.
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
// At most one request is in flight per cached token, no matter how many callers wait for it, and each
// caller waits under its own context. Everything in this package may be used concurrently. Tokens and
// secrets are of type auth.Secret, which prints as "[redacted]".
package token

import (
	"context"
	"errors"
	"time"

	"answerd/internal/auth"
)

// Source returns the bearer token of outgoing requests.
type Source interface {
	// Token returns a token that is valid now. It blocks only if there is none, until a request has returned one or has
	// failed, or until ctx ends.
	Token(ctx context.Context) (auth.Secret, error)
	// Renew returns a token other than rejected, to which a server answered 401. It blocks as Token does. Callers with
	// the same rejected token share one request. A later call with that token gets the token of the request.
	Renew(ctx context.Context, rejected auth.Secret) (auth.Secret, error)
}

// Token is a token as a token endpoint issued it.
type Token struct {
	Secret   auth.Secret
	Lifetime time.Duration // the time from Requested for which the token is cached; at most a day
	// Stated is the validity of the token that the reply states, which may be longer than Lifetime; 0 if it states
	// none.
	Stated time.Duration
	// Requested is the time just before the request was sent.
	Requested time.Time
}

// ErrNoOtherToken is the error of Renew of a Static source.
var ErrNoOtherToken = errors.New("the configured token was refused, and there is no other")

// Static returns a source that always returns token. The expiry of the token is unknown; a server that does not
// accept it answers 401, and Renew then fails.
func Static(token auth.Secret) Source { return static{token} }

// static is the Source that Static returns.
type static struct{ token auth.Secret }

// Token implements Source.
func (s static) Token(context.Context) (auth.Secret, error) { return s.token, nil }

// Renew implements Source. It always fails, so that the caller's request fails with the 401.
func (s static) Renew(context.Context, auth.Secret) (auth.Secret, error) {
	return auth.Secret{}, ErrNoOtherToken
}
