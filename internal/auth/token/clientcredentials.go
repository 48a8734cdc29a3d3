package token

import (
	"context"
	"net/url"

	"answerd/internal/auth"
)

// ClientCredentials is the Source of the service's own token, which it gets with the client credentials grant (RFC 6749
// section 4.4). It caches the token like CachedSource. Its errors are *fetch.Error, or the context's.
type ClientCredentials struct {
	client *endpointClient
	tokens *CachedSource
}

// NewClientCredentials checks cfg and returns the source. It sends no request. Callers must call Close.
func NewClientCredentials(cfg ClientCredentialsConfig) (*ClientCredentials, error) {
	client, err := newEndpointClient(cfg)
	if err != nil {
		return nil, err
	}
	form := url.Values{"grant_type": {"client_credentials"}}
	cfg.addTarget(form)
	tokens := NewCachedSource(func(ctx context.Context) (Token, error) { return client.requestToken(ctx, form) })
	return &ClientCredentials{client, tokens}, nil
}

// Token implements Source.
func (c *ClientCredentials) Token(ctx context.Context) (auth.Secret, error) {
	return c.tokens.Token(ctx)
}

// Renew implements Source.
func (c *ClientCredentials) Renew(ctx context.Context, rejected auth.Secret) (auth.Secret, error) {
	return c.tokens.Renew(ctx, rejected)
}

// Close cancels the request in flight, waits until it has ended, and prevents further ones. A cached token remains
// available while it is valid, because sessions need it to close.
func (c *ClientCredentials) Close() {
	c.tokens.Close()
	c.client.close()
}

// FixedSecret returns a function for ClientCredentialsConfig.Secret that always returns secret.
func FixedSecret(secret auth.Secret) func(context.Context) (auth.Secret, error) {
	return func(context.Context) (auth.Secret, error) { return secret, nil }
}
