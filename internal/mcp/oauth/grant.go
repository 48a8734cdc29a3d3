package oauth

import (
	"cmp"
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"answerd/internal/auth"
	"answerd/internal/auth/fetch"
	"answerd/internal/auth/token"
)

// Names from RFC 7523 section 2.1, RFC 8693 sections 2.1 and 3, and the draft for identity assertion grants
// (draft-ietf-oauth-identity-assertion-authz-grant).
const (
	grantJWTBearer = "urn:ietf:params:oauth:grant-type:jwt-bearer"
	grantExchange  = "urn:ietf:params:oauth:grant-type:token-exchange"
	typeIDToken    = "urn:ietf:params:oauth:token-type:id_token"
	typeIDJAG      = "urn:ietf:params:oauth:token-type:id-jag"

	offlineAccess = "offline_access"
	idpEndpoint   = "the identity provider's token endpoint"
)

// grantForm returns the parameters of a token request to g.server, for the user id and with g.scopes. It is for all
// kinds of grants except AuthorizationCode. For JWTBearer it reads the assertion, and for Enterprise it requests one
// from the identity provider.
func (c *Client) grantForm(ctx context.Context, g *grant, id auth.Identity) (url.Values, error) {
	form := url.Values{}
	if len(g.scopes) > 0 {
		form.Set("scope", strings.Join(g.scopes, " "))
	}
	var assertion string
	var err error
	switch c.cfg.Kind {
	case ClientCredentials:
		form.Set("grant_type", "client_credentials")
		return form, nil
	case JWTBearer:
		assertion, err = c.cfg.Assertion.readText("the assertion")
	default: // Enterprise
		assertion, err = c.requestIDJAG(ctx, g, id.Token)
	}
	if err != nil {
		return nil, err
	}
	form.Set("grant_type", grantJWTBearer)
	form.Set("assertion", assertion)
	return form, nil
}

// requestIDJAG exchanges userToken, the user's own token, for an ID-JAG at the identity provider (RFC 8693 section
// 2.1). An ID-JAG is an assertion for one authorization server, that of g, that this client may act for the user at one
// resource with g's scopes. Errors quote nothing of the reply.
//
// oauthex.ExchangeToken is not used: it sends the secret in the form, which an identity provider need not accept, and
// an empty code.
func (c *Client) requestIDJAG(ctx context.Context, g *grant, userToken auth.Secret) (string, error) {
	idp := c.cfg.IdP
	form := url.Values{
		"grant_type":           {grantExchange},
		"requested_token_type": {typeIDJAG},
		"audience":             {g.server.Issuer},
		"resource":             {g.server.Resource},
		"subject_token":        {userToken.Reveal()},
		"subject_token_type":   {cmp.Or(idp.SubjectTokenType, typeIDToken)},
	}
	if len(g.scopes) > 0 {
		form.Set("scope", strings.Join(g.scopes, " "))
	}
	if idp.ClientSecret.IsZero() {
		form.Set("client_id", idp.ClientID)
	}
	req, err := token.NewRequest(ctx, idp.TokenURL, form, idp.ClientID, idp.ClientSecret)
	if err != nil {
		return "", err
	}
	reply, err := fetch.Do(c.egress.configured, req, idpEndpoint, maxTokenReply)
	if err != nil {
		return "", err
	}
	if reply.Status != http.StatusOK {
		code := token.ErrorCode(reply.Body)
		return "", &fetch.Error{Public: idpEndpoint + " refused the request", Status: reply.Status, Code: code}
	}

	var decoded struct {
		Assertion string `json:"access_token"` // every issued token has this name (RFC 8693 section 2.2.1)
		Type      string `json:"issued_token_type"`
	}
	if json.Unmarshal(reply.Body, &decoded) != nil || decoded.Assertion == "" || decoded.Type != typeIDJAG {
		return "", fetchErrorf("%s returned no identity assertion", idpEndpoint)
	}
	return decoded.Assertion, nil
}

// selectScopes returns the scopes to request. If the configuration has scopes, it uses only those. Otherwise it uses
// the scopes of ch or, if ch has none, those of the MCP server's metadata (MCP basic/authorization, scope selection),
// and adds previous, the scopes requested before for the same user at the same server (SEP-2350). For a sign-in it
// also adds offline_access, if the authorization server states that it supports that (SEP-2207).
func (c *Client) selectScopes(server *authServer, ch challenge, previous []string) []string {
	scopes := validScopes(strings.Fields(c.cfg.Scope))
	if c.cfg.Scope == "" {
		required := ch.scopes
		if len(required) == 0 {
			required = server.ResourceScopes
		}
		scopes = mergeScopes(previous, required)
	}
	if c.cfg.Kind == AuthorizationCode && slices.Contains(server.Scopes, offlineAccess) {
		scopes = mergeScopes(scopes, []string{offlineAccess})
	}
	return scopes
}

// fetchTimeout is the time limit for all requests for one token, including discovery and the requests to an identity
// provider.
const fetchTimeout = 20 * time.Second
