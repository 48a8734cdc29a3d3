package oauth

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"answerd/internal/auth"
	"answerd/internal/auth/fetch"
	"answerd/internal/auth/sealed"
	"answerd/internal/mcp/oauth/oauthtest"
	"answerd/internal/values"
)

// sharedStore is a store that processes share. It records all values, and refuses some.
type sharedStore struct {
	values.Memory

	skew time.Duration // of its clock

	mu      sync.Mutex // protects what follows
	written [][]byte
	refuse  func(key values.Key) bool // writes; nil: none
	down    bool                      // refuse reads
}

func (s *sharedStore) Now() time.Time { return time.Now().Add(s.skew) }

var errDown = errors.New("the store is down")

func (s *sharedStore) SetValue(ctx context.Context, key values.Key, value []byte, revision uint64, ttl time.Duration) (uint64, error) {
	s.mu.Lock()
	s.written = append(s.written, []byte(key.String()), bytes.Clone(value))
	refuse := s.refuse
	s.mu.Unlock()
	if refuse != nil && refuse(key) {
		return 0, errDown
	}
	return s.Memory.SetValue(ctx, key, value, revision, ttl)
}

func (s *sharedStore) Value(ctx context.Context, key values.Key) ([]byte, uint64, error) {
	s.mu.Lock()
	down := s.down
	s.mu.Unlock()
	if down {
		return nil, 0, errDown
	}
	return s.Memory.Value(ctx, key)
}

// refuseWrites makes the store refuse writes of a secret; nil ends that.
func (s *sharedStore) refuseWrites(name []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refuse = nil
	if name != nil {
		s.refuse = func(key values.Key) bool { return key == values.NewKey(name...) }
	}
}

// secretStore returns the encrypted secrets in the store.
func (s *sharedStore) secretStore(t *testing.T) *sealed.Store {
	t.Helper()
	path := filepath.Join(t.TempDir(), "keys")
	if err := os.WriteFile(path, []byte(hex.EncodeToString(bytes.Repeat([]byte{7}, 32))), 0o600); err != nil {
		t.Fatal(err)
	}
	keys, err := sealed.ReadKeys(path)
	if err != nil {
		t.Fatal(err)
	}
	return sealed.New(keys, s, slog.New(slog.DiscardHandler))
}

// newSharedFixture returns the fixture of one process, and a function that starts another one with the same
// configuration, store and keys.
func newSharedFixture(t *testing.T, cfg Config, change func(*fixture)) (first *fixture, store *sharedStore, another func() *fixture) {
	t.Helper()
	store = &sharedStore{}
	cfg.Kind, cfg.Store = AuthorizationCode, store.secretStore(t)
	first = newFixture(t, cfg, change)
	return first, store, func() *fixture {
		t.Helper()
		w := *first
		client, err := New(first.cfg)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(client.Close)
		w.Client = client
		return &w
	}
}

// ageGrant makes the copy of a user's grant as old as one that is compared with the store.
func (w *fixture) ageGrant(who auth.Identity) {
	u, err := w.acquireUser(w.principalOf(who))
	if err != nil {
		w.t.Fatal(err)
	}
	defer w.releaseUser(u)
	u.mu.Lock()
	defer u.mu.Unlock()
	u.syncedAt = time.Time{}
}

// storedGrantOf returns the stored grant of a user; nil if there is none.
func (w *fixture) storedGrantOf(who auth.Identity) *grant {
	w.t.Helper()
	u, err := w.acquireUser(w.principalOf(who))
	if err != nil {
		w.t.Fatal(err)
	}
	defer w.releaseUser(u)
	g, _, err := u.loadGrant(w.t.Context())
	if err != nil {
		w.t.Fatal(err)
	}
	return g
}

