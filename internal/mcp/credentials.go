package mcp

import (
	"context"
	"errors"
	"fmt"

	"answerd/internal/auth"
)

// credentials are where the tokens for one server come from.
type credentials struct {
	source   auth.TokenSource // nil: the server gets none
	exchange *auth.Exchange   // on behalf of the callers; else nil
	close    func()
}

// newCredentials are those of cfg, which was checked. It fetches nothing. close is to
// be called after the server's last request: the end of a session takes a token too.
func newCredentials(cfg ServerConfig, o Options) (credentials, error) {
	c := credentials{close: func() {}}
	grant := auth.ClientCredentialsConfig{
		Issuer: cfg.Grant.Issuer, TokenURL: cfg.Grant.TokenURL,
		ClientID: cfg.Grant.ClientID, Secret: auth.Fixed(cfg.Grant.ClientSecret),
		Scope: cfg.Grant.Scope, Resource: cfg.resource(),
		Logger: o.Logger.With("mcp_server", cfg.Name),
	}
	switch {
	case !cfg.BearerToken.IsZero():
		c.source = auth.Static(cfg.BearerToken)
	case cfg.Auth == AuthJWT && o.Service != nil:
		c.source = o.Service
	case cfg.Auth == AuthClientCredentials:
		own, err := auth.NewClientCredentials(grant)
		if err != nil {
			return c, err
		}
		c.source, c.close = own, own.Close
	case cfg.Auth == AuthExchange:
		ex, err := auth.NewExchange(auth.ExchangeConfig{ClientCredentialsConfig: grant, Audience: cfg.Grant.Audience})
		if err != nil {
			return c, err
		}
		c.source, c.exchange, c.close = nobody{}, ex, ex.Close
	}
	return c, nil
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

// nobody is the source of a request that belongs to no caller at a server that is used
// on behalf of its callers. There should be none; if there is, it goes without.
type nobody struct{}

var errNobody = errors.New("the request belongs to no caller")

func (nobody) Token(context.Context) (auth.Secret, error) { return auth.Secret{}, errNobody }

func (nobody) Renew(context.Context, auth.Secret) (auth.Secret, error) {
	return auth.Secret{}, errNobody
}
