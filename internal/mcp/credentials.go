package mcp

import (
	"errors"
	"fmt"
	"net/http"
	"sync"

	"answerd/internal/auth"
	"answerd/internal/auth/token"
	"answerd/internal/mcp/config"
	"answerd/internal/mcp/oauth"
	"answerd/internal/mcp/transport"
	"answerd/internal/tlsconfig"
)

// tlsSources has the certificates of all servers, by the names of their files. A server whose
// configuration changes keeps them. The lock Client.reload protects it.
type tlsSources struct {
	all map[tlsconfig.Files]*tlsconfig.Source
}

// load reads the files that are new with servers, and forgets those that servers do not have.
func (t *tlsSources) load(servers []config.Server) error {
	next := map[tlsconfig.Files]*tlsconfig.Source{}
	for i := range servers {
		s := &servers[i]
		if s.Disabled || next[s.TLS] != nil {
			continue
		}
		source := t.all[s.TLS]
		if source == nil {
			var err error
			if source, err = tlsconfig.Load(s.TLS); err != nil {
				field := "tls"
				if e, ok := errors.AsType[*tlsconfig.FileError](err); ok {
					field = config.TLSField(e.Field)
				}
				return fmt.Errorf("MCP server %q, %s: %w", s.Name, field, err)
			}
		}
		next[s.TLS] = source
	}
	t.all = next
	return nil
}

// credentials are the source of the tokens for one server.
type credentials struct {
	source     transport.Sender // nil: requests carry no token
	delegation *delegation      // nil unless each caller has tokens of their own
	close      func()
}

// delegation describes how a server is used on behalf of its callers.
type delegation struct {
	of func(auth.Identity) transport.Sender
	// takesToken says that the caller must have sent a token.
	takesToken bool
	// consents is the client at which users sign in; nil if they need not.
	consents *oauth.Client
}

// newCredentials returns the credentials for cfg, which has been checked. It fetches nothing. Call
// close after the server's last request, which is the DELETE of its session and needs a token too.
func newCredentials(cfg config.Server, opts Options) (credentials, error) {
	c := credentials{close: func() {}}
	switch {
	case !cfg.BearerToken.IsZero():
		c.source = transport.Bearer{Source: token.Static(cfg.BearerToken)}
	case cfg.Auth == config.AuthJWT && opts.Service != nil:
		c.source = transport.Bearer{Source: opts.Service}
	case cfg.Auth == config.AuthExchange:
		return newExchangeCredentials(cfg, opts)
	case cfg.Auth.HasAuthorizationServer():
		return opts.grants.credentialsFor(cfg, opts)
	}
	return c, nil
}

// newExchangeCredentials returns credentials that exchange the token of each caller for one that the server accepts
// (RFC 8693). A request without a caller is not sent.
func newExchangeCredentials(cfg config.Server, opts Options) (credentials, error) {
	client, closeIdle := opts.tokenClient(cfg)
	exchange, err := token.NewExchange(token.ExchangeConfig{Audience: cfg.Grant.Audience, ClientCredentialsConfig: token.ClientCredentialsConfig{
		Issuer: cfg.Grant.Issuer, TokenURL: cfg.Grant.TokenURL,
		ClientID: cfg.Grant.ClientID, Secret: token.FixedSecret(cfg.Grant.ClientSecret),
		Scope: cfg.Grant.Scope, Resource: cfg.TokenResource(), HTTPClient: client, Logger: opts.Logger.With("mcp_server", cfg.Name),
	}})
	if err != nil {
		return credentials{close: func() {}}, err
	}
	return credentials{
		source: noUserSender{},
		close: func() {
			exchange.Close()
			closeIdle()
		},
		delegation: &delegation{
			of:         func(caller auth.Identity) transport.Sender { return transport.Bearer{Source: exchange.For(caller)} },
			takesToken: true,
		},
	}, nil
}

