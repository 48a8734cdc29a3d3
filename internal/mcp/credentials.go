package mcp

import (
	"cmp"
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

// tlsSources holds the certificates of all servers. Servers with the same files share a source. A reconfigured server
// keeps its source if its files are the same. Client.reload protects byFiles.
type tlsSources struct {
	byFiles map[tlsconfig.Files]*tlsconfig.Source
}

// setServers reads the TLS files of the enabled servers, except those that t has read before, and makes t keep the
// sources of these servers alone. If a file cannot be used, setServers changes nothing and returns an error that names
// the file's setting.
func (t *tlsSources) setServers(servers []config.Server) error {
	needed := map[tlsconfig.Files]*tlsconfig.Source{}
	for i := range servers {
		s := &servers[i]
		if s.Disabled || needed[s.TLS] != nil {
			continue
		}
		source := t.byFiles[s.TLS]
		if source == nil {
			var err error
			if source, err = loadTLS(s); err != nil {
				return err
			}
		}
		needed[s.TLS] = source
	}
	t.byFiles = needed
	return nil
}

// loadTLS reads the TLS files of s. The error names the setting of the file that cannot be used.
func loadTLS(s *config.Server) (*tlsconfig.Source, error) {
	source, err := tlsconfig.Load(s.TLS)
	if err == nil {
		return source, nil
	}
	setting := "tls"
	if e, ok := errors.AsType[*tlsconfig.FileError](err); ok {
		setting = config.TLSField(e.Field)
	}
	return nil, fmt.Errorf("MCP server %q, %s: %w", s.Name, setting, err)
}

// credentials add tokens to the requests to one server.
type credentials struct {
	sender     transport.Sender // for requests that belong to no user; nil: they carry no token
	delegation *delegation      // nil unless the server uses per-user tokens
	close      func()           // call it after the server's last request; never nil
}

// delegation adds per-user tokens to the requests for each user.
type delegation struct {
	senderFor        func(auth.Identity) transport.Sender // returns a Sender that adds the user's tokens
	needsCallerToken bool                                 // a user whose identity has no Token cannot use the server
	signInClient     *oauth.Client                        // signs users in; nil if they need not sign in
}

// newCredentials returns the credentials for cfg, which must be valid. It sends no request. The result's close must be
// called after the server's last request, which is the DELETE of its session and needs a token too.
func newCredentials(cfg config.Server, opts Options) (credentials, error) {
	c := credentials{close: func() {}}
	switch {
	case !cfg.BearerToken.IsZero():
		c.sender = transport.Bearer{Source: token.Static(cfg.BearerToken)}
	case cfg.Auth == config.AuthJWT && opts.Service != nil:
		c.sender = transport.Bearer{Source: opts.Service}
	case cfg.Auth == config.AuthExchange:
		return newExchangeCredentials(cfg, opts)
	case cfg.Auth.HasAuthorizationServer():
		return opts.oauthClients.credentialsFor(cfg, opts)
	}
	return c, nil
}

// newExchangeCredentials returns credentials that exchange each user's token for one that the server accepts (RFC
// 8693). They refuse requests that belong to no user.
func newExchangeCredentials(cfg config.Server, opts Options) (credentials, error) {
	client, closeIdle := opts.tokenClient(cfg)
	exchange, err := token.NewExchange(token.ExchangeConfig{Audience: cfg.Grant.Audience, ClientCredentialsConfig: token.ClientCredentialsConfig{
		Issuer: cfg.Grant.Issuer, TokenURL: cfg.Grant.TokenURL,
		ClientID: cfg.Grant.ClientID, Secret: token.FixedSecret(cfg.Grant.ClientSecret),
		Scope: cfg.Grant.Scope, Resource: cfg.TokenResource(), HTTPClient: client, Logger: serverLogger(cfg, opts),
	}})
	if err != nil {
		return credentials{close: func() {}}, err
	}
	return credentials{
		sender: noUserSender{},
		close: func() {
			exchange.Close()
			closeIdle()
		},
		delegation: &delegation{
			senderFor:        func(caller auth.Identity) transport.Sender { return transport.Bearer{Source: exchange.For(caller)} },
			needsCallerToken: true,
		},
	}, nil
}

// tokenClient returns the HTTP client for the token endpoint of a server with AuthExchange. The client uses the
// server's TLS files, or else Options.TokenTLS. If neither is set, client is nil, meaning the default client.
// closeIdle closes the client's idle connections and is never nil.
func (o *Options) tokenClient(cfg config.Server) (client *http.Client, closeIdle func()) {
	source := o.TokenTLS
	if cfg.TLS != (tlsconfig.Files{}) {
		source = o.tls.byFiles[cfg.TLS]
	}
	if source == nil {
		return nil, func() {}
	}
	client = source.Client()
	return client, client.CloseIdleConnections
}

// sharedClients holds the servers' OAuth clients. If Reload changes a setting that does not affect a server's tokens,
// such as a timeout, the new server takes over the old one's client, so that users need not sign in again.
type sharedClients struct {
	mu    sync.Mutex // protects byKey and the fields of its values
	byKey map[clientKey]*sharedClient
}

// clientKey has all settings that affect the tokens of an OAuth client.
type clientKey struct {
	name, url, redirect string
	kind                config.AuthType
	grant               config.Grant
	tls                 tlsconfig.Files
}

// sharedClient is an OAuth client, with the number of servers that use it.
type sharedClient struct {
	client  *oauth.Client
	servers int
}

// acquireClient returns the OAuth client for cfg's server, and creates it if needed. release must be called after the
// server's last request.
func (c *sharedClients) acquireClient(cfg config.Server, opts Options) (_ *oauth.Client, release func(), _ error) {
	key := clientKey{
		name: cfg.Name, url: cfg.HTTPURL(), redirect: opts.RedirectURL, kind: cfg.Auth, grant: cfg.Grant, tls: cfg.TLS,
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	shared := c.byKey[key]
	if shared == nil {
		client, err := oauth.New(oauthConfig(&cfg, opts))
		if err != nil {
			return nil, nil, err
		}
		shared = &sharedClient{client: client}
		c.byKey[key] = shared
	}
	shared.servers++
	return shared.client, func() { c.releaseClient(key, shared) }, nil
}

// releaseClient ends one server's use of the client shared, and closes the client if no other server uses it.
func (c *sharedClients) releaseClient(key clientKey, shared *sharedClient) {
	c.mu.Lock()
	shared.servers--
	isUnused := shared.servers == 0
	if isUnused {
		delete(c.byKey, key)
	}
	c.mu.Unlock()
	if isUnused {
		shared.client.Close()
	}
}

// oauthConfig returns the configuration of the OAuth client for the server s. A redirect URL of s takes precedence
// over opts.RedirectURL.
func oauthConfig(s *config.Server, opts Options) oauth.Config {
	grant := s.Grant
	return oauth.Config{
		Kind: oauth.Kind(s.Auth), Name: s.Name, URL: s.HTTPURL(), Resource: grant.Resource,
		Issuer: grant.Issuer, TokenURL: grant.TokenURL,

		ClientID: grant.ClientID, ClientMetadataURL: grant.ClientMetadataURL, ClientSecret: grant.ClientSecret,
		PrivateKey:  oauth.Text{Value: grant.PrivateKey, File: grant.PrivateKeyFile},
		Scope:       grant.Scope,
		Assertion:   oauth.Text{Value: grant.Assertion, File: grant.AssertionFile},
		RedirectURL: cmp.Or(grant.RedirectURL, opts.RedirectURL),
		IdP: oauth.IdP{
			TokenURL: grant.IdPTokenURL, ClientID: grant.IdPClientID,
			ClientSecret: grant.IdPClientSecret, SubjectTokenType: grant.SubjectTokenType,
		},
		DPoP: grant.DPoP,

		TLS: opts.tls.byFiles[s.TLS], Store: opts.SignIns, Logger: serverLogger(*s, opts),
	}
}

// credentialsFor returns credentials that get tokens from the server's authorization server with a shared OAuth
// client. All requests use one token, or each user's own if the type of authorization IsDelegated.
func (c *sharedClients) credentialsFor(cfg config.Server, opts Options) (credentials, error) {
	client, release, err := c.acquireClient(cfg, opts)
	if err != nil {
		return credentials{}, err
	}
	senderFor := func(user auth.Identity) transport.Sender { return oauthSender{client.For(user)} }
	if !cfg.Auth.IsDelegated() {
		return credentials{sender: senderFor(auth.Identity{}), close: release}, nil
	}
	perUser := &delegation{senderFor: senderFor, needsCallerToken: cfg.Auth.NeedsCallerToken()}
	if cfg.Auth == config.AuthAuthorizationCode {
		perUser.signInClient = client
	}
	return credentials{sender: noUserSender{}, delegation: perUser, close: release}, nil
}

// oauthSender is a Sender with tokens from the server's authorization server.
type oauthSender struct{ source *oauth.Source }

// Send implements transport.Sender. It converts an *oauth.Error to a failure with NotRun.
func (s oauthSender) Send(next http.RoundTripper, r *http.Request) (*http.Response, error) {
	resp, err := s.source.Send(next, r)
	if e, ok := errors.AsType[*oauth.Error](err); ok {
		transport.RoundTripOf(r.Context()).SetNotSent() // if it was sent, the server refused it and ran nothing
		failure := &transport.Failure{Kind: Unavailable, Public: e.Public, NotRun: true, Err: transport.CredentialsError(e)}
		if errors.Is(e, oauth.ErrInsufficientScope) {
			failure.Status = http.StatusForbidden
		}
		return nil, failure
	}
	return resp, err
}

// noUserSender refuses every request. It is used for requests that belong to no user, if the server uses per-user
// tokens. No such request should exist.
type noUserSender struct{}

var errNoCaller = errors.New("the request has no caller")

// Send implements transport.Sender.
func (noUserSender) Send(_ http.RoundTripper, r *http.Request) (*http.Response, error) {
	if r.Body != nil {
		_ = r.Body.Close()
	}
	return nil, &transport.Failure{Kind: Unavailable, Public: "there is no token for it", NotRun: true, Err: transport.CredentialsError(errNoCaller)}
}
