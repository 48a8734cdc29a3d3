package demo

import (
	"context"
	"crypto/rsa"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net/http"
	"time"
)

// Bounds of a key set.
const (
	maxKeySet   = 256 << 10 // bytes of the document
	maxKeys     = 32
	fetchTime   = 5 * time.Second
	maxKeysAge  = 10 * time.Minute // after it a removed key is noticed
	unknownWait = 10 * time.Second // between fetches that unknown kids cause
	failureWait = time.Second      // between fetches while the IAM is away
)

// errKeysUnavailable means that no key could be fetched: the verifier's trouble and
// not the token's.
var errKeysUnavailable = errors.New("the issuer's keys cannot be fetched")

// errUnknownKey means that the issuer has no key of that name.
var errUnknownKey = errors.New("the issuer has no such key")

// keySet is the keys that an issuer publishes, fetched at first need and again when
// a token names one that is not there. The waits between fetches keep strangers who
// invent kids from turning this server against the IAM.
type keySet struct {
	url                   string
	client                *http.Client
	unknownWait, failWait time.Duration

	// turn holds one token; whoever took it may touch the fields below.
	turn    chan struct{}
	keys    map[string]*rsa.PublicKey
	fetched time.Time // the last success
	tried   time.Time // the last attempt
}

// newKeySet makes no request. A redirect is an answer that is no key set: whoever can
// move the keys elsewhere could put his own there.
func newKeySet(url string) *keySet {
	t := http.DefaultTransport.(*http.Transport).Clone()
	t.MaxIdleConnsPerHost = 4
	return &keySet{
		url: url, unknownWait: unknownWait, failWait: failureWait, turn: make(chan struct{}, 1),
		client: &http.Client{
			Transport: t, Timeout: fetchTime,
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	}
}

// key is the key named kid. Callers that need a fetch wait for one, under ctx.
func (s *keySet) key(ctx context.Context, kid string) (*rsa.PublicKey, error) {
	select {
	case s.turn <- struct{}{}:
		defer func() { <-s.turn }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	k := s.keys[kid]
	if k != nil && time.Since(s.fetched) < maxKeysAge {
		return k, nil
	}
	wait := s.unknownWait
	if s.tried.After(s.fetched) {
		wait = s.failWait
	}
	if s.tried.IsZero() || time.Since(s.tried) >= wait {
		s.fetch(ctx)
		k = s.keys[kid]
	}
	switch {
	case k != nil: // stale keys serve while the IAM is away
		return k, nil
	case s.tried.After(s.fetched):
		return nil, errKeysUnavailable
	}
	return nil, errUnknownKey
}

// fetch renews the keys; on failure the old ones stay. It does not end with the
// request that happened to need it, because others wait for the same keys.
func (s *keySet) fetch(ctx context.Context) {
	s.tried = time.Now()
	keys, err := s.get(context.WithoutCancel(ctx))
	if err != nil {
		return
	}
	s.keys, s.fetched = keys, time.Now()
}

// get fetches and checks one key set, within fetchTime.
func (s *keySet) get(ctx context.Context) (map[string]*rsa.PublicKey, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.url, nil)
	if err != nil {
		return nil, fmt.Errorf("make the request for the key set: %w", err)
	}
	resp, err := s.client.Do(req)
	if err != nil {
		return nil, fmt.Errorf("fetch the key set: %w", err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("fetch the key set: HTTP %d", resp.StatusCode)
	}
	b, err := io.ReadAll(io.LimitReader(resp.Body, maxKeySet+1))
	if err != nil {
		return nil, fmt.Errorf("read the key set: %w", err)
	}
	if len(b) > maxKeySet {
		return nil, fmt.Errorf("the key set is over %d bytes", maxKeySet)
	}
	return parseKeySet(b)
}

// parseKeySet keeps the keys that can verify RS256 and passes over all others, as
// RFC 7517 section 5 asks.
func parseKeySet(b []byte) (map[string]*rsa.PublicKey, error) {
	var doc struct{ Keys []jwk }
	if err := json.Unmarshal(b, &doc); err != nil {
		return nil, fmt.Errorf("decode the key set: %w", err)
	}
	if len(doc.Keys) > maxKeys {
		return nil, fmt.Errorf("the key set has over %d keys", maxKeys)
	}
	keys := make(map[string]*rsa.PublicKey)
	for _, j := range doc.Keys {
		if k := j.rsaKey(); k != nil {
			keys[j.Kid] = k
		}
	}
	if len(keys) == 0 {
		return nil, errors.New("the key set has no usable key")
	}
	return keys, nil
}

// rsaKey is the key as Go has it, or nil if it is not for RS256 signatures, has no
// name, or is weak.
func (j jwk) rsaKey() *rsa.PublicKey {
	if j.Kty != "RSA" || j.Kid == "" || (j.Use != "" && j.Use != "sig") || (j.Alg != "" && j.Alg != "RS256") {
		return nil
	}
	nb, errN := base64.RawURLEncoding.DecodeString(j.N)
	eb, errE := base64.RawURLEncoding.DecodeString(j.E)
	if errN != nil || errE != nil || len(eb) == 0 || len(eb) > 4 {
		return nil
	}
	n, e := new(big.Int).SetBytes(nb), int(new(big.Int).SetBytes(eb).Int64())
	if n.BitLen() < keyBits || n.BitLen() > 4*keyBits || e < 3 || e%2 == 0 {
		return nil
	}
	return &rsa.PublicKey{N: n, E: e}
}

// close releases the connections to the IAM.
func (s *keySet) close() { s.client.CloseIdleConnections() }
