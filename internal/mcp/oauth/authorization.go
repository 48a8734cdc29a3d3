package oauth

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"golang.org/x/oauth2"

	"answerd/internal/auth"
	"answerd/internal/auth/token"
	"answerd/internal/help"
	"answerd/internal/values"
)

const (
	signInTimeout = 10 * time.Minute // for a user to sign in
	// outcomeTTL is how long an authorization is stored: those who wait for it may find out later what
	// became of it.
	outcomeTTL  = 2 * signInTimeout
	awaitPoll   = 500 * time.Millisecond // between two looks at an authorization
	maxWaiters  = 64                     // of one authorization; then another one starts
	maxCode     = 4 << 10                // bytes of an authorization code
	maxURL      = 8 << 10                // bytes of the address that a person is sent to
	statePrefix = 16                     // bytes of a state that say which Client it belongs to
	maxState    = 256                    // bytes of a state that is looked up
)

// Authorization is a sign-in of a user that has not ended yet. It is in the store, so any process can
// wait for it, and complete it.
type Authorization struct {
	// URL is the page that the user's browser opens. It is a URL of an authorization server
	// that the MCP server may have named.
	URL     string
	State   string    // identifies it
	Expires time.Time // by this process's clock
}

// Host returns the host of URL, to show to the user.
func (a *Authorization) Host() string {
	u, err := url.Parse(a.URL)
	if err != nil {
		return ""
	}
	return u.Host
}

