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

// requestGrant sends form to the token endpoint of a, as client, for a token of a.resource (RFC
// 8707 section 2.2) that is bound to key; nil for a bearer token.
func (c *Client) requestGrant(ctx context.Context, a *authServer, client clientIdentity, key *proofKey, form url.Values) (tokenReply, error) {
	started := time.Now()
	if a.resource != "" {
		form.Set("resource", a.resource)
	}
	reply, err := c.postTokenRequest(ctx, a, client, key, form)
	if err != nil {
		return tokenReply{}, err
	}
	return parseTokenReply(reply, started, key)
}

// postTokenRequest sends a token request, and once more if the endpoint requires a nonce in the
// proof (RFC 9449 section 8).
func (c *Client) postTokenRequest(ctx context.Context, a *authServer, client clientIdentity, key *proofKey, form url.Values) (fetch.Reply, error) {
	for retried := false; ; retried = true {
		req, nonce, err := c.newTokenRequest(ctx, a, client, key, form)
		if err != nil {
			return fetch.Reply{}, err
		}
		got, err := fetch.Do(c.egress.clientFor(a.tokenURL, a.trusted), req, tokenEndpoint, maxTokenReply)
		if err != nil {
			return fetch.Reply{}, err
		}
		newNonce := key != nil && c.nonces.save(req.URL, got.Header, nonce)
		switch {
		case got.Status == http.StatusOK:
			return got, nil
		case !retried && newNonce && requiresNonce(got):
			continue
		}
		return fetch.Reply{}, &fetch.Error{Public: tokenEndpoint + " refused the request", Status: got.Status, Code: token.ErrorCode(got.Body)}
	}
}

// newTokenRequest returns form as an authenticated token request of client, with a proof of its own, and the
// nonce in that; "" for none.
func (c *Client) newTokenRequest(ctx context.Context, a *authServer, client clientIdentity, key *proofKey, form url.Values) (_ *http.Request, nonce string, _ error) {
	req, err := c.newClientRequest(ctx, a.tokenURL, a, client, form)
	if err != nil || key == nil {
		return req, "", err
	}
	nonce = c.nonces.get(req.URL)
	if err := key.addProof(req, auth.Secret{}, nonce); err != nil {
		return nil, "", fetchErrorf("the proof of the token request cannot be signed")
	}
	return req, nonce, nil
}

// newClientRequest returns form as an authenticated request of client to an endpoint of a.
func (c *Client) newClientRequest(ctx context.Context, endpoint string, a *authServer, client clientIdentity, form url.Values) (*http.Request, error) {
	form = maps.Clone(form)
	if err := c.addClientAuth(form, a, client); err != nil {
		return nil, err
	}
	var secret auth.Secret
	if client.method == methodBasic {
		secret = client.secret
	}
	return token.NewRequest(ctx, endpoint, form, client.id, secret)
}

// parseTokenReply reads a successful reply to a request that was sent at the time requested, with a
// proof of key.
func parseTokenReply(reply fetch.Reply, requested time.Time, key *proofKey) (tokenReply, error) {
	kind := "Bearer"
	if key != nil {
		kind = "DPoP"
	}
	fresh, err := token.ParseReply(reply, requested, kind)
	if err != nil {
		return tokenReply{}, err
	}
	g := tokenReply{Token: fresh}
	var decoded struct {
		Refresh string  `json:"refresh_token"`
		Scope   *string `json:"scope"`
	}
	// Malformed optional members are ignored, since there is a token.
	if json.Unmarshal(reply.Body, &decoded) == nil {
		if len(decoded.Refresh) <= maxRefresh {
			g.refresh = auth.NewSecret(decoded.Refresh)
		}
		if decoded.Scope != nil {
			g.scopes = validScopes(strings.Fields(*decoded.Scope))
		}
	}
	return g, nil
}
