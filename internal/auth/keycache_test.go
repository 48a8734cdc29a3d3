package auth

import (
	"context"
	"crypto/elliptic"
	"errors"
	"fmt"
	"math/big"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// fakeKeys is a key endpoint inside a bubble; its fields are changed between fetches.
type fakeKeys struct {
	mu    sync.Mutex // protects what follows: the keys are also fetched on their own
	count int
	body  string // "" makes the request fail
	delay time.Duration
}

func (f *fakeKeys) RoundTrip(*http.Request) (*http.Response, error) {
	f.mu.Lock()
	f.count++
	body, delay := f.body, f.delay
	f.mu.Unlock()
	pass(delay)
	if body == "" {
		return nil, errors.New("unreachable")
	}
	return respond(http.StatusOK, body), nil
}

func (f *fakeKeys) publish(keys ...fields) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.body = string(jwks(keys...))
}

func (f *fakeKeys) down() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.body = ""
}

func (f *fakeKeys) fetches() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.count
}

const fakeIssuer = "https://iam.example"

func inKeyBubble(t *testing.T, test func(t *testing.T, f *fakeKeys, v *Verifier)) {
	rsaKey() // made outside: its randomness would block in the bubble for nothing
	synctest.Test(t, func(t *testing.T) {
		f := &fakeKeys{}
		f.publish(rsaJWK("k1", &rsaKey().PublicKey))
		v, err := NewVerifier(VerifierConfig{Issuer: fakeIssuer, Audience: "answerd", JWKSURL: fakeIssuer + "/jwks",
			HTTPClient: &http.Client{Transport: f}})
		if err != nil {
			t.Fatal(err)
		}
		defer v.Close()
		test(t, f, v)
	})
}

// good is a token that is valid now, of the key named kid.
func good(kid string) string {
	return signRS256(rsaKey(), goodHeader(fields{"kid": kid}), claimsOf(fakeIssuer, nil))
}

// F28: cold, nobody can be judged: 503, and it heals by itself.
func TestWithoutKeysItIs503AndNot401(t *testing.T) {
	inKeyBubble(t, func(t *testing.T, f *fakeKeys, v *Verifier) {
		f.down()
		for range 10 {
			_, err := v.Verify(t.Context(), good("k1"))
			if status, _ := Challenge(err, metadataURL); status != http.StatusServiceUnavailable {
				t.Fatalf("got %v", err)
			}
		}
		if n := f.fetches(); n != 1 {
			t.Errorf("%d fetches", n)
		}
		f.publish(rsaJWK("k1", &rsaKey().PublicKey))
		pass(time.Second)
		if _, err := v.Verify(t.Context(), good("k1")); err != nil {
			t.Error(err)
		}
	})
}

// F28: warm, the keys that are there serve for an hour, and no longer.
func TestKeysServeForAnHourWhileTheirEndpointIsDown(t *testing.T) {
	inKeyBubble(t, func(t *testing.T, f *fakeKeys, v *Verifier) {
		begin := time.Now()
		if _, err := v.Verify(t.Context(), good("k1")); err != nil {
			t.Fatal(err)
		}
		f.down()
		for time.Since(begin) < keysStale {
			if _, err := v.Verify(t.Context(), good("k1")); err != nil {
				t.Fatalf("after %v: %v", time.Since(begin), err)
			}
			pass(30 * time.Second)
		}
		if _, err := v.Verify(t.Context(), good("k1")); !errors.Is(err, ErrKeysUnavailable) {
			t.Errorf("after an hour: %v", err)
		}
		if n := f.fetches(); n > 2+int((keysStale-keysRefresh)/keysCooldown) {
			t.Errorf("%d fetches", n)
		}
	})
}

// F28: a new key is found by the first token that it signed, with one fetch.
func TestRotationIsPickedUpByOneFetch(t *testing.T) {
	for name, published := range map[string][]fields{
		"under a new kid":      {rsaJWK("k1", &rogueKey().PublicKey), rsaJWK("k2", &rsaKey().PublicKey)},
		"under the same kid":   {rsaJWK("k2", &rsaKey().PublicKey)},
		"twice under one kid":  {rsaJWK("k2", &rogueKey().PublicKey), rsaJWK("k2", &rsaKey().PublicKey)},
		"among unusable ones":  {{"kty": "oct", "kid": "k2", "k": "AA"}, {"kid": "k2"}, rsaJWK("k2", &rsaKey().PublicKey)},
		"beside an encryption": {merge(rsaJWK("k2", &rogueKey().PublicKey), fields{"use": "enc"}), rsaJWK("k2", &rsaKey().PublicKey)},
	} {
		inKeyBubble(t, func(t *testing.T, f *fakeKeys, v *Verifier) {
			f.publish(rsaJWK("k2", &rogueKey().PublicKey))
			if _, err := v.Verify(t.Context(), good("k2")); !errors.Is(err, ErrInvalidToken) {
				t.Fatalf("%s: got %v", name, err)
			}
			pass(keysCooldown)
			f.publish(published...)
			before := f.fetches()
			var done sync.WaitGroup
			for range 20 {
				done.Go(func() {
					if _, err := v.Verify(t.Context(), good("k2")); err != nil {
						t.Errorf("%s: %v", name, err)
					}
				})
			}
			done.Wait()
			if n := f.fetches() - before; n != 1 {
				t.Errorf("%s: %d fetches", name, n)
			}
		})
	}
}

