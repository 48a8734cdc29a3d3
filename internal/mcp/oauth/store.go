package oauth

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"answerd/internal/auth"
	"answerd/internal/auth/fetch"
	"answerd/internal/auth/token"
)

// The types below and authServer are the JSON of sign-ins in Config.Store, which encrypts them. Processes of another
// version may read them, so members may be added, but not removed or renamed.

// Kinds of secrets in the store: the first part of their names.
const (
	kindGrant         = "grant"         // a storedGrant, by user
	kindRefresh       = "refresh"       // set while a process uses the user's refresh token
	kindAuthorization = "authorization" // a storedAuthorization, by state
	kindPending       = "pending"       // the state of the user's latest authorization
)

// storedClient is the JSON of a clientIdentity. It is empty for a configured client, which is taken from the
// configuration when it is used, because its secret may have changed.
type storedClient struct {
	ID      string    `json:"id,omitempty"`
	Secret  string    `json:"secret,omitempty"`
	Method  string    `json:"method,omitempty"`
	Expires time.Time `json:"expires,omitzero"`
}

// storeClient converts our client to its stored form, which is empty for a configured client; restoreClient is the
// reverse.
func (c *Client) storeClient(client clientIdentity) storedClient {
	if c.cfg.ClientID != "" {
		return storedClient{}
	}
	return storedClient{client.id, client.secret.Reveal(), client.method, c.storedTime(client.expires)}
}

// restoreClient returns our client at server: the configured one if the configuration has one, otherwise the stored
// one.
func (c *Client) restoreClient(s storedClient, server *authServer) clientIdentity {
	if c.cfg.ClientID != "" {
		return c.configuredClient(server)
	}
	return clientIdentity{id: s.ID, secret: auth.NewSecret(s.Secret), method: s.Method, expires: c.localTime(s.Expires)}
}

// storedGrant is the JSON of a grant.
type storedGrant struct {
	Server  authServer   `json:"server"`
	Client  storedClient `json:"client"`
	Scopes  []string     `json:"scopes,omitempty"`
	Refresh string       `json:"refresh,omitempty"`
	Token   string       `json:"token"`
	Expires time.Time    `json:"expires"`       // when Token expires, by the store's clock
	Key     []byte       `json:"key,omitempty"` // key that the tokens are bound to, in PKCS #8
}

// encodeGrant returns the stored form of g, which Config.Store encrypts. It contains the time when the token expires,
// instead of its lifetime, by the store's clock, which is the same for all processes.
func (c *Client) encodeGrant(g *grant) ([]byte, error) {
	key, err := g.key.encode()
	if err != nil {
		return nil, fmt.Errorf("encode the key of a sign-in: %w", err)
	}
	return json.Marshal(storedGrant{
		Server:  *g.server,
		Client:  c.storeClient(g.client),
		Scopes:  g.scopes,
		Refresh: g.refresh.Reveal(),
		Token:   g.token.Secret.Reveal(),
		Expires: c.storedTime(g.token.Requested.Add(g.token.Lifetime)),
		Key:     key,
	})
}

// decodeGrant decodes what encodeGrant has returned. If the token has expired since then, its Lifetime is 0, and only
// the refresh token can be used. The error does not quote data.
func (c *Client) decodeGrant(data []byte) (*grant, error) {
	var stored storedGrant
	if json.Unmarshal(data, &stored) != nil {
		return nil, errors.New("a stored sign-in cannot be decoded") // json's error could quote data
	}
	now := time.Now()
	lifetime := c.localTime(stored.Expires).Sub(now)
	g := &grant{
		server:  &stored.Server,
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

// States of a storedAuthorization.
const (
	statusPending   = "pending"
	statusRedeeming = "redeeming" // a process is exchanging the code, or died while doing so
	statusGranted   = "granted"
	statusFailed    = "failed"
)

// storedAuthorization is the JSON of an authorization request and its outcome.
type storedAuthorization struct {
	Status string `json:"status"` // statusPending and so on
	// Issuer and Subject identify the user who started the authorization. The tokens go to that user, even if someone
	// else comes back with the state.
	Issuer  string `json:"issuer,omitempty"`
	Subject string `json:"subject,omitempty"`

	Server   authServer   `json:"server"`
	Client   storedClient `json:"client"`
	Scopes   []string     `json:"scopes,omitempty"`   // the requested scopes
	Verifier string       `json:"verifier,omitempty"` // for PKCE; "" after Callback
	Expires  time.Time    `json:"expires"`            // when it is too late to sign in, by the store's clock
	Waiters  []string     `json:"waiters,omitempty"`  // what Callback returns
	// ScopeRefused says that the authorization failed because of its scopes.
	ScopeRefused bool `json:"scope_refused,omitempty"`
}

// storedName returns the name of a secret in the store. It consists of kind, all settings that affect the tokens, and
// more, such as the user. After a change of the configuration that leads to other tokens, the names differ, so old
// tokens are not used. A new client secret does not change the names.
func (c *Client) storedName(kind string, more ...string) []string {
	cfg := &c.cfg
	settings := []string{
		cfg.Name, cfg.URL, cfg.Resource, cfg.Issuer, cfg.TokenURL, cfg.ClientID, cfg.ClientMetadataURL, cfg.RedirectURL,
		cfg.Scope, strconv.FormatBool(cfg.DPoP),
	}
	return slices.Concat([]string{kind}, settings, more)
}

// storedTime converts t from this process's clock to the store's clock, which is the same for all processes. It
// returns the zero time unchanged.
func (c *Client) storedTime(t time.Time) time.Time {
	if t.IsZero() {
		return t
	}
	return c.store.Now().Add(time.Until(t)).UTC()
}

// localTime converts t from the store's clock to this process's clock. It returns the zero time unchanged.
func (c *Client) localTime(t time.Time) time.Time {
	if t.IsZero() {
		return t
	}
	return time.Now().Add(t.Sub(c.store.Now()))
}

// storeErrorInterval is the minimum time between two log lines about errors of the store. It is needed because many
// calls of Await may poll the store at the same time.
const storeErrorInterval = 10 * time.Second

// storeError logs err, an error of the store, unless another one was logged within storeErrorInterval. It returns a
// *fetch.Error that wraps err and whose text may be shown to users.
func (c *Client) storeError(ctx context.Context, err error) error {
	now := time.Now()
	c.mu.Lock()
	isDue := c.storeErrorAt.IsZero() || now.Sub(c.storeErrorAt) >= storeErrorInterval
	if isDue {
		c.storeErrorAt = now
	}
	c.mu.Unlock()
	if isDue {
		c.log.WarnContext(ctx, "the store of sign-ins cannot be used", "error", err.Error())
	}
	return &fetch.Error{Public: "the store of sign-ins cannot be used now", Err: err}
}
