package token

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"answerd/internal/auth"
	"answerd/internal/auth/authtest"
	"answerd/internal/auth/fetch"
)

// RFC 8693 section 2.1, RFC 8707: the request and nothing but it.
func TestExchangeRequest(t *testing.T) {
	i := authtest.NewIAM(t)
	i.HandleToken(func(w http.ResponseWriter, r *http.Request) {
		id, secret, _ := r.BasicAuth()
		secret, _ = url.QueryUnescape(secret)
		if id != "me" || secret != authtest.SecretCanary {
			t.Errorf("basic authentication by %q, want %q, %v", id, "me", authtest.SecretCanary)
		}
		want := url.Values{
			"grant_type":           {"urn:ietf:params:oauth:grant-type:token-exchange"},
			"subject_token":        {ann.Token.Reveal()},
			"subject_token_type":   {"urn:ietf:params:oauth:token-type:access_token"},
			"requested_token_type": {"urn:ietf:params:oauth:token-type:access_token"},
			"audience":             {"crm"}, "resource": {"https://crm.example/mcp"}, "scope": {"read write"},
		}.Encode()
		if err := r.ParseForm(); err != nil || r.PostForm.Encode() != want {
			t.Errorf("form %q, %v, want %v", r.PostForm.Encode(), err, want)
		}
		_, _ = w.Write([]byte(`{"access_token":"x","issued_token_type":"urn:ietf:params:oauth:token-type:access_token","token_type":"Bearer","expires_in":60}`))
	})
	e, _ := newExchange(t, i, func(c *ExchangeConfig) {
		c.Audience, c.Resource, c.Scope = "crm", "https://crm.example/mcp", "read write"
	})
	if tok, err := e.For(ann).Token(t.Context()); err != nil || tok.Reveal() != "x" {
		t.Fatalf("reveal %q, %v, want x and no error", tok.Reveal(), err)
	}
}

// echoSubjectToken answers every exchange with a token made of the subject's, after gate.
func echoSubjectToken(i *authtest.IAM, gate func()) {
	i.HandleToken(func(w http.ResponseWriter, r *http.Request) {
		gate()
		fmt.Fprintf(w, `{"access_token":"for-%s","token_type":"Bearer","expires_in":3600}`, r.FormValue("subject_token"))
	})
}

// One exchange for a caller, however many of their calls wait, and never another caller's token.
func TestExchangeSendsOneRequestPerCaller(t *testing.T) {
	i := authtest.NewIAM(t)
	const each = 50
	var ready, done sync.WaitGroup
	ready.Add(2 * each)
	echoSubjectToken(i, ready.Wait)

	e, _ := newExchange(t, i, nil)
	for _, who := range []auth.Identity{ann, bob} {
		for range each {
			done.Go(func() {
				ready.Done()
				if tok, err := e.For(who).Token(t.Context()); err != nil || tok.Reveal() != "for-"+who.Token.Reveal() {
					t.Errorf("%s got %q, %v, want %q", who.Subject, tok.Reveal(), err, "for-"+who.Token.Reveal())
				}
			})
		}
	}

	done.Wait()
	if n := i.TokenRequests.Load(); n != 2 {
		t.Errorf("got %d exchanges for two callers, want 2", n)
	}
}

// A4 (CVE-2026-35030): tokens that are alike at either end, one person with two tokens,
// one token under two names: each is judged on its own.
func TestExchangeSeparatesCallersByTheWholeToken(t *testing.T) {
	i := authtest.NewIAM(t)
	echoSubjectToken(i, func() {})

	e, _ := newExchange(t, i, nil)
	head, tail := strings.Repeat("h", 100), strings.Repeat("t", 100)
	for _, id := range []auth.Identity{
		{Issuer: "i", Subject: "s", Token: auth.NewSecret(head + "1" + tail)},
		{Issuer: "i", Subject: "s", Token: auth.NewSecret(head + "2" + tail)},
		{Issuer: "i", Subject: "other", Token: auth.NewSecret(head + "2" + tail)},
		{Issuer: "other", Subject: "s", Token: auth.NewSecret(head + "2" + tail)},
	} {
		before := i.TokenRequests.Load()
		for range 2 {
			if tok, err := e.For(id).Token(t.Context()); err != nil || tok.Reveal() != "for-"+id.Token.Reveal() {
				t.Errorf("got %q, %v, want %q", tok.Reveal(), err, "for-"+id.Token.Reveal())
			}
		}
		if n := i.TokenRequests.Load() - before; n != 1 {
			t.Errorf("got %d exchanges for %s of %s, want 1", n, id.Subject, id.Issuer)
		}
	}
}

// A refusal of one caller by the IAM does not affect another caller.
func TestExchangeRefusalAffectsOneCaller(t *testing.T) {
	i := authtest.NewIAM(t)
	i.HandleToken(func(w http.ResponseWriter, r *http.Request) {
		if r.FormValue("subject_token") == ann.Token.Reveal() {
			w.WriteHeader(http.StatusBadRequest)
			fmt.Fprint(w, `{"error":"invalid_target","error_description":"`+authtest.BodyCanary+`"}`)
			return
		}
		fmt.Fprint(w, `{"access_token":"x","expires_in":60}`)
	})

	e, logged := newExchange(t, i, nil)
	for range 3 { // the second and third in the pause, without a request
		_, err := e.For(ann).Token(t.Context())
		var refusal *fetch.Error
		if !errors.As(err, &refusal) || refusal.Code != "invalid_target" {
			t.Errorf("got %v, want a *fetch.Error, %q", err, "invalid_target")
		}
	}

	if _, err := e.For(bob).Token(t.Context()); err != nil || i.TokenRequests.Load() != 2 {
		t.Errorf("%v after %d requests, want 2", err, i.TokenRequests.Load())
	}
	authtest.CheckNoCanary(t, logged.String()+fmt.Sprintf("%+v %#v %v", ann, ann, e.For(ann)))
}

