package token

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"answerd/internal/auth"
	"answerd/internal/auth/authtest"
	"answerd/internal/auth/fetch"
)

// publishMetadata makes i publish a metadata document at one path only.
func publishMetadata(i *authtest.IAM, path, issuer, tokenEndpoint string) {
	i.HandleMetadata(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != path {
			http.NotFound(w, r)
			return
		}
		_ = json.NewEncoder(w).Encode(authtest.JSON{"issuer": issuer, "token_endpoint": tokenEndpoint})
	})
}

// useIssuer configures the issuer instead of the token URL.
func useIssuer(issuer string) func(*ClientCredentialsConfig) {
	return func(c *ClientCredentialsConfig) { c.TokenURL, c.Issuer = "", issuer }
}

// RFC 8414 section 3.1, and OpenID Connect where an issuer has nothing else.
func TestMetadataNamesTheTokenEndpoint(t *testing.T) {
	for path, at := range map[string][]string{
		"":        {"/.well-known/oauth-authorization-server", "/.well-known/openid-configuration"},
		"/":       {"/.well-known/oauth-authorization-server", "/.well-known/openid-configuration"},
		"/tenant": {"/.well-known/oauth-authorization-server/tenant", "/.well-known/openid-configuration/tenant", "/tenant/.well-known/openid-configuration"},
	} {
		for _, place := range at {
			i := authtest.NewIAM(t)
			publishMetadata(i, place, i.URL+path, i.URL+"/token")
			c, _ := newClient(t, i, useIssuer(i.URL+path))
			if tok, err := c.Token(t.Context()); err != nil || tok.Reveal() != authtest.TokenCanary {
				t.Errorf("issuer %q, metadata at %s: %v, want %v", path, place, err, authtest.TokenCanary)
			}
		}
	}
}

// A document that is another issuer's, or that points elsewhere, gets no secret.
func TestMetadataOfAnotherIssuerGetsNoSecret(t *testing.T) {
	var stolen atomic.Int64
	thief := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { stolen.Add(1) }))
	t.Cleanup(thief.Close)

	const place = "/.well-known/oauth-authorization-server"
	for name, publish := range map[string]func(i *authtest.IAM){
		"another issuer":      func(i *authtest.IAM) { publishMetadata(i, place, thief.URL, thief.URL) },
		"a slash more":        func(i *authtest.IAM) { publishMetadata(i, place, i.URL+"/", i.URL+"/token") },
		"plain http":          func(i *authtest.IAM) { publishMetadata(i, place, i.URL, "http://iam.example/token") },
		"another local port":  func(i *authtest.IAM) { publishMetadata(i, place, i.URL, thief.URL) },
		"no token endpoint":   func(i *authtest.IAM) { publishMetadata(i, place, i.URL, "") },
		"a relative endpoint": func(i *authtest.IAM) { publishMetadata(i, place, i.URL, "/token") },
		"none at all":         func(i *authtest.IAM) { publishMetadata(i, "/nowhere", i.URL, i.URL+"/token") },
		"no JSON": func(i *authtest.IAM) {
			i.HandleMetadata(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "<html>"+authtest.BodyCanary) })
		},
		"a redirect": func(i *authtest.IAM) {
			i.HandleMetadata(func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, thief.URL, http.StatusFound) })
		},
		"an issuer in two spellings": func(i *authtest.IAM) {
			i.HandleMetadata(func(w http.ResponseWriter, _ *http.Request) {
				fmt.Fprintf(w, `{"issuer":%q,"issuer":%q,"token_endpoint":%q}`, thief.URL, i.URL, thief.URL)
			})
		},
	} {
		i := authtest.NewIAM(t)
		publish(i)
		c, logged := newClient(t, i, useIssuer(i.URL))
		_, err := c.Token(t.Context())
		var refusal *fetch.Error
		if !errors.As(err, &refusal) || i.TokenRequests.Load() != 0 || stolen.Load() != 0 {
			t.Fatalf("%s: got %v; %d token requests, %d elsewhere, want a *fetch.Error, 0, 0", name, err, i.TokenRequests.Load(), stolen.Load())
		}
		authtest.CheckNoCanary(t, err.Error()+logged.String())
	}
}

// The metadata is read once for all callers who wait, and kept.
func TestMetadataIsReadOnce(t *testing.T) {
	i := authtest.NewIAM(t)
	var reads atomic.Int64
	i.HandleMetadata(func(w http.ResponseWriter, _ *http.Request) {
		reads.Add(1)
		_ = json.NewEncoder(w).Encode(authtest.JSON{"issuer": i.URL, "token_endpoint": i.URL + "/token"})
	})

	e, _ := newExchange(t, i, func(c *ExchangeConfig) { c.TokenURL, c.Issuer = "", i.URL })
	var all sync.WaitGroup
	for n := range 20 {
		all.Go(func() {
			if _, err := e.For(auth.Identity{Subject: fmt.Sprint(n), Token: auth.NewSecret("x")}).Token(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}

	all.Wait()
	if reads.Load() != 1 || i.TokenRequests.Load() != 20 {
		t.Errorf("got %d reads of the metadata, %d token requests, want 1, 20", reads.Load(), i.TokenRequests.Load())
	}
}

// A token endpoint that moves is found within an hour, and no caller waits for that. While the
// metadata cannot be read, the known endpoint is used.
func TestMetadataIsReadAgainAfterAnHour(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var fail atomic.Bool
		var at atomic.Value
		at.Store("https://iam.example/old")

		client := &http.Client{Transport: authtest.RoundTripFunc(func(r *http.Request) (*http.Response, error) {
			if fail.Load() {
				return authtest.Response(http.StatusServiceUnavailable, ""), nil
			}
			return authtest.Response(http.StatusOK, `{"issuer":"https://iam.example","token_endpoint":"`+at.Load().(string)+`"}`), nil
		})}

		m := newEndpointCache("https://iam.example", client)
		defer m.Close()

		ask := func() string {
			got, err := m.Get(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			synctest.Wait() // what that started
			return got
		}

		ask()
		at.Store("https://iam.example/new")
		authtest.Advance(time.Hour - time.Second)
		if got := ask(); got != "https://iam.example/old" {
			t.Errorf("asked at %s, want %q", got, "https://iam.example/old")
		}
		fail.Store(true)
		authtest.Advance(2 * time.Second)
		ask()
		if got := ask(); got != "https://iam.example/old" {
			t.Errorf("asked at %s while the metadata cannot be read, want %q", got, "https://iam.example/old")
		}
		fail.Store(false)
		authtest.Advance(2 * time.Second)
		ask()
		if got := ask(); got != "https://iam.example/new" {
			t.Errorf("asked at %s, want %q", got, "https://iam.example/new")
		}
	})
}
