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

// The forms in which sign-ins are in Config.Store, encrypted. A process of another version may read
// them: members are only added.

// The kinds of secrets in the store: the first part of their names.
const (
	kindGrant         = "grant"         // a storedGrant, by user
	kindRefresh       = "refresh"       // says that a process uses the user's refresh token now
	kindAuthorization = "authorization" // a storedAuthorization, by state
	kindPending       = "pending"       // the state of the user's latest authorization
)

// storedServer is an authServer.
type storedServer struct {
	Issuer          string   `json:"issuer,omitempty"`
	Trusted         bool     `json:"trusted,omitempty"`
	Resource        string   `json:"resource,omitempty"`
	Wanted          []string `json:"wanted,omitempty"`
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
		Issuer: a.issuer, Trusted: a.trusted, Resource: a.resource, Wanted: a.wanted, TokenURL: a.tokenURL, AuthorizeURL: a.authorizeURL,
		RegisterURL: a.registerURL, RevokeURL: a.revokeURL, AuthMethods: a.authMethods, Scopes: a.scopes,
		ReturnsIssuer: a.returnsIssuer, AcceptsMetadata: a.acceptsMetadata,
	}
}

// restore returns the authorization server as it was when the sign-in began. It is not looked up again,
// because a refresh token must go to the endpoint that has issued it, whatever a server names now.
func (s *storedServer) restore() *authServer {
	return &authServer{
		issuer: s.Issuer, trusted: s.Trusted, resource: s.Resource, wanted: s.Wanted, tokenURL: s.TokenURL, authorizeURL: s.AuthorizeURL,
		registerURL: s.RegisterURL, revokeURL: s.RevokeURL, authMethods: s.AuthMethods, scopes: s.Scopes,
		returnsIssuer: s.ReturnsIssuer, acceptsMetadata: s.AcceptsMetadata,
	}
}

// storedClient is a clientIdentity, and empty for the one of the configuration, whose secret may
// have changed when it is used.
type storedClient struct {
	ID      string    `json:"id,omitempty"`
	Secret  string    `json:"secret,omitempty"`
	Method  string    `json:"method,omitempty"`
	Expires time.Time `json:"expires,omitzero"`
}

// storeClient returns the stored form of our client: empty for the one of the configuration.
func (c *Client) storeClient(client clientIdentity) storedClient {
	if c.cfg.ClientID != "" {
		return storedClient{}
	}
	return storedClient{client.id, client.secret.Reveal(), client.method, c.storedTime(client.expires)}
}

// restoreClient returns our client at a: the one of the configuration as it is now, or the stored one.
func (c *Client) restoreClient(s storedClient, a *authServer) clientIdentity {
	if c.cfg.ClientID != "" {
		return c.configuredClient(a)
	}
	return clientIdentity{id: s.ID, secret: auth.NewSecret(s.Secret), method: s.Method, expires: c.localTime(s.Expires)}
}

// storedGrant is a grant of a user.
type storedGrant struct {
	Server  storedServer `json:"server"`
	Client  storedClient `json:"client"`
	Scopes  []string     `json:"scopes,omitempty"`
	Refresh string       `json:"refresh,omitempty"`
	Token   string       `json:"token"`
	Expires time.Time    `json:"expires"`
	Key     []byte       `json:"key,omitempty"` // that the tokens are bound to, in PKCS #8
}

// encodeGrant returns the stored form of a grant, which Config.Store encrypts. It stores when the token
// expires and not for how long it is valid, by the store's clock, which all processes can read.
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

// decodeGrant reads what encodeGrant has written. A token that has expired meanwhile has the Lifetime 0,
// and only its refresh token is of use. The error quotes nothing of data.
func (c *Client) decodeGrant(data []byte) (*grant, error) {
	var s storedGrant
	if json.Unmarshal(data, &s) != nil {
		return nil, errors.New("a stored sign-in cannot be decoded") // the cause would quote it
	}
	server, now := s.Server.restore(), time.Now()
	g := &grant{
		server: server, client: c.restoreClient(s.Client, server), scopes: s.Scopes, refresh: auth.NewSecret(s.Refresh),
		token: token.Token{Secret: auth.NewSecret(s.Token), Lifetime: max(0, c.localTime(s.Expires).Sub(now)), Requested: now},
	}
	if len(s.Key) > 0 {
		var err error
		if g.key, err = parseProofKey(s.Key); err != nil {
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

// storedAuthorization is an authorization that a user was sent to.
type storedAuthorization struct {
	Status string `json:"status"`
	// The user who started it: they alone get what it gives, whoever comes back with the state.
	Issuer  string `json:"issuer,omitempty"`
	Subject string `json:"subject,omitempty"`

	Server   storedServer `json:"server"`
	Client   storedClient `json:"client"`
	Scopes   []string     `json:"scopes,omitempty"`
	Verifier string       `json:"verifier,omitempty"` // of PKCE, until it has been used
	Expires  time.Time    `json:"expires"`
	Waiters  []string     `json:"waiters,omitempty"`
}

// storedName returns the name of a secret: its kind, everything in the configuration that it depends
// on, and what is given. A change of the configuration that leads to other tokens leads to other
// secrets; a new client secret does not.
func (c *Client) storedName(kind string, more ...string) []string {
	cfg := &c.cfg
	return append([]string{
		kind, cfg.Name, cfg.URL, cfg.Resource, cfg.Issuer, cfg.TokenURL, cfg.ClientID, cfg.ClientMetadataURL, cfg.RedirectURL, cfg.Scope, strconv.FormatBool(cfg.DPoP),
	}, more...)
}

// storedTime returns a time of this process's clock as one of the store's, which other processes can
// compare with the present. The zero time stays.
func (c *Client) storedTime(t time.Time) time.Time {
	if t.IsZero() {
		return t
	}
	return c.store.Now().Add(time.Until(t)).UTC()
}

// localTime returns a time of the store's clock as one of this process's.
func (c *Client) localTime(t time.Time) time.Time {
	if t.IsZero() {
		return t
	}
	return time.Now().Add(t.Sub(c.store.Now()))
}

// storeErrorInterval separates two log lines about errors of the store. Each call of Await polls the
// store, and there may be many.
const storeErrorInterval = 10 * time.Second

// storeError logs an error of the store, unless one was logged within storeErrorInterval, and returns it
// for a caller.
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
