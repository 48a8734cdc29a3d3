package oauth

import (
	"context"
	"crypto/rand"
	"errors"
	"net/url"
	"sync"
	"time"

	"golang.org/x/oauth2"

	"answerd/internal/auth"
)

const (
	signInTimeout = 10 * time.Minute // for a user to sign in
	maxPending    = 1024             // authorizations at a time
	maxCode       = 4 << 10          // bytes of an authorization code
	maxURL        = 8 << 10          // bytes of the address that a person is sent to
)

// Authorization is a sign-in of a user that has not ended yet.
type Authorization struct {
	// URL is the page that the user's browser opens. It is a URL of an authorization server
	// that the MCP server may have named.
	URL string
	// Done is closed when the browser came back, or the Authorization has expired.
	Done    <-chan struct{}
	Expires time.Time

	id       auth.Identity
	state    string
	verifier string
	server   *authServer
	client   clientIdentity
	scopes   []string

	done chan struct{}
	once sync.Once
	err  error // set before done is closed
}

// Err returns the outcome once Done is closed: nil if the user has granted access, so that
// their requests now have a token, else an *Error. Before that it returns nil.
func (a *Authorization) Err() error {
	select {
	case <-a.done:
		return a.err
	default:
		return nil
	}
}

// Host returns the host of URL, to show to the user.
func (a *Authorization) Host() string {
	u, err := url.Parse(a.URL)
	if err != nil {
		return ""
	}
	return u.Host
}

// finish closes Done with the outcome; only the first call has an effect.
func (a *Authorization) finish(err error) {
	a.once.Do(func() {
		if err != nil {
			a.err = &Error{Public: "signing in failed", Err: err}
		}
		close(a.done)
	})
}

// Authorize starts, or joins, the authorization that the latest refusal of the user's
// requests requires. It waits under ctx. Errors are *Error.
func (c *Client) Authorize(ctx context.Context, id auth.Identity) (*Authorization, error) {
	id = c.principalOf(id)
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	defer context.AfterFunc(c.ctx, stop)()
	u, err := c.acquireUser(id)
	if err != nil {
		return nil, asError(err)
	}
	defer c.releaseUser(u)
	select {
	case u.turn <- struct{}{}:
		defer func() { <-u.turn }()
	case <-ctx.Done():
		return nil, asError(context.Cause(ctx))
	}
	u.mu.Lock()
	ch, challengedAt, previous := u.challenge, u.challengedAt, u.grant
	u.mu.Unlock()
	server, client, err := c.discovery.discover(ctx, ch, challengedAt)
	if err != nil {
		u.clearChallenge()
		c.log.WarnContext(ctx, "authorization cannot start", "error", err.Error())
		return nil, asError(err)
	}
	a := &Authorization{
		id: id, server: server, client: client, scopes: c.selectScopes(server, ch, previous.scopesAt(server)),
		state: rand.Text() + rand.Text(), verifier: oauth2.GenerateVerifier(),
		done: make(chan struct{}), Expires: time.Now().Add(signInTimeout),
	}
	a.Done = a.done
	if a.URL, err = c.authorizationURL(a); err != nil {
		return nil, asError(err)
	}
	return c.joinPending(a)
}

// SignInHost returns the host of the authorization server where users sign in, which is the
// one that the latest refusal of id's requests leads to. Errors are *Error.
func (c *Client) SignInHost(ctx context.Context, id auth.Identity) (string, error) {
	u, err := c.acquireUser(c.principalOf(id))
	if err != nil {
		return "", asError(err)
	}
	defer c.releaseUser(u)
	u.mu.Lock()
	ch := u.challenge
	u.mu.Unlock()
	server, err := c.discovery.lookUp(ctx, ch)
	if err != nil {
		return "", asError(err)
	}
	page, err := url.Parse(server.authorizeURL)
	if err != nil {
		return "", asError(err)
	}
	return page.Host, nil
}

// authorizationURL returns the authorization request (OAuth 2.1 section 4.1.1) with PKCE (RFC
// 7636) and a resource (RFC 8707).
func (c *Client) authorizationURL(a *Authorization) (string, error) {
	options := []oauth2.AuthCodeOption{oauth2.S256ChallengeOption(a.verifier)}
	if a.server.resource != "" {
		options = append(options, oauth2.SetAuthURLParam("resource", a.server.resource))
	}
	config := oauth2.Config{
		ClientID: a.client.id, RedirectURL: c.cfg.RedirectURL, Scopes: a.scopes, Endpoint: oauth2.Endpoint{AuthURL: a.server.authorizeURL},
	}
	if out := config.AuthCodeURL(a.state, options...); len(out) <= maxURL {
		return out, nil
	}
	return "", fetchErrorf("the URL of the authorization request is too long")
}

