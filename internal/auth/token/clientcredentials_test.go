package token

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/url"
	"sync"
	"sync/atomic"
	"testing"

	"answerd/internal/auth"
	"answerd/internal/auth/authtest"
	"answerd/internal/auth/fetch"
)

// Refreshed by one request however many wait.
func TestClientCredentialsSendsOneRequestForAllCallers(t *testing.T) {
	i := authtest.NewIAM(t)
	const callers = 100
	var ready, done sync.WaitGroup
	ready.Add(callers)

	i.HandleToken(func(w http.ResponseWriter, _ *http.Request) {
		ready.Wait()
		_, _ = w.Write([]byte(`{"access_token":"` + authtest.TokenCanary + `","expires_in":3600}`))
	})

	c, _ := newClient(t, i, nil)
	for range callers {
		done.Go(func() {
			ready.Done()
			if tok, err := c.Token(t.Context()); err != nil || tok.Reveal() != authtest.TokenCanary {
				t.Errorf("got %v, %v, want %v", tok.Reveal(), err, authtest.TokenCanary)
			}
		})
	}

	done.Wait()
	if n := i.TokenRequests.Load(); n != 1 {
		t.Errorf("%d token requests, want 1", n)
	}
}

func TestClientCredentialsCallersWaitUnderTheirOwnContext(t *testing.T) {
	i := authtest.NewIAM(t)
	arrived, release := make(chan struct{}), make(chan struct{})
	i.HandleToken(func(w http.ResponseWriter, _ *http.Request) {
		close(arrived)
		<-release
		_, _ = w.Write([]byte(`{"access_token":"` + authtest.TokenCanary + `","expires_in":3600}`))
	})

	c, _ := newClient(t, i, nil)
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-arrived; cancel() }()
	if _, err := c.Token(ctx); !errors.Is(err, context.Canceled) {
		t.Fatalf("got %v, want %v", err, context.Canceled)
	}
	close(release)

	// The fetch that the first caller started continued without them.
	if tok, err := c.Token(t.Context()); err != nil || tok.Reveal() != authtest.TokenCanary {
		t.Fatalf("got %v, %v, want %v", tok.Reveal(), err, authtest.TokenCanary)
	}
	if n := i.TokenRequests.Load(); n != 1 {
		t.Errorf("%d token requests, want 1", n)
	}
}

// The end of the process must not send an operator to look at the IAM.
func TestClientCredentialsClosedDuringAFetchLogNothing(t *testing.T) {
	i := authtest.NewIAM(t)
	arrived := make(chan struct{})
	i.HandleToken(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // otherwise the server does not notice that the client leaves
		close(arrived)
		<-r.Context().Done()
	})
	c, log := newClient(t, i, nil)
	go func() { <-arrived; c.Close() }()
	if _, err := c.Token(t.Context()); err == nil {
		t.Error("got no error from a closed source, want one")
	}
	if got := log.String(); got != "" {
		t.Errorf("got the log %s, want none", got)
	}
}

