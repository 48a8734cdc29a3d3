package mcp

import (
	"errors"
	"net/http"

	"answerd/internal/mcp/oauth"
	"answerd/internal/mcp/transport"
)

// grantSender sends requests with tokens of the server's authorization server.
type grantSender struct{ source *oauth.Source }

// Send implements transport.Sender.
func (g grantSender) Send(next http.RoundTripper, r *http.Request) (*http.Response, error) {
	resp, err := g.source.Send(next, r)
	if e, ok := errors.AsType[*oauth.Error](err); ok {
		transport.RoundTripOf(r.Context()).SetNotSent() // whatever was sent was refused, so not run
		return nil, &transport.Failure{Kind: Unavailable, Public: e.Public, NotRun: true, Err: transport.CredentialsError(e)}
	}
	return resp, err
}

// noUserSender is the sender of what belongs to no caller at a server that is used on behalf
// of its callers. There should be no such request.
type noUserSender struct{}

var errNobody = errors.New("the request belongs to no caller")

// Send implements transport.Sender.
func (noUserSender) Send(_ http.RoundTripper, r *http.Request) (*http.Response, error) {
	if r.Body != nil {
		_ = r.Body.Close()
	}
	return nil, &transport.Failure{Kind: Unavailable, Public: "there is no token for it", NotRun: true, Err: transport.CredentialsError(errNobody)}
}
