package auth

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
)

// publishAt makes i publish a metadata document at one path only.
func (i *iam) publishAt(path, issuer, tokenEndpoint string) {
	i.metadata.Store(new(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != path {
			http.NotFound(w, r)
			return
		}
		_ = json.NewEncoder(w).Encode(fields{"issuer": issuer, "token_endpoint": tokenEndpoint})
	})))
}

// discovering makes a client find the endpoint by itself.
func discovering(issuer string) func(*ClientCredentialsConfig) {
	return func(c *ClientCredentialsConfig) { c.TokenURL, c.Issuer = "", issuer }
}

// RFC 8414 section 3.1, and OpenID Connect where an issuer has nothing else.
func TestTokenEndpointIsFoundInTheIssuersMetadata(t *testing.T) {
	for path, at := range map[string][]string{
		"":        {"/.well-known/oauth-authorization-server", "/.well-known/openid-configuration"},
		"/":       {"/.well-known/oauth-authorization-server", "/.well-known/openid-configuration"},
		"/tenant": {"/.well-known/oauth-authorization-server/tenant", "/.well-known/openid-configuration/tenant", "/tenant/.well-known/openid-configuration"},
	} {
		for _, place := range at {
			i := newIAM(t)
			i.publishAt(place, i.URL+path, i.URL+"/token")
			c, _ := i.client(t, discovering(i.URL+path))
			if tok, err := c.Token(t.Context()); err != nil || tok.Reveal() != tokenCanary {
				t.Errorf("issuer %q, metadata at %s: %v", path, place, err)
			}
		}
	}
}

// A document that is another issuer's, or that points elsewhere, gets no secret.
func TestMetadataThatIsNotTheIssuersGetsNoSecret(t *testing.T) {
	var stolen atomic.Int64
	thief := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { stolen.Add(1) }))
	t.Cleanup(thief.Close)
	const place = "/.well-known/oauth-authorization-server"
	for name, publish := range map[string]func(i *iam){
		"another issuer":      func(i *iam) { i.publishAt(place, thief.URL, thief.URL) },
		"a slash more":        func(i *iam) { i.publishAt(place, i.URL+"/", i.URL+"/token") },
		"plain http":          func(i *iam) { i.publishAt(place, i.URL, "http://iam.example/token") },
		"another local port":  func(i *iam) { i.publishAt(place, i.URL, thief.URL) },
		"no token endpoint":   func(i *iam) { i.publishAt(place, i.URL, "") },
		"a relative endpoint": func(i *iam) { i.publishAt(place, i.URL, "/token") },
		"none at all":         func(i *iam) { i.publishAt("/nowhere", i.URL, i.URL+"/token") },
		"no JSON": func(i *iam) {
			i.metadata.Store(new(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "<html>"+bodyCanary) })))
		},
		"a redirect": func(i *iam) {
			i.metadata.Store(new(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, thief.URL, http.StatusFound) })))
		},
		"an issuer in two spellings": func(i *iam) {
			i.metadata.Store(new(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				fmt.Fprintf(w, `{"issuer":%q,"issuer":%q,"token_endpoint":%q}`, thief.URL, i.URL, thief.URL)
			})))
		},
	} {
		i := newIAM(t)
		publish(i)
		c, logged := i.client(t, discovering(i.URL))
		_, err := c.Token(t.Context())
		var fetch *FetchError
		if !errors.As(err, &fetch) || i.tokenCalls.Load() != 0 || stolen.Load() != 0 {
			t.Fatalf("%s: %v; %d token requests, %d elsewhere", name, err, i.tokenCalls.Load(), stolen.Load())
		}
		checkQuiet(t, err.Error()+logged.String())
	}
}

// The metadata is read once for all callers who wait, and kept.
func TestMetadataIsReadOnce(t *testing.T) {
	i := newIAM(t)
	var reads atomic.Int64
	i.metadata.Store(new(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		reads.Add(1)
		_ = json.NewEncoder(w).Encode(fields{"issuer": i.URL, "token_endpoint": i.URL + "/token"})
	})))
	e, _ := i.exchange(t, func(c *ExchangeConfig) { c.TokenURL, c.Issuer = "", i.URL })
	var all sync.WaitGroup
	for n := range 20 {
		all.Go(func() {
			if _, err := e.For(Identity{Subject: fmt.Sprint(n), Token: NewSecret("x")}).Token(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if reads.Load() != 1 || i.tokenCalls.Load() != 20 {
		t.Errorf("%d reads of the metadata, %d token requests", reads.Load(), i.tokenCalls.Load())
	}
}

// An endpoint that moves is found within the hour, and nobody waits for that; while the
// metadata cannot be read the known one will do.
func TestMovedTokenEndpointIsFoundWithinAnHour(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var fail atomic.Bool
		var at atomic.Value
		at.Store("https://iam.example/old")
		client := &http.Client{Transport: roundTrip(func(r *http.Request) (*http.Response, error) {
			if fail.Load() {
				return respond(http.StatusServiceUnavailable, ""), nil
			}
			return respond(http.StatusOK, `{"issuer":"https://iam.example","token_endpoint":"`+at.Load().(string)+`"}`), nil
		})}
		m := newMetadata("https://iam.example", client)
		defer m.endpoints.close()
		ask := func() string {
			got, err := m.tokenEndpoint(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			synctest.Wait() // what that started
			return got
		}
		ask()
		at.Store("https://iam.example/new")
		pass(metadataRefresh - time.Second)
		if got := ask(); got != "https://iam.example/old" {
			t.Errorf("asked at %s", got)
		}
		fail.Store(true)
		pass(2 * time.Second)
		ask()
		if got := ask(); got != "https://iam.example/old" {
			t.Errorf("asked at %s while the metadata cannot be read", got)
		}
		fail.Store(false)
		pass(2 * time.Second)
		ask()
		if got := ask(); got != "https://iam.example/new" {
			t.Errorf("asked at %s", got)
		}
	})
}
