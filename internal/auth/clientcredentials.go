package auth

import (
	"context"
	"log/slog"
	"net/http"
	"net/url"
)

// ClientCredentialsConfig says where a token of the service's own comes from.
type ClientCredentialsConfig struct {
	// TokenURL is the IAM's token endpoint: https, or http on the loopback address.
	TokenURL string
	// Issuer may be given instead: its metadata says where the endpoint is (RFC
	// 8414), if the metadata is of the issuer of exactly this name.
	Issuer   string
	ClientID string
	// Secret gives the client secret: Fixed, or VaultSecret. It is called at the
	// first fetch, and again once the IAM has refused the secret that it gave, so it
	// need not remember anything. It gets 10 s and must observe its context.
	Secret func(context.Context) (Secret, error)
	// Scope is asked for as it is, several with spaces between; "" asks for none.
	Scope string
	// Resource is the URI of whom the token is for (RFC 8707); "" names nobody.
	Resource string
	// HTTPClient is used with its redirects off; nil means one of our own.
	HTTPClient *http.Client
	// Logger gets a debug line per token and a warning per failure; nil is silent.
	Logger *slog.Logger
}

// ClientCredentials is a token of the service's own by the client credentials grant
// (RFC 6749 section 4.4), kept until shortly before it expires. Callers share one
// request; a failed one is followed by a pause of 1 s to 30 s, in which the old token is
// given while it is valid and callers fail at once when it is not.
//
// Nothing is fetched that nobody asks for: the refresh is started by a caller that
// comes late in a token's life, who takes the old one away and does not wait.
type ClientCredentials struct {
	*tokenClient
	*keeper
}

// NewClientCredentials checks cfg and fetches nothing. Close must be called in the end.
func NewClientCredentials(cfg ClientCredentialsConfig) (*ClientCredentials, error) {
	c, err := newTokenClient(cfg)
	if err != nil {
		return nil, err
	}
	form := url.Values{"grant_type": {"client_credentials"}}
	cfg.target(form)
	return &ClientCredentials{c, newKeeper(func(ctx context.Context) (Fresh, error) { return c.fetch(ctx, form) })}, nil
}

// target adds what is asked for to the form of a token request.
func (cfg *ClientCredentialsConfig) target(form url.Values) {
	if cfg.Scope != "" {
		form.Set("scope", cfg.Scope)
	}
	if cfg.Resource != "" {
		form.Set("resource", cfg.Resource)
	}
}

// Close ends the fetch under way, waits for it, and lets no other start. A token that
// is there is still given while it is valid, so that sessions can be closed with it.
func (c *ClientCredentials) Close() {
	c.grants.close()
	c.tokenClient.close()
}

// Token implements TokenSource. A token that is valid costs a mutex and no allocation,
// because every request to every MCP server asks. Errors are *FetchError, or ctx's.
func (c *ClientCredentials) Token(ctx context.Context) (Secret, error) { return c.token(ctx) }

// Renew implements TokenSource. It starts at most one fetch per second, and none in
// the pause after a failed one: a server that refuses every token costs the IAM no
// more than that, and the callers in between fail at once. Others are given the
// rejected token until the new one is there, because it may have been refused by
// a server that is wrong. Errors are *FetchError, or ctx's.
func (c *ClientCredentials) Renew(ctx context.Context, rejected Secret) (Secret, error) {
	return c.renew(ctx, rejected)
}
