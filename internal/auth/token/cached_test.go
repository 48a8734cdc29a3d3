package token

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"answerd/internal/auth"
	"answerd/internal/auth/authtest"
	"answerd/internal/auth/fetch"
)

// fakeIAM is a token endpoint inside a bubble of fake time. Its fields are changed
// between fetches only.
type fakeIAM struct {
	count    int
	times    []time.Duration // of each request, since the beginning
	begin    time.Time
	lifetime string        // expires_in
	skew     time.Duration // of its clock against ours; used if jwt is set
	jwt      time.Duration // lifetime of its tokens by exp, 0 for opaque tokens
	delay    time.Duration
	fail     bool
	hang     bool
}

func (f *fakeIAM) RoundTrip(r *http.Request) (*http.Response, error) {
	f.count++
	f.times = append(f.times, time.Since(f.begin))
	if f.hang {
		<-r.Context().Done()
		return nil, r.Context().Err()
	}
	authtest.Advance(f.delay)
	if f.fail {
		return authtest.Response(http.StatusServiceUnavailable, ""), nil
	}
	token := fmt.Sprintf("token-%d", f.count)
	header := http.Header{}
	if f.jwt != 0 {
		theirs := time.Now().Add(f.skew)
		header.Set("Date", theirs.UTC().Format(http.TimeFormat))
		// No signature: the client cannot check one.
		token = authtest.Base64([]byte(authtest.HeaderJSON(nil))) + "." + authtest.Base64([]byte(authtest.ClaimsOf("x", authtest.JSON{"exp": theirs.Add(f.jwt).Unix(), "n": f.count}))) + ".AA"
	}
	resp := authtest.Response(http.StatusOK, `{"access_token":"`+token+`","expires_in":`+f.lifetime+`}`)
	resp.Header = header
	return resp, nil
}

// withClientCredentials runs test with a client of f in fake time.
func withClientCredentials(t *testing.T, f *fakeIAM, test func(t *testing.T, c *ClientCredentials)) {
	synctest.Test(t, func(t *testing.T) {
		f.begin = time.Now()
		c, err := NewClientCredentials(ClientCredentialsConfig{TokenURL: "https://iam.example/t", ClientID: "me",
			Secret: FixedSecret(auth.NewSecret(authtest.SecretCanary)), HTTPClient: &http.Client{Transport: f}})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		test(t, c)
	})
}

// mustToken asks for a token and lets what that started come to its end.
func mustToken(t *testing.T, c *ClientCredentials) string {
	t.Helper()
	tok, err := c.Token(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	synctest.Wait()
	return tok.Reveal()
}

// Cached until shortly before expiry.
func TestCachedSourceRefreshesBeforeExpiry(t *testing.T) {
	for _, test := range []struct {
		lifetime    string
		early, late time.Duration // no refresh before early, one at late
	}{
		{"3600", 3600*time.Second - 397*time.Second, 3600*time.Second - 360*time.Second},
		{"120", 86 * time.Second, 90 * time.Second},
		{"20", 9 * time.Second, 10 * time.Second},
		{"1e12", maxLifetime - maxLifetime*12/100, maxLifetime - maxLifetime/10},
	} {
		f := &fakeIAM{lifetime: test.lifetime}
		withClientCredentials(t, f, func(t *testing.T, c *ClientCredentials) {
			mustToken(t, c)
			authtest.Advance(test.early)
			if got := mustToken(t, c); got != "token-1" || f.count != 1 {
				t.Fatalf("lifetime %s: %s after %d requests, want %q, 1", test.lifetime, got, f.count, "token-1")
			}
			authtest.Advance(test.late - test.early)
			if got := mustToken(t, c); got != "token-1" || f.count != 2 {
				t.Fatalf("lifetime %s: %s after %d requests, want %q, 2", test.lifetime, got, f.count, "token-1")
			}
			if got := mustToken(t, c); got != "token-2" || f.count != 2 {
				t.Fatalf("lifetime %s: %s after %d requests, want %q, 2", test.lifetime, got, f.count, "token-2")
			}
		})
	}
}

// Twenty sources of tokens that live for a second renew them as often as one source alone: twice a
// second, as long as callers ask. The sources share nothing that could slow them down, and none
// requests a token without a caller; a source that is asked less often renews less often.
func TestCachedSourcesRefreshIndependently(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var all sync.WaitGroup
		for n := range 20 {
			every, want := 100*time.Millisecond, 20
			if n%2 == 1 {
				every, want = 2*time.Second, 5
			}
			all.Go(func() {
				f := &fakeIAM{lifetime: "1"}
				c, err := NewClientCredentials(ClientCredentialsConfig{TokenURL: "https://iam.example/t", ClientID: "me",
					Secret: FixedSecret(auth.NewSecret(authtest.SecretCanary)), HTTPClient: &http.Client{Transport: f}})
				if err != nil {
					t.Error(err)
					return
				}
				defer c.Close()
				for began := time.Now(); time.Since(began) < 10*time.Second; authtest.Advance(every) {
					if _, err := c.Token(t.Context()); err != nil {
						t.Error(err)
					}
				}
				if f.count != want {
					t.Errorf("%d fetches in 10 s, asked every %s, want %d", f.count, every, want)
				}
			})
		}
		all.Wait()
	})
}

