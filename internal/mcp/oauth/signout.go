package oauth

import (
	"context"
	"net/url"

	"answerd/internal/auth"
	"answerd/internal/auth/fetch"
	"answerd/internal/help"
)

const revocationEndpoint = "the revocation endpoint"

// SignOut removes the tokens of the user id from the store, and asks the authorization server to revoke the refresh
// token (RFC 7009) if its metadata has an endpoint for that. Other processes that share the store may use their copy
// of the access token for up to ten seconds more. SignOut reports whether the user had signed in. Errors are *Error;
// the user may then still be signed in. A failed revocation is only logged.
func (c *Client) SignOut(ctx context.Context, id auth.Identity) (hadSignedIn bool, _ error) {
	tokens, err := c.acquireUser(c.principalOf(id))
	if err != nil {
		return false, asError(err)
	}
	defer c.releaseUser(tokens)
	removed, err := tokens.replaceGrant(ctx, nil)
	if err != nil {
		return false, asError(err)
	}
	if removed == nil {
		return false, nil
	}
	c.log.InfoContext(ctx, "signed out", "subject", tokens.id.Subject)
	c.revoke(ctx, removed)
	return true, nil
}

// revoke asks the authorization server to revoke the tokens of g, which neither the store nor this process uses any
// more. It does nothing if the authorization server has no revocation endpoint. It only logs an error, because the
// user is signed out in any case.
func (c *Client) revoke(ctx context.Context, g *grant) {
	if g.server.RevokeURL == "" {
		return
	}
	if err := c.requestRevocation(ctx, *g); err != nil {
		c.log.WarnContext(ctx, "the tokens of a user who signed out were not revoked", "error", err.Error(), help.SignIns.Attr())
	}
}

// requestRevocation sends a revocation request (RFC 7009 section 2.1) for g's refresh token or, if g has none, for its
// access token. It repeats the request once if the endpoint may accept the client by another authentication method
// (mayUsePost).
func (c *Client) requestRevocation(ctx context.Context, g grant) error {
	revoked, tokenType := g.refresh, "refresh_token"
	if g.refresh.IsZero() {
		revoked, tokenType = g.token.Secret, "access_token"
	}
	form := url.Values{"token": {revoked.Reveal()}, "token_type_hint": {tokenType}}
	for {
		request, err := c.newClientRequest(ctx, g.server.RevokeURL, g, form)
		if err != nil {
			return err
		}
		httpClient := c.egress.httpClientFor(g.server.RevokeURL, g.server.Configured)
		reply, err := fetch.Do(httpClient, request, revocationEndpoint, maxTokenReply)
		if err != nil {
			return err
		}
		if reply.Status/100 == 2 {
			return nil
		}
		if !g.mayUsePost(reply) {
			return &fetch.Error{Public: revocationEndpoint + " refused the request", Status: reply.Status}
		}
		g.client.method = methodPost
	}
}
