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

// CachedSource is a Source that caches the tokens of one grant: one request at a time,
// a pause of 1 s to 30 s after a failed one, and a refresh shortly before the token
// expires. The refresh is started by a caller, who gets the old token and does not wait;
// without callers nothing is requested.
type CachedSource struct{ tokens *fetch.Cache[cachedToken] }

// cachedToken is a token and its times. They are read on the monotonic clock: setting the
// wall clock does not change the token's age.
type cachedToken struct {
	secret    auth.Secret
	refreshAt time.Time // from then on a new one is requested
	expiresAt time.Time // from then on nobody gets it
}

// NewCachedSource returns a source that sends no request yet. request is called with a
// context that ends with Close; it bounds its own time, and its errors are those of Token
// and Renew. Close must be called in the end.
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

// Token implements Source. A cached token costs a mutex and no allocation, because every
// request to every MCP server asks for one.
func (s *CachedSource) Token(ctx context.Context) (auth.Secret, error) {
	t, err := s.tokens.Get(ctx, "a token", cachedToken.state)
	return t.secret, err
}

// Renew implements Source. The zero Secret stands for a request without a token. Renew
// starts at most one request per second, and none in the pause after a failed one: a server
// that refuses every token costs the IAM no more than that, and callers in between fail at
// once. Other callers get the rejected token until the new one arrives, because the server
// that refused it may be wrong.
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

// Cached returns the cached token and whether it is valid. It sends no request.
func (s *CachedSource) Cached() (auth.Secret, bool) {
	t := s.tokens.Value()
	return t.secret, time.Now().Before(t.expiresAt)
}

// Put caches a token that came another way, and ends the pause after a failed request.
func (s *CachedSource) Put(t Token) { s.tokens.Set(newCachedToken(t)) }

// Forget drops token from the cache, if it is the cached one.
func (s *CachedSource) Forget(token auth.Secret) {
	s.tokens.DropIf(func(t cachedToken) bool { return t.secret == token })
}

// Close cancels the request in flight, waits for it, and lets no other start. A cached
// token stays available while it is valid, so that sessions can be closed with it.
func (s *CachedSource) Close() { s.tokens.Close() }

// newCachedToken decides when t is refreshed: 30 s or a tenth of its lifetime before it
// expires, whichever is earlier, but not in the first half of its lifetime. A random part
// of up to a tenth of that keeps replicas that started together from asking together.
func newCachedToken(t Token) cachedToken {
	lead := max(30*time.Second, t.Lifetime/10)
	lead += time.Duration(rand.Int64N(int64(lead / 10)))
	lead = min(lead, t.Lifetime/2)
	return cachedToken{t.Secret, t.Requested.Add(t.Lifetime - lead), t.Requested.Add(t.Lifetime)}
}

// state says what the token may still be used for. The zero cachedToken is expired.
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