// No caller waits for a refresh while the old token is valid, even if the refresh hangs.
func TestCachedSourceRefreshDoesNotBlockCallers(t *testing.T) {
	f := &fakeIAM{lifetime: "3600"}
	withClientCredentials(t, f, func(t *testing.T, c *ClientCredentials) {
		mustToken(t, c)
		f.delay = 4 * time.Second
		authtest.Advance(3500 * time.Second)
		at := time.Now()
		for range 1000 {
			if tok, err := c.Token(t.Context()); err != nil || tok.Reveal() != "token-1" {
				t.Fatalf("got %q, %v, want %q", tok.Reveal(), err, "token-1")
			}
		}
		if !time.Now().Equal(at) {
			t.Errorf("callers waited %v, want 0", time.Since(at))
		}
		authtest.Advance(5 * time.Second)
		if got := mustToken(t, c); got != "token-2" || f.count != 2 {
			t.Errorf("%s after %d requests, want %q, 2", got, f.count, "token-2")
		}
	})
}

// The old token serves while it is valid, and no longer; meanwhile the
// endpoint is asked at most once a second, and ever more rarely.
func TestCachedSourceUsesTheOldTokenWhileRefreshFails(t *testing.T) {
	f := &fakeIAM{lifetime: "600"}
	withClientCredentials(t, f, func(t *testing.T, c *ClientCredentials) {
		mustToken(t, c)
		f.fail = true
		for time.Since(f.begin) < 600*time.Second {
			if got := mustToken(t, c); got != "token-1" {
				t.Fatalf("%s at %v, want %q", got, time.Since(f.begin), "token-1")
			}
			authtest.Advance(250 * time.Millisecond)
		}
		_, err := c.Token(t.Context())
		var refusal *fetch.Error
		if !errors.As(err, &refusal) || refusal.Status != http.StatusServiceUnavailable {
			t.Errorf("after expiry: %v, want a *fetch.Error, %v", err, http.StatusServiceUnavailable)
		}
		// 54 to 60 s of refreshing: at 0, 1, 3, 7, 15, 31 s, and no more.
		if f.count < 7 || f.count > 8 {
			t.Errorf("got %d requests at %v, want at least 7, at most 8", f.count, f.times)
		}
	})
}

// When the endpoint fails, everybody fails by the one request, with one error.
func TestCachedSourceReturnsOneFailureToAllCallers(t *testing.T) {
	f := &fakeIAM{fail: true, delay: time.Second}
	withClientCredentials(t, f, func(t *testing.T, c *ClientCredentials) {
		errs := make([]error, 100)
		var done sync.WaitGroup
		for n := range errs {
			done.Go(func() { _, errs[n] = c.Token(t.Context()) })
		}
		done.Wait()
		for _, err := range errs {
			if err == nil || err != errs[0] {
				t.Fatalf("got %v and %v, want an error, %v", err, errs[0], errs[0])
			}
		}
		if f.count != 1 || time.Since(f.begin) != time.Second {
			t.Errorf("got %d requests in %v, want 1, %v", f.count, time.Since(f.begin), time.Second)
		}
	})
}

// Callers in between fail at once, with the same error.
func TestCachedSourcePausesUpTo30sAfterFailures(t *testing.T) {
	f := &fakeIAM{lifetime: "600", fail: true}
	withClientCredentials(t, f, func(t *testing.T, c *ClientCredentials) {
		_, first := c.Token(t.Context())
		if _, second := c.Token(t.Context()); first == nil || second != first {
			t.Errorf("got %v, then %v, want an error and %v", first, second, first)
		}
		for time.Since(f.begin) < 2*time.Minute {
			_, _ = c.Token(t.Context())
			authtest.Advance(100 * time.Millisecond)
		}
		want := []time.Duration{0, 1, 3, 7, 15, 31, 61, 91}
		for n := range want {
			want[n] *= time.Second
		}
		if fmt.Sprint(f.times) != fmt.Sprint(want) {
			t.Errorf("requests at %v, want %v", f.times, want)
		}
		f.fail = false
		authtest.Advance(30 * time.Second)
		mustToken(t, c)
	})
}

