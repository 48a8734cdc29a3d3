package token

import (
	"context"
	"math/rand/v2"
	"time"

	"answerd/internal/auth"
	"answerd/internal/auth/fetch"
)

// renewInterval is the shortest time between two requests that Renew starts.
const renewInterval = time.Second

// CachedSource is a Source that caches the tokens of one grant. It sends one request at a time,
// pauses for 1 s to 30 s after a failed request, and refreshes the token shortly before it expires. A
// call of Token starts the refresh, but returns the old token and does not wait for the new one. Without
// calls there are no requests.
type CachedSource struct{ tokens *fetch.Cache[cachedToken] }

// cachedToken is a token with its times. These have a monotonic clock reading (package time), so
// setting the wall clock does not change the token's age.
type cachedToken struct {
	secret    auth.Secret
	refreshAt time.Time // a new token is requested from then on
	expiresAt time.Time // the token is not returned from then on
}

// NewCachedSource returns a source of the tokens that request returns. It does not call request yet. The context of
// request ends when the source is closed, and is not that of a caller of Token; request must have its own timeout.
// Token and Renew return the errors of request. The caller must Close the source.
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

// Token implements Source. Returning a cached token only locks a mutex and allocates nothing,
// because every request to every MCP server needs one.
func (s *CachedSource) Token(ctx context.Context) (auth.Secret, error) {
	t, err := s.tokens.Get(ctx, "a token", cachedToken.state)
	return t.secret, err
}

// Renew implements Source. A zero rejected means that the server refused a request without a token.
//
// It starts at most one request per second, and no request in the pause after a failed one; calls
// in between fail at once. So a server that refuses every token cannot flood the IAM. Token
// returns the rejected token until the new one arrives, because the server that refused it may
// be wrong.
func (s *CachedSource) Renew(ctx context.Context, rejected auth.Secret) (auth.Secret, error) {
	t, err := s.tokens.Replace(ctx, "a new token", renewInterval, func(t cachedToken) bool {
		return t.secret != rejected && time.Now().Before(t.expiresAt)
	})
	if err != nil {
		return auth.Secret{}, err
	}
	if t.secret == rejected {
		return auth.Secret{}, &fetch.Error{Public: "the token endpoint gave the refused token again"}
	}
	return t.secret, nil
}

// Cached returns the cached token and whether it is still valid. It does not send a request. Without a cached token,
// it returns the zero Secret and false.
func (s *CachedSource) Cached() (token auth.Secret, valid bool) {
	t := s.tokens.Value()
	return t.secret, time.Now().Before(t.expiresAt)
}

// Put replaces the cached token with t, and ends the pause after a failed request.
func (s *CachedSource) Put(t Token) { s.tokens.Set(newCachedToken(t)) }

// Forget removes token from the cache, if it is the cached one.
func (s *CachedSource) Forget(token auth.Secret) {
	s.tokens.DropIf(func(t cachedToken) bool { return t.secret == token })
}

// Close cancels the request in flight, waits for it, and prevents further ones. A cached token
// stays available while it is valid, because sessions are closed with it.
func (s *CachedSource) Close() { s.tokens.Close() }

// newCachedToken returns t with the time at which it is refreshed: 30 s or a tenth of its lifetime before it expires,
// whichever is earlier, but not in the first half of its lifetime. The refresh is earlier by a random part, up to a
// tenth of that period, so that replicas which started together do not send their requests together.
func newCachedToken(t Token) cachedToken {
	lead := max(30*time.Second, t.Lifetime/10) // the time from the refresh to the expiry
	lead += time.Duration(rand.Int64N(int64(lead / 10)))
	lead = min(lead, t.Lifetime/2)
	expiresAt := t.Requested.Add(t.Lifetime)
	return cachedToken{secret: t.Secret, refreshAt: expiresAt.Add(-lead), expiresAt: expiresAt}
}

// state returns whether the token may be used and must be refreshed. The zero cachedToken is expired.
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
