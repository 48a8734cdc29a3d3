package mcp

import (
	"answerd/internal/auth"
	"answerd/internal/auth/token"
	"answerd/internal/mcp/config"
	"answerd/internal/mcp/oauth"
	"answerd/internal/mcp/transport"
)

// credentials are where the tokens for one server come from.
type credentials struct {
	source     transport.Sender // nil: the server gets none
	delegation *delegation      // on behalf of the callers; else nil
	close      func()
}

// delegation says how a server is used on behalf of its callers.
type delegation struct {
	of func(auth.Identity) transport.Sender
	// takesToken says that a caller must have brought a token.
	takesToken bool
	// consents is where callers agree that the server is used on their behalf, where they
	// have to; else nil.
	consents *oauth.Client
}

// newCredentials are those of cfg, which was checked. It fetches nothing. close is to
// be called after the server's last request: the end of a session takes a token too.
func newCredentials(cfg config.Server, o Options) (credentials, error) {
	c := credentials{close: func() {}}
	switch {
	case !cfg.BearerToken.IsZero():
		c.source = transport.Bearer{Source: token.Static(cfg.BearerToken)}
	case cfg.Auth == config.AuthJWT && o.Service != nil:
		c.source = transport.Bearer{Source: o.Service}
	case cfg.Auth == config.AuthExchange:
		ex, err := token.NewExchange(token.ExchangeConfig{Audience: cfg.Grant.Audience, ClientCredentialsConfig: token.ClientCredentialsConfig{
			Issuer: cfg.Grant.Issuer, TokenURL: cfg.Grant.TokenURL,
			ClientID: cfg.Grant.ClientID, Secret: token.FixedSecret(cfg.Grant.ClientSecret),
			Scope: cfg.Grant.Scope, Resource: cfg.TokenResource(), Logger: o.Logger.With("mcp_server", cfg.Name),
		}})
		if err != nil {
			return c, err
		}
		c.source, c.close = noUserSender{}, ex.Close
		c.delegation = &delegation{of: func(who auth.Identity) transport.Sender { return transport.Bearer{Source: ex.For(who)} }, takesToken: true}
	case cfg.Auth.HasAuthorizationServer():
		return o.grants.credentialsFor(cfg, o)
	}
	return c, nil
}
