package auth

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"answerd/internal/auth/fetch"
)

const (
	keysRefresh  = 15 * time.Minute // the longest time until a revoked key is refused
	keysCooldown = 30 * time.Second // between requests that tokens of an unknown key cause
	keysMaxAge   = time.Hour        // how long keys are used while no newer ones can be fetched
	maxKeyReply  = 256 << 10        // bytes of the key set
	keyEndpoint  = "the key set's endpoint"
)

// errNoKey means that no key fits the token's header, so no signature was checked.
var errNoKey = errors.New("no such key")

// keySet has the keys that the issuer published at one time.
type keySet struct {
	keys    []publicKey
	fetched time.Time
}

// find returns the keys that the token's header may mean: those of its kid, or, without
// a kid, the only key there is. All keys of one kid are tried: each of them is the
// issuer's own, and some issuers rotate keys without changing the kid.
func (s keySet) find(h header) (jwt.VerificationKeySet, error) {
	var found jwt.VerificationKeySet
	for _, k := range s.keys {
		named := k.id == h.kid
		if !h.haveKid {
			named = len(s.keys) == 1
		}
		if named && k.allowsAlgorithm(h.alg) {
			found.Keys = append(found.Keys, k.key)
		}
	}
	if len(found.Keys) == 0 {
		return found, errNoKey
	}
	return found, nil
}

// keyCache stores the issuer's keys. It fetches them when they are first needed, every 15
// minutes from then on, and when none of them has signed a token. It sends at most one
// request in 30 s, whether it succeeds or not, because anybody can invent a kid.
type keyCache struct {
	url    string
	client *http.Client
	logger *slog.Logger
	sets   *fetch.Cache[keySet]
}

// newKeyCache sends nothing yet.
func newKeyCache(url string, client *http.Client, logger *slog.Logger) *keyCache {
	k := &keyCache{url: url, client: client, logger: logger}
	// Polling also runs without callers: a key that was revoked in a quiet hour must not
	// be accepted from the first caller after it.
	k.sets = fetch.NewCache(k.load, fetch.Policy{Cooldown: keysCooldown, PollEvery: keysRefresh})
	return k
}

// current returns keys that are at most an hour old, and waits under ctx only if there are
// none. Errors are ErrKeysUnavailable.
func (k *keyCache) current(ctx context.Context) (keySet, error) {
	set, err := k.sets.Get(ctx, "the signing keys", func(s keySet) fetch.State {
		switch age := time.Since(s.fetched); {
		case age >= keysMaxAge:
			return fetch.Expired
		case age >= keysRefresh:
			return fetch.RefreshDue
		}
		return fetch.Fresh
	})
	if err != nil {
		return keySet{}, fmt.Errorf("%w: %w", ErrKeysUnavailable, err)
	}
	return set, nil
}

// newerThan returns keys that were fetched after seen, for a token that no key of seen has
// signed; ok is false if there are none and none can be fetched now.
func (k *keyCache) newerThan(ctx context.Context, seen keySet) (set keySet, ok bool) {
	set, err := k.sets.Replace(ctx, "newer signing keys", 0, func(s keySet) bool {
		return s.fetched.After(seen.fetched)
	})
	return set, err == nil
}

// load fetches the keys and writes one line to the log.
func (k *keyCache) load(ctx context.Context) (keySet, error) {
	keys, err := k.request(ctx)
	if err != nil {
		k.logger.WarnContext(ctx, "signing keys fetch failed", "error", err.Error())
		return keySet{}, err
	}
	k.logger.DebugContext(ctx, "signing keys fetched", "keys", len(keys))
	return keySet{keys, time.Now()}, nil
}

// request sends one request for the key set. It sends no If-None-Match: a set is a few
// kilobytes, four times an hour.
func (k *keyCache) request(ctx context.Context) ([]publicKey, error) {
	ctx, cancel := context.WithTimeout(ctx, fetch.Timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, k.url, nil)
	if err != nil {
		return nil, &fetch.Error{Public: "the key request cannot be created"}
	}
	req.Header.Set("Accept", "application/jwk-set+json, application/json")
	reply, err := fetch.Do(k.client, req, keyEndpoint, maxKeyReply)
	if err != nil {
		return nil, err
	}
	if reply.Status != http.StatusOK {
		return nil, &fetch.Error{Public: keyEndpoint + " refused the request", Status: reply.Status}
	}
	keys, err := parseKeySet(reply.Body)
	if err != nil {
		return nil, &fetch.Error{Public: keyEndpoint + " gave no usable keys", Status: reply.Status, Err: err}
	}
	return keys, nil
}