// Authorize starts, or joins, the authorization that the latest refusal of the user's requests
// requires. Callback returns the waiters of an authorization, which may be any short text; ""
// adds none. It waits under ctx. Errors are *Error.
func (c *Client) Authorize(ctx context.Context, id auth.Identity, waiter string) (*Authorization, error) {
	id = c.principalOf(id)
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	defer context.AfterFunc(c.ctx, stop)()
	tokens, err := c.acquireUser(id)
	if err != nil {
		return nil, asError(err)
	}
	defer c.releaseUser(tokens)

	select {
	case tokens.turn <- struct{}{}:
		defer func() { <-tokens.turn }()
	case <-ctx.Done():
		return nil, asError(context.Cause(ctx))
	}

	tokens.mu.Lock()
	ch, challengedAt, previous := tokens.challenge, tokens.challengedAt, tokens.grant
	tokens.mu.Unlock()
	server, client, scopes, err := c.discovery.discover(ctx, ch, challengedAt, previous)
	if err != nil {
		tokens.clearChallenge()
		c.log.WarnContext(ctx, "authorization cannot start", "error", err.Error(), help.SignIns.Attr())
		return nil, asError(err)
	}

	fresh := &storedAuthorization{
		Status: statusPending, Issuer: id.Issuer, Subject: id.Subject, Server: storeServer(server), Client: c.storeClient(client),
		Scopes: scopes, Verifier: oauth2.GenerateVerifier(),
		Expires: c.store.Now().Add(signInTimeout).UTC(),
	}
	if waiter != "" {
		fresh.Waiters = []string{waiter}
	}
	a, err := c.joinOrStart(ctx, fresh)
	if err != nil {
		return nil, asError(err)
	}
	return a, nil
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
// 7636) and a resource (RFC 8707). Each of its parameters prevents an attack:
//
//   - The code comes back through a browser, whose history, extensions and proxies may leak it.
//     Without the verifier, which stays in the store, nobody can exchange it (RFC 7636 section 1).
//   - A token without a resource may be valid at every server that trusts the authorization server.
//     The MCP server that gets it could then use it at the others (RFC 8707 section 3).
//   - The state cannot be guessed, so nobody can invent a response for a sign-in that a user has
//     started and make their calls use an account of the attacker (RFC 6749 section 10.12).
func (c *Client) authorizationURL(a *storedAuthorization, state string) (string, error) {
	options := []oauth2.AuthCodeOption{oauth2.S256ChallengeOption(a.Verifier)}
	if a.Server.Resource != "" {
		options = append(options, oauth2.SetAuthURLParam("resource", a.Server.Resource))
	}
	if slices.Contains(a.Scopes, offlineAccess) { // OpenID Connect Core section 11: else the scope is ignored or refused
		options = append(options, oauth2.SetAuthURLParam("prompt", "consent"))
	}
	client := c.restoreClient(a.Client, a.Server.restore())
	config := oauth2.Config{
		ClientID: client.id, RedirectURL: c.cfg.RedirectURL, Scopes: a.Scopes, Endpoint: oauth2.Endpoint{AuthURL: a.Server.AuthorizeURL},
	}
	if out := config.AuthCodeURL(state, options...); len(out) <= maxURL {
		return out, nil
	}
	return "", fetchErrorf("the URL of the authorization request is too long")
}

// joinOrStart makes an authorization known to all processes, or joins the pending one of the same user
// with the same scopes: however many of their calls wait, in however many processes, a user signs in
// once.
func (c *Client) joinOrStart(ctx context.Context, fresh *storedAuthorization) (*Authorization, error) {
	latest := c.storedName(kindPending, fresh.Issuer, fresh.Subject)
	state := c.stateStart() + rand.Text() + rand.Text()
	started, err := c.describe(fresh, state)
	if err != nil {
		return nil, err
	}
	for try := range maxStoreTries {
		data, revision, err := c.store.Load(ctx, latest...)
		if err != nil {
			return nil, c.storeError(ctx, err)
		}
		if a, err := c.join(ctx, string(data), fresh); a != nil || err != nil {
			return a, err
		}
		// The authorization comes first: another process may read its state as soon as that is stored.
		if try == 0 {
			if _, err := c.saveAuthorization(ctx, fresh, 0, state); err != nil {
				return nil, err
			}
		}
		next, err := c.store.Save(ctx, []byte(state), revision, outcomeTTL, latest...)
		if err != nil {
			return nil, c.storeError(ctx, err)
		}
		if next > 0 {
			return started, nil
		}
	}
	return nil, fetchErrorf("other processes keep starting authorizations of the same user")
}

// join adds the waiters of fresh to the authorization with that state, if it may serve for fresh. It
// returns nil if it may not.
func (c *Client) join(ctx context.Context, state string, fresh *storedAuthorization) (*Authorization, error) {
	for range maxStoreTries {
		if state == "" {
			return nil, nil
		}
		stored, revision, err := c.loadAuthorization(ctx, state)
		if err != nil || stored == nil || !c.canReuse(stored, fresh) {
			return nil, err
		}
		missing := slices.DeleteFunc(slices.Clone(fresh.Waiters), func(w string) bool { return slices.Contains(stored.Waiters, w) })
		if len(missing) > 0 {
			stored.Waiters = append(stored.Waiters, missing...)
			if revision, err = c.saveAuthorization(ctx, stored, revision, state); err != nil {
				return nil, err
			}
		}
		if revision > 0 {
			return c.describe(stored, state)
		}
	}
	return nil, nil
}

// canReuse reports whether a stored authorization gives what fresh asks for, and leaves the user time: at
// least half of signInTimeout.
func (c *Client) canReuse(a, fresh *storedAuthorization) bool {
	now := c.store.Now()
	givesAll := a.Server.Issuer == fresh.Server.Issuer && isSubset(fresh.Scopes, a.Scopes)
	leavesTime := now.Add(signInTimeout / 2).Before(a.Expires)
	hasRoom := len(a.Waiters)+len(fresh.Waiters) <= maxWaiters
	hasClient := a.Client.ID == fresh.Client.ID || now.Before(a.Client.Expires) // another process may have registered another client
	return a.Status == statusPending && givesAll && leavesTime && hasRoom && hasClient
}

// describe returns what those who asked for a stored authorization need to know of it.
func (c *Client) describe(a *storedAuthorization, state string) (*Authorization, error) {
	page, err := c.authorizationURL(a, state)
	if err != nil {
		return nil, err
	}
	return &Authorization{URL: page, State: state, Expires: c.localTime(a.Expires)}, nil
}

// stateStart returns how the states of this Client, and of those in other processes that have the same
// configuration, begin. The states of others need not be looked up.
func (c *Client) stateStart() string {
	return values.NewKey(c.storedName("state")...).String()[:statePrefix]
}

// loadAuthorization returns the authorization with that state and its revision; nil if there is none.
func (c *Client) loadAuthorization(ctx context.Context, state string) (*storedAuthorization, uint64, error) {
	data, revision, err := c.store.Load(ctx, c.storedName(kindAuthorization, state)...)
	if err != nil {
		return nil, 0, c.storeError(ctx, err)
	}
	var a storedAuthorization
	if data == nil || json.Unmarshal(data, &a) != nil {
		return nil, revision, nil
	}
	return &a, revision, nil
}

// saveAuthorization stores an authorization. It returns 0 if the store has another revision.
func (c *Client) saveAuthorization(ctx context.Context, a *storedAuthorization, revision uint64, state string) (uint64, error) {
	data, err := json.Marshal(a)
	if err != nil {
		return 0, fmt.Errorf("encode an authorization: %w", err)
	}
	next, err := c.store.Save(ctx, data, revision, outcomeTTL, c.storedName(kindAuthorization, state)...)
	if err != nil {
		return 0, c.storeError(ctx, err)
	}
	return next, nil
}

// Await returns nil if the user has granted access at the authorization with that state, so that their
// requests now have a token, or if nothing is known of it any more. It returns ErrConsent if the user
// has not come back; with wait, Await first waits until they have, or the authorization has expired, or
// ctx has ended. Errors are *Error.
func (c *Client) Await(ctx context.Context, state string, wait bool) error {
	tick := time.NewTicker(awaitPoll)
	defer tick.Stop()
	for {
		stored, _, err := c.loadAuthorization(ctx, state)
		switch {
		case err != nil && !wait:
			return asError(err)
		case err != nil: // the store may be back before the user is
		case stored == nil || stored.Status == statusGranted:
			return nil
		case stored.Status == statusFailed:
			return asFailed(errors.New("the authorization ended without access"))
		case !wait || c.store.Now().After(stored.Expires.Add(fetchTimeout)): // redeeming may go beyond the expiry
			return asError(ErrConsent)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return asError(context.Cause(ctx))
		case <-c.ctx.Done():
			return asError(errClosed)
		}
	}
}

// Callback handles the authorization response that a browser brought back (OAuth 2.1 section
// 4.1.2), wherever the authorization was started. found is false if the state is not ours, was used
// before, or has expired; then nothing happened. An error with found false is the store's: the same
// query may be handled later. A nil error means that the user's requests now have a token; any other is
// an *Error. waiters are those who wait for the outcome, whatever it is. Callback
// waits for the token even when ctx ends: a user who closes the browser early has granted access all
// the same.
//
// The grant goes to the user who started the authorization (storedAuthorization), because the request
// of the browser is not authenticated and says nothing about its user. docs/rough-edges.md describes
// what that does not prevent: a caller who makes another person open their sign-in page.
func (c *Client) Callback(ctx context.Context, query url.Values) (waiters []string, found bool, _ error) {
	if !c.beginCallback(query) {
		return nil, false, nil
	}
	defer c.callbacks.Done()
	ctx, stop := context.WithTimeout(context.WithoutCancel(ctx), fetchTimeout+3*storeTimeout)
	defer stop()
	defer context.AfterFunc(c.ctx, stop)()
	state := query.Get("state")
	stored, revision, err := c.takeAuthorization(ctx, state)
	if err != nil {
		return nil, false, asFailed(err)
	}
	if stored == nil {
		return nil, false, nil
	}
	err = c.redeemCode(ctx, stored, query)
	stored.Status, stored.Verifier = statusGranted, ""
	if err != nil {
		stored.Status = statusFailed
		c.log.WarnContext(ctx, "authorization failed", "error", err.Error(), help.SignIns.Attr())
	} else {
		c.log.InfoContext(ctx, "authorized", "subject", stored.Subject)
	}
	if _, saveErr := c.saveAuthorization(ctx, stored, revision, state); saveErr != nil {
		c.log.WarnContext(ctx, "the outcome of an authorization is not stored; calls that wait for it end when it expires")
	}
	if err != nil {
		return stored.Waiters, true, asFailed(err)
	}
	return stored.Waiters, true, nil
}

// beginCallback reports whether a callback may belong to this Client. If so, callbacks.Done must be
// called.
func (c *Client) beginCallback(q url.Values) bool {
	state := q.Get("state")
	if len(q["state"]) != 1 || len(state) > maxState || !strings.HasPrefix(state, c.stateStart()) {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return false
	}
	c.callbacks.Add(1)
	return true
}

// takeAuthorization takes the authorization with that state for the one process that may exchange its
// code; nil if there is none, or another callback took it. Whatever its outcome, a state is valid
// once. An authorization server may revoke the tokens of a code that is sent twice (RFC 6749 section
// 4.1.2), and browsers do send a callback twice, when a page is reloaded for example. A process that
// dies after it took the authorization leaves it as statusRedeeming: those who wait for it get
// ErrConsent once it has expired.
func (c *Client) takeAuthorization(ctx context.Context, state string) (*storedAuthorization, uint64, error) {
	for range maxStoreTries {
		a, revision, err := c.loadAuthorization(ctx, state)
		if err != nil || a == nil {
			return nil, 0, err
		}
		if a.Status != statusPending || c.store.Now().After(a.Expires) {
			return nil, 0, nil
		}
		a.Status = statusRedeeming
		if revision, err = c.saveAuthorization(ctx, a, revision, state); err != nil || revision > 0 {
			return a, revision, err
		}
	}
	return nil, 0, nil
}

// redeemCode checks an authorization response, exchanges its code for a token, and stores that. The
// issuer is checked before the code is used, and before an error is believed. Everything about the
// authorization server comes from the stored authorization and nothing from a new discovery: if the
// MCP server named another one meanwhile, that one must not get the code.
func (c *Client) redeemCode(ctx context.Context, stored *storedAuthorization, query url.Values) error {
	for _, name := range []string{"code", "iss", "error"} {
		if len(query[name]) > 1 { // RFC 6749 section 3.1; of two, a proxy may have checked the other one
			return errors.New("the response has a parameter twice")
		}
	}

	// RFC 9207 section 2.4: the issuer must be identical. Otherwise a hostile authorization
	// server could make us send it the code of an honest one (mix-up, RFC 9700 section 4.4).
	iss := query.Get("iss")
	mayBeMissing := iss == "" && !stored.Server.ReturnsIssuer
	if iss != stored.Server.Issuer && !mayBeMissing {
		return errors.New("the response is from another authorization server than the request was sent to")
	}

	code := query.Get("code")
	switch {
	case query.Has("error"):
		return refusal(query.Get("error"))
	case code == "" || len(code) > maxCode:
		return errors.New("the response has no code")
	}

	tokens, err := c.acquireUser(auth.Identity{Issuer: stored.Issuer, Subject: stored.Subject})
	if err != nil {
		return err
	}
	defer c.releaseUser(tokens)
	g := &grant{server: stored.Server.restore(), scopes: stored.Scopes}
	g.client = c.restoreClient(stored.Client, g.server)

	if c.cfg.DPoP {
		if g.key, err = newProofKey(); err != nil {
			return fmt.Errorf("generate a key for DPoP: %w", err)
		}
	}

	redeemCtx, stop := context.WithTimeout(ctx, fetchTimeout)
	defer stop()
	reply, err := c.requestGrant(redeemCtx, g.server, g.client, g.key, url.Values{
		"grant_type": {"authorization_code"}, "code": {code}, "redirect_uri": {c.cfg.RedirectURL}, "code_verifier": {stored.Verifier},
	})
	if err != nil {
		if isClientUnknown(err) {
			c.discovery.forgetClient(ctx, g.server, g.client)
		}
		return err
	}

	g.scopes = mergeScopes(stored.Scopes, reply.scopes)
	g.refresh = reply.refresh
	g.token = reply.Token
	if g.refresh.IsZero() {
		g.token.Lifetime = lifetimeWithoutRefresh(reply.Token)
	}
	return tokens.replaceGrant(ctx, g)
}

// responseErrors are the codes of an authorization response that is an error (RFC 6749 section 4.1.2.1, RFC 8707
// section 2, OpenID Connect Core section 3.1.2.6).
var responseErrors = []string{
	"invalid_request", "unauthorized_client", "access_denied", "unsupported_response_type", "invalid_scope", "server_error", "temporarily_unavailable",
	"invalid_target", "interaction_required", "login_required", "account_selection_required", "consent_required",
}

// refusal returns the error of an authorization response with that code. It does not quote another code, which is
// text of the page that sent the browser here.
func refusal(code string) error {
	if !slices.Contains(responseErrors, code) {
		return errors.New("the authorization server refused the request")
	}
	return errors.New("the authorization server refused the request: " + code)
}

// lifetimeWithoutRefresh returns how long a token is used that nothing renews: until it expires, for as long
// as a sign-in is stored. The shorter times that token.ParseReply assumes are for tokens that are requested
// again without a person, who would otherwise have to sign in again each minute (RFC 6749 section 5.1 lets an
// authorization server leave out expires_in) or each day. If the token ends earlier, the server answers 401.
func lifetimeWithoutRefresh(t token.Token) time.Duration {
	return min(cmp.Or(t.Stated, signInIdleTimeout), signInIdleTimeout)
}
