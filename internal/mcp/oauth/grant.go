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

// form is the token request of a kind that takes no person, for a principal.
func (c *Client) form(ctx context.Context, a *authority, id auth.Identity, scopes []string) (url.Values, error) {
	form := url.Values{}
	if len(scopes) > 0 {
		form.Set("scope", strings.Join(scopes, " "))
	}
	switch c.cfg.Kind {
	case ClientCredentials:
		form.Set("grant_type", "client_credentials")
		return form, nil
	case JWTBearer:
		assertion, err := c.cfg.Assertion.read("the assertion")
		if err != nil {
			return nil, err
		}
		form.Set("grant_type", grantJWTBearer)
		form.Set("assertion", assertion)
		return form, nil
	}
	assertion, err := c.identityAssertion(ctx, a, id, scopes)
	if err != nil {
		return nil, err
	}
	form.Set("grant_type", grantJWTBearer)
	form.Set("assertion", assertion)
	return form, nil
}

// identityAssertion exchanges the token that a caller brought for an ID-JAG: the
// identity provider's word, to that one authorization server, that this client may act
// for him at that one resource. oauthex.ExchangeToken does not fit: it sends the secret in
// the form, where an identity provider need not take it, and an empty code.
func (c *Client) identityAssertion(ctx context.Context, a *authority, id auth.Identity, scopes []string) (string, error) {
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
		Assertion string `json:"access_token"` // RFC 8693 section 2.2.1 calls it so, whatever it is
		Type      string `json:"issued_token_type"`
	}
	if json.Unmarshal(got.Body, &w) != nil || w.Assertion == "" || w.Type != typeIDJAG {
		return "", wrong("%s gave no identity assertion", idpEndpoint)
	}
	return w.Assertion, nil
}

// scopes are what is asked for: what the configuration says, or else the challenge, or
// else the server's metadata (MCP basic/authorization, scope selection), with what the
// principal's token has been asked for before at the same place (SEP-2350).
func (c *Client) scopes(a *authority, ch challenge, before []string) []string {
	want := cleanScopes(strings.Fields(c.cfg.Scope))
	if c.cfg.Scope == "" {
		want = ch.scopes
		if len(want) == 0 {
			want = a.wanted
		}
		want = union(before, want)
	}
	// SEP-2207: only where the authorization server says that it knows it.
	if c.cfg.Kind == AuthorizationCode && slices.Contains(a.scopes, offlineAccess) {
		want = union(want, []string{offlineAccess})
	}
	return want
}

// fetchTime bounds one fetch of a token, with everything that has to be asked first.
const fetchTime = 20 * time.Second
