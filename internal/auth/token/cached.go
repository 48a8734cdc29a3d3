package token

import (
	"context"
	"math/rand/v2"
	"time"

	"answerd/internal/auth"
	"answerd/internal/auth/fetch"
)

// renewInterval is the minimum time between two requests that Renew starts.
const renewInterval = time.Second

// CachedSource is a Source that caches the tokens of one grant. It sends one request at a time, pauses for 1 s to 30 s
// after a failed request, and refreshes the token shortly before it expires. A call of Token starts the refresh, but
// returns the old token without waiting for the new one. Without calls, no requests are sent.
type CachedSource struct{ tokens *fetch.Cache[cachedToken] }

// cachedToken is a token with the times when it has to be replaced. They have a monotonic clock reading (see package
// time), so setting the wall clock does not change the token's age.
type cachedToken struct {
	secret    auth.Secret
	refreshAt time.Time // from this time, a new token is requested
	expiresAt time.Time // from this time, the token is not returned any more
}

// NewCachedSource returns a source for the tokens that request returns. It does not call request yet. The context that
// request gets ends when the source is closed, and does not belong to a call of Token, so request must have its own
// timeout. Token and Renew return the errors of request. Callers must call Close.
func NewCachedSource(request func(context.Context) (Token, error)) *CachedSource {
	load := func(ctx context.Context) (cachedToken, error) {
		t, err := request(ctx)
		if err != nil {
			return cachedToken{}, err
		}
		return newCachedToken(t), nil
	}
	return &CachedSource{fetch.NewCache(load, fetch.Policy{})}
}

// Token implements Source. If the token is cached, it only locks a mutex and allocates nothing, because every request
// to every MCP server needs a token.
func (s *CachedSource) Token(ctx context.Context) (auth.Secret, error) {
	t, err := s.tokens.Get(ctx, "a token", cachedToken.state)
	return t.secret, err
}

// Renew implements Source. If rejected is zero, the server refused a request that was sent without a token.
//
// Renew starts at most one request per second, and none during the pause after a failed request. Calls in between fail
// at once, so that a server that refuses every token cannot flood the IAM. Token returns the rejected token until the
// new one arrives, because the server that refused it may be wrong.
func (s *CachedSource) Renew(ctx context.Context, rejected auth.Secret) (auth.Secret, error) {
	return s.replace(ctx, rejected, renewInterval)
}

// Replace does what Renew does, but without a minimum time between two requests. It is for a token that the server
// accepts in general, and refuses because of its scopes.
func (s *CachedSource) Replace(ctx context.Context, insufficient auth.Secret) (auth.Secret, error) {
	return s.replace(ctx, insufficient, 0)
}

// replace returns another token than old. It starts at most one request per interval.
func (s *CachedSource) replace(ctx context.Context, old auth.Secret, interval time.Duration) (auth.Secret, error) {
	t, err := s.tokens.Replace(ctx, "a new token", interval, func(t cachedToken) bool {
		return t.secret != old && time.Now().Before(t.expiresAt)
	})
	if err != nil {
		return auth.Secret{}, err
	}
	if t.secret == old {
		return auth.Secret{}, &fetch.Error{Public: "the token endpoint gave the refused token again"}
	}
	return t.secret, nil
}

// Cached returns the cached token and whether it is still valid. It sends no request. If there is no cached token, it
// returns the zero Secret and false.
func (s *CachedSource) Cached() (token auth.Secret, valid bool) {
	t := s.tokens.Value()
	return t.secret, time.Now().Before(t.expiresAt)
}

// Put replaces the cached token by t, and ends the pause after a failed request.
func (s *CachedSource) Put(t Token) { s.tokens.Set(newCachedToken(t)) }

// Forget removes token from the cache if it is the cached one.
func (s *CachedSource) Forget(token auth.Secret) {
	s.tokens.DropIf(func(t cachedToken) bool { return t.secret == token })
}

// Close cancels the request in flight, waits until it has ended, and prevents further ones. A cached token remains
// available while it is valid, because sessions need it to close.
func (s *CachedSource) Close() { s.tokens.Close() }

// newCachedToken returns t with the time when it is to be refreshed. That is 30 s or a tenth of the lifetime before the
// expiry, whichever is earlier, but never in the first half of the lifetime. A random part of up to a tenth of that
// period is added, so that replicas that started together do not send their requests at the same time.
func newCachedToken(t Token) cachedToken {
	lead := max(30*time.Second, t.Lifetime/10) // time from the refresh to the expiry
	lead += time.Duration(rand.Int64N(int64(lead / 10)))
	lead = min(lead, t.Lifetime/2)
	expiresAt := t.Requested.Add(t.Lifetime)
	return cachedToken{secret: t.Secret, refreshAt: expiresAt.Add(-lead), expiresAt: expiresAt}
}

// state reports whether the token may be used, and whether it must be refreshed. The zero cachedToken is expired.
func (t cachedToken) state() fetch.State {
	now := time.Now()
	switch {
	case !now.Before(t.expiresAt):
		return fetch.Expired
	case !now.Before(t.refreshAt):
		return fetch.RefreshDue
	}
	return fetch.Fresh
}
