package mcp

import (
	"sync"

	"answerd/internal/auth"
	"answerd/internal/mcp/config"
	"answerd/internal/mcp/oauth"
	"answerd/internal/mcp/transport"
)

// sharedGrants has the clients that hold tokens of authorization servers, by what they are for. A server
// whose configuration changes in another respect keeps them over a Reload: people would
// have to sign in again for a new time-out.
type sharedGrants struct {
	mu  sync.Mutex // protects all
	all map[grantKey]*sharedGrant
}

// grantKey is everything that a grant depends on.
type grantKey struct {
	name, url, redirect string
	kind                config.AuthType
	grant               config.Grant
}

type sharedGrant struct {
	client *oauth.Client
	users  int
}

// acquireClient returns the client for a server and makes it if there is none. It needs a release, after
// the server's last request.
func (g *sharedGrants) acquireClient(cfg config.Server, o Options) (*oauth.Client, func(), error) {
	key := grantKey{cfg.Name, cfg.HTTPURL(), o.RedirectURL, cfg.Auth, cfg.Grant}
	g.mu.Lock()
	defer g.mu.Unlock()
	s := g.all[key]
	if s == nil {
		client, err := oauth.New(oauthConfig(&cfg, o))
		if err != nil {
			return nil, nil, err
		}
		s = &sharedGrant{client: client}
		g.all[key] = s
	}
	s.users++
	return s.client, func() { g.releaseClient(key, s) }, nil
}

func (g *sharedGrants) releaseClient(key grantKey, s *sharedGrant) {
	g.mu.Lock()
	s.users--
	last := s.users == 0
	if last {
		delete(g.all, key)
	}
	g.mu.Unlock()
	if last {
		s.client.Close()
	}
}

// oauthConfig returns the configuration of the client for the authorization server of s.
func oauthConfig(s *config.Server, o Options) oauth.Config {
	g := s.Grant
	c := oauth.Config{
		Kind: oauth.Kind(s.Auth), URL: s.HTTPURL(), Resource: g.Resource, Issuer: g.Issuer, TokenURL: g.TokenURL,
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

// credentialsFor returns the credentials of a server that has an authorization server.
func (g *sharedGrants) credentialsFor(cfg config.Server, o Options) (credentials, error) {
	client, release, err := g.acquireClient(cfg, o)
	if err != nil {
		return credentials{}, err
	}
	c := credentials{source: grantSender{client.For(auth.Identity{})}, close: release}
	if cfg.Auth.Delegated() {
		c.source = noUserSender{}
		c.delegation = &delegation{of: func(who auth.Identity) transport.Sender { return grantSender{client.For(who)} }, takesToken: cfg.Auth.NeedsCallerToken()}
	}
	if cfg.Auth == config.AuthAuthorizationCode {
		c.delegation.consents = client
	}
	return c, nil
}
