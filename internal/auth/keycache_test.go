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

	"answerd/internal/auth/authtest"
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
	authtest.Advance(delay)
	if body == "" {
		return nil, errors.New("unreachable")
	}
	return authtest.Response(http.StatusOK, body), nil
}

func (f *fakeKeys) publish(keys ...authtest.JSON) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.body = string(authtest.JWKS(keys...))
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

func withVerifier(t *testing.T, test func(t *testing.T, f *fakeKeys, v *Verifier)) {
	authtest.RSAKey() // made outside: its randomness would block in the bubble for nothing
	synctest.Test(t, func(t *testing.T) {
		f := &fakeKeys{}
		f.publish(authtest.RSAJWK("k1", &authtest.RSAKey().PublicKey))
		v, err := NewVerifier(VerifierConfig{Issuer: fakeIssuer, Audience: "answerd", JWKSURL: fakeIssuer + "/jwks",
			HTTPClient: &http.Client{Transport: f}})
		if err != nil {
			t.Fatal(err)
		}
		defer v.Close()
		test(t, f, v)
	})
}

// validToken returns a valid token that is signed with the key named kid.
func validToken(kid string) string {
	return authtest.SignRS256(authtest.RSAKey(), authtest.HeaderJSON(authtest.JSON{"kid": kid}), authtest.ClaimsOf(fakeIssuer, nil))
}

// Without cached keys no token can be verified: the answer is 503 until the keys can be fetched.
func TestVerifyWithoutKeysIs503AndNot401(t *testing.T) {
	withVerifier(t, func(t *testing.T, f *fakeKeys, v *Verifier) {
		f.down()
		for range 10 {
			_, err := v.Verify(t.Context(), validToken("k1"))
			if status, _ := Challenge(err, metadataURL); status != http.StatusServiceUnavailable {
				t.Fatalf("got %v, want %v", err, http.StatusServiceUnavailable)
			}
		}
		if n := f.fetches(); n != 1 {
			t.Errorf("got %d fetches, want 1", n)
		}
		f.publish(authtest.RSAJWK("k1", &authtest.RSAKey().PublicKey))
		authtest.Advance(time.Second)
		if _, err := v.Verify(t.Context(), validToken("k1")); err != nil {
			t.Error(err)
		}
	})
}

// Warm, the keys that are there serve for an hour, and no longer.
func TestKeyCacheUsesKeysForAnHourWhileTheEndpointIsDown(t *testing.T) {
	withVerifier(t, func(t *testing.T, f *fakeKeys, v *Verifier) {
		begin := time.Now()
		if _, err := v.Verify(t.Context(), validToken("k1")); err != nil {
			t.Fatal(err)
		}
		f.down()
		for time.Since(begin) < keysMaxAge {
			if _, err := v.Verify(t.Context(), validToken("k1")); err != nil {
				t.Fatalf("after %v: %v, want no error", time.Since(begin), err)
			}
			authtest.Advance(30 * time.Second)
		}
		if _, err := v.Verify(t.Context(), validToken("k1")); !errors.Is(err, ErrKeysUnavailable) {
			t.Errorf("after an hour: %v, want %v", err, ErrKeysUnavailable)
		}
		if n := f.fetches(); n > 2+int((keysMaxAge-keysRefresh)/keysCooldown) {
			t.Errorf("%d fetches, want at most %d", n, 2+int((keysMaxAge-keysRefresh)/keysCooldown))
		}
	})
}

// A new key is found by the first token that it signed, with one fetch.
func TestKeyCacheFetchesRotatedKeysOnce(t *testing.T) {
	for name, published := range map[string][]authtest.JSON{
		"under a new kid":      {authtest.RSAJWK("k1", &authtest.OtherRSAKey().PublicKey), authtest.RSAJWK("k2", &authtest.RSAKey().PublicKey)},
		"under the same kid":   {authtest.RSAJWK("k2", &authtest.RSAKey().PublicKey)},
		"twice under one kid":  {authtest.RSAJWK("k2", &authtest.OtherRSAKey().PublicKey), authtest.RSAJWK("k2", &authtest.RSAKey().PublicKey)},
		"among unusable ones":  {{"kty": "oct", "kid": "k2", "k": "AA"}, {"kid": "k2"}, authtest.RSAJWK("k2", &authtest.RSAKey().PublicKey)},
		"beside an encryption": {merge(authtest.RSAJWK("k2", &authtest.OtherRSAKey().PublicKey), authtest.JSON{"use": "enc"}), authtest.RSAJWK("k2", &authtest.RSAKey().PublicKey)},
	} {
		withVerifier(t, func(t *testing.T, f *fakeKeys, v *Verifier) {
			f.publish(authtest.RSAJWK("k2", &authtest.OtherRSAKey().PublicKey))
			if _, err := v.Verify(t.Context(), validToken("k2")); !errors.Is(err, ErrInvalidToken) {
				t.Fatalf("%s: got %v, want %v", name, err, ErrInvalidToken)
			}
			authtest.Advance(keysCooldown)
			f.publish(published...)
			before := f.fetches()
			var done sync.WaitGroup
			for range 20 {
				done.Go(func() {
					if _, err := v.Verify(t.Context(), validToken("k2")); err != nil {
						t.Errorf("%s: got %v, want no error", name, err)
					}
				})
			}
			done.Wait()
			if n := f.fetches() - before; n != 1 {
				t.Errorf("%s: got %d fetches, want 1", name, n)
			}
		})
	}
}

