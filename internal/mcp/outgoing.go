package mcp

import (
	"fmt"
	"net/http"
	"net/url"

	"answerd/internal/auth"
)

// outgoingTrip makes the SDK's requests ours: the configured headers, the query
// parameters of server and call, and the bearer token. It sends to the configured
// origin only; since redirects are off there should be no other.
type outgoingTrip struct {
	next    http.RoundTripper
	base    *url.URL
	headers map[string]auth.Secret
	query   map[string]string
	tokens  auth.TokenSource // of what has none of its own; nil: no bearer token
	upgrade bool             // requests are WebSocket handshakes

	exchange *auth.Exchange // of AuthExchange
	close    func()         // to be called after the last request
}

func (t *outgoingTrip) RoundTrip(r *http.Request) (*http.Response, error) {
	// F19: not even a redirect that slipped through would get headers or a token.
	if r.URL.Scheme != t.base.Scheme || r.URL.Host != t.base.Host {
		closeBody(r)
		return nil, fmt.Errorf("request to %s, which is not the configured server", r.URL.Host)
	}
	x := exchangeOf(r.Context())
	tokens := t.tokens
	if own := x.source(); own != nil {
		tokens = own
	}
	if tokens == nil && t.bare(x) {
		return t.next.RoundTrip(r) // a copy is dear, and there is nothing to add to it
	}
	r = t.dress(r)
	if tokens == nil {
		return t.next.RoundTrip(r)
	}
	return t.authorized(r, x, tokens)
}

// bare reports whether neither the server nor the call has anything to add to a request.
func (t *outgoingTrip) bare(x *exchange) bool {
	return len(t.headers) == 0 && len(t.query) == 0 && (x == nil || len(x.headers) == 0 && len(x.query) == 0)
}

// dress is a copy of r with the configured headers and the query parameters. Those
// of the call win over those of the server, and these over the URL's own.
func (t *outgoingTrip) dress(r *http.Request) *http.Request {
	r = r.Clone(r.Context())
	for name, value := range t.headers {
		r.Header.Set(name, value.Reveal())
	}
	x := exchangeOf(r.Context())
	// The SDK names the method in a header from 2026-07-28 on, which is where these
	// headers belong too.
	if x != nil && r.Header.Get("Mcp-Method") == "tools/call" {
		for name, value := range x.headers {
			r.Header.Set(name, value)
		}
	}
	if len(t.query) == 0 && (x == nil || len(x.query) == 0) {
		return r
	}
	q := r.URL.Query()
	for name, value := range t.query {
		q.Set(name, value)
	}
	if x != nil {
		for name, value := range x.query {
			q.Set(name, value)
		}
	}
	r.URL.RawQuery = q.Encode()
	return r
}

// authorized sends r with the server's token, and once more with a new one if the
// server refuses it with 401. An exchange renews once, so a server that always
// refuses costs one fetch and not a loop (F18). A WebSocket handshake may be refused
// with 403 for the same reason: some frameworks have no other way to decline one.
func (t *outgoingTrip) authorized(r *http.Request, x *exchange, tokens auth.TokenSource) (*http.Response, error) {
	x.fetching.Store(true)
	token, err := tokens.Token(r.Context())
	if err != nil {
		closeBody(r)
		return nil, &failure{kind: Unavailable, public: "there is no token for it", notRun: true, err: ofCredentials(err)}
	}
	x.fetching.Store(false) // not sooner: who gave up meanwhile is to know why
	// After the configured headers, so that it wins over an Authorization there.
	r.Header.Set("Authorization", "Bearer "+token.Reveal())
	resp, err := t.next.RoundTrip(r)
	if err != nil || !t.refused(resp) || !x.renewed.CompareAndSwap(false, true) {
		return resp, err
	}
	drain(resp, maxError)
	x.sent.Store(false) // refused, so not run
	x.fetching.Store(true)
	if token, err = tokens.Renew(r.Context(), token); err != nil {
		f := badStatus(resp.StatusCode, nil)
		f.err = ofCredentials(err)
		return nil, f
	}
	x.fetching.Store(false)
	// The first body has been read; GetBody gives the same bytes once more.
	again := r.Clone(r.Context())
	if r.GetBody != nil {
		if again.Body, err = r.GetBody(); err != nil {
			return nil, fmt.Errorf("send the request again: %w", err)
		}
	}
	again.Header.Set("Authorization", "Bearer "+token.Reveal())
	return t.next.RoundTrip(again)
}

// refused reports whether a reply says that our token is not good.
func (t *outgoingTrip) refused(resp *http.Response) bool {
	return resp.StatusCode == http.StatusUnauthorized || t.upgrade && resp.StatusCode == http.StatusForbidden
}