// An endpoint that hangs costs 5 s; a caller in a hurry fails at its own deadline.
func TestCachedSourceTimesOut(t *testing.T) {
	f := &fakeIAM{hang: true}
	withClientCredentials(t, f, func(t *testing.T, c *ClientCredentials) {
		hurry, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := c.Token(hurry); !errors.Is(err, context.DeadlineExceeded) || time.Since(f.begin) != time.Second {
			t.Errorf("got %v after %v, want %v, %v", err, time.Since(f.begin), context.DeadlineExceeded, time.Second)
		}
		_, err := c.Token(t.Context())
		var refusal *fetch.Error
		if !errors.As(err, &refusal) || time.Since(f.begin) != fetch.Timeout || f.count != 1 {
			t.Errorf("got %v after %v and %d requests, want a *fetch.Error, %v, 1", err, time.Since(f.begin), f.count, fetch.Timeout)
		}
	})
}

// The lifetime that the issuer states counts, not the time at which exp is reached on this
// machine's clock: the earlier of exp and expires_in.
func TestCachedSourceIgnoresClockSkew(t *testing.T) {
	for _, skew := range []time.Duration{-90 * time.Second, 0, 90 * time.Second} {
		f := &fakeIAM{lifetime: "3600", jwt: 100 * time.Second, skew: skew}
		withClientCredentials(t, f, func(t *testing.T, c *ClientCredentials) {
			mustToken(t, c)
			authtest.Advance(66 * time.Second)
			mustToken(t, c)
			if f.count != 1 {
				t.Errorf("skew %v: %d requests after 66 s, want 1", skew, f.count)
			}
			authtest.Advance(5 * time.Second)
			mustToken(t, c)
			if f.count != 2 {
				t.Errorf("skew %v: %d requests after 71 s, want 2", skew, f.count)
			}
		})
	}
}

// 401 from a server causes one fetch, however many callers were refused.
func TestCachedSourceRenewSendsOneRequestForManyCalls(t *testing.T) {
	f := &fakeIAM{lifetime: "3600", delay: time.Second}
	withClientCredentials(t, f, func(t *testing.T, c *ClientCredentials) {
		old := auth.NewSecret(mustToken(t, c))
		var done sync.WaitGroup
		renew := func() {
			if tok, err := c.Renew(t.Context(), old); err != nil || tok.Reveal() != "token-2" {
				t.Errorf("got %q, %v, want %q", tok.Reveal(), err, "token-2")
			}
		}
		for range 100 {
			done.Go(renew)
		}
		// Meanwhile the others are not disturbed.
		synctest.Wait()
		if got := mustToken(t, c); got != "token-1" {
			t.Errorf("got %s, want %q", got, "token-1")
		}
		done.Wait()
		renew() // a late caller gets the new token
		if f.count != 2 {
			t.Errorf("%d requests, want 2", f.count)
		}
	})
}

// A server that refuses every token costs at most one fetch per second.
func TestCachedSourceRenewsOncePerSecond(t *testing.T) {
	f := &fakeIAM{lifetime: "3600"}
	withClientCredentials(t, f, func(t *testing.T, c *ClientCredentials) {
		refusals := 0
		for time.Since(f.begin) < 10*time.Second {
			tok := auth.NewSecret(mustToken(t, c))
			var refusal *fetch.Error
			if _, err := c.Renew(t.Context(), tok); errors.As(err, &refusal) {
				refusals++
			} else if err != nil {
				t.Fatal(err)
			}
			authtest.Advance(100 * time.Millisecond)
		}
		if f.count != 11 || refusals != 90 {
			t.Errorf("got %d requests, %d refusals, want 11, 90", f.count, refusals)
		}
	})
}

func TestCachedSourceKeepsTheTokenAfterAFailedRenew(t *testing.T) {
	f := &fakeIAM{lifetime: "3600"}
	withClientCredentials(t, f, func(t *testing.T, c *ClientCredentials) {
		old := auth.NewSecret(mustToken(t, c))
		f.fail = true
		for range 10 {
			if _, err := c.Renew(t.Context(), old); err == nil {
				t.Fatal("renewed, want an error")
			}
		}
		if got := mustToken(t, c); got != "token-1" || f.count != 2 {
			t.Errorf("%s after %d requests, want %q, 2", got, f.count, "token-1")
		}
	})
}

func TestCachedSourceCloseEndsTheRequestAndKeepsTheToken(t *testing.T) {
	f := &fakeIAM{lifetime: "3600"}
	withClientCredentials(t, f, func(t *testing.T, c *ClientCredentials) {
		old := auth.NewSecret(mustToken(t, c))
		f.hang = true
		result := make(chan error, 1)
		go func() {
			_, err := c.Renew(t.Context(), old)
			result <- err
		}()
		synctest.Wait()
		at := time.Now()
		c.Close()
		if err := <-result; err == nil || !time.Now().Equal(at) {
			t.Errorf("got %v after %v, want an error at once", err, time.Since(at))
		}
		if got := mustToken(t, c); got != "token-1" {
			t.Errorf("got %s, want %q", got, "token-1")
		}
		authtest.Advance(renewInterval)
		if _, err := c.Renew(t.Context(), old); !errors.Is(err, fetch.ErrClosed) {
			t.Errorf("got %v, want %v", err, fetch.ErrClosed)
		}
		c.Close()
	})
}
