package oauth

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"answerd/internal/auth"
	"answerd/internal/auth/fetch"
	"answerd/internal/auth/token"
)

// The types below are the JSON of sign-ins in Config.Store, which encrypts it. A process of another version may read
// it, so members may be added but not removed or renamed.

// The kinds of secrets in the store: the first part of their names.
const (
	kindGrant         = "grant"         // a storedGrant, by user
	kindRefresh       = "refresh"       // says that a process uses the user's refresh token now
	kindAuthorization = "authorization" // a storedAuthorization, by state
	kindPending       = "pending"       // the state of the user's latest authorization
)

// storedServer is the JSON of an authServer.
type storedServer struct {
	Issuer          string   `json:"issuer,omitempty"`
	Configured      bool     `json:"trusted,omitempty"`
	Resource        string   `json:"resource,omitempty"`
	ResourceScopes  []string `json:"wanted,omitempty"`
	TokenURL        string   `json:"token_url"`
	AuthorizeURL    string   `json:"authorize_url,omitempty"`
	RegisterURL     string   `json:"register_url,omitempty"`
	RevokeURL       string   `json:"revoke_url,omitempty"`
	AuthMethods     []string `json:"auth_methods,omitempty"`
	Scopes          []string `json:"scopes,omitempty"`
	ReturnsIssuer   bool     `json:"returns_issuer,omitempty"`
	AcceptsMetadata bool     `json:"accepts_metadata,omitempty"`
}

// storeServer returns the stored form of an authServer; restore is the reverse.
func storeServer(a *authServer) storedServer {
	return storedServer{
		Issuer: a.issuer, Configured: a.configured, Resource: a.resource, ResourceScopes: a.resourceScopes, TokenURL: a.tokenURL, AuthorizeURL: a.authorizeURL,
		RegisterURL: a.registerURL, RevokeURL: a.revokeURL, AuthMethods: a.authMethods, Scopes: a.scopes,
		ReturnsIssuer: a.returnsIssuer, AcceptsMetadata: a.acceptsMetadata,
	}
}

// restore returns the authorization server as it was when the sign-in began. Its metadata is not requested again,
// because a refresh token must go to the endpoint that has issued it, whatever the MCP server names now.
func (s *storedServer) restore() *authServer {
	return &authServer{
		issuer: s.Issuer, configured: s.Configured, resource: s.Resource, resourceScopes: s.ResourceScopes, tokenURL: s.TokenURL, authorizeURL: s.AuthorizeURL,
		registerURL: s.RegisterURL, revokeURL: s.RevokeURL, authMethods: s.AuthMethods, scopes: s.Scopes,
		returnsIssuer: s.ReturnsIssuer, acceptsMetadata: s.AcceptsMetadata,
	}
}

// storedClient is the JSON of a clientIdentity. It is empty for a configured client, which is taken from the
// configuration when it is used, because its secret may have changed.
type storedClient struct {
	ID      string    `json:"id,omitempty"`
	Secret  string    `json:"secret,omitempty"`
	Method  string    `json:"method,omitempty"`
	Expires time.Time `json:"expires,omitzero"`
}

// storeClient returns the stored form of our client, empty for a configured one; restoreClient is the reverse.
func (c *Client) storeClient(client clientIdentity) storedClient {
	if c.cfg.ClientID != "" {
		return storedClient{}
	}
	return storedClient{client.id, client.secret.Reveal(), client.method, c.storedTime(client.expires)}
}

// restoreClient returns our client at server: the configured one if there is one, or else the stored one.
func (c *Client) restoreClient(s storedClient, server *authServer) clientIdentity {
	if c.cfg.ClientID != "" {
		return c.configuredClient(server)
	}
	return clientIdentity{id: s.ID, secret: auth.NewSecret(s.Secret), method: s.Method, expires: c.localTime(s.Expires)}
}

// storedGrant is the JSON of a grant.
type storedGrant struct {
	Server  storedServer `json:"server"`
	Client  storedClient `json:"client"`
	Scopes  []string     `json:"scopes,omitempty"`
	Refresh string       `json:"refresh,omitempty"`
	Token   string       `json:"token"`
	Expires time.Time    `json:"expires"`       // of Token, by the store's clock
	Key     []byte       `json:"key,omitempty"` // that the tokens are bound to, in PKCS #8
}

