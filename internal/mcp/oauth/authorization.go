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
	signInTimeout = 10 * time.Minute // the time that a user has to sign in
	// outcomeTTL is how long an authorization is stored. It is longer than signInTimeout, so that Await finds the
	// outcome of an authorization that ended late.
	outcomeTTL     = 2 * signInTimeout
	awaitPoll      = 500 * time.Millisecond // Await's pause before it reads an authorization again
	maxWaiters     = 64                     // waiters per authorization; for more, another authorization starts
	maxCode        = 4 << 10                // bytes of an authorization code
	maxURL         = 8 << 10                // bytes of Authorization.URL
	statePrefixLen = 16                     // bytes at the beginning of a state that identify its Client
	maxState       = 256                    // bytes of a state; a longer one is unknown
)

// Authorization is a user's sign-in that has not ended yet. Because it is in the store, any process can wait for it
// and complete it.
type Authorization struct {
	// URL is the authorization server's page that the user's browser must open. The MCP server, and not the operator,
	// may have chosen that authorization server, so show Host to the user.
	URL     string
	State   string    // identifies the authorization, for Await
	Expires time.Time // when it is too late to sign in, by this process's clock
}

// Host returns the host of URL, to show to the user; "" if URL is not valid.
func (a *Authorization) Host() string {
	u, err := url.Parse(a.URL)
	if err != nil {
		return ""
	}
	return u.Host
}

// Authorize starts the sign-in that the user id needs, as the latest refusal of their requests says, or joins a
// pending sign-in of the same user. It first finds the authorization server, and registers a client if needed, unless
// ctx ends during that. waiter is a short text that Callback returns when the sign-in ends, to identify what waits for
// it; "" adds none. Errors are *Error.
func (c *Client) Authorize(ctx context.Context, id auth.Identity, waiter string) (*Authorization, error) {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	defer context.AfterFunc(c.ctx, stop)()
	tokens, err := c.acquireUser(c.principalOf(id))
	if err != nil {
		return nil, asError(err)
	}
	defer c.releaseUser(tokens)
	authorization, err := tokens.authorize(ctx, waiter)
	if err != nil {
		return nil, asError(err)
	}
	return authorization, nil
}

// authorize is Authorize for the user of u. Only one call at a time runs in this process.
func (u *userTokens) authorize(ctx context.Context, waiter string) (*Authorization, error) {
	if err := u.authorizeLock.acquire(ctx); err != nil {
		return nil, err
	}
	defer u.authorizeLock.release()
	latest := u.latestAuthorization(ctx)
	u.dropUnansweredClient(ctx, latest)
	g, err := u.discover(ctx, latest)
	if err != nil {
		u.c.log.WarnContext(ctx, "authorization cannot start", "error", err.Error(), help.SignIns.Attr())
		return nil, err
	}
	fresh := &storedAuthorization{
		Status:   statusPending,
		Issuer:   u.id.Issuer,
		Subject:  u.id.Subject,
		Server:   *g.server,
		Client:   u.c.storeClient(g.client),
		Scopes:   g.scopes,
		Verifier: oauth2.GenerateVerifier(),
		Expires:  u.c.store.Now().Add(signInTimeout).UTC(),
	}
	if waiter != "" {
		fresh.Waiters = []string{waiter}
	}
	return u.c.joinOrStart(ctx, fresh)
}

// SignInHost returns the host of the page where the user id would sign in now. It does not begin a sign-in. It requests
// the authorization server's metadata each time. The configuration, or else the MCP server's latest refusal of one of
// the user's requests, says where the metadata is. Errors are *Error.
func (c *Client) SignInHost(ctx context.Context, id auth.Identity) (string, error) {
	tokens, err := c.acquireUser(c.principalOf(id))
	if err != nil {
		return "", asError(err)
	}
	defer c.releaseUser(tokens)
	tokens.mu.Lock()
	latestRefusal := tokens.challenge
	tokens.mu.Unlock()
	server, err := c.discovery.lookUp(ctx, latestRefusal)
	if err != nil {
		return "", asError(err)
	}
	authorization := &Authorization{URL: server.AuthorizeURL}
	return authorization.Host(), nil
}

