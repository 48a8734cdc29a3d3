package oauth

import (
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

// The names of RFC 7523 section 2.1, RFC 8693 sections 2.1 and 3, and of the draft of
// identity assertion grants (draft-ietf-oauth-identity-assertion-authz-grant).
const (
	grantJWTBearer = "urn:ietf:params:oauth:grant-type:jwt-bearer"
	grantExchange  = "urn:ietf:params:oauth:grant-type:token-exchange"
	typeIDToken    = "urn:ietf:params:oauth:token-type:id_token"
	typeIDJAG      = "urn:ietf:params:oauth:token-type:id-jag"

	offlineAccess = "offline_access"
	idpEndpoint   = "the identity provider's token endpoint"
)

// grantForm returns the form of a token request by a grant that needs no sign-in, for a user.
func (c *Client) grantForm(ctx context.Context, server *authServer, id auth.Identity, scopes []string) (url.Values, error) {
	form := url.Values{}
	if len(scopes) > 0 {
		form.Set("scope", strings.Join(scopes, " "))
	}
	switch c.cfg.Kind {
	case ClientCredentials:
		form.Set("grant_type", "client_credentials")
		return form, nil
	case JWTBearer:
		assertion, err := c.cfg.Assertion.readText("the assertion")
		if err != nil {
			return nil, err
		}
		form.Set("grant_type", grantJWTBearer)
		form.Set("assertion", assertion)
		return form, nil
	}
	assertion, err := c.requestIDJAG(ctx, server, id, scopes)
	if err != nil {
		return nil, err
	}
	form.Set("grant_type", grantJWTBearer)
	form.Set("assertion", assertion)
	return form, nil
}

// requestIDJAG exchanges the token that a user sent for an ID-JAG (RFC 8693 section 2.1): the
// identity provider's assertion, for that one authorization server, that this client may act
// for the user at that one resource. oauthex.ExchangeToken does not fit: it sends the secret in
// the form, which an identity provider need not accept, and an empty code.
func (c *Client) requestIDJAG(ctx context.Context, a *authServer, id auth.Identity, scopes []string) (string, error) {
	idp := c.cfg.IdP
	form := url.Values{
		"grant_type": {grantExchange}, "requested_token_type": {typeIDJAG}, "audience": {a.issuer}, "resource": {a.resource},
		"subject_token": {id.Token.Reveal()}, "subject_token_type": {idp.SubjectTokenType},
	}
	if idp.SubjectTokenType == "" {
		form.Set("subject_token_type", typeIDToken)
	}
	if len(scopes) > 0 {
		form.Set("scope", strings.Join(scopes, " "))
	}
	if idp.ClientSecret.IsZero() {
		form.Set("client_id", idp.ClientID)
	}
	req, err := token.NewRequest(ctx, idp.TokenURL, form, idp.ClientID, idp.ClientSecret)
	if err != nil {
		return "", err
	}
	got, err := fetch.Do(c.egress.trusted, req, idpEndpoint, maxTokenReply)
	if err != nil {
		return "", err
	}
	if got.Status != http.StatusOK {
		return "", &fetch.Error{Public: idpEndpoint + " refused the request", Status: got.Status, Code: token.ErrorCode(got.Body)}
	}

	var w struct {
		Assertion string `json:"access_token"` // RFC 8693 section 2.2.1 names every issued token so
		Type      string `json:"issued_token_type"`
	}
	if json.Unmarshal(got.Body, &w) != nil || w.Assertion == "" || w.Type != typeIDJAG {
		return "", fetchErrorf("%s returned no identity assertion", idpEndpoint)
	}
	return w.Assertion, nil
}

// selectScopes returns the scopes to request: those of the configuration, or else those of the
// challenge, or else those of the server's metadata (MCP basic/authorization, scope
// selection), with those requested before for the same user at the same place (SEP-2350).
func (c *Client) selectScopes(server *authServer, ch challenge, previous []string) []string {
	want := validScopes(strings.Fields(c.cfg.Scope))
	if c.cfg.Scope == "" {
		want = ch.scopes
		if len(want) == 0 {
			want = server.wanted
		}
		want = mergeScopes(previous, want)
	}
	// SEP-2207: only if the authorization server states that it supports the scope.
	if c.cfg.Kind == AuthorizationCode && slices.Contains(server.scopes, offlineAccess) {
		want = mergeScopes(want, []string{offlineAccess})
	}
	return want
}

// fetchTimeout bounds the requests for one token, with those that must come before it.
const fetchTimeout = 20 * time.Second
