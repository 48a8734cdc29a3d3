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

// requestGrant requests a token from server's token endpoint with the parameters in form, as client. It adds the
// resource to form (RFC 8707 section 2.2). The token is bound to key, or is a bearer token if key is nil. Errors quote
// nothing of the reply.
func (c *Client) requestGrant(ctx context.Context, server *authServer, client clientIdentity, key *proofKey, form url.Values) (tokenReply, error) {
	started := time.Now()
	if server.resource != "" {
		form.Set("resource", server.resource)
	}
	reply, err := c.postTokenRequest(ctx, server, client, key, form)
	if err != nil {
		return tokenReply{}, err
	}
	return parseTokenReply(reply, started, key)
}

// postTokenRequest sends a token request. It repeats the request once if the endpoint requires a nonce in the proof
// (RFC 9449 section 8), and once if the endpoint may accept the client by another authentication method (mayUsePost).
func (c *Client) postTokenRequest(ctx context.Context, server *authServer, client clientIdentity, key *proofKey, form url.Values) (fetch.Reply, error) {
	sentNonce := false
	for {
		req, nonce, err := c.newTokenRequest(ctx, server, client, key, form)
		if err != nil {
			return fetch.Reply{}, err
		}
		got, err := fetch.Do(c.egress.clientFor(server.tokenURL, server.configured), req, tokenEndpoint, maxTokenReply)
		if err != nil {
			return fetch.Reply{}, err
		}
		newNonce := key != nil && c.nonces.save(req.URL, got.Header, nonce)
		switch {
		case got.Status == http.StatusOK:
			return got, nil
		case !sentNonce && newNonce && requiresNonce(got):
			sentNonce = true
			continue
		case client.mayUsePost(server, got):
			client.method = methodPost
			continue
		}
		return fetch.Reply{}, &fetch.Error{Public: tokenEndpoint + " refused the request", Status: got.Status, Code: token.ErrorCode(got.Body)}
	}
}

// newTokenRequest returns a token request with the parameters in form, authenticated as client. If key is not nil, the
// request has a new proof, and newTokenRequest also returns the proof's nonce; "" if it has none.
func (c *Client) newTokenRequest(ctx context.Context, server *authServer, client clientIdentity, key *proofKey, form url.Values) (_ *http.Request, nonce string, _ error) {
	req, err := c.newClientRequest(ctx, server.tokenURL, server, client, form)
	if err != nil || key == nil {
		return req, "", err
	}
	nonce = c.nonces.get(req.URL)
	if err := key.addProof(req, auth.Secret{}, nonce); err != nil {
		return nil, "", fetchErrorf("the proof of the token request cannot be signed")
	}
	return req, nonce, nil
}

// newClientRequest returns a request to one of server's endpoints with the parameters in form, authenticated as
// client. It does not change form.
func (c *Client) newClientRequest(ctx context.Context, endpoint string, server *authServer, client clientIdentity, form url.Values) (*http.Request, error) {
	form = maps.Clone(form)
	if err := c.addClientAuth(form, server, client); err != nil {
		return nil, err
	}
	var secret auth.Secret
	if client.method == methodBasic {
		secret = client.secret
	}
	return token.NewRequest(ctx, endpoint, form, client.id, secret)
}

// parseTokenReply decodes a successful reply to a token request that was sent at the time requested. The token must be
// bound to a key if key is not nil, otherwise it must be a bearer token.
func parseTokenReply(reply fetch.Reply, requested time.Time, key *proofKey) (tokenReply, error) {
	kind := "Bearer"
	if key != nil {
		kind = "DPoP"
	}
	parsed, err := token.ParseReply(reply, requested, kind)
	if err != nil {
		return tokenReply{}, err
	}
	result := tokenReply{Token: parsed}
	var decoded struct {
		Refresh string  `json:"refresh_token"`
		Scope   *string `json:"scope"`
	}
	// Malformed optional members are ignored, because the token can be used without them.
	if json.Unmarshal(reply.Body, &decoded) == nil {
		if len(decoded.Refresh) <= maxRefresh {
			result.refresh = auth.NewSecret(decoded.Refresh)
		}
		if decoded.Scope != nil {
			result.scopes = validScopes(strings.Fields(*decoded.Scope))
		}
	}
	return result, nil
}