// tokenClient returns the client for the token endpoint of a server with AuthExchange, with the TLS
// files of the server or else those of the IAM; nil without either.
func (o *Options) tokenClient(cfg config.Server) (client *http.Client, closeIdle func()) {
	source := o.TokenTLS
	if cfg.TLS != (tlsconfig.Files{}) {
		source = o.tls.all[cfg.TLS]
	}
	if source == nil {
		return nil, func() {}
	}
	client = source.Client()
	return client, client.CloseIdleConnections
}

// sharedGrants holds the clients of authorization servers by what their tokens depend on. When
// Reload changes anything else about a server, such as a timeout, the server keeps its client, so
// that users need not sign in again.
type sharedGrants struct {
	mu  sync.Mutex // protects all
	all map[grantKey]*sharedGrant
}

// grantKey holds everything that a client's tokens depend on.
type grantKey struct {
	name, url, redirect string
	kind                config.AuthType
	grant               config.Grant
	tls                 tlsconfig.Files
}

type sharedGrant struct {
	client *oauth.Client
	users  int
}

// acquireClient returns the client for a server and creates it if needed. Call the returned
// function after the server's last request.
func (g *sharedGrants) acquireClient(cfg config.Server, o Options) (*oauth.Client, func(), error) {
	key := grantKey{cfg.Name, cfg.HTTPURL(), o.RedirectURL, cfg.Auth, cfg.Grant, cfg.TLS}
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

// releaseClient closes the client of a grant when its last user has released it.
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
func oauthConfig(s *config.Server, opts Options) oauth.Config {
	g := s.Grant
	c := oauth.Config{
		Kind: oauth.Kind(s.Auth), Name: s.Name, URL: s.HTTPURL(), Resource: g.Resource, Issuer: g.Issuer, TokenURL: g.TokenURL,
		ClientID: g.ClientID, ClientMetadataURL: g.ClientMetadataURL, ClientSecret: g.ClientSecret,
		PrivateKey: oauth.Text{Value: g.PrivateKey, File: g.PrivateKeyFile},
		Scope:      g.Scope, Assertion: oauth.Text{Value: g.Assertion, File: g.AssertionFile}, RedirectURL: g.RedirectURL,
		IdP:  oauth.IdP{TokenURL: g.IdPTokenURL, ClientID: g.IdPClientID, ClientSecret: g.IdPClientSecret, SubjectTokenType: g.SubjectTokenType},
		DPoP: g.DPoP, TLS: opts.tls.all[s.TLS], Store: opts.SignIns, Logger: opts.Logger.With("mcp_server", s.Name),
	}
	if c.RedirectURL == "" {
		c.RedirectURL = opts.RedirectURL
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
	if cfg.Auth.IsDelegated() {
		c.source = noUserSender{}
		c.delegation = &delegation{of: func(who auth.Identity) transport.Sender { return grantSender{client.For(who)} }, takesToken: cfg.Auth.NeedsCallerToken()}
	}
	if cfg.Auth == config.AuthAuthorizationCode {
		c.delegation.consents = client
	}
	return c, nil
}

// grantSender sends requests with tokens of the server's authorization server.
type grantSender struct{ source *oauth.Source }

// Send implements transport.Sender.
func (g grantSender) Send(next http.RoundTripper, r *http.Request) (*http.Response, error) {
	resp, err := g.source.Send(next, r)
	if e, ok := errors.AsType[*oauth.Error](err); ok {
		transport.RoundTripOf(r.Context()).SetNotSent() // if a request was sent, the server refused it and ran nothing
		return nil, &transport.Failure{Kind: Unavailable, Public: e.Public, NotRun: true, Err: transport.CredentialsError(e)}
	}
	return resp, err
}

// noUserSender refuses every request. It serves requests without a caller to a server that is used
// on behalf of its callers; no such request should exist.
type noUserSender struct{}

var errNoCaller = errors.New("the request has no caller")

// Send implements transport.Sender.
func (noUserSender) Send(_ http.RoundTripper, r *http.Request) (*http.Response, error) {
	if r.Body != nil {
		_ = r.Body.Close()
	}
	return nil, &transport.Failure{Kind: Unavailable, Public: "there is no token for it", NotRun: true, Err: transport.CredentialsError(errNoCaller)}
}