func merge(base, change authtest.JSON) authtest.JSON {
	for name, value := range change {
		base[name] = value
	}
	return base
}

// 1,000 tokens of made-up keys cause one fetch in 30 s, working or not.
func TestKeyCacheFetchesOnceIn30sForUnknownKeys(t *testing.T) {
	for _, down := range []bool{false, true} {
		withVerifier(t, func(t *testing.T, f *fakeKeys, v *Verifier) {
			if _, err := v.Verify(t.Context(), validToken("k1")); err != nil {
				t.Fatal(err)
			}
			authtest.Advance(time.Minute)
			if down {
				f.down()
			}
			begin := time.Now()
			for n := range 1000 {
				token := authtest.Base64([]byte(authtest.HeaderJSON(authtest.JSON{"kid": fmt.Sprint("made-up-", n)}))) + ".e30.AA"
				if _, err := v.Verify(t.Context(), token); !errors.Is(err, ErrInvalidToken) {
					t.Fatalf("error %v, want ErrInvalidToken", err)
				}
				authtest.Advance(59 * time.Millisecond)
			}
			if n := f.fetches() - 1; n != 2 {
				t.Errorf("down %v: %d fetches in %v, want 2", down, n, time.Since(begin))
			}
		})
	}
}

// A key that was taken back is refused within the interval, even after a quiet time.
func TestKeyCacheDropsARevokedKeyWithin15Minutes(t *testing.T) {
	withVerifier(t, func(t *testing.T, f *fakeKeys, v *Verifier) {
		if _, err := v.Verify(t.Context(), validToken("k1")); err != nil {
			t.Fatal(err)
		}
		f.publish(authtest.RSAJWK("k2", &authtest.OtherRSAKey().PublicKey))
		authtest.Advance(keysRefresh + time.Second)
		if _, err := v.Verify(t.Context(), validToken("k1")); !errors.Is(err, ErrInvalidToken) {
			t.Errorf("got %v, want %v", err, ErrInvalidToken)
		}
	})
}

// A refresh that failed is tried again at the next call, not a quarter of an hour later.
func TestKeyCacheRepeatsAFailedRefresh(t *testing.T) {
	withVerifier(t, func(t *testing.T, f *fakeKeys, v *Verifier) {
		if _, err := v.Verify(t.Context(), validToken("k1")); err != nil {
			t.Fatal(err)
		}
		f.down()
		authtest.Advance(keysRefresh + keysCooldown + time.Second)
		f.publish(authtest.RSAJWK("k2", &authtest.OtherRSAKey().PublicKey))
		if _, err := v.Verify(t.Context(), validToken("k1")); err != nil {
			t.Errorf("while it is repeated: %v, want no error", err)
		}
		synctest.Wait()
		if _, err := v.Verify(t.Context(), validToken("k1")); !errors.Is(err, ErrInvalidToken) {
			t.Errorf("got %v, want %v", err, ErrInvalidToken)
		}
	})
}

// A slow endpoint is given up after 5 s; a caller in a hurry goes earlier.
func TestKeyCacheTimesOut(t *testing.T) {
	withVerifier(t, func(t *testing.T, f *fakeKeys, v *Verifier) {
		f.delay = 4 * time.Second
		begin := time.Now()
		hurry, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := v.Verify(hurry, validToken("k1"))
		if !errors.Is(err, ErrKeysUnavailable) || !errors.Is(err, context.DeadlineExceeded) || time.Since(begin) != time.Second {
			t.Errorf("got %v after %v, want %v, %v, %v", err, time.Since(begin), ErrKeysUnavailable, context.DeadlineExceeded, time.Second)
		}
		if _, err := v.Verify(t.Context(), validToken("k1")); err != nil || f.fetches() != 1 {
			t.Errorf("got %v after %d fetches, want 1", err, f.fetches())
		}
	})
}

func TestVerifierCloseEndsTheRequestForKeys(t *testing.T) {
	withVerifier(t, func(t *testing.T, f *fakeKeys, v *Verifier) {
		if _, err := v.Verify(t.Context(), validToken("k1")); err != nil {
			t.Fatal(err)
		}
		v.Close()
		v.Close()
		if _, err := v.Verify(t.Context(), validToken("k1")); err != nil {
			t.Errorf("keys that are there: %v, want no error", err)
		}
		authtest.Advance(2 * keysMaxAge)
		if _, err := v.Verify(t.Context(), validToken("k1")); !errors.Is(err, ErrKeysUnavailable) || f.fetches() != 1 {
			t.Errorf("got %v after %d fetches, want %v, 1", err, f.fetches(), ErrKeysUnavailable)
		}
	})
}