// authorizationURL returns the URL of the authorization request (OAuth 2.1 section 4.1.1) with PKCE (RFC 7636), a
// resource (RFC 8707) and a state. It returns an error if the URL is longer than maxURL. These parameters prevent
// attacks:
//
//   - The code comes back through a browser, whose history, extensions and proxies may leak it. The verifier stays
//     in the store, and without it an attacker cannot exchange the code (RFC 7636 section 1).
//   - A token without a resource may be valid at every server that trusts the authorization server. The MCP server
//     that receives the token could use it at those servers (RFC 8707 section 3).
//   - An attacker cannot guess the state. So they cannot forge a response to a sign-in that a user has started,
//     which would make the user's calls use an account of the attacker (RFC 6749 section 10.12).
func (c *Client) authorizationURL(a *storedAuthorization, state string) (string, error) {
	options := []oauth2.AuthCodeOption{oauth2.S256ChallengeOption(a.Verifier)}
	if a.Server.Resource != "" {
		options = append(options, oauth2.SetAuthURLParam("resource", a.Server.Resource))
	}
	if slices.Contains(a.Scopes, offlineAccess) {
		// Without this parameter, the server may ignore the scope (OpenID Connect Core section 11).
		options = append(options, oauth2.SetAuthURLParam("prompt", "consent"))
	}
	client := c.restoreClient(a.Client, &a.Server)
	config := oauth2.Config{
		ClientID:    client.id,
		RedirectURL: c.cfg.RedirectURL,
		Scopes:      a.Scopes,
		Endpoint:    oauth2.Endpoint{AuthURL: a.Server.AuthorizeURL},
	}
	requestURL := config.AuthCodeURL(state, options...)
	if len(requestURL) > maxURL {
		return "", fetchErrorf("the URL of the authorization request is too long")
	}
	return requestURL, nil
}

// joinOrStart adds fresh's waiters to the pending authorization of the same user, if that one gives what fresh would
// give. Otherwise it stores fresh and makes it the pending one for all processes. So a user signs in only once, even
// if many of their calls wait in several processes.
func (c *Client) joinOrStart(ctx context.Context, fresh *storedAuthorization) (*Authorization, error) {
	pendingName := c.storedName(kindPending, fresh.Issuer, fresh.Subject)
	state := c.statePrefix() + rand.Text() + rand.Text()
	started, err := c.toAuthorization(fresh, state)
	if err != nil {
		return nil, err
	}
	isStored := false
	for range maxStoreTries {
		pendingState, revision, err := c.store.Load(ctx, pendingName...)
		if err != nil {
			return nil, c.storeError(ctx, err)
		}
		if joined, err := c.join(ctx, string(pendingState), fresh); joined != nil || err != nil {
			return joined, err
		}
		// Store the authorization before its state, because another process may load it as soon as the state is stored.
		if !isStored {
			const noRevision = 0 // no authorization has this state yet
			if _, err := c.saveAuthorization(ctx, fresh, noRevision, state); err != nil {
				return nil, err
			}
			isStored = true
		}
		next, err := c.store.Save(ctx, []byte(state), revision, outcomeTTL, pendingName...)
		if err != nil {
			return nil, c.storeError(ctx, err)
		}
		if next > 0 {
			return started, nil
		}
	}
	return nil, fetchErrorf("other processes keep starting authorizations of the same user")
}

// join adds fresh's waiters to the stored authorization with this state and returns it. It returns nil, nil if none is
// stored, if it does not give what fresh would give (canReuse), or if other processes keep changing it.
func (c *Client) join(ctx context.Context, state string, fresh *storedAuthorization) (*Authorization, error) {
	if state == "" {
		return nil, nil
	}
	for range maxStoreTries {
		stored, revision, err := c.loadAuthorization(ctx, state)
		if err != nil || stored == nil || !c.canReuse(stored, fresh) {
			return nil, err
		}
		if !isSubset(fresh.Waiters, stored.Waiters) {
			stored.Waiters = append(stored.Waiters, fresh.Waiters...) // Authorize sets one waiter at most
			if revision, err = c.saveAuthorization(ctx, stored, revision, state); err != nil {
				return nil, err
			}
		}
		if revision > 0 {
			return c.toAuthorization(stored, state)
		}
	}
	return nil, nil
}

// canReuse reports whether the stored authorization a gives what fresh would give. a must be pending at the same
// issuer, with all of fresh's scopes and a client that can still be used. It must leave the user enough time, and the
// waiters of both must not exceed maxWaiters.
func (c *Client) canReuse(a, fresh *storedAuthorization) bool {
	givesAll := a.Server.Issuer == fresh.Server.Issuer && isSubset(fresh.Scopes, a.Scopes)
	fitsWaiters := len(a.Waiters)+len(fresh.Waiters) <= maxWaiters
	// Another process may have registered the client.
	hasClient := a.Client.ID == fresh.Client.ID || c.store.Now().Before(a.Client.Expires)
	return a.Status == statusPending && givesAll && c.leavesTime(a) && fitsWaiters && hasClient
}

