package oauth

import (
	"context"
	"crypto/sha256"
	"errors"
	"net/http"
	"slices"
	"time"

	"answerd/internal/auth"
	"answerd/internal/auth/fetch"
	"answerd/internal/auth/token"
	"answerd/internal/help"
	"answerd/internal/lru"
)

const (
	maxUsers            = 4096                // how many users' tokens are cached
	exchangeIdleTimeout = 30 * time.Minute    // idle time after which tokens without a sign-in are dropped
	signInIdleTimeout   = 30 * 24 * time.Hour // idle time after which a sign-in's tokens are dropped
)

// acquireUser returns the entry for the tokens of the user id, and creates it if needed. The entry may have no token
// yet. Unless there is an error, releaseUser must be called. For Enterprise, id must have a Token.
func (c *Client) acquireUser(id auth.Identity) (*userTokens, error) {
	key := userKey{issuer: id.Issuer, subject: id.Subject}
	if c.cfg.Kind == Enterprise {
		if id.Token.IsZero() {
			return nil, fetchErrorf("the caller brought no token")
		}
		key.token = sha256.Sum256([]byte(id.Token.Reveal()))
	}
	tokens, err := c.users.Acquire(key, func() *userTokens {
		u := &userTokens{c: c, id: id, key: key, authorizeLock: make(contextLock, 1)}
		u.source = token.NewCachedSource(u.fetchToken)
		return u
	})
	switch {
	case errors.Is(err, lru.ErrClosed):
		return nil, errClosed
	case err != nil:
		return nil, fetchErrorf("too many callers are waiting for their tokens")
	}
	return tokens, nil
}

// releaseUser ends one use of an entry that acquireUser returned. The tokens stay cached.
func (c *Client) releaseUser(u *userTokens) { c.users.Release(u.key) }

// newUserCache returns the cache of users' tokens. Its idle timeout depends on the kind of grant.
func (c *Client) newUserCache() *lru.Cache[userKey, *userTokens] {
	idle := exchangeIdleTimeout
	if c.cfg.Kind == AuthorizationCode {
		idle = signInIdleTimeout
	}
	return lru.New[userKey](maxUsers, idle, func(u *userTokens) { u.source.Close() }) // waits for a refresh in flight
}

// saveChallenge records ch, a challenge of the MCP server that arrived now. It determines where and with which scopes
// the next token is requested.
func (u *userTokens) saveChallenge(ch challenge) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.challenge = ch
	u.challengedAt = time.Now()
}

// saveStepUp records ch, a challenge that requires more scopes, together with the scopes of earlier challenges. If calls
// that run at the same time need different scopes, one token then has all of them.
func (u *userTokens) saveStepUp(ch challenge) {
	u.mu.Lock()
	ch.earlier = mergeScopes(u.challenge.earlier, u.challenge.scopes)
	u.mu.Unlock()
	u.saveChallenge(ch)
}

// withdrawStepUp removes the scopes that saveStepUp has added, because no token with them could be obtained. Otherwise
// the next token, for any request, would be requested with them too.
func (u *userTokens) withdrawStepUp() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.challenge.scopes = u.grant.scopes
	u.challenge.earlier = nil
}

// requestedScopes returns the token of the user's grant and whether it was requested with all of scopes.
func (u *userTokens) requestedScopes(scopes []string) (token auth.Secret, wereRequested bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.grant.token.Secret, isSubset(scopes, u.grant.scopes)
}

