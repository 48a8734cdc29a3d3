package oauth

import (
	"context"
	"crypto/sha256"
	"errors"
	"time"

	"answerd/internal/auth"
	"answerd/internal/auth/fetch"
	"answerd/internal/auth/token"
	"answerd/internal/help"
	"answerd/internal/lru"
)

const (
	maxUsers            = 4096                // users whose tokens are cached at a time
	exchangeIdleTimeout = 30 * time.Minute    // after which tokens that need no sign-in are dropped
	signInIdleTimeout   = 30 * 24 * time.Hour // after which tokens of a sign-in are dropped
)

// acquireUser returns the tokens of id, and creates an entry for id if there is none. The
// caller must call releaseUser.
func (c *Client) acquireUser(id auth.Identity) (*userTokens, error) {
	key := userKey{issuer: id.Issuer, subject: id.Subject}
	if c.cfg.Kind == Enterprise {
		if id.Token.IsZero() {
			return nil, fetchErrorf("the caller brought no token")
		}
		key.token = sha256.Sum256([]byte(id.Token.Reveal()))
	}
	tokens, err := c.users.Acquire(key, func() *userTokens {
		u := &userTokens{c: c, id: id, key: key, turn: make(chan struct{}, 1)}
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

// releaseUser ends the use that acquireUser has begun. The tokens stay cached.
func (c *Client) releaseUser(u *userTokens) { c.users.Release(u.key) }

// newUserCache returns the cache of users' tokens, with the idle timeout of c's grant.
func (c *Client) newUserCache() *lru.Cache[userKey, *userTokens] {
	idle := exchangeIdleTimeout
	if c.cfg.Kind == AuthorizationCode {
		idle = signInIdleTimeout
	}
	return lru.New[userKey](maxUsers, idle, func(u *userTokens) { u.source.Close() }) // a refresh may be in flight
}

// saveChallenge stores a challenge. It says where, and with which scopes, the next token is
// requested.
func (u *userTokens) saveChallenge(ch challenge) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.challenge, u.challengedAt = ch, time.Now()
}

// clearChallenge drops a challenge that led to no authorization server: the server may say
// something else now.
func (u *userTokens) clearChallenge() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.challenge, u.challengedAt = challenge{}, time.Time{}
}

// needsChallenge reports whether no token can be requested before the MCP server has sent a
// challenge, because only that says where, or with which scopes.
func (u *userTokens) needsChallenge() bool {
	if u.c.cfg.Kind != AuthorizationCode && u.c.discovery.isConfigured() {
		return false
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.challengedAt.IsZero()
}

// fetchToken gets the next token without the user's help, and writes one line to the log.
// The line contains no value of either side. The cached source calls it, once at a time.
func (u *userTokens) fetchToken(ctx context.Context) (token.Token, error) {
	ctx, stop := context.WithTimeout(ctx, fetchTimeout)
	defer stop()
	started, get := time.Now(), u.requestToken
	if u.c.cfg.Kind == AuthorizationCode {
		get = u.refreshToken
	}
	fresh, err := get(ctx)
	switch {
	case err == ErrConsent: // nothing was sent
	case err != nil:
		u.c.log.WarnContext(ctx, "token fetch failed", "grant", string(u.c.cfg.Kind), "error", err.Error(), help.ServerTokens.Attr())
	default:
		u.c.log.DebugContext(ctx, "token fetched", "grant", string(u.c.cfg.Kind),
			"life_s", int(fresh.Lifetime.Seconds()), "took_ms", time.Since(started).Milliseconds())
	}
	return fresh, err
}

// requestToken gets a token by a grant that needs no sign-in, and makes it the user's grant, so that
// the next request asks for the same scopes again. The store is not involved: such a token can be
// requested again at any time.
func (u *userTokens) requestToken(ctx context.Context) (token.Token, error) {
	u.mu.Lock()
	ch, challengedAt, previous := u.challenge, u.challengedAt, u.grant
	u.mu.Unlock()
	server, client, scopes, err := u.c.discovery.discover(ctx, ch, challengedAt, previous)
	if err != nil {
		u.clearChallenge()
		return token.Token{}, err
	}
	form, err := u.c.grantForm(ctx, server, u.id, scopes)
	if err != nil {
		return token.Token{}, err
	}
	reply, err := u.c.requestGrant(ctx, server, client, u.c.key, form)
	if err != nil {
		return token.Token{}, err
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	u.grant = grant{server: server, client: client, scopes: scopes, token: reply.Token, key: u.c.key}
	return reply.Token, nil
}

// scopesAt returns the scopes that were requested before, if it was at the same
// authorization server: the scopes of another one mean something else.
func (g *grant) scopesAt(server *authServer) []string {
	if g.server == nil || g.server.issuer != server.issuer {
		return nil
	}
	return g.scopes
}

// isGrantRefused reports whether a token endpoint refused a refresh token for good (RFC 6749 section
// 5.2), as opposed to not having answered. A refusal of the client that the configuration names tells
// nothing about the user: its secret may be wrong in one process.
func (c *Client) isGrantRefused(err error) bool {
	refusal, ok := errors.AsType[*fetch.Error](err)
	if !ok {
		return false
	}
	switch refusal.Code {
	case "invalid_grant", "invalid_scope":
		return true
	case "invalid_client", "unauthorized_client":
		return c.cfg.ClientID == ""
	}
	return false
}