// Over real HTTP: what the endpoint may answer instead of keys.
func TestKeyEndpointMisbehaviorIs503(t *testing.T) {
	many := make([]authtest.JSON, maxKeys+1)
	for n := range many {
		many[n] = authtest.RSAJWK("k1", &authtest.RSAKey().PublicKey)
	}
	for name, body := range map[string]string{
		"10 MiB":       `{"keys":[` + strings.Repeat(" ", 10<<20) + `]}`,
		"empty set":    `{"keys":[]}`,
		"empty":        ``,
		"HTML":         `<html>` + authtest.BodyCanary,
		"no list":      `{"keys":{}}`,
		"33 keys":      string(authtest.JWKS(many...)),
		"no RSA key":   string(authtest.JWKS(authtest.JSON{"kty": "RSA", "kid": "k1", "n": "!", "e": "AQAB"})),
		"even modulus": string(authtest.JWKS(authtest.JSON{"kty": "RSA", "kid": "k1", "n": authtest.Base64(new(big.Int).Lsh(big.NewInt(1), 2047).Bytes()), "e": "AQAB"})),
		"exponent 1":   string(authtest.JWKS(merge(authtest.RSAJWK("k1", &authtest.RSAKey().PublicKey), authtest.JSON{"e": "AQ"}))),
		"off curve":    string(authtest.JWKS(merge(authtest.ECJWK("k1", &authtest.ECKey().PublicKey), authtest.JSON{"y": authtest.Base64(make([]byte, 32))}))),
		"not to sign":  string(authtest.JWKS(merge(authtest.RSAJWK("k1", &authtest.RSAKey().PublicKey), authtest.JSON{"key_ops": []string{"encrypt"}}))),
	} {
		i := authtest.NewIAM(t)
		i.HandleKeys(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(body)) })
		v, logged := newVerifier(t, i, nil)
		_, err := v.Verify(t.Context(), authtest.SignRS256(authtest.RSAKey(), authtest.HeaderJSON(nil), i.ClaimsJSON(nil)))
		if !errors.Is(err, ErrKeysUnavailable) {
			t.Errorf("%s: got %v, want %v", name, err, ErrKeysUnavailable)
			continue
		}
		authtest.CheckNoCanary(t, err.Error()+logged.String())
	}
}

// Keys come from where the configuration says, not from where that sends us.
func TestKeyCacheFollowsNoRedirect(t *testing.T) {
	i, other := authtest.NewIAM(t), authtest.NewIAM(t)
	i.HandleKeys(func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, other.URL+"/jwks", http.StatusFound)
	})
	v, _ := newVerifier(t, i, nil)
	_, err := v.Verify(t.Context(), authtest.SignRS256(authtest.RSAKey(), authtest.HeaderJSON(nil), i.ClaimsJSON(nil)))
	if !errors.Is(err, ErrKeysUnavailable) || other.KeyRequests.Load() != 0 {
		t.Errorf("got %v, want %v, 0", err, ErrKeysUnavailable)
	}
}

func TestKeyVerifiesOnlyItsOwnAlgorithms(t *testing.T) {
	all := strings.Fields("RS256 RS384 RS512 PS256 PS384 PS512 ES256 ES384 ES512 EdDSA HS256 none")
	ed := authtest.JSON{"kty": "OKP", "crv": "Ed25519", "x": authtest.Base64(make([]byte, 32))}
	p384 := elliptic.P384().Params()
	for _, test := range []struct {
		jwk  authtest.JSON
		want string
	}{
		{authtest.RSAJWK("a", &authtest.RSAKey().PublicKey), "RS256 RS384 RS512 PS256 PS384 PS512"},
		{merge(authtest.RSAJWK("a", &authtest.RSAKey().PublicKey), authtest.JSON{"alg": "RS256"}), "RS256"},
		{merge(authtest.RSAJWK("a", &authtest.RSAKey().PublicKey), authtest.JSON{"alg": "HS256"}), ""},
		{authtest.ECJWK("a", &authtest.ECKey().PublicKey), "ES256"},
		{authtest.JSON{"kty": "EC", "crv": "P-384", "x": authtest.Base64(p384.Gx.Bytes()), "y": authtest.Base64(p384.Gy.Bytes())}, "ES384"},
		{ed, "EdDSA"},
	} {
		keys, err := parseKeySet(authtest.JWKS(test.jwk))
		if err != nil {
			t.Fatal(err)
		}
		var fits []string
		for _, alg := range all {
			if keys[0].allowsAlgorithm(alg) {
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
	i := authtest.NewIAM(t)
	i.PublishKeys(authtest.RSAJWK("k1", &authtest.RSAKey().PublicKey))
	v, _ := newVerifier(t, i, nil)
	if _, err := v.Verify(t.Context(), authtest.SignRS256(authtest.RSAKey(), authtest.HeaderJSON(authtest.JSON{"kid": nil}), i.ClaimsJSON(nil))); err != nil {
		t.Error(err)
	}
}