// needsChallenge reports whether the MCP server must first send a challenge before a token can be requested, and has
// not sent one, or only one for a single call that needed more scopes. The challenge says where to request a token,
// unless the configuration does. A sign-in always needs one, for the scopes.
func (u *userTokens) needsChallenge() bool {
	if u.c.cfg.Kind != AuthorizationCode && u.c.discovery.isConfigured() {
		return false
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.challengedAt.IsZero() || u.challenge.code == errorInsufficientScope
}

// fetchToken requests the next token: for a sign-in with the refresh token, otherwise by a grant that needs no
// sign-in. It logs the outcome in one line without secrets. The user's CachedSource calls it, never concurrently. If
// the user must sign in, the error is or wraps ErrConsent.
func (u *userTokens) fetchToken(ctx context.Context) (token.Token, error) {
	ctx, stop := context.WithTimeout(ctx, fetchTimeout)
	defer stop()
	started := time.Now()
	kind := u.c.cfg.Kind
	request := u.requestToken
	if kind == AuthorizationCode {
		request = u.redeemRefreshToken
	}
	fresh, err := request(ctx)
	switch {
	case err == ErrConsent: // not logged, because it is expected: the user has not signed in
	case err != nil:
		u.c.log.WarnContext(ctx, "token fetch failed", "grant", string(kind), "error", err.Error(), help.ServerTokens.Attr())
	default:
		u.c.log.DebugContext(ctx, "token fetched", "grant", string(kind),
			"life_s", int(fresh.Lifetime.Seconds()), "took_ms", time.Since(started).Milliseconds())
	}
	return fresh, err
}

// requestToken requests a token by a grant that needs no sign-in, from the authorization server that discovery finds.
// It keeps the token and its scopes in u.grant, so that the next request asks for the same scopes again. It does not
// use the store, because such a token can be requested again at any time.
func (u *userTokens) requestToken(ctx context.Context) (token.Token, error) {
	g, err := u.discover(ctx, nil)
	if err != nil {
		return token.Token{}, err
	}
	form, err := u.c.grantForm(ctx, g, u.id)
	if err != nil {
		return token.Token{}, err
	}
	g.key = u.c.key
	reply, err := u.c.postTokenRequest(ctx, *g, form)
	if err != nil {
		return token.Token{}, err
	}
	g.token = reply.Token
	u.mu.Lock()
	defer u.mu.Unlock()
	u.grant = *g
	return g.token, nil
}

// latestAuthorization returns the user's latest authorization, which may have ended; nil if none is stored or the store
// fails.
func (u *userTokens) latestAuthorization(ctx context.Context) *storedAuthorization {
	state, _, err := u.c.store.Load(ctx, u.c.storedName(kindPending, u.id.Issuer, u.id.Subject)...)
	if err != nil || state == nil {
		return nil
	}
	latest, _, _ := u.c.loadAuthorization(ctx, string(state)) // nil after an error, which is logged
	return latest
}

// discover returns what to request the user's next token with, as a grant without tokens (discovery.discover). If
// latest, the user's latest authorization, is still pending, the scopes include its own: it may be for another call,
// and the token of the next sign-in replaces that of this one. If latest failed because of its scopes, the scopes are
// only those that are required now: the authorization server may no longer know earlier ones. latest may be nil.
//
// After an error, discover drops the challenge, because that led to no authorization server. The next request is then
// sent without a token and gets a new challenge, which may be a different one.
func (u *userTokens) discover(ctx context.Context, latest *storedAuthorization) (*grant, error) {
	u.mu.Lock()
	ch, challengedAt, previous := u.challenge, u.challengedAt, u.grant
	u.mu.Unlock()
	if latest != nil && latest.ScopeRefused {
		previous = grant{}
		ch.earlier = nil
	}
	if latest != nil && latest.Status == statusPending && u.c.leavesTime(latest) {
		server := &latest.Server
		previous = grant{server: server, scopes: mergeScopes(previous.scopesAt(server), latest.Scopes)}
	}
	if len(ch.scopes) > 0 {
		ch.scopes = mergeScopes(ch.earlier, ch.scopes)
	}
	g, err := u.c.discovery.discover(ctx, ch, challengedAt, previous)
	if err != nil {
		u.mu.Lock()
		defer u.mu.Unlock()
		u.challenge = challenge{}
		u.challengedAt = time.Time{}
	}
	return g, err
}

// scopesAt returns g's scopes if server has the same issuer as g's authorization server, and nil otherwise, because
// another authorization server may give scopes another meaning.
func (g *grant) scopesAt(server *authServer) []string {
	if g.server == nil || g.server.Issuer != server.Issuer {
		return nil
	}
	return g.scopes
}

// isGrantRefused reports whether err means that a token endpoint has refused a refresh token for good (RFC 6749
// section 5.2), so that the user must sign in again. A refusal of a registered client counts too, because the refresh
// token is useless without it. A refusal of a configured client does not count, because its secret may be wrong in
// only one process.
func (c *Client) isGrantRefused(err error) bool {
	switch refusalCode(err) {
	case "invalid_grant", errorInvalidScope:
		return true
	case codeInvalidClient, codeUnauthorizedClient:
		return c.cfg.ClientID == ""
	}
	return false
}

// isUnclearRefusal reports whether err means that a token endpoint has refused a refresh token, and neither for good
// (isGrantRefused) nor for now. RFC 6749 section 5.2 requires invalid_grant for an expired refresh token, but some
// endpoints use another code, a code of their own or none, and some answer 200.
func (c *Client) isUnclearRefusal(err error) bool {
	refusal, ok := errors.AsType[*fetch.Error](err)
	if !ok {
		return false
	}
	switch refusal.Code {
	case codeInvalidClient, "server_error", "temporarily_unavailable":
		return false
	case "":
		if refusal.Status == http.StatusUnauthorized && c.cfg.ClientID != "" {
			return false // it refuses the configured client
		}
	}
	refusals := []int{http.StatusOK, http.StatusBadRequest, http.StatusUnauthorized, http.StatusForbidden, http.StatusUnprocessableEntity}
	return slices.Contains(refusals, refusal.Status)
}