// RFC 6749 section 2.3.1 and RFC 8707.
func TestClientCredentialsRequest(t *testing.T) {
	i := authtest.NewIAM(t)
	i.HandleToken(func(w http.ResponseWriter, r *http.Request) {
		id, secret, _ := r.BasicAuth()
		id, errID := url.QueryUnescape(id)
		secret, errSecret := url.QueryUnescape(secret)
		if errID != nil || errSecret != nil || id != "my:id é" || secret != authtest.SecretCanary {
			t.Errorf("basic authentication by %q, want nil, nil, %q, %v", id, "my:id é", authtest.SecretCanary)
		}
		if err := r.ParseForm(); err != nil || r.PostForm.Encode() != "grant_type=client_credentials&resource=https%3A%2F%2Fmcp.example%2Fx&scope=a+b" {
			t.Errorf("form %q, %v, want %q", r.PostForm.Encode(), err, "grant_type=client_credentials&resource=https%3A%2F%2Fmcp.example%2Fx&scope=a+b")
		}
		if r.Header.Get("Accept") != "application/json" {
			t.Errorf("Accept %q, want %q", r.Header.Get("Accept"), "application/json")
		}
		_, _ = w.Write([]byte(`{"access_token":"x","expires_in":60}`))
	})
	c, _ := newClient(t, i, func(cfg *ClientCredentialsConfig) {
		cfg.ClientID, cfg.Resource = "my:id é", "https://mcp.example/x"
	})
	if _, err := c.Token(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// The secret may be changed in the vault; it is read again once, not forever.
func TestClientSecretIsReadAgainWhenTheClientIsRefused(t *testing.T) {
	i := authtest.NewIAM(t)
	var wanted atomic.Pointer[string]
	setWanted := func(s string) { wanted.Store(&s) }
	setWanted("first")

	i.HandleToken(func(w http.ResponseWriter, r *http.Request) {
		if _, secret, _ := r.BasicAuth(); secret != *wanted.Load() {
			w.WriteHeader(http.StatusUnauthorized)
			_, _ = w.Write([]byte(`{"error":"invalid_client"}`))
			return
		}
		_, _ = w.Write([]byte(`{"access_token":"for-` + *wanted.Load() + `","expires_in":3600}`))
	})

	var kept atomic.Pointer[string]
	setKept := func(s string) { kept.Store(&s) }
	setKept("first")
	reads := atomic.Int64{}
	c, _ := newClient(t, i, func(cfg *ClientCredentialsConfig) {
		cfg.Secret = func(context.Context) (auth.Secret, error) { reads.Add(1); return auth.NewSecret(*kept.Load()), nil }
	})
	old, err := c.Token(t.Context())
	if err != nil || reads.Load() != 1 {
		t.Fatalf("got %v after %d reads, want 1", err, reads.Load())
	}
	setWanted("second")
	setKept("second")
	fresh, err := c.Renew(t.Context(), old)
	if err != nil || fresh.Reveal() != "for-second" || reads.Load() != 2 || i.TokenRequests.Load() != 3 {
		t.Fatalf("got %q, %v after %d reads and %d requests, want %q, 2, 3", fresh.Reveal(), err, reads.Load(), i.TokenRequests.Load(), "for-second")
	}
}

func TestClientSecretThatIsUnchangedIsNotTriedTwice(t *testing.T) {
	for name, test := range map[string]struct {
		before          bool // a token was fetched before with this secret
		requests, reads int64
	}{
		"just read":     {false, 1, 1},
		"read long ago": {true, 2, 2},
	} {
		i := authtest.NewIAM(t)
		reads := atomic.Int64{}
		c, _ := newClient(t, i, func(cfg *ClientCredentialsConfig) {
			cfg.Secret = func(context.Context) (auth.Secret, error) {
				reads.Add(1)
				return auth.NewSecret(authtest.SecretCanary), nil
			}
		})

		if test.before {
			if _, err := c.Token(t.Context()); err != nil {
				t.Fatal(err)
			}
		}

		i.AnswerToken(`{"error":"invalid_client"}`, http.StatusUnauthorized)
		_, err := c.Renew(t.Context(), auth.NewSecret(authtest.TokenCanary))
		var refusal *fetch.Error
		if !errors.As(err, &refusal) || refusal.Code != "invalid_client" || refusal.Status != http.StatusUnauthorized {
			t.Fatalf("%s: got %v, want a *fetch.Error, %q, %v", name, err, "invalid_client", http.StatusUnauthorized)
		}
		if i.TokenRequests.Load() != test.requests || reads.Load() != test.reads {
			t.Errorf("%s: got %d token requests, %d reads of the secret, want %v, %v", name, i.TokenRequests.Load(), reads.Load(), test.requests, test.reads)
		}
	}
}

func TestClientSecretThatIsUnreadableIsATypedError(t *testing.T) {
	i := authtest.NewIAM(t)
	for name, secret := range map[string]func(context.Context) (auth.Secret, error){
		"error": func(context.Context) (auth.Secret, error) { return auth.Secret{}, errors.New("no such file") },
		"empty": FixedSecret(auth.Secret{}),
	} {
		c, _ := newClient(t, i, func(cfg *ClientCredentialsConfig) { cfg.Secret = secret })
		_, err := c.Token(t.Context())
		var refusal *fetch.Error
		if !errors.As(err, &refusal) || i.TokenRequests.Load() != 0 {
			t.Errorf("%s: got %v after %d requests, want a *fetch.Error, 0", name, err, i.TokenRequests.Load())
		}
	}
}

func TestNewClientCredentialsChecksItsConfiguration(t *testing.T) {
	good := ClientCredentialsConfig{TokenURL: "https://iam.example/t", ClientID: "me", Secret: FixedSecret(auth.NewSecret("x"))}
	for name, change := range map[string]func(*ClientCredentialsConfig){
		"plain http beyond loopback": func(c *ClientCredentialsConfig) { c.TokenURL = "http://iam.example/t" },
		"loopback look-alike":        func(c *ClientCredentialsConfig) { c.TokenURL = "http://localhost.evil.example/t" },
		"credentials in the URL":     func(c *ClientCredentialsConfig) { c.TokenURL = "https://u:" + authtest.SecretCanary + "@iam.example/t" },
		"no URL":                     func(c *ClientCredentialsConfig) { c.TokenURL = "" },
		"another scheme":             func(c *ClientCredentialsConfig) { c.TokenURL = "ftp://localhost/t" },
		"an issuer and a token URL":  func(c *ClientCredentialsConfig) { c.Issuer = "https://iam.example" },
		"an issuer over plain http":  func(c *ClientCredentialsConfig) { c.TokenURL, c.Issuer = "", "http://iam.example" },
		"an issuer with a query":     func(c *ClientCredentialsConfig) { c.TokenURL, c.Issuer = "", "https://iam.example?x" },
		"no client":                  func(c *ClientCredentialsConfig) { c.ClientID = "" },
		"no secret":                  func(c *ClientCredentialsConfig) { c.Secret = nil },
	} {
		cfg := good
		change(&cfg)
		_, err := NewClientCredentials(cfg)
		if err == nil {
			t.Errorf("%s: got accepted, want an error", name)
			continue
		}
		authtest.CheckNoCanary(t, err.Error())
		if _, err := NewExchange(ExchangeConfig{ClientCredentialsConfig: cfg}); err == nil {
			t.Errorf("%s: got accepted for an exchange, want an error", name)
		}
	}
	for _, loopback := range []string{"http://localhost:1/t", "http://127.0.0.1:1/t", "http://[::1]:1/t", "https://iam.example/t"} {
		cfg := good
		cfg.TokenURL = loopback
		c, err := NewClientCredentials(cfg)
		if err != nil {
			t.Errorf("%s: got %v, want no error", loopback, err)
			continue
		}
		c.Close()
	}
}

func TestStaticHasNoOtherToken(t *testing.T) {
	s := Static(auth.NewSecret("fixed"))
	if tok, err := s.Token(t.Context()); err != nil || tok.Reveal() != "fixed" {
		t.Errorf("got %q, %v, want %q", tok.Reveal(), err, "fixed")
	}
	if _, err := s.Renew(t.Context(), auth.NewSecret("fixed")); !errors.Is(err, ErrNoOtherToken) {
		t.Errorf("got %v, want %v", err, ErrNoOtherToken)
	}
}

func BenchmarkToken(b *testing.B) {
	c, _ := newClient(b, authtest.NewIAM(b), nil)
	ctx := b.Context()
	if _, err := c.Token(ctx); err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if _, err := c.Token(ctx); err != nil {
				b.Fatal(err)
			}
		}
	})
}

func TestClientCredentialsCachedTokenDoesNotAllocate(t *testing.T) {
	c, _ := newClient(t, authtest.NewIAM(t), nil)
	ctx := t.Context()
	if _, err := c.Token(ctx); err != nil {
		t.Fatal(err)
	}
	if n := testing.AllocsPerRun(100, func() { _, _ = c.Token(ctx) }); n != 0 {
		t.Errorf("%v allocations, want 0", n)
	}
}
