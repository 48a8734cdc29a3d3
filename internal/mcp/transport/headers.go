package transport

import (
	"fmt"
	"net/http"
	"net/url"

	"answerd/internal/auth"
	"answerd/internal/auth/token"
)

// HeaderTransport is a http.RoundTripper for one server. It adds the configured headers, the query
// parameters of server and request, and the bearer token to the request that it is given, without
// a copy. It sends to the configured origin only; since redirects are not followed there should
// not be another.
type HeaderTransport struct {
	Next    http.RoundTripper
	Base    *url.URL // scheme and host of the server
	Headers map[string]auth.Secret
	Query   map[string]string
	// Tokens sends requests that do not have tokens of their own; nil: they go without.
	Tokens Sender
}

// RoundTrip implements http.RoundTripper.
func (t *HeaderTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	// Not even a redirect that was followed by mistake would get headers or a token.
	if r.URL.Scheme != t.Base.Scheme || r.URL.Host != t.Base.Host {
		closeBody(r)
		return nil, fmt.Errorf("request to %s, which is not the configured server", r.URL.Host)
	}
	trip := RoundTripOf(r.Context())
	tokens := t.Tokens
	if own := trip.sender(); own != nil {
		tokens = own
	}
	t.addHeaders(r, trip)
	if tokens == nil {
		return t.Next.RoundTrip(r)
	}
	trip.fetchingToken.Store(true)
	return tokens.Send(tokenWatcher{t.Next, trip}, r)
}

// tokenWatcher is the next http.RoundTripper of a Sender. Until a request comes here, and after it
// was refused, its time is spent on a token and not on the server.
type tokenWatcher struct {
	next http.RoundTripper
	trip *RoundTrip
}

// RoundTrip implements http.RoundTripper. After a refusal of the token, the sender fetches another one.
func (w tokenWatcher) RoundTrip(r *http.Request) (*http.Response, error) {
	w.trip.fetchingToken.Store(false)
	resp, err := w.next.RoundTrip(r)
	if err == nil && refusesToken(r, resp) {
		w.trip.fetchingToken.Store(true)
	}
	return resp, err
}

// addHeaders adds the configured headers and the query parameters. Those of the request win over
// those of the server, and these over the URL's own.
func (t *HeaderTransport) addHeaders(r *http.Request, trip *RoundTrip) {
	for name, value := range t.Headers {
		r.Header.Set(name, value.Reveal())
	}
	if len(t.Query) == 0 && (trip == nil || len(trip.Query) == 0) {
		return
	}
	query := r.URL.Query()
	for name, value := range t.Query {
		query.Set(name, value)
	}
	if trip != nil {
		for name, value := range trip.Query {
			query.Set(name, value)
		}
	}
	r.URL.RawQuery = query.Encode()
}

// Bearer is a Sender whose source knows where tokens come from.
type Bearer struct{ Source token.Source }

// Send implements Sender. If the server refuses the token with 401 it sends the request once more with a new
// one. A RoundTrip renews once, so a server that always refuses costs one fetch and not a loop. A
// WebSocket handshake may be refused with 403 for the same reason: some frameworks cannot decline
// one in another way.
func (b Bearer) Send(next http.RoundTripper, r *http.Request) (*http.Response, error) {
	trip := RoundTripOf(r.Context())
	bearer, err := b.Source.Token(r.Context())
	if err != nil {
		closeBody(r)
		return nil, &Failure{Kind: Unavailable, Public: "there is no token for it", NotRun: true, Err: CredentialsError(err)}
	}
	// After the configured headers, so that it wins over an Authorization there.
	r.Header.Set("Authorization", "Bearer "+bearer.Reveal())
	resp, err := next.RoundTrip(r)
	if err != nil || !refusesToken(r, resp) || !trip.tokenRenewed.CompareAndSwap(false, true) {
		return resp, err
	}
	drainBody(resp, maxRefusal)
	trip.sent.Store(false) // refused, so not run
	if bearer, err = b.Source.Renew(r.Context(), bearer); err != nil {
		f := badStatus(resp.StatusCode)
		f.Err = CredentialsError(err)
		return nil, f
	}
	// The first body has been read; GetBody gives the same bytes once more.
	again := r.Clone(r.Context())
	if r.GetBody != nil {
		if again.Body, err = r.GetBody(); err != nil {
			return nil, fmt.Errorf("send the request again: %w", err)
		}
	}
	again.Header.Set("Authorization", "Bearer "+bearer.Reveal())
	return next.RoundTrip(again)
}

// refusesToken reports whether a reply says that our token is not accepted.
func refusesToken(r *http.Request, resp *http.Response) bool {
	isWebSocket := r.Header.Get("Upgrade") != "" // some frameworks refuse its handshake with 403 only
	return resp.StatusCode == http.StatusUnauthorized || isWebSocket && resp.StatusCode == http.StatusForbidden
}

// closeBody closes the body of a request that is not sent, as a http.RoundTripper must.
func closeBody(r *http.Request) {
	if r.Body != nil {
		_ = r.Body.Close()
	}
}
