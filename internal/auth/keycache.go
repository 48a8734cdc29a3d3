package auth

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"github.com/golang-jwt/jwt/v5"
)

const (
	keysRefresh  = 15 * time.Minute // how soon a key that was taken back is refused
	keysCooldown = 30 * time.Second // between fetches that tokens of an unknown key cause
	keysStale    = time.Hour        // how long keys are used while none can be fetched
	maxKeyReply  = 256 << 10        // bytes of the key set
	keyEndpoint  = "the key set's endpoint"
)

// errNoKey is why no signature was checked.
var errNoKey = errors.New("no such key")

// keySet is what the issuer published at one time.
type keySet struct {
	keys    []publicKey
	fetched time.Time
}

// find gives the keys that the token's header may mean: those of its kid, or, without
// a kid, the only key there is. Several of one kid are all tried: each of them is
// the issuer's own, and issuers that name all their keys alike rotate that way.
func (s keySet) find(h header) (jwt.VerificationKeySet, error) {
	var found jwt.VerificationKeySet
	for _, k := range s.keys {
		meant := k.id == h.kid
		if !h.haveKid {
			meant = len(s.keys) == 1
		}
		if meant && k.fits(h.alg) {
			found.Keys = append(found.Keys, k.key)
		}
	}
	if len(found.Keys) == 0 {
		return found, errNoKey
	}
	return found, nil
}

// keyCache keeps the issuer's keys: fetched when first needed, every 15 minutes from
// then on, and when a token is signed by none of them, but for that not more than
// once in 30 s, whether fetching works or not: anybody can make up a kid (F28).
type keyCache struct {
	url    string
	client *http.Client
	logger *slog.Logger
	sets   *renewal[keySet]
	// polling is set once the goroutine of poll runs; protected by sets.mu.
	polling bool
}

// newKeyCache fetches nothing yet.
func newKeyCache(url string, client *http.Client, logger *slog.Logger) *keyCache {
	k := &keyCache{url: url, client: client, logger: logger}
	k.sets = newRenewal(k.fetch, func(failures int, have bool) time.Duration {
		if have {
			return keysCooldown
		}
		return backoff(failures) // nobody gets in meanwhile: try sooner
	})
	return k
}

// get returns keys that are at most an hour old, and waits under ctx only if there
// are none. Errors are ErrKeysUnavailable.
func (k *keyCache) get(ctx context.Context) (keySet, error) {
	k.sets.mu.Lock()
	if !k.polling && !k.sets.closed {
		k.polling = true
		k.sets.running.Go(k.poll)
	}
	age := time.Since(k.sets.value.fetched)
	if k.sets.have && age < keysStale {
		defer k.sets.mu.Unlock()
		if age >= keysRefresh {
			_, _ = k.sets.startLocked() // these will do until it is there
		}
		return k.sets.value, nil
	}
	under, err := k.sets.startLocked()
	k.sets.mu.Unlock()
	var set keySet
	if err == nil {
		set, err = under.wait(ctx, "the signing keys")
	}
	if err != nil {
		return keySet{}, fmt.Errorf("%w: %w", ErrKeysUnavailable, err)
	}
	return set, nil
}

// newer is for a token that none of the keys of seen has signed. It returns keys
// fetched after seen, if there are any or some can be fetched now.
func (k *keyCache) newer(ctx context.Context, seen keySet) (keySet, bool) {
	k.sets.mu.Lock()
	if k.sets.value.fetched.After(seen.fetched) {
		defer k.sets.mu.Unlock()
		return k.sets.value, true
	}
	under, err := k.sets.startLocked()
	k.sets.mu.Unlock()
	if err != nil {
		return keySet{}, false
	}
	set, err := under.wait(ctx, "newer signing keys")
	return set, err == nil
}

// poll renews the keys on time even if nobody calls: one that was taken back must not
// be good for the first caller after a quiet hour.
func (k *keyCache) poll() {
	tick := time.NewTicker(keysRefresh)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			k.sets.mu.Lock()
			_, _ = k.sets.startLocked()
			k.sets.mu.Unlock()
		case <-k.sets.ctx.Done():
			return
		}
	}
}

// fetch is the renewal's: one request, and one line in the log.
func (k *keyCache) fetch(ctx context.Context) (keySet, error) {
	keys, err := k.request(ctx)
	if err != nil {
		k.logger.WarnContext(ctx, "signing keys fetch failed", "error", err.Error())
		return keySet{}, err
	}
	k.logger.DebugContext(ctx, "signing keys fetched", "keys", len(keys))
	return keySet{keys, time.Now()}, nil
}

// request is one round trip. No If-None-Match: a set is a few kilobytes, four times an
// hour.
func (k *keyCache) request(ctx context.Context) ([]publicKey, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, k.url, nil)
	if err != nil {
		return nil, &FetchError{Public: "the key request cannot be made"}
	}
	req.Header.Set("Accept", "application/jwk-set+json, application/json")
	got, err := Do(k.client, req, keyEndpoint, maxKeyReply)
	if err != nil {
		return nil, err
	}
	if got.Status != http.StatusOK {
		return nil, &FetchError{Public: keyEndpoint + " refused the request", Status: got.Status}
	}
	keys, err := parseKeySet(got.Body)
	if err != nil {
		return nil, &FetchError{Public: keyEndpoint + " gave no keys", Status: got.Status, Err: err}
	}
	return keys, nil
}