func merge(base, change fields) fields {
	for name, value := range change {
		base[name] = value
	}
	return base
}

// F28: 1,000 tokens of made-up keys cause one fetch in 30 s, working or not.
func TestMadeUpKeysCauseOneFetchIn30s(t *testing.T) {
	for _, down := range []bool{false, true} {
		inKeyBubble(t, func(t *testing.T, f *fakeKeys, v *Verifier) {
			if _, err := v.Verify(t.Context(), good("k1")); err != nil {
				t.Fatal(err)
			}
			pass(time.Minute)
			if down {
				f.down()
			}
			begin := time.Now()
			for n := range 1000 {
				token := b64([]byte(goodHeader(fields{"kid": fmt.Sprint("made-up-", n)}))) + ".e30.AA"
				if _, err := v.Verify(t.Context(), token); !errors.Is(err, ErrInvalidToken) {
					t.Fatal(err)
				}
				pass(59 * time.Millisecond)
			}
			if n := f.fetches() - 1; n != 2 {
				t.Errorf("down %v: %d fetches in %v", down, n, time.Since(begin))
			}
		})
	}
}

// A key that was taken back is refused within the interval, even after a quiet time.
func TestRevokedKeyIsRefusedWithin15Minutes(t *testing.T) {
	inKeyBubble(t, func(t *testing.T, f *fakeKeys, v *Verifier) {
		if _, err := v.Verify(t.Context(), good("k1")); err != nil {
			t.Fatal(err)
		}
		f.publish(rsaJWK("k2", &rogueKey().PublicKey))
		pass(keysRefresh + time.Second)
		if _, err := v.Verify(t.Context(), good("k1")); !errors.Is(err, ErrInvalidToken) {
			t.Errorf("got %v", err)
		}
	})
}

// A refresh that failed is tried again at the next call, not a quarter of an hour later.
func TestFailedRefreshIsRepeatedSoon(t *testing.T) {
	inKeyBubble(t, func(t *testing.T, f *fakeKeys, v *Verifier) {
		if _, err := v.Verify(t.Context(), good("k1")); err != nil {
			t.Fatal(err)
		}
		f.down()
		pass(keysRefresh + keysCooldown + time.Second)
		f.publish(rsaJWK("k2", &rogueKey().PublicKey))
		if _, err := v.Verify(t.Context(), good("k1")); err != nil {
			t.Errorf("while it is repeated: %v", err)
		}
		synctest.Wait()
		if _, err := v.Verify(t.Context(), good("k1")); !errors.Is(err, ErrInvalidToken) {
			t.Errorf("got %v", err)
		}
	})
}

// F28: a slow endpoint is given up after 5 s; a caller in a hurry goes earlier.
func TestSlowKeysAreGivenUp(t *testing.T) {
	inKeyBubble(t, func(t *testing.T, f *fakeKeys, v *Verifier) {
		f.delay = 4 * time.Second
		begin := time.Now()
		hurry, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := v.Verify(hurry, good("k1"))
		if !errors.Is(err, ErrKeysUnavailable) || !errors.Is(err, context.DeadlineExceeded) || time.Since(begin) != time.Second {
			t.Errorf("got %v after %v", err, time.Since(begin))
		}
		if _, err := v.Verify(t.Context(), good("k1")); err != nil || f.fetches() != 1 {
			t.Errorf("got %v after %d fetches", err, f.fetches())
		}
	})
}

func TestCloseEndsTheFetchOfKeys(t *testing.T) {
	inKeyBubble(t, func(t *testing.T, f *fakeKeys, v *Verifier) {
		if _, err := v.Verify(t.Context(), good("k1")); err != nil {
			t.Fatal(err)
		}
		v.Close()
		v.Close()
		if _, err := v.Verify(t.Context(), good("k1")); err != nil {
			t.Errorf("keys that are there: %v", err)
		}
		pass(2 * keysStale)
		if _, err := v.Verify(t.Context(), good("k1")); !errors.Is(err, ErrKeysUnavailable) || f.fetches() != 1 {
			t.Errorf("got %v after %d fetches", err, f.fetches())
		}
	})
}

