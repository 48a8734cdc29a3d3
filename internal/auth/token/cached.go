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
// pauses for 1 s to 30 s after a failed one, and refreshes the token shortly before it expires. A
// caller starts the refresh; it gets the old token and does not wait. Without callers there are no
// requests.
type CachedSource struct{ tokens *fetch.Cache[cachedToken] }

// cachedToken is a token and its times. They have a monotonic clock reading (package time), so
// setting the wall clock does not change the token's age.
type cachedToken struct {
	secret    auth.Secret
	refreshAt time.Time // a new token is requested from then on
	expiresAt time.Time // the token is not returned from then on
}

// NewCachedSource returns a source that does not send a request yet. request is called with a
// context that ends with Close. It must bound its own time. Its errors are those of Token and
// Renew. The caller must Close the source.
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

// Renew implements Source. The zero Secret stands for a request without a token.
//
// It starts at most one request per second, and none in the pause after a failed one, and callers
// in between fail at once. So a server that refuses every token cannot flood the IAM. Callers of
// Token get the rejected token until the new one arrives, because the server that refused it may
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

// Cached returns the cached token and whether it is valid. It does not send a request.
func (s *CachedSource) Cached() (auth.Secret, bool) {
	t := s.tokens.Value()
	return t.secret, time.Now().Before(t.expiresAt)
}

// Put caches a token that was obtained in another way. It ends the pause after a failed request.
func (s *CachedSource) Put(t Token) { s.tokens.Set(newCachedToken(t)) }

// Forget removes token from the cache, if it is the cached one.
func (s *CachedSource) Forget(token auth.Secret) {
	s.tokens.DropIf(func(t cachedToken) bool { return t.secret == token })
}

// Close cancels the request in flight, waits for it, and prevents further ones. A cached token
// stays available while it is valid, because sessions are closed with it.
func (s *CachedSource) Close() { s.tokens.Close() }

// newCachedToken decides when t is refreshed: 30 s or a tenth of its lifetime before it expires,
// whichever is earlier, but not in the first half of its lifetime. A random time of up to a tenth
// is added, so that replicas which started together do not send their requests together.
func newCachedToken(t Token) cachedToken {
	lead := max(30*time.Second, t.Lifetime/10)
	lead += time.Duration(rand.Int64N(int64(lead / 10)))
	lead = min(lead, t.Lifetime/2)
	return cachedToken{t.Secret, t.Requested.Add(t.Lifetime - lead), t.Requested.Add(t.Lifetime)}
}

// state returns what the token may still be used for. The zero cachedToken is expired.
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