// leavesTime reports whether the user has at least half of signInTimeout left for the stored authorization a.
func (c *Client) leavesTime(a *storedAuthorization) bool {
	return c.store.Now().Add(signInTimeout / 2).Before(a.Expires)
}

// toAuthorization converts a stored authorization to what Authorize returns.
func (c *Client) toAuthorization(a *storedAuthorization, state string) (*Authorization, error) {
	page, err := c.authorizationURL(a, state)
	if err != nil {
		return nil, err
	}
	return &Authorization{URL: page, State: state, Expires: c.localTime(a.Expires)}, nil
}

// statePrefix returns the first statePrefixLen bytes of all states of this Client. Clients with the same configuration
// in other processes have the same prefix. A state with another prefix belongs to another Client, and need not be
// looked up.
func (c *Client) statePrefix() string {
	return values.NewKey(c.storedName("state")...).String()[:statePrefixLen]
}

// loadAuthorization returns the stored authorization with this state, and its revision. It returns a nil authorization
// and no error if none is stored, or if it cannot be decoded, because another version of answerd has stored it.
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

// saveAuthorization stores a under its state, in place of the authorization at revision; 0 means that none is stored.
// It returns the new revision. It stores nothing and returns 0 if the store has another revision.
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

// Await returns nil if the user has granted access in the authorization with this state, so that their requests now
// have a token, or if the authorization is no longer stored. With wait, it first waits until the authorization has
// ended or expired, or ctx has ended. The error wraps ErrConsent if the user has not come back from the sign-in page,
// but not if the user has refused or the authorization failed. Errors are *Error.
func (c *Client) Await(ctx context.Context, state string, wait bool) error {
	tick := time.NewTicker(awaitPoll)
	defer tick.Stop()
	for {
		stored, _, err := c.loadAuthorization(ctx, state)
		switch {
		case err != nil && !wait:
			return asError(err)
		case err != nil: // keep waiting: the store may recover before the user comes back
		case stored == nil || stored.Status == statusGranted:
			return nil
		case stored.Status == statusFailed:
			return asSignInError(errors.New("the authorization ended without access"))
		case !wait || c.store.Now().After(stored.Expires.Add(fetchTimeout)):
			// Not already at the expiry: a code that arrives right before it still has to be exchanged.
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

// Callback handles the authorization response in query, which a browser brought back (OAuth 2.1 section 4.1.2).
// Another process may have started the authorization. Callback exchanges the code for a token, and stores the token
// and the outcome. It does so even if ctx ends, because a user who closes the browser early has still granted access.
//
// found is false if the state does not belong to this Client, was used before, or has expired; then Callback did
// nothing. If found is false and the error is not nil, the store has failed, and the same query may be handled later.
// If found is true and the error is nil, the user's requests now have a token. waiters are the authorization's
// waiters, also after an error. Errors are *Error.
//
// The grant goes to the user who started the authorization (storedAuthorization), because the browser's request is not
// authenticated and does not show who its user is. docs/rough-edges.md describes what this does not prevent: a user
// who makes someone else open their sign-in page.
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
		return nil, false, asSignInError(err)
	}
	if stored == nil {
		return nil, false, nil
	}
	redeemErr := c.redeemCode(ctx, stored, query)
	if redeemErr == nil {
		stored.Status = statusGranted
		c.log.InfoContext(ctx, "authorized", "subject", stored.Subject)
	} else {
		stored.Status = statusFailed
		stored.ScopeRefused = query.Get("error") == errorInvalidScope
		c.log.WarnContext(ctx, "authorization failed", "error", redeemErr.Error(), help.SignIns.Attr())
	}
	stored.Verifier = ""
	if _, err := c.saveAuthorization(ctx, stored, revision, state); err != nil {
		c.log.WarnContext(ctx, "the outcome of an authorization is not stored; calls that wait for it end when it expires")
	}
	if redeemErr != nil {
		return stored.Waiters, true, asSignInError(redeemErr)
	}
	return stored.Waiters, true, nil
}

// beginCallback reports whether a callback with the query q may belong to this Client, judging by the form of its
// state. If the Client is closed, it returns false. After true, c.callbacks.Done must be called, because Close waits
// for it.
func (c *Client) beginCallback(q url.Values) bool {
	state := q.Get("state")
	if len(q["state"]) != 1 || len(state) > maxState || !strings.HasPrefix(state, c.statePrefix()) {
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

// takeAuthorization sets the authorization with this state to statusRedeeming and returns it with its new revision.
// Only the process that has taken it may exchange its code. takeAuthorization returns nil and no error if none is
// stored, it has expired, or another callback has taken it.
//
// A state can be used only once. An authorization server may revoke the tokens of a code that it receives twice (RFC
// 6749 section 4.1.2), and browsers do send a callback twice, for example when a page is reloaded. If a process dies
// after it took an authorization, the status stays statusRedeeming, and Await returns ErrConsent after the expiry.
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
		next, err := c.saveAuthorization(ctx, a, revision, state)
		if err != nil {
			return nil, 0, err
		}
		if next > 0 {
			return a, next, nil
		}
	}
	return nil, 0, nil
}

// redeemCode checks an authorization response, exchanges its code for a token, and stores the token as the grant of
// the user who started the authorization. It uses only what the stored authorization says about the authorization
// server. It does not search again: if the MCP server has named another authorization server since then, that one must
// not get the code.
func (c *Client) redeemCode(ctx context.Context, stored *storedAuthorization, query url.Values) error {
	code, err := checkResponse(stored, query)
	if err != nil {
		return err
	}
	tokens, err := c.acquireUser(auth.Identity{Issuer: stored.Issuer, Subject: stored.Subject})
	if err != nil {
		return err
	}
	defer c.releaseUser(tokens)
	g := &grant{server: &stored.Server, client: c.restoreClient(stored.Client, &stored.Server)}
	if c.cfg.DPoP {
		if g.key, err = newProofKey(); err != nil {
			return fmt.Errorf("generate a key for DPoP: %w", err)
		}
	}
	requestCtx, stop := context.WithTimeout(ctx, fetchTimeout)
	defer stop()
	reply, err := c.postTokenRequest(requestCtx, *g, url.Values{
		"grant_type":    {"authorization_code"},
		"code":          {code},
		"redirect_uri":  {c.cfg.RedirectURL},
		"code_verifier": {stored.Verifier},
	})
	if err != nil {
		if isClientRefused(err) {
			c.discovery.forgetClient(ctx, g)
		}
		return err
	}
	g.scopes = mergeScopes(stored.Scopes, reply.scopes)
	g.refresh = reply.refresh
	g.token = reply.Token
	if g.refresh.IsZero() {
		g.token.Lifetime = lifetimeWithoutRefresh(reply.Token)
	}
	_, err = tokens.replaceGrant(ctx, g)
	return err
}

// checkResponse returns the authorization code in query, the parameters of the response to the authorization request
// that stored describes. It returns an error if the response is not valid or reports an error. It checks the issuer
// before the error, because an error from another authorization server is not trusted.
func checkResponse(stored *storedAuthorization, query url.Values) (code string, err error) {
	for _, name := range []string{"code", "iss", "error"} {
		// RFC 6749 section 3.1 forbids this. A proxy may have checked the second value, while we would use the first.
		if len(query[name]) > 1 {
			return "", errors.New("the response has a parameter twice")
		}
	}

	// RFC 9207 section 2.4: the issuers must be identical. Otherwise a hostile authorization server could get the code
	// of an honest one from us (mix-up, RFC 9700 section 4.4).
	iss := query.Get("iss")
	mayLackIssuer := !stored.Server.ReturnsIssuer
	if iss != stored.Server.Issuer && !(iss == "" && mayLackIssuer) {
		return "", errors.New("the response is from another authorization server than the request was sent to")
	}

	if query.Has("error") {
		return "", responseError(query.Get("error"))
	}
	code = query.Get("code")
	if code == "" || len(code) > maxCode {
		return "", errors.New("the response has no code")
	}
	return code, nil
}

// responseErrors are the error codes of authorization responses (RFC 6749 section 4.1.2.1, RFC 8707 section 2, OpenID
// Connect Core section 3.1.2.6).
var responseErrors = []string{
	"invalid_request", "unauthorized_client", "access_denied", "unsupported_response_type", errorInvalidScope,
	"server_error", "temporarily_unavailable", "invalid_target", "interaction_required", "login_required",
	"account_selection_required", "consent_required",
}

// responseError returns the error for an authorization response with this error code. It quotes only codes in
// responseErrors, because an attacker who sent the browser here can choose any other text.
func responseError(code string) error {
	if !slices.Contains(responseErrors, code) {
		return errors.New("the authorization server refused the request")
	}
	return errors.New("the authorization server refused the request: " + code)
}

// lifetimeWithoutRefresh returns how long to use a sign-in's token that came without a refresh token: as long as the
// reply states, but not longer than a sign-in is stored. A reply may state nothing (RFC 6749 section 5.1).
// token.ParseReply then assumes a short lifetime, which is not used here, because the user would have to sign in again
// each minute or each day. If the token ends earlier, the server answers 401.
func lifetimeWithoutRefresh(t token.Token) time.Duration {
	return min(cmp.Or(t.Stated, signInIdleTimeout), signInIdleTimeout)
}