// F28, over real HTTP: what the endpoint may answer instead of keys.
func TestMisbehavingKeyEndpointIs503(t *testing.T) {
	many := make([]fields, maxKeys+1)
	for n := range many {
		many[n] = rsaJWK("k1", &rsaKey().PublicKey)
	}
	for name, body := range map[string]string{
		"10 MiB":       `{"keys":[` + strings.Repeat(" ", 10<<20) + `]}`,
		"empty set":    `{"keys":[]}`,
		"empty":        ``,
		"HTML":         `<html>` + bodyCanary,
		"no list":      `{"keys":{}}`,
		"33 keys":      string(jwks(many...)),
		"no RSA key":   string(jwks(fields{"kty": "RSA", "kid": "k1", "n": "!", "e": "AQAB"})),
		"even modulus": string(jwks(fields{"kty": "RSA", "kid": "k1", "n": b64(new(big.Int).Lsh(big.NewInt(1), 2047).Bytes()), "e": "AQAB"})),
		"exponent 1":   string(jwks(merge(rsaJWK("k1", &rsaKey().PublicKey), fields{"e": "AQ"}))),
		"off curve":    string(jwks(merge(ecJWK("k1", &ecKey().PublicKey), fields{"y": b64(make([]byte, 32))}))),
		"not to sign":  string(jwks(merge(rsaJWK("k1", &rsaKey().PublicKey), fields{"key_ops": []string{"encrypt"}}))),
	} {
		i := newIAM(t)
		i.handleKeys(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(body)) })
		v, logged := i.verifier(t, nil)
		_, err := v.Verify(t.Context(), signRS256(rsaKey(), goodHeader(nil), i.goodClaims(nil)))
		if !errors.Is(err, ErrKeysUnavailable) {
			t.Errorf("%s: %v", name, err)
			continue
		}
		checkQuiet(t, err.Error()+logged.String())
	}
}

// F19: keys come from where the configuration says, not from where that sends us.
func TestKeysDoNotFollowARedirect(t *testing.T) {
	i, other := newIAM(t), newIAM(t)
	i.handleKeys(func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, other.URL+"/jwks", http.StatusFound)
	})
	v, _ := i.verifier(t, nil)
	_, err := v.Verify(t.Context(), signRS256(rsaKey(), goodHeader(nil), i.goodClaims(nil)))
	if !errors.Is(err, ErrKeysUnavailable) || other.keyCalls.Load() != 0 {
		t.Errorf("got %v", err)
	}
}

func TestKeyServesOnlyItsOwnAlgorithms(t *testing.T) {
	all := strings.Fields("RS256 RS384 RS512 PS256 PS384 PS512 ES256 ES384 ES512 EdDSA HS256 none")
	ed := fields{"kty": "OKP", "crv": "Ed25519", "x": b64(make([]byte, 32))}
	p384 := elliptic.P384().Params()
	for _, test := range []struct {
		jwk  fields
		want string
	}{
		{rsaJWK("a", &rsaKey().PublicKey), "RS256 RS384 RS512 PS256 PS384 PS512"},
		{merge(rsaJWK("a", &rsaKey().PublicKey), fields{"alg": "RS256"}), "RS256"},
		{merge(rsaJWK("a", &rsaKey().PublicKey), fields{"alg": "HS256"}), ""},
		{ecJWK("a", &ecKey().PublicKey), "ES256"},
		{fields{"kty": "EC", "crv": "P-384", "x": b64(p384.Gx.Bytes()), "y": b64(p384.Gy.Bytes())}, "ES384"},
		{ed, "EdDSA"},
	} {
		keys, err := parseKeySet(jwks(test.jwk))
		if err != nil {
			t.Fatal(err)
		}
		var fits []string
		for _, alg := range all {
			if keys[0].fits(alg) {
				fits = append(fits, alg)
			}
		}
		if got := strings.Join(fits, " "); got != test.want {
			t.Errorf("%v %v: fits %q, want %q", test.jwk["kty"], test.jwk["alg"], got, test.want)
		}
	}
}

// A token without a kid is judged by the key, if there is but one.
func TestTokenWithoutKidNeedsTheOnlyKey(t *testing.T) {
	i := newIAM(t)
	i.publish(rsaJWK("k1", &rsaKey().PublicKey))
	v, _ := i.verifier(t, nil)
	if _, err := v.Verify(t.Context(), signRS256(rsaKey(), goodHeader(fields{"kid": nil}), i.goodClaims(nil))); err != nil {
		t.Error(err)
	}
}
