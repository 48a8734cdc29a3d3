package mcp

import (
	"fmt"
	"net/http"
	"net/url"

	"answerd/internal/auth"
)

// outgoingTrip is the way to a server over HTTP. It adds the configured headers, the query
// parameters of server and call, and the bearer token, to the request that it is given: a
// copy is dear. It sends to the configured origin only; since redirects are off there
// should be no other.
type outgoingTrip struct {
	next    http.RoundTripper
	base    *url.URL
	headers map[string]auth.Secret
	query   map[string]string
	tokens  sender // of what has none of its own; nil: requests go without a token

	behalf *behalf // of servers that are used on behalf of their callers
	close  func()  // to be called after the last request
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
	t.dress(r, x)
	if tokens == nil {
		return t.next.RoundTrip(r)
	}
	x.fetching.Store(true)
	return tokens.Send(tokened{t.next, x}, r)
}

// tokened is where a request goes that has its token. Until it comes here, and when it
// is refused, the time of its exchange is not the server's.
type tokened struct {
	next http.RoundTripper
	x    *exchange
}

func (t tokened) RoundTrip(r *http.Request) (*http.Response, error) {
	t.x.fetching.Store(false)
	resp, err := t.next.RoundTrip(r)
	if err == nil && refused(r, resp) {
		t.x.fetching.Store(true)
	}
	return resp, err
}

// dress adds the configured headers and the query parameters. Those of the call win over
// those of the server, and these over the URL's own.
func (t *outgoingTrip) dress(r *http.Request, x *exchange) {
	for name, value := range t.headers {
		r.Header.Set(name, value.Reveal())
	}
	if len(t.query) == 0 && (x == nil || len(x.query) == 0) {
		return
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
}