func TestExchangeWithoutACallersTokenSendsNothing(t *testing.T) {
	i := authtest.NewIAM(t)
	e, _ := newExchange(t, i, nil)
	_, err := e.For(auth.Identity{Issuer: "i", Subject: "s"}).Token(t.Context())
	var refusal *fetch.Error
	if !errors.As(err, &refusal) || i.TokenRequests.Load() != 0 {
		t.Errorf("got %v after %d requests, want a *fetch.Error, 0", err, i.TokenRequests.Load())
	}
}

// withExchange runs test with an Exchange of f in fake time.
func withExchange(t *testing.T, f *fakeIAM, test func(t *testing.T, e *Exchange)) {
	synctest.Test(t, func(t *testing.T) {
		f.begin = time.Now()
		e, err := NewExchange(ExchangeConfig{ClientCredentialsConfig: ClientCredentialsConfig{TokenURL: "https://iam.example/t",
			ClientID: "me", Secret: FixedSecret(auth.NewSecret(authtest.SecretCanary)), HTTPClient: &http.Client{Transport: f}}})
		if err != nil {
			t.Fatal(err)
		}
		defer e.Close()
		test(t, e)
	})
}

// Kept until shortly before the token expires; the old one serves while it
// is valid and no longer, and the endpoint is asked ever more rarely while it fails.
func TestExchangeRenewsATokenBeforeItExpires(t *testing.T) {
	f := &fakeIAM{lifetime: "600"}
	withExchange(t, f, func(t *testing.T, e *Exchange) {
		get := func() string {
			tok, err := e.For(ann).Token(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			return tok.Reveal()
		}
		get()
		authtest.Advance(530 * time.Second)
		if got := get(); got != "token-1" || f.count != 1 {
			t.Errorf("%s after %d exchanges, want %q, 1", got, f.count, "token-1")
		}
		f.fail = true
		authtest.Advance(69 * time.Second)
		if got := get(); got != "token-1" || f.count != 2 {
			t.Errorf("%s after %d exchanges, want %q, 2", got, f.count, "token-1")
		}
		authtest.Advance(2 * time.Second)
		if _, err := e.For(ann).Token(t.Context()); err == nil {
			t.Error("an expired token was given out, want an error")
		}
		f.fail = false
		authtest.Advance(30 * time.Second)
		if got, want := get(), fmt.Sprintf("token-%d", f.count); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	})
}

// A refused token is exchanged again by one request.
func TestExchangeRenewSendsOneRequestForManyCalls(t *testing.T) {
	f := &fakeIAM{lifetime: "3600", delay: time.Second}
	withExchange(t, f, func(t *testing.T, e *Exchange) {
		old, err := e.For(ann).Token(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		var done sync.WaitGroup
		for range 100 {
			done.Go(func() {
				if tok, err := e.For(ann).Renew(t.Context(), old); err != nil || tok.Reveal() != "token-2" {
					t.Errorf("got %q, %v, want %q", tok.Reveal(), err, "token-2")
				}
			})
		}
		done.Wait()
		if f.count != 2 {
			t.Errorf("got %d exchanges, want 2", f.count)
		}
	})
}

// The cache of callers' tokens is bounded, and forgets callers who have left.
func TestExchangeDropsIdleCallers(t *testing.T) {
	f := &fakeIAM{lifetime: "86400"}
	withExchange(t, f, func(t *testing.T, e *Exchange) {
		visit := func(n int) {
			if _, err := e.For(auth.Identity{Subject: fmt.Sprint(n), Token: auth.NewSecret("x")}).Token(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		for n := range maxCallers + 10 {
			visit(n)
		}
		if e.callers.Len() != maxCallers {
			t.Errorf("got %d callers are kept, want %v", e.callers.Len(), maxCallers)
		}
		before := f.count
		visit(maxCallers) // one of the latest
		visit(0)          // the first to be forgotten
		if f.count != before+1 {
			t.Errorf("got %d exchanges, want %v", f.count-before, before+1)
		}
		authtest.Advance(callerIdleTimeout)
		visit(-1)
		if e.callers.Len() != 1 {
			t.Errorf("got %d callers are kept after they have gone, want 1", e.callers.Len())
		}
	})
}

func TestExchangeCloseEndsRequestsAndKeepsTokens(t *testing.T) {
	f := &fakeIAM{lifetime: "3600"}
	withExchange(t, f, func(t *testing.T, e *Exchange) {
		if _, err := e.For(ann).Token(t.Context()); err != nil {
			t.Fatal(err)
		}
		f.hang = true
		result := make(chan error, 1)
		go func() {
			_, err := e.For(bob).Token(t.Context())
			result <- err
		}()
		synctest.Wait()
		at := time.Now()
		e.Close()
		if err := <-result; err == nil || !time.Now().Equal(at) {
			t.Errorf("got %v after %v, want an error at once", err, time.Since(at))
		}
		if tok, err := e.For(ann).Token(t.Context()); err != nil || tok.Reveal() != "token-1" {
			t.Errorf("got %q, %v, want %q", tok.Reveal(), err, "token-1")
		}
		if _, err := e.For(auth.Identity{Token: auth.NewSecret("new")}).Token(t.Context()); !errors.Is(err, fetch.ErrClosed) {
			t.Errorf("got %v, want %v", err, fetch.ErrClosed)
		}
		e.Close()
	})
}