// encodeGrant returns the stored form of a grant, which Config.Store encrypts. It has the time when the token expires
// by the store's clock, which is the same for all processes, and not how long the token is valid.
func (c *Client) encodeGrant(g *grant) ([]byte, error) {
	key, err := g.key.encode()
	if err != nil {
		return nil, fmt.Errorf("encode the key of a sign-in: %w", err)
	}
	return json.Marshal(storedGrant{
		Server: storeServer(g.server), Client: c.storeClient(g.client), Scopes: g.scopes, Refresh: g.refresh.Reveal(),
		Token: g.token.Secret.Reveal(), Expires: c.storedTime(g.token.Requested.Add(g.token.Lifetime)), Key: key,
	})
}

// decodeGrant decodes what encodeGrant has returned. If the token has expired since then, its Lifetime is 0, and only
// the refresh token can be used. The error quotes nothing of data.
func (c *Client) decodeGrant(data []byte) (*grant, error) {
	var stored storedGrant
	if json.Unmarshal(data, &stored) != nil {
		return nil, errors.New("a stored sign-in cannot be decoded") // the error of json could quote data
	}
	now := time.Now()
	lifetime := c.localTime(stored.Expires).Sub(now)
	g := &grant{
		server:  stored.Server.restore(),
		scopes:  stored.Scopes,
		refresh: auth.NewSecret(stored.Refresh),
		token:   token.Token{Secret: auth.NewSecret(stored.Token), Lifetime: max(0, lifetime), Requested: now},
	}
	g.client = c.restoreClient(stored.Client, g.server)
	if len(stored.Key) > 0 {
		var err error
		if g.key, err = parseProofKey(stored.Key); err != nil {
			return nil, errors.New("the key of a stored sign-in cannot be used")
		}
	}
	return g, nil
}

// The states of a storedAuthorization.
const (
	statusPending   = "pending"
	statusRedeeming = "redeeming" // a process exchanges the code, or has died while it did
	statusGranted   = "granted"
	statusFailed    = "failed"
)

// storedAuthorization is the JSON of an authorization request, and of what became of it.
type storedAuthorization struct {
	Status string `json:"status"` // statusPending and so on
	// Issuer and Subject are the user who started the authorization. Its tokens are theirs, whoever comes back with
	// the state.
	Issuer  string `json:"issuer,omitempty"`
	Subject string `json:"subject,omitempty"`

	Server   storedServer `json:"server"`
	Client   storedClient `json:"client"`
	Scopes   []string     `json:"scopes,omitempty"`   // that are requested
	Verifier string       `json:"verifier,omitempty"` // of PKCE; "" after Callback
	Expires  time.Time    `json:"expires"`            // when it is too late to sign in, by the store's clock
	Waiters  []string     `json:"waiters,omitempty"`  // that Callback returns
}

// storedName returns the name of a secret in the store: its kind, all settings on which it depends, and more, such as
// the user. A change of the configuration that leads to other tokens leads to other names, so that old tokens are not
// used; a new client secret does not.
func (c *Client) storedName(kind string, more ...string) []string {
	cfg := &c.cfg
	return append([]string{
		kind, cfg.Name, cfg.URL, cfg.Resource, cfg.Issuer, cfg.TokenURL, cfg.ClientID, cfg.ClientMetadataURL, cfg.RedirectURL, cfg.Scope, strconv.FormatBool(cfg.DPoP),
	}, more...)
}

// storedTime converts a time of this process's clock to the store's clock, which is the same for all processes. It
// returns the zero time unchanged.
func (c *Client) storedTime(t time.Time) time.Time {
	if t.IsZero() {
		return t
	}
	return c.store.Now().Add(time.Until(t)).UTC()
}

// localTime converts a time of the store's clock to this process's clock. It returns the zero time unchanged.
func (c *Client) localTime(t time.Time) time.Time {
	if t.IsZero() {
		return t
	}
	return time.Now().Add(t.Sub(c.store.Now()))
}

// storeErrorInterval is the minimum time between two log lines about errors of the store. Many calls of Await may
// poll the store at the same time.
const storeErrorInterval = 10 * time.Second

// storeError logs an error of the store, unless another one was logged within storeErrorInterval. It returns a
// *fetch.Error with the cause err, whose text may be shown to the caller.
func (c *Client) storeError(ctx context.Context, err error) error {
	now := time.Now()
	c.mu.Lock()
	due := c.storeErrorAt.IsZero() || now.Sub(c.storeErrorAt) >= storeErrorInterval
	if due {
		c.storeErrorAt = now
	}
	c.mu.Unlock()
	if due {
		c.log.WarnContext(ctx, "the store of sign-ins cannot be used", "error", err.Error())
	}
	return &fetch.Error{Public: "the store of sign-ins cannot be used now", Err: err}
}