// TestSignInIsCompletedByAnotherProcess starts an authorization in one process and brings the browser
// back to another one. Both, and one that starts later, act for the user then, with bearer tokens and
// with those that are bound to a key.
func TestSignInIsCompletedByAnotherProcess(t *testing.T) {
	for name, cfg := range map[string]Config{"registered": {}, "configured": {ClientID: "answerd", ClientSecret: auth.NewSecret("client-s3cret")}, "DPoP": {DPoP: true}} {
		t.Run(name, func(t *testing.T) {
			a, _, another := newSharedFixture(t, cfg, nil)
			b := another()
			started := a.startAuthorization(userNamed("ann"))
			if _, err := a.Authorize(t.Context(), userNamed("ann"), "run_1 int_1"); err != nil {
				t.Fatal(err)
			}
			b.mustFail(userNamed("ann"))
			joined, err := b.Authorize(t.Context(), userNamed("ann"), "run_2 int_2")
			if err != nil || joined.URL != started.URL {
				t.Errorf("Authorize in another process = %+v, %v, want the URL %s", joined, err, started.URL)
			}
			if err := b.Await(t.Context(), started.State, false); !errors.Is(err, ErrConsent) {
				t.Errorf("Await before the browser is back = %v, want %v", err, ErrConsent)
			}
			waiters, found, err := b.Callback(t.Context(), oauthtest.Browse(t, started.URL))
			if want := []string{"run_1 int_1", "run_2 int_2"}; !found || err != nil || !slices.Equal(waiters, want) {
				t.Fatalf("Callback = %q, %v, %v, want %q, true and no error", waiters, found, err, want)
			}
			if err := a.Await(t.Context(), started.State, true); err != nil {
				t.Errorf("Await = %v, want no error", err)
			}

			for _, w := range []*fixture{a, b, another()} {
				w.mustSend(userNamed("ann"), "ann hello")
			}

			if n := len(a.as.Requests); n != 1 {
				t.Errorf("%d token requests, want 1", n)
			}
			if e := b.mustFail(userNamed("bob")); !errors.Is(e, ErrConsent) {
				t.Errorf("a request of another user = %v, want %v", e, ErrConsent)
			}
		})
	}
}

// TestTimesInTheStoreAreOfItsClock checks sign-ins with a store whose clock differs by hours.
func TestTimesInTheStoreAreOfItsClock(t *testing.T) {
	for _, skew := range []time.Duration{-3 * time.Hour, 3 * time.Hour} {
		a, store, another := newSharedFixture(t, Config{}, nil)
		store.skew = skew
		started := a.signIn(userNamed("ann"))
		if left := time.Until(started.Expires); left > signInTimeout || left < signInTimeout-time.Minute {
			t.Errorf("%s: the authorization expires in %s, want %s", skew, left, signInTimeout)
		}
		g := a.storedGrantOf(userNamed("ann"))
		if left := g.token.Lifetime; left > time.Hour || left < time.Hour-time.Minute {
			t.Errorf("%s: the token is valid for %s, want an hour", skew, left)
		}
		if left := time.Until(g.client.expires); left > registrationMaxAge {
			t.Errorf("%s: the client is valid for %s, want at most %s", skew, left, registrationMaxAge)
		}
		another().mustSend(userNamed("ann"), "ann hello")
		if n := len(a.as.Granted("refresh_token")); n != 0 {
			t.Errorf("%s: %d refreshes, want 0", skew, n)
		}
	}
}

// TestCallbackIsAcceptedByOneProcess sends one authorization response to many processes at the same time.
func TestCallbackIsAcceptedByOneProcess(t *testing.T) {
	a, _, another := newSharedFixture(t, Config{}, nil)
	q := oauthtest.Browse(t, a.startAuthorization(userNamed("ann")).URL)
	var took atomic.Int64
	var all sync.WaitGroup
	for range 8 {
		w := another()
		all.Go(func() {
			if _, found, err := w.Callback(t.Context(), q); found && err == nil {
				took.Add(1)
			}
		})
	}

	all.Wait()
	if n := len(a.as.Granted("authorization_code")); took.Load() != 1 || n != 1 {
		t.Errorf("%d processes took the response, %d token requests, want 1 and 1", took.Load(), n)
	}
}

// TestRefreshTokenIsUsedByOneProcess makes many requests in many processes need a new token at the same
// time, again and again. The authorization server rotates refresh tokens, and counts those that come
// twice.
func TestRefreshTokenIsUsedByOneProcess(t *testing.T) {
	const processes, requests, rounds = 5, 6, 3
	first, _, another := newSharedFixture(t, Config{}, nil)
	first.signIn(userNamed("ann"))

	for round := range rounds {
		var all []*fixture // new ones, since a process renews a token once a second
		for range processes {
			w := another()
			w.mustSend(userNamed("ann"), "ann hello")
			all = append(all, w)
		}

		first.as.Revoke(false)
		var sends sync.WaitGroup
		for _, w := range all {
			for range requests {
				sends.Go(func() {
					if got, err := w.sendPost(userNamed("ann")); err != nil || got != "ann hello" {
						t.Errorf("round %d: post = %q, %v, want \"ann hello\"", round, got, err)
					}
				})
			}
		}
		sends.Wait()
	}

	if n := len(first.as.Granted("refresh_token")); n != rounds || first.as.Reused != 0 {
		t.Errorf("%d refreshes, %d of a used token, want %d and 0", n, first.as.Reused, rounds)
	}
}

