package mcp

import (
	"errors"
	"fmt"
	"net/http"

	"answerd/internal/auth/token"
	"answerd/internal/mcp/oauth"
	"answerd/internal/mcp/transport"
)

// sender sends requests with somebody's token: bearer with one from a source that knows
// where tokens come from, granted with one that the server's refusals lead to. Send may
// change r.
type sender interface {
	Send(next http.RoundTripper, r *http.Request) (*http.Response, error)
}

// bearer sends what a source gives.
type bearer struct{ tokens token.Source }

// Send implements sender. If the server refuses the token with 401 it sends r once more
// with a new one. An exchange renews once, so a server that always refuses costs one
// fetch and not a loop (F18). A WebSocket handshake may be refused with 403 for the same
// reason: some frameworks have no other way to decline one.
func (b bearer) Send(next http.RoundTripper, r *http.Request) (*http.Response, error) {
	x := exchangeOf(r.Context())
	token, err := b.tokens.Token(r.Context())
	if err != nil {
		closeBody(r)
		return nil, &transport.Failure{Kind: Unavailable, Public: "there is no token for it", NotRun: true, Err: transport.CredentialsError(err)}
	}
	// After the configured headers, so that it wins over an Authorization there.
	r.Header.Set("Authorization", "Bearer "+token.Reveal())
	resp, err := next.RoundTrip(r)
	if err != nil || !refused(r, resp) || !x.renewed.CompareAndSwap(false, true) {
		return resp, err
	}
	drain(resp, maxError)
	x.sent.Store(false) // refused, so not run
	if token, err = b.tokens.Renew(r.Context(), token); err != nil {
		f := transport.BadStatus(resp.StatusCode)
		f.Err = transport.CredentialsError(err)
		return nil, f
	}
	// The first body has been read; GetBody gives the same bytes once more.
	again := r.Clone(r.Context())
	if r.GetBody != nil {
		if again.Body, err = r.GetBody(); err != nil {
			return nil, fmt.Errorf("send the request again: %w", err)
		}
	}
	again.Header.Set("Authorization", "Bearer "+token.Reveal())
	return next.RoundTrip(again)
}

// refused reports whether a reply says that our token is not good.
func refused(r *http.Request, resp *http.Response) bool {
	return resp.StatusCode == http.StatusUnauthorized || r.Header.Get("Upgrade") != "" && resp.StatusCode == http.StatusForbidden
}

// granted sends with tokens of the server's authorization server.
type granted struct{ source *oauth.Source }

// Send implements sender.
func (g granted) Send(next http.RoundTripper, r *http.Request) (*http.Response, error) {
	resp, err := g.source.Send(next, r)
	if e, ok := errors.AsType[*oauth.Error](err); ok {
		exchangeOf(r.Context()).sent.Store(false) // whatever was sent was refused, so not run
		return nil, &transport.Failure{Kind: Unavailable, Public: e.Public, NotRun: true, Err: transport.CredentialsError(e)}
	}
	return resp, err
}

// nobody is the sender of what belongs to no caller at a server that is used on behalf
// of its callers. There should be no such request.
type nobody struct{}

var errNobody = errors.New("the request belongs to no caller")

// Send implements sender.
func (nobody) Send(_ http.RoundTripper, r *http.Request) (*http.Response, error) {
	closeBody(r)
	return nil, &transport.Failure{Kind: Unavailable, Public: "there is no token for it", NotRun: true, Err: transport.CredentialsError(errNobody)}
}
