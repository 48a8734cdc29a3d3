// Package token gets the bearer tokens that the service sends to others.
//
// A Source gives tokens that are valid now. ClientCredentials fetches the service's own
// token from the IAM (RFC 6749 section 4.4) with a secret from the configuration or from
// OCI Vault. Exchange trades a caller's token for one that a server accepts on behalf of
// that caller (RFC 8693). CachedSource caches what any other grant gives. Static returns
// one configured token.
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
// One token request is in flight per cached token, however many callers wait for it; each
// waits under its own context. Everything here may be used concurrently. Tokens and secrets
// are auth.Secret, which prints as "[redacted]".
package token

import (
	"context"
	"errors"
	"time"

	"answerd/internal/auth"
)

// Source gives the bearer token of outgoing requests.
type Source interface {
	// Token returns a token that is valid now. It waits, under ctx, only if there is none.
	Token(ctx context.Context) (auth.Secret, error)
	// Renew returns a token other than rejected, which a server answered with 401. Callers
	// with the same rejected token share one request, and a caller that comes after it gets
	// the token that it brought.
	Renew(ctx context.Context, rejected auth.Secret) (auth.Secret, error)
}

// Token is a token as a token endpoint gave it.
type Token struct {
	Secret   auth.Secret
	Lifetime time.Duration // counted from Requested
	// Requested is the time just before the request was sent.
	Requested time.Time
}

// ErrNoOtherToken is what Renew of a Static source returns.
var ErrNoOtherToken = errors.New("the configured token was refused, and there is no other")

// Static returns the source of one configured token. It never expires here; a server that
// does not accept it says so.
func Static(token auth.Secret) Source { return static{token} }

type static struct{ token auth.Secret }

func (s static) Token(context.Context) (auth.Secret, error) { return s.token, nil }

func (s static) Renew(context.Context, auth.Secret) (auth.Secret, error) {
	return auth.Secret{}, ErrNoOtherToken
}