// TestRefreshWaitsForAProcessThatHasDied lets the lock of a process that never comes back expire.
func TestRefreshWaitsForAProcessThatHasDied(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, err := sealed.NewInMemory(slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}

		c, err := New(Config{Kind: AuthorizationCode, URL: "https://mcp.example/mcp", Store: store})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		u, err := c.acquireUser(userNamed("ann"))
		if err != nil {
			t.Fatal(err)
		}
		defer c.releaseUser(u)
		if _, err := u.lockRefresh(t.Context()); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		ctx, stop := context.WithTimeout(t.Context(), fetchTimeout)
		if _, err := u.lockRefresh(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("lockRefresh while another process has the lock = %v, want %v", err, context.DeadlineExceeded)
		}
		stop()
		unlock, err := u.lockRefresh(t.Context())
		if took := time.Since(began); err != nil || took < fetchTimeout || took > refreshLease+time.Second {
			t.Fatalf("lockRefresh = %v after %s, want no error after the lease of %s", err, took, refreshLease)
		}
		unlock()
		if unlock, err = u.lockRefresh(t.Context()); err != nil || time.Since(began) > refreshLease+time.Second {
			t.Errorf("lockRefresh after unlock = %v, want the lock at once", err)
		}
		unlock()
	})
}

// TestRenewedTokenThatCannotBeStored checks that a process continues with a refresh token that the store
// did not take, and stores the next one.
func TestRenewedTokenThatCannotBeStored(t *testing.T) {
	if os.Getenv("ANSWERD_TEST_LONG") == "" {
		t.Skip("waits 5 s for the store; make durable runs it")
	}
	t.Parallel()
	a, store, another := newSharedFixture(t, Config{}, nil)
	a.signIn(userNamed("ann"))
	ann := a.principalOf(userNamed("ann"))
	store.refuseWrites(a.storedName(kindGrant, ann.Issuer, ann.Subject))
	a.as.Revoke(false)
	a.mustSend(userNamed("ann"), "ann hello")
	store.refuseWrites(nil)
	a.as.Revoke(false)
	a.expireToken(ann)
	a.ageGrant(ann)
	a.mustSend(userNamed("ann"), "ann hello")
	another().mustSend(userNamed("ann"), "ann hello")
	if n := len(a.as.Granted("refresh_token")); n != 2 || a.as.Reused != 0 {
		t.Errorf("%d refreshes, %d of a used token, want 2 and 0", n, a.as.Reused)
	}
}

// TestRefreshOutlastsClose closes a Client while the authorization server rotates a refresh token, as a reload
// of the configuration may do. The next process must have the new one.
func TestRefreshOutlastsClose(t *testing.T) {
	a, _, another := newSharedFixture(t, Config{}, nil)
	a.signIn(userNamed("ann"))
	a.as.Revoke(false)
	ann := a.principalOf(userNamed("ann"))
	a.expireToken(ann)
	u, err := a.acquireUser(ann)
	if err != nil {
		t.Fatal(err)
	}
	defer a.releaseUser(u)
	ended, stop := context.WithCancel(t.Context())
	stop()
	a.as.Lock()
	a.as.Fail = func(oauthtest.Request) string {
		go a.Close()
		for _, err := u.source.Token(ended); !errors.Is(err, fetch.ErrClosed); _, err = u.source.Token(ended) {
			runtime.Gosched()
		}
		a.as.Fail = nil
		return ""
	}
	a.as.Unlock()
	_, _ = a.sendPost(userNamed("ann"))
	a.Close()
	another().mustSend(userNamed("ann"), "ann hello")
	if n := len(a.as.Granted("refresh_token")); n != 1 || a.as.Reused != 0 {
		t.Errorf("%d refreshes, %d of a used token, want 1 and 0", n, a.as.Reused)
	}
}

