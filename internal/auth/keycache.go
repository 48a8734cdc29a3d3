package auth

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"answerd/internal/auth/fetch"
	"answerd/internal/auth/issuer"
	"answerd/internal/help"
)

const (
	keysRefresh  = 15 * time.Minute // time between fetches, after which a revoked key is rejected if the fetch succeeds
	keysCooldown = 30 * time.Second // minimum time between two requests
	keysMaxAge   = time.Hour        // how long keys are used if no newer ones can be fetched
	maxKeyReply  = 256 << 10        // size of the key set in bytes
	keyEndpoint  = "the key set's endpoint"
)

// errNoKey means that no key matches the token's header, so that the signature could not be verified.
var errNoKey = errors.New("no such key")

// keySet has the keys that the issuer published at the time fetched.
type keySet struct {
	keys    []publicKey
	fetched time.Time
}

// keysFor returns the keys that match h and allow its algorithm: those with its kid or, if h has no kid, the only key
// of the set. It returns all keys with the same kid, because some issuers rotate keys without changing the kid. If no
// key matches, the error is errNoKey.
func (s keySet) keysFor(h header) (jwt.VerificationKeySet, error) {
	var matching jwt.VerificationKeySet
	for _, k := range s.keys {
		hasSameID := h.hasKid && k.id == h.kid
		isOnlyKey := !h.hasKid && len(s.keys) == 1
		if (hasSameID || isOnlyKey) && k.allowsAlgorithm(h.alg) {
			matching.Keys = append(matching.Keys, k.key)
		}
	}
	if len(matching.Keys) == 0 {
		return jwt.VerificationKeySet{}, errNoKey
	}
	return matching, nil
}

// keyCache stores the issuer's keys. It fetches them when they are first needed, then every 15 minutes, and also when
// no known key has signed a token. Any caller can invent a kid, so keyCache sends at most one request in 30 s, whether
// it succeeds or fails. If the issuer signs with a key that it has not published before, tokens signed with that key
// may therefore be rejected for up to 30 s. Until the first keys are fetched, the pauses after failures are shorter
// (see fetch.Policy).
type keyCache struct {
	url    string // the key set's URL; "" if it has to be read from the issuer's metadata
	issuer string
	// discovered is the URL that was last read from the metadata. It stays in use while the metadata cannot be read. It
	// is nil before the first success.
	discovered atomic.Pointer[string]
	client     *http.Client
	logger     *slog.Logger
	sets       *fetch.Cache[keySet]
}

// newKeyCache returns an empty cache. It sends no request.
func newKeyCache(issuer, url string, client *http.Client, logger *slog.Logger) *keyCache {
	k := &keyCache{issuer: issuer, url: url, client: client, logger: logger}
	// Poll even if there are no callers. Otherwise the next caller could use a key that was revoked since the last one.
	k.sets = fetch.NewCache(k.fetchKeys, fetch.Policy{Cooldown: keysCooldown, PollEvery: keysRefresh})
	return k
}

// currentKeys returns keys that are at most an hour old. It waits, until ctx ends, only if there are none. The error is
// ErrKeysUnavailable.
func (k *keyCache) currentKeys(ctx context.Context) (keySet, error) {
	set, err := k.sets.Get(ctx, "the signing keys", func(s keySet) fetch.State {
		age := time.Since(s.fetched)
		switch {
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

// newerThan returns keys that were fetched after seen. It is for a token that no key in seen has signed. It waits,
// until ctx ends, if the keys have to be fetched. ok is false if they cannot be fetched now.
func (k *keyCache) newerThan(ctx context.Context, seen keySet) (set keySet, ok bool) {
	const interval = 0 // the policy's Cooldown already limits the requests
	set, err := k.sets.Replace(ctx, "newer signing keys", interval, func(s keySet) bool {
		return s.fetched.After(seen.fetched)
	})
	return set, err == nil
}

// fetchKeys fetches the keys and logs whether that succeeded.
func (k *keyCache) fetchKeys(ctx context.Context) (keySet, error) {
	keys, err := k.requestKeys(ctx)
	if err != nil {
		k.logger.WarnContext(ctx, "signing keys fetch failed", "error", err.Error(), help.CallerTokens.Attr())
		return keySet{}, err
	}
	k.logger.DebugContext(ctx, "signing keys fetched", "keys", len(keys))
	return keySet{keys, time.Now()}, nil
}

// requestKeys sends one request for the key set. It does not use If-None-Match, because a few kilobytes four times an
// hour do not matter.
func (k *keyCache) requestKeys(ctx context.Context) ([]publicKey, error) {
	url, err := k.keySetURL(ctx)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, fetch.Timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
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

// keySetURL returns the key set's URL. If none is configured, it reads the URL from the issuer's metadata each time,
// because the URL may change. If the metadata cannot be read, it returns the URL that it last found there, or an error
// if it never found one.
func (k *keyCache) keySetURL(ctx context.Context) (string, error) {
	if k.url != "" {
		return k.url, nil
	}
	discovered, err := k.discoverURL(ctx)
	if err == nil {
		k.discovered.Store(&discovered)
		return discovered, nil
	}
	last := k.discovered.Load()
	if last == nil {
		return "", err
	}
	k.logger.WarnContext(ctx, "issuer metadata fetch failed; the last URL of the signing keys is used",
		"error", err.Error(), help.CallerTokens.Attr())
	return *last, nil
}

// discoverURL reads the issuer's metadata and returns its jwks_uri.
func (k *keyCache) discoverURL(ctx context.Context) (string, error) {
	source := issuer.Source{
		Issuer:          k.issuer,
		Name:            "the metadata of AUTH_ISSUER",
		Client:          k.client,
		Member:          "jwks_uri",
		OtherIssuerHint: "; if the tokens have the configured one, set AUTH_JWKS_URL",
	}
	document, err := source.Read(ctx)
	if err != nil {
		return "", err
	}
	jwksURI, ok := document.Endpoint("jwks_uri")
	if !ok {
		return "", source.UnusableError("names no https address of a key set")
	}
	return jwksURI, nil
}
