package mcp

import (
	"errors"
	"fmt"

	"answerd/internal/auth"
	"answerd/internal/mcp/oauth"
)

// credentials are where the tokens for one server come from.
type credentials struct {
	source sender  // nil: the server gets none
	behalf *behalf // on behalf of the callers; else nil
	close  func()
}

// behalf is how a server is used on behalf of its callers.
type behalf struct {
	of func(auth.Identity) sender
	// takesToken says that a caller must have brought a token.
	takesToken bool
	// consents is where callers agree that the server is used on their behalf, where they
	// have to; else nil.
	consents *oauth.Client
}

// newCredentials are those of cfg, which was checked. It fetches nothing. close is to
// be called after the server's last request: the end of a session takes a token too.
func newCredentials(cfg ServerConfig, o Options) (credentials, error) {
	c := credentials{close: func() {}}
	switch {
	case !cfg.BearerToken.IsZero():
		c.source = bearer{auth.Static(cfg.BearerToken)}
	case cfg.Auth == AuthJWT && o.Service != nil:
		c.source = bearer{o.Service}
	case cfg.Auth == AuthExchange:
		ex, err := auth.NewExchange(auth.ExchangeConfig{Audience: cfg.Grant.Audience, ClientCredentialsConfig: auth.ClientCredentialsConfig{
			Issuer: cfg.Grant.Issuer, TokenURL: cfg.Grant.TokenURL,
			ClientID: cfg.Grant.ClientID, Secret: auth.Fixed(cfg.Grant.ClientSecret),
			Scope: cfg.Grant.Scope, Resource: cfg.resource(), Logger: o.Logger.With("mcp_server", cfg.Name),
		}})
		if err != nil {
			return c, err
		}
		c.source, c.close = nobody{}, ex.Close
		c.behalf = &behalf{of: func(who auth.Identity) sender { return bearer{ex.For(who)} }, takesToken: true}
	case cfg.Auth.granted():
		client, err := oauth.New(cfg.oauth(o))
		if err != nil {
			return c, err
		}
		c.source, c.close = granted{client.For(auth.Identity{})}, client.Close
		if cfg.Auth.OfCallers() {
			c.source = nobody{}
			c.behalf = &behalf{of: func(who auth.Identity) sender { return granted{client.For(who)} }, takesToken: cfg.Auth.TakesToken()}
		}
		if cfg.Auth == AuthAuthorizationCode {
			c.behalf.consents = client
		}
	}
	return c, nil
}

// oauth is how the server's tokens are got that package oauth gets.
func (s *ServerConfig) oauth(o Options) oauth.Config {
	g := s.Grant
	c := oauth.Config{
		Kind: oauth.Kind(s.Auth), URL: s.httpURL(), Resource: g.Resource, Issuer: g.Issuer, TokenURL: g.TokenURL,
		ClientID: g.ClientID, ClientMetadataURL: g.ClientMetadataURL, ClientSecret: g.ClientSecret,
		PrivateKey: oauth.Text{Value: g.PrivateKey, File: g.PrivateKeyFile},
		Scope:      g.Scope, Assertion: oauth.Text{Value: g.Assertion, File: g.AssertionFile}, RedirectURL: g.RedirectURL,
		IdP:  oauth.IdP{TokenURL: g.IdPTokenURL, ClientID: g.IdPClientID, ClientSecret: g.IdPClientSecret, SubjectTokenType: g.SubjectTokenType},
		DPoP: g.DPoP, Logger: o.Logger.With("mcp_server", s.Name),
	}
	if c.RedirectURL == "" {
		c.RedirectURL = o.RedirectURL
	}
	return c
}

// errCredentials is in the chain of a failure whose reason is the token, or that there
// is none: of a server that is used on behalf of its callers it says nothing about the
// server.
var errCredentials = errors.New("credentials")

// ofCredentials is err, or nothing, as such a reason.
func ofCredentials(err error) error {
	if err == nil {
		return errCredentials
	}
	return fmt.Errorf("%w: %w", errCredentials, err)
}