// TestGrantThatIsRefusedIsRemoved checks what the store keeps after a refusal of the authorization
// server, and whether the user is asked to sign in. A secret of ours that is wrong tells nothing about the user.
func TestGrantThatIsRefusedIsRemoved(t *testing.T) {
	configured := Config{ClientID: "answerd", ClientSecret: auth.NewSecret("client-s3cret")}
	for name, c := range map[string]struct {
		cfg    Config
		status int
		code   string
		asks   bool // the user must sign in
		kept   bool
	}{
		"invalid_grant":                        {Config{}, 400, "invalid_grant", true, false},
		"invalid_client of a registration":     {Config{}, 400, "invalid_client", true, false},
		"invalid_client of the configured one": {configured, 400, "invalid_client", false, true},
		"temporarily_unavailable":              {Config{}, 400, "temporarily_unavailable", false, true},
		"invalid_grant with status 200":        {Config{}, 200, "invalid_grant", true, false},
		"as GitHub refuses a refresh token":    {Config{}, 200, "bad_refresh_token", true, false},
		"temporarily_unavailable, status 200":  {Config{}, 200, "temporarily_unavailable", false, true},
		"a code for another mistake":           {configured, 400, "invalid_request", true, true},
		"a code of its own":                    {configured, 403, "token_expired", true, true},
		"a code of its own with status 200":    {Config{}, 200, "invalid_refresh_token", true, true},
		"a code of its own, perhaps ours":      {configured, 401, "bad_secret", false, true},
		"an error of the server":               {Config{}, 503, "oops", false, true},
		"no token endpoint":                    {Config{}, 404, "not_found", false, true},
	} {
		t.Run(name, func(t *testing.T) {
			a, _, another := newSharedFixture(t, c.cfg, nil)
			a.signIn(userNamed("ann"))
			a.as.Lock()
			a.as.Fail, a.as.FailWith = func(oauthtest.Request) string { return c.code }, c.status
			a.as.Unlock()
			a.as.Revoke(false)
			if e := a.mustFail(userNamed("ann")); errors.Is(e, ErrConsent) != c.asks {
				t.Errorf("error %v, want %v: %v", e, ErrConsent, c.asks)
			}
			if g := a.storedGrantOf(userNamed("ann")); (g != nil) != c.kept {
				t.Errorf("stored grant %v, want one: %v", g, c.kept)
			}
			a.as.Lock()
			a.as.Fail = nil
			a.as.Unlock()

			b := another()
			if c.kept {
				b.mustSend(userNamed("ann"), "ann hello")
			} else if e := b.mustFail(userNamed("ann")); !errors.Is(e, ErrConsent) {
				t.Errorf("error in another process %v, want %v", e, ErrConsent)
			}
		})
	}
}

// TestSignInIsNotReadableInTheStore looks for everything that is secret in what was written to the
// store.
func TestSignInIsNotReadableInTheStore(t *testing.T) {
	a, store, another := newSharedFixture(t, Config{DPoP: true}, nil)
	a.signIn(userNamed("ann"))
	a.as.Revoke(false)
	a.mustSend(userNamed("ann"), "ann hello")
	another().mustSend(userNamed("ann"), "ann hello")
	g := a.storedGrantOf(userNamed("ann"))
	key, err := g.key.encode()
	if err != nil {
		t.Fatal(err)
	}

	secrets := []string{"canary-", "registered-", "code-", "ann", a.as.URL, string(key), g.refresh.Reveal(), g.token.Secret.Reveal()}
	for _, r := range a.as.Requests {
		for _, name := range []string{"code", "code_verifier", "refresh_token"} {
			if v := r.Form.Get(name); v != "" {
				secrets = append(secrets, v)
			}
		}
	}
	if len(secrets) < 10 {
		t.Errorf("%d secrets, want the code, the verifier and refresh tokens among them", len(secrets))
	}
	store.mu.Lock()
	defer store.mu.Unlock()
	if len(store.written) < 8 {
		t.Errorf("%d values were written, want some", len(store.written))
	}

	for _, value := range store.written {
		for _, s := range secrets {
			if bytes.Contains(value, []byte(s)) {
				t.Errorf("the store has %q, want it encrypted", s)
			}
		}
	}

	if text := a.logs.String(); strings.Contains(text, "canary") || strings.Contains(text, "code-") {
		t.Errorf("log %s, want no secret", text)
	}
}

// TestGrantOfAnotherConfigurationIsNotUsed checks what a stored sign-in is for.
func TestGrantOfAnotherConfigurationIsNotUsed(t *testing.T) {
	a, _, another := newSharedFixture(t, Config{Scope: "basic"}, nil)
	a.signIn(userNamed("ann"))

	for name, change := range map[string]func(*Config){
		"another name":  func(c *Config) { c.Name = "other" },
		"another scope": func(c *Config) { c.Scope = "basic write" },
		"another URL":   func(c *Config) { c.URL += "&x" },
		"DPoP":          func(c *Config) { c.DPoP = true },
	} {
		before := a.cfg
		change(&a.cfg)
		w := another()
		a.cfg = before
		if e := w.mustFail(userNamed("ann")); !errors.Is(e, ErrConsent) {
			t.Errorf("%s: error %v, want %v", name, e, ErrConsent)
		}
	}

	before := a.cfg.ClientSecret
	a.cfg.ClientSecret = auth.NewSecret("a new secret")
	another().mustSend(userNamed("ann"), "ann hello")
	a.cfg.ClientSecret = before
}
