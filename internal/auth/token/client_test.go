package token

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"answerd/internal/auth/authtest"
	"answerd/internal/auth/fetch"
)

// Every failure of the token endpoint is one typed error, which repeats nothing of the reply.
func TestTokenEndpointMisbehaviorIsATypedError(t *testing.T) {
	var elsewhere atomic.Int64
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { elsewhere.Add(1) }))
	t.Cleanup(other.Close)
	textReply := func(status int, body string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status); _, _ = io.WriteString(w, body) }
	}

	redirectReply := func(status int) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, other.URL+"/"+authtest.BodyCanary, status)
		}
	}

	old := authtest.SignRS256(authtest.RSAKey(), authtest.HeaderJSON(nil), authtest.ClaimsOf("x", authtest.JSON{"exp": time.Now().Unix() - 1000, "canary": authtest.TokenCanary}))
	for name, handler := range map[string]http.HandlerFunc{
		"503":             textReply(503, authtest.BodyCanary),
		"400 with a body": textReply(400, `{"error":"`+authtest.BodyCanary+`","error_description":"`+authtest.BodyCanary+`"}`),
		"401":             textReply(401, `{"error":"invalid_client","error_description":"`+authtest.BodyCanary+`"}`),
		"HTML":            textReply(200, "<html>"+authtest.BodyCanary+"</html>"),
		"empty":           textReply(200, ""),
		"a list":          textReply(200, `["`+authtest.BodyCanary+`"]`),
		"no token":        textReply(200, `{"`+authtest.BodyCanary+`":1,"expires_in":3600}`),
		"a token twice":   textReply(200, `{"access_token":"`+authtest.TokenCanary+`","access_token":"b"}`),
		"trailing data":   textReply(200, `{"access_token":"`+authtest.TokenCanary+`"}{}`),
		"1 MiB token":     textReply(200, `{"access_token":"`+strings.Repeat(authtest.TokenCanary, 90000)+`"}`),
		"17 KiB token":    textReply(200, `{"access_token":"`+strings.Repeat("a", 17<<10)+`"}`),
		"header in token": textReply(200, `{"access_token":"`+authtest.TokenCanary+`\r\nX: y"}`),
		"another type":    textReply(200, `{"access_token":"`+authtest.TokenCanary+`","issued_token_type":"urn:ietf:params:oauth:token-type:id_token"}`),
		"not a bearer":    textReply(200, `{"access_token":"`+authtest.TokenCanary+`","token_type":"mac"}`),
		"already expired": textReply(200, `{"access_token":"`+old+`","expires_in":3600}`),
		"302":             redirectReply(302),
		"307":             redirectReply(307),
		"308":             redirectReply(308),
		"cut off": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "1000")
			_, _ = io.WriteString(w, `{"access_token":"`+authtest.TokenCanary)
		},
		// net/http quotes the status line in its error: ours, sent back.
		"no HTTP": func(w http.ResponseWriter, r *http.Request) {
			conn, _, err := w.(http.Hijacker).Hijack()
			if err != nil {
				t.Error(err)
				return
			}
			_, _ = fmt.Fprintf(conn, "%s %s\r\n\r\n", r.Header.Get("Authorization"), authtest.BodyCanary)
			_ = conn.Close()
		},
	} {
		t.Run(name, func(t *testing.T) { eachGrant(t, handler) })
	}

	if elsewhere.Load() != 0 {
		t.Errorf("a redirect was followed: elsewhere %d, want 0", elsewhere.Load())
	}
}

// eachGrant asks a token endpoint that misbehaves for a token, by every grant.
func eachGrant(t *testing.T, handler http.HandlerFunc) {
	i := authtest.NewIAM(t)
	i.HandleToken(handler)
	own, ownLog := newClient(t, i, nil)
	ex, exLog := newExchange(t, i, nil)
	for name, try := range map[string]struct {
		source Source
		logged *authtest.LogBuffer
	}{"client credentials": {own, ownLog}, "exchange": {ex.For(ann), exLog}} {
		t.Run(name, func(t *testing.T) {
			_, err := try.source.Token(t.Context())
			var refusal *fetch.Error
			if !errors.As(err, &refusal) || refusal.Public == "" {
				t.Fatalf("got %v, want an Error, Public non-empty", err)
			}
			if strings.Contains(refusal.Public, "127.0.0.1") {
				t.Errorf("public text %q names a host, want no 127.0.0.1", refusal.Public)
			}
			// Never logged.
			authtest.CheckNoCanary(t, fmt.Sprintf("%s %+v %#v", err, err, refusal.Err)+try.logged.String())
			if !strings.Contains(try.logged.String(), "token fetch failed") {
				t.Errorf(`log %q, want String containing "token fetch failed"`, try.logged)
			}
		})
	}
}

// A reply is read up to its limit and no further.
func TestTokenEndpointReplyIsBounded(t *testing.T) {
	i := authtest.NewIAM(t)
	i.HandleToken(func(w http.ResponseWriter, _ *http.Request) {
		for chunk := make([]byte, 1<<10); ; {
			if _, err := w.Write(chunk); err != nil {
				return
			}
		}
	})
	c, _ := newClient(t, i, nil)
	_, err := c.Token(t.Context())
	var refusal *fetch.Error
	if !errors.As(err, &refusal) || refusal.Public != "the token endpoint answered with too many bytes" {
		t.Errorf("got %v, want a *fetch.Error, %q", err, "the token endpoint answered with too many bytes")
	}
}

func TestTokenEndpointUnreachableIsATypedError(t *testing.T) {
	i := authtest.NewIAM(t)
	c, logged := newClient(t, i, nil)
	i.Close()
	_, err := c.Token(t.Context())
	var refusal *fetch.Error
	if !errors.As(err, &refusal) || refusal.Status != 0 || refusal.Public != "the token endpoint cannot be reached" {
		t.Fatalf("got %v, want a *fetch.Error, 0, %q", err, "the token endpoint cannot be reached")
	}
	authtest.CheckNoCanary(t, err.Error()+logged.String())
}

// Never logged, however it is printed.
func TestClientCredentialsPrintsNoSecret(t *testing.T) {
	i := authtest.NewIAM(t)
	c, logged := newClient(t, i, nil)
	tok, err := c.Token(t.Context())
	if err != nil {
		t.Fatal(err)
	}

	if _, err := c.Renew(t.Context(), tok); err == nil {
		t.Error("the same token again was taken for a new one, want an error")
	} else {
		authtest.CheckNoCanary(t, err.Error())
	}

	logged.Logger().Error("everything", "token", tok, "source", fmt.Sprintf("%+v %#v %v", c, c, c.tokens.tokens.Value()), "cached", c.tokens.tokens.Value())
	if !strings.Contains(logged.String(), "token fetched") {
		t.Errorf(`log %q, want String containing "token fetched"`, logged)
	}
	authtest.CheckNoCanary(t, logged.String())
}
