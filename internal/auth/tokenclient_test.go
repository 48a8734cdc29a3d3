package auth

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
)

// F26: whatever the token endpoint does, it is one typed error that repeats nothing.
func TestMisbehavingTokenEndpointIsATypedError(t *testing.T) {
	var elsewhere atomic.Int64
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { elsewhere.Add(1) }))
	t.Cleanup(other.Close)
	text := func(status int, body string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status); _, _ = io.WriteString(w, body) }
	}
	redirect := func(status int) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, other.URL+"/"+bodyCanary, status) }
	}
	old := signRS256(rsaKey(), goodHeader(nil), claimsOf("x", fields{"exp": time.Now().Unix() - 1000, "canary": tokenCanary}))
	for name, handler := range map[string]http.HandlerFunc{
		"503":             text(503, bodyCanary),
		"400 with a body": text(400, `{"error":"`+bodyCanary+`","error_description":"`+bodyCanary+`"}`),
		"401":             text(401, `{"error":"invalid_client","error_description":"`+bodyCanary+`"}`),
		"HTML":            text(200, "<html>"+bodyCanary+"</html>"),
		"empty":           text(200, ""),
		"a list":          text(200, `["`+bodyCanary+`"]`),
		"no token":        text(200, `{"`+bodyCanary+`":1,"expires_in":3600}`),
		"a token twice":   text(200, `{"access_token":"`+tokenCanary+`","access_token":"b"}`),
		"trailing data":   text(200, `{"access_token":"`+tokenCanary+`"}{}`),
		"1 MiB token":     text(200, `{"access_token":"`+strings.Repeat(tokenCanary, 90000)+`"}`),
		"17 KiB token":    text(200, `{"access_token":"`+strings.Repeat("a", 17<<10)+`"}`),
		"header in token": text(200, `{"access_token":"`+tokenCanary+`\r\nX: y"}`),
		"another type":    text(200, `{"access_token":"`+tokenCanary+`","issued_token_type":"urn:ietf:params:oauth:token-type:id_token"}`),
		"not a bearer":    text(200, `{"access_token":"`+tokenCanary+`","token_type":"mac"}`),
		"born expired":    text(200, `{"access_token":"`+old+`","expires_in":3600}`),
		"302":             redirect(302),
		"307":             redirect(307),
		"308":             redirect(308),
		"cut off": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "1000")
			_, _ = io.WriteString(w, `{"access_token":"`+tokenCanary)
		},
		// net/http quotes the status line in its error: ours, sent back.
		"no HTTP": func(w http.ResponseWriter, r *http.Request) {
			conn, _, err := w.(http.Hijacker).Hijack()
			if err != nil {
				t.Error(err)
				return
			}
			_, _ = fmt.Fprintf(conn, "%s %s\r\n\r\n", r.Header.Get("Authorization"), bodyCanary)
			_ = conn.Close()
		},
	} {
		t.Run(name, func(t *testing.T) { eachGrant(t, handler) })
	}
	if elsewhere.Load() != 0 {
		t.Error("a redirect was followed")
	}
}

// eachGrant asks a token endpoint that misbehaves for a token, by every grant.
func eachGrant(t *testing.T, handler http.HandlerFunc) {
	i := newIAM(t)
	i.handleToken(handler)
	own, ownLog := i.client(t, nil)
	ex, exLog := i.exchange(t, nil)
	for name, try := range map[string]struct {
		source TokenSource
		logged *logBuffer
	}{"client credentials": {own, ownLog}, "exchange": {ex.For(ann), exLog}} {
		t.Run(name, func(t *testing.T) {
			_, err := try.source.Token(t.Context())
			var fetch *FetchError
			if !errors.As(err, &fetch) || fetch.Public == "" {
				t.Fatalf("got %v", err)
			}
			if strings.Contains(fetch.Public, "127.0.0.1") {
				t.Errorf("public text %q names a host", fetch.Public)
			}
			// S2.2: never logged.
			checkQuiet(t, fmt.Sprintf("%s %+v %#v", err, err, fetch.Err)+try.logged.String())
			if !strings.Contains(try.logged.String(), "token fetch failed") {
				t.Errorf("log %q", try.logged)
			}
		})
	}
}

// F26: no more is read than can be of use.
func TestEndlessReplyIsCutOff(t *testing.T) {
	i := newIAM(t)
	i.handleToken(func(w http.ResponseWriter, _ *http.Request) {
		for chunk := make([]byte, 1<<10); ; {
			if _, err := w.Write(chunk); err != nil {
				return
			}
		}
	})
	c, _ := i.client(t, nil)
	_, err := c.Token(t.Context())
	var fetch *FetchError
	if !errors.As(err, &fetch) || fetch.Public != "the token endpoint answered too much" {
		t.Errorf("got %v", err)
	}
}

func TestUnreachableTokenEndpointIsATypedError(t *testing.T) {
	i := newIAM(t)
	c, logged := i.client(t, nil)
	i.Close()
	_, err := c.Token(t.Context())
	var fetch *FetchError
	if !errors.As(err, &fetch) || fetch.Status != 0 || fetch.Public != "the token endpoint cannot be reached" {
		t.Fatalf("got %v", err)
	}
	checkQuiet(t, err.Error()+logged.String())
}

// S2.2: never logged, however it is printed.
func TestNothingPrintsATokenOrASecret(t *testing.T) {
	i := newIAM(t)
	c, logged := i.client(t, nil)
	tok, err := c.Token(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Renew(t.Context(), tok); err == nil {
		t.Error("the same token again was taken for a new one")
	} else {
		checkQuiet(t, err.Error())
	}
	c.cfg.Logger.Error("everything", "token", tok, "source", fmt.Sprintf("%+v %#v %v", c, c, c.grants.value), "grant", c.grants.value)
	if !strings.Contains(logged.String(), "token fetched") {
		t.Errorf("log %q", logged)
	}
	checkQuiet(t, logged.String())
}
