package token

import (
	"context"
	"log/slog"
	"net/http"
	"net/url"

	"answerd/internal/auth"
)

// ClientCredentialsConfig describes how the service gets its own token.
type ClientCredentialsConfig struct {
	// TokenURL is the IAM's token endpoint: https, or http on the loopback address.
	TokenURL string
	// Issuer may be set instead. The token endpoint is then the one in its metadata, which must name
	// exactly this issuer (RFC 8414).
	Issuer   string
	ClientID string
	// Secret returns the client secret: FixedSecret or VaultSecret. It is called for the first
	// request, and again after the IAM has refused the secret, so it needs no cache. It gets 10 s and
	// must observe its context.
	Secret func(context.Context) (auth.Secret, error)
	// Scope is sent unchanged, several scopes separated by spaces; "" sends none.
	Scope string
	// Resource is the URI of the server that the token is for (RFC 8707); "" sends none.
	Resource string
	// HTTPClient sends the requests. Its redirects are not followed. nil means a new client with its
	// own connections.
	HTTPClient *http.Client
	// Logger gets a debug line for each token and a warning for each failure; nil means no log.
	Logger *slog.Logger
}

// ClientCredentials is the Source of the service's own token, by the client credentials grant (RFC
// 6749 section 4.4). It caches like CachedSource. Its errors are *fetch.Error, or the context's.
type ClientCredentials struct {
	client *endpointClient
	tokens *CachedSource
}

// NewClientCredentials checks cfg. It does not send a request. The caller must Close the source.
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

// addTarget adds scope and resource to form, which limit what the token is for.
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

// Close cancels the request in flight, waits for it, and prevents further ones. A cached token
// stays available while it is valid, because sessions are closed with it.
func (c *ClientCredentials) Close() {
	c.tokens.Close()
	c.client.close()
}

// FixedSecret returns a function for ClientCredentialsConfig.Secret that always returns
// the client secret from the configuration.
func FixedSecret(secret auth.Secret) func(context.Context) (auth.Secret, error) {
	return func(context.Context) (auth.Secret, error) { return secret, nil }
}