// joinPending makes a known to Callback, or returns the pending authorization of the same
// user with the same scopes: however many of their calls wait, a user signs in once.
func (c *Client) joinPending(a *Authorization) (*Authorization, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, asError(errClosed)
	}
	now := time.Now()
	for state, p := range c.pending {
		if now.After(p.Expires) {
			delete(c.pending, state)
			p.finish(errors.New("nobody signed in in time"))
			continue
		}
		same := p.id.Issuer == a.id.Issuer && p.id.Subject == a.id.Subject
		if same && p.server.issuer == a.server.issuer && p.client == a.client && isSubset(a.scopes, p.scopes) && now.Add(signInTimeout/2).Before(p.Expires) {
			return p, nil
		}
	}
	if len(c.pending) >= maxPending {
		return nil, asError(fetchErrorf("too many callers are signing in"))
	}
	c.pending[a.state] = a
	return a, nil
}

// Callback handles the authorization response that a browser brought back (OAuth 2.1 section
// 4.1.2). found is false if the state is not ours, was used before, or has expired; then
// nothing happened. A nil error means that the user's requests now have a token; any other
// is an *Error, and ends the authorization too. Callback waits for the token even when ctx
// ends: a user who closes the browser early has granted access all the same.
func (c *Client) Callback(ctx context.Context, q url.Values) (found bool, _ error) {
	a := c.takePending(q)
	if a == nil {
		return false, nil
	}
	defer c.callbacks.Done()
	err := c.redeemCode(ctx, a, q)
	if err != nil {
		c.log.WarnContext(ctx, "authorization failed", "error", err.Error())
	} else {
		c.log.InfoContext(ctx, "authorized", "subject", a.id.Subject)
	}
	a.finish(err)
	return true, a.Err()
}

// takePending removes and returns the authorization that a callback belongs to; nil if there
// is none. Whatever its outcome, a state is valid once.
func (c *Client) takePending(q url.Values) *Authorization {
	c.mu.Lock()
	defer c.mu.Unlock()
	a := c.pending[q.Get("state")]
	if a == nil || c.closed || len(q["state"]) != 1 {
		return nil
	}
	delete(c.pending, a.state)
	if time.Now().After(a.Expires) {
		a.finish(errors.New("nobody signed in in time"))
		return nil
	}
	c.callbacks.Add(1)
	return a
}

// redeemCode checks an authorization response and exchanges its code for a token.
func (c *Client) redeemCode(ctx context.Context, a *Authorization, q url.Values) error {
	for _, name := range []string{"code", "iss", "error"} {
		if len(q[name]) > 1 { // RFC 6749 section 3.1
			return errors.New("the response has a parameter twice")
		}
	}
	// RFC 9207 section 2.4: the issuer must be identical. Otherwise a hostile authorization
	// server could make us send it the code of an honest one (mix-up, RFC 9700 section 4.4).
	if iss := q.Get("iss"); iss != a.server.issuer && (iss != "" || a.server.returnsIssuer) {
		return errors.New("the response is from another authorization server than the request was sent to")
	}
	code := q.Get("code")
	switch {
	case q.Has("error"):
		return errors.New("the authorization server refused the request")
	case code == "" || len(code) > maxCode:
		return errors.New("the response has no code")
	}
	u, err := c.acquireUser(a.id)
	if err != nil {
		return err
	}
	defer c.releaseUser(u)
	ctx, stop := context.WithTimeout(context.WithoutCancel(ctx), fetchTimeout)
	defer stop()
	defer context.AfterFunc(c.ctx, stop)()
	reply, err := c.requestGrant(ctx, a.server, a.client, url.Values{
		"grant_type": {"authorization_code"}, "code": {code}, "redirect_uri": {c.cfg.RedirectURL}, "code_verifier": {a.verifier},
	})
	if err != nil {
		if isClientUnknown(err) {
			c.discovery.forgetClient(ctx, a.server, a.client)
		}
		return err
	}
	u.saveGrant(grant{server: a.server, client: a.client, scopes: mergeScopes(a.scopes, reply.scopes), refresh: reply.refresh, token: reply.Token})
	return nil
}
