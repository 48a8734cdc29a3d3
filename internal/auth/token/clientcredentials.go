package token

import (
	"context"
	"log/slog"
	"net/http"
	"net/url"

	"answerd/internal/auth"
)

// ClientCredentialsConfig says where and how the service gets a token of its own.
type ClientCredentialsConfig struct {
	// TokenURL is the IAM's token endpoint: https, or http on the loopback address.
	TokenURL string
	// Issuer may be set instead. Its metadata, which must name exactly this issuer, says
	// where the token endpoint is (RFC 8414).
	Issuer   string
	ClientID string
	// Secret returns the client secret: FixedSecret or VaultSecret. It is called for the
	// first request, and again after the IAM refused the secret that it returned, so it
	// needs no cache. It gets 10 s and must observe its context.
	Secret func(context.Context) (auth.Secret, error)
	// Scope is sent as it is, several with spaces between; "" asks for none.
	Scope string
	// Resource is the URI of the server that the token is for (RFC 8707); "" sends none.
	Resource string
	// HTTPClient is used with redirects off; nil means one with its own connections.
	HTTPClient *http.Client
	// Logger gets a debug line per token and a warning per failure; nil is silent.
	Logger *slog.Logger
}

// ClientCredentials is the Source of the service's own token, by the client credentials
// grant (RFC 6749 section 4.4). It caches as CachedSource does. Its errors are
// *fetch.Error, or the context's.
type ClientCredentials struct {
	client *endpointClient
	tokens *CachedSource
}

// NewClientCredentials checks cfg and sends nothing. Close must be called in the end.
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

// addTarget adds to form what the token is for.
func (cfg *ClientCredentialsConfig) addTarget(form url.Values) {
	if cfg.Scope != "" {
		form.Set("scope", cfg.Scope)
	}
	if cfg.Resource != "" {
		form.Set("resource", cfg.Resource)
	}
}

// Token implements Source.
func (c *ClientCredentials) Token(ctx context.Context) (auth.Secret, error) {
	return c.tokens.Token(ctx)
}

// Renew implements Source.
func (c *ClientCredentials) Renew(ctx context.Context, rejected auth.Secret) (auth.Secret, error) {
	return c.tokens.Renew(ctx, rejected)
}

// Close cancels the request in flight, waits for it, and lets no other start. A cached
// token stays available while it is valid, so that sessions can be closed with it.
func (c *ClientCredentials) Close() {
	c.tokens.Close()
	c.client.close()
}

// FixedSecret returns a function for ClientCredentialsConfig.Secret that always returns
// the client secret from the configuration.
func FixedSecret(secret auth.Secret) func(context.Context) (auth.Secret, error) {
	return func(context.Context) (auth.Secret, error) { return secret, nil }
}
