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
	// Token returns a token that is valid now. It waits, under ctx, only if there is none.
	Token(ctx context.Context) (auth.Secret, error)
	// Renew returns a token other than rejected, to which a server answered 401. Callers with the
	// same rejected token share one request. A caller that comes later gets the token of that
	// request.
	Renew(ctx context.Context, rejected auth.Secret) (auth.Secret, error)
}

// Token is a token as a token endpoint issued it.
type Token struct {
	Secret   auth.Secret
	Lifetime time.Duration // counted from Requested; at most a day
	// Stated is how long the token is valid by what the reply says, however long that is; 0 if it does not
	// say.
	Stated time.Duration
	// Requested is the time just before the request was sent.
	Requested time.Time
}

// ErrNoOtherToken is the error of Renew for a Static source.
var ErrNoOtherToken = errors.New("the configured token was refused, and there is no other")

// Static returns the source of one configured token. Its expiry is unknown; a server that does not
// accept it answers 401.
func Static(token auth.Secret) Source { return static{token} }

// static is the Source that Static returns.
type static struct{ token auth.Secret }

// Token implements Source.
func (s static) Token(context.Context) (auth.Secret, error) { return s.token, nil }

// Renew implements Source. It always fails, so that the caller's request fails with the 401.
func (s static) Renew(context.Context, auth.Secret) (auth.Secret, error) {
	return auth.Secret{}, ErrNoOtherToken
}
