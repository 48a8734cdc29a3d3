package auth

import (
	"context"
	"math/rand/v2"
	"time"
)

// keeper keeps one token, and when to fetch the next: what ClientCredentials has one
// of, and Exchange one for each caller.
type keeper struct {
	grants *renewal[grant]
	forced time.Time // the last renew that fetched; protected by grants.mu
}

// grant is a token and its times, which are read on the monotonic clock: setting
// the wall clock does not age it.
type grant struct {
	token   Secret
	refresh time.Time // from here on a new one is fetched
	expires time.Time // from here on it isn't given to anybody
}

// forcedEvery is the shortest time between two fetches that renew starts.
const forcedEvery = time.Second

// newKeeper keeps what fetch brings; it fetches nothing yet.
func newKeeper(fetch func(context.Context) (Fresh, error)) *keeper {
	next := func(ctx context.Context) (grant, error) {
		f, err := fetch(ctx)
		if err != nil {
			return grant{}, err
		}
		return newGrant(f), nil
	}
	return &keeper{grants: newRenewal(next, func(failures int, _ bool) time.Duration {
		if failures == 0 {
			return 0
		}
		return backoff(failures)
	})}
}

// token is TokenSource.Token.
func (k *keeper) token(ctx context.Context) (Secret, error) {
	k.grants.mu.Lock()
	now, have := time.Now(), k.grants.value
	if now.Before(have.expires) {
		if !now.Before(have.refresh) {
			// For the callers to come. Why none starts is of no interest
			// while this one is good.
			_, _ = k.grants.startLocked()
		}
		k.grants.mu.Unlock()
		return have.token, nil
	}
	under, err := k.grants.startLocked()
	k.grants.mu.Unlock()
	if err != nil {
		return Secret{}, err
	}
	fresh, err := under.wait(ctx, "a token")
	return fresh.token, err
}

// renew is TokenSource.Renew.
func (k *keeper) renew(ctx context.Context, rejected Secret) (Secret, error) {
	k.grants.mu.Lock()
	now, have := time.Now(), k.grants.value
	if have.token != rejected && now.Before(have.expires) {
		k.grants.mu.Unlock()
		return have.token, nil
	}
	under, err := k.startForcedLocked(now)
	k.grants.mu.Unlock()
	if err != nil {
		return Secret{}, err
	}
	fresh, err := under.wait(ctx, "a new token")
	if err != nil {
		return Secret{}, err
	}
	if fresh.token == rejected {
		return Secret{}, &FetchError{Public: "the token endpoint gave the refused token again"}
	}
	return fresh.token, nil
}

// startForcedLocked is startLocked for renew; grants.mu is held. A fetch that is under
// way will do: what it brings is newer than what was refused.
func (k *keeper) startForcedLocked(now time.Time) (*flight[grant], error) {
	if k.grants.current != nil {
		return k.grants.current, nil
	}
	if !k.forced.IsZero() && now.Before(k.forced.Add(forcedEvery)) {
		return nil, errTooSoon
	}
	under, err := k.grants.startLocked()
	if err == nil {
		k.forced = now
	}
	return under, err
}

// newGrant lays down when f is refreshed: the larger of 30 s and a tenth of its life
// before the end, but not in the first half of it. Up to a tenth more, by chance, keeps replicas that started together from
// asking together.
func newGrant(f Fresh) grant {
	lead := max(30*time.Second, f.Life/10)
	lead += time.Duration(rand.Int64N(int64(lead / 10)))
	lead = min(lead, f.Life/2)
	return grant{f.Token, f.Asked.Add(f.Life - lead), f.Asked.Add(f.Life)}
}
