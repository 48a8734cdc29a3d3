package transport

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"

	"answerd/internal/auth"
	"answerd/internal/auth/token"
)

// HeaderTransport is an http.RoundTripper for one server. It adds the configured headers, the server's and the
// RoundTrip's query parameters, and the bearer token. Unlike other http.RoundTrippers, it changes its request.
type HeaderTransport struct {
	Next    http.RoundTripper
	Base    *url.URL // scheme and host of the server
	Headers map[string]auth.Secret
	Query   map[string]string
	// Tokens adds tokens to requests for which neither the RoundTrip nor its Session has a Sender. If it is nil, such
	// requests carry no token.
	Tokens Sender
}

// RoundTrip implements http.RoundTripper. If a token is to be sent, r's context must carry a RoundTrip. A request to
// another origin than Base is an error.
func (t *HeaderTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	// Redirects are not followed. Even if one were, its target must not get the headers or a token.
	if r.URL.Scheme != t.Base.Scheme || r.URL.Host != t.Base.Host {
		closeBody(r)
		return nil, fmt.Errorf("request to %s, which is not the configured server", r.URL.Host)
	}
	roundTrip := RoundTripOf(r.Context())
	tokens := t.Tokens
	if own := roundTrip.sender(); own != nil {
		tokens = own
	}
	t.addHeaders(r, roundTrip)
	next := sessionRefusals{t.Next}
	if tokens == nil {
		return next.RoundTrip(r)
	}
	roundTrip.FetchingToken.Store(true) // tokenWatcher sets it to false
	return tokens.Send(tokenWatcher{next, roundTrip}, r)
}

// sessionRefusals is an http.RoundTripper for servers that refuse the id of a session which they no longer know with
// 401, 403 (rust-sdk#689, mcp-proxy#108) or 409. It replaces these by 404, the status that MCP demands (2025-11-25
// basic/transports, "Session Management"). It does so before a Sender takes the refusal for one of the token: the server
// would refuse the session with another token too, also after the user has signed in again.
type sessionRefusals struct{ next http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (t sessionRefusals) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := t.next.RoundTrip(r)
	if err != nil || r.Header.Get(sessionHeader) == "" {
		return resp, err
	}
	if !slices.Contains([]int{http.StatusUnauthorized, http.StatusForbidden, http.StatusConflict}, resp.StatusCode) {
		return resp, nil
	}
	body := drainBody(resp)
	resp.Body = io.NopCloser(bytes.NewReader(body))
	if namesLostSession(string(body)) {
		resp.StatusCode = http.StatusNotFound
	}
	return resp, nil
}

// tokenWatcher is the http.RoundTripper that is passed to a Sender, to maintain RoundTrip.FetchingToken. A Sender
// fetches a token before it calls tokenWatcher, and again after the server has refused the token.
type tokenWatcher struct {
	next      http.RoundTripper
	roundTrip *RoundTrip
}

// RoundTrip implements http.RoundTripper.
func (w tokenWatcher) RoundTrip(r *http.Request) (*http.Response, error) {
	w.roundTrip.FetchingToken.Store(false)
	resp, err := w.next.RoundTrip(r)
	if err == nil && refusesToken(r, resp) {
		w.roundTrip.FetchingToken.Store(true)
	}
	return resp, err
}

// addHeaders adds the configured headers and the query parameters to r. If names are equal, a query parameter of
// roundTrip replaces one of the server, which replaces one in the URL. roundTrip may be nil.
func (t *HeaderTransport) addHeaders(r *http.Request, roundTrip *RoundTrip) {
	for name, value := range t.Headers {
		r.Header.Set(name, value.Reveal())
	}
	if len(t.Query) == 0 && (roundTrip == nil || len(roundTrip.Query) == 0) {
		return
	}
	query := r.URL.Query()
	for name, value := range t.Query {
		query.Set(name, value)
	}
	if roundTrip != nil {
		for name, value := range roundTrip.Query {
			query.Set(name, value)
		}
	}
	r.URL.RawQuery = query.Encode()
}

// Bearer is a Sender that sends the tokens of Source.
type Bearer struct{ Source token.Source }

// Send implements Sender. If the server refuses the token, Send renews the token and sends r once more, but only once
// per RoundTrip, so a server that always refuses does not cause a loop. If the Source has no token, the error is a
// *Failure that wraps ErrCredentials.
func (b Bearer) Send(next http.RoundTripper, r *http.Request) (*http.Response, error) {
	roundTrip := RoundTripOf(r.Context())
	bearer, err := b.Source.Token(r.Context())
	if err != nil {
		closeBody(r)
		return nil, unavailable("there is no token for it", CredentialsError(err))
	}
	r.Header.Set("Authorization", "Bearer "+bearer.Reveal()) // replaces a configured header
	resp, err := next.RoundTrip(r)
	if err != nil || !refusesToken(r, resp) || !roundTrip.TokenRenewed.CompareAndSwap(false, true) {
		return resp, err
	}
	drainBody(resp)
	roundTrip.sent.Store(false) // the server refused the request, so it has not run
	renewed, err := b.Source.Renew(r.Context(), bearer)
	if err != nil {
		failure := statusFailure(resp.StatusCode)
		failure.Err = CredentialsError(err)
		return nil, failure
	}
	repetition := r.Clone(r.Context())
	if r.GetBody != nil { // the body of r was already read; GetBody returns a new reader of the same bytes
		if repetition.Body, err = r.GetBody(); err != nil {
			return nil, fmt.Errorf("send the request again: %w", err)
		}
	}
	repetition.Header.Set("Authorization", "Bearer "+renewed.Reveal())
	return next.RoundTrip(repetition)
}

// refusesToken reports whether resp, the reply to r, refuses the token. Its status is 401, or 403 for a WebSocket
// handshake, which some frameworks cannot refuse in another way.
func refusesToken(r *http.Request, resp *http.Response) bool {
	isWebSocket := r.Header.Get("Upgrade") != ""
	return resp.StatusCode == http.StatusUnauthorized || isWebSocket && resp.StatusCode == http.StatusForbidden
}

// closeBody closes the body of a request that is not sent. http.RoundTripper requires that.
func closeBody(r *http.Request) {
	if r.Body != nil {
		_ = r.Body.Close()
	}
}
