package oauth

import (
	"context"
	"encoding/json"
	"maps"
	"net/http"
	"net/url"
	"strings"
	"time"

	"answerd/internal/auth"
	"answerd/internal/auth/fetch"
	"answerd/internal/auth/token"
)

const (
	tokenEndpoint = "the token endpoint"
	maxTokenReply = 64 << 10 // bytes
	maxRefresh    = 16 << 10 // bytes of a refresh token; a longer one is ignored
)

// tokenReply is a successful reply of a token endpoint (RFC 6749 section 5.1).
type tokenReply struct {
	token.Token
	refresh auth.Secret // zero: none
	scopes  []string    // nil if not stated, which means the requested ones
}

// postTokenRequest requests a token from the token endpoint of g.server with the parameters in form, as g.client. It
// adds the resource to form (RFC 8707 section 2.2). The token is bound to g.key, or is a bearer token if that is nil.
// Errors quote nothing of the reply.
//
// postTokenRequest repeats the request once if the endpoint requires a nonce in the proof (RFC 9449 section 8), and
// once if the endpoint may accept the client by another authentication method (mayUsePost).
func (c *Client) postTokenRequest(ctx context.Context, g grant, form url.Values) (tokenReply, error) {
	started := time.Now()
	if g.server.Resource != "" {
		form.Set("resource", g.server.Resource)
	}
	nonceRetried := false
	for {
		req, nonce, err := c.newTokenRequest(ctx, g, form)
		if err != nil {
			return tokenReply{}, err
		}
		httpClient := c.egress.httpClientFor(g.server.TokenURL, g.server.Configured)
		reply, err := fetch.Do(httpClient, req, tokenEndpoint, maxTokenReply)
		if err != nil {
			return tokenReply{}, err
		}
		hasNewNonce := g.key != nil && c.nonces.save(req.URL, reply.Header, nonce)
		switch {
		case reply.Status == http.StatusOK:
			return parseTokenReply(reply, started, g.key)
		case hasNewNonce && !nonceRetried && requiresNonce(reply):
			nonceRetried = true
		case g.mayUsePost(reply):
			g.client.method = methodPost
		default:
			code := token.ErrorCode(reply.Body)
			return tokenReply{}, &fetch.Error{Public: tokenEndpoint + " refused the request", Status: reply.Status, Code: code}
		}
	}
}

// newTokenRequest returns a token request with the parameters in form, authenticated as g.client. If g.key is not nil,
// the request has a new proof, and newTokenRequest also returns the proof's nonce; "" if it has none.
func (c *Client) newTokenRequest(ctx context.Context, g grant, form url.Values) (_ *http.Request, nonce string, _ error) {
	req, err := c.newClientRequest(ctx, g.server.TokenURL, g, form)
	if err != nil || g.key == nil {
		return req, "", err
	}
	nonce = c.nonces.get(req.URL)
	if err := g.key.addProof(req, auth.Secret{}, nonce); err != nil {
		return nil, "", fetchErrorf("the proof of the token request cannot be signed")
	}
	return req, nonce, nil
}

// newClientRequest returns a request to endpoint, which is one of g.server's, with the parameters in form,
// authenticated as g.client. It does not change form.
func (c *Client) newClientRequest(ctx context.Context, endpoint string, g grant, form url.Values) (*http.Request, error) {
	form = maps.Clone(form)
	if err := c.addClientAuth(form, g.server, g.client); err != nil {
		return nil, err
	}
	var basicSecret auth.Secret
	if g.client.method == methodBasic {
		basicSecret = g.client.secret
	}
	return token.NewRequest(ctx, endpoint, form, g.client.id, basicSecret)
}

// parseTokenReply decodes a successful reply to a token request, which was sent at requestedAt. If key is not nil, the
// token must be bound to a key, otherwise it must be a bearer token. Malformed optional members are ignored, because
// the token can be used without them.
func parseTokenReply(reply fetch.Reply, requestedAt time.Time, key *proofKey) (tokenReply, error) {
	kind := "Bearer"
	if key != nil {
		kind = "DPoP"
	}
	parsed, err := token.ParseReply(reply, requestedAt, kind)
	if err != nil {
		return tokenReply{}, err
	}
	result := tokenReply{Token: parsed}
	var decoded struct {
		Refresh string `json:"refresh_token"`
		Scope   string `json:"scope"`
	}
	// The error is ignored: ParseReply has checked the JSON, and Unmarshal only skips a member of another type.
	_ = json.Unmarshal(reply.Body, &decoded)
	if len(decoded.Refresh) <= maxRefresh {
		result.refresh = auth.NewSecret(decoded.Refresh)
	}
	result.scopes = validScopes(strings.Fields(decoded.Scope))
	return result, nil
}
