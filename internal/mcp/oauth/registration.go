package oauth

import (
	"bytes"
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

const (
	registration    = "the registration endpoint"
	maxRegistration = 64 << 10 // size of its reply, in bytes
	maxClientID     = 2 << 10  // size of a client id and of a client secret, in bytes
	// registrationMaxAge is how long a registration is used for new authorizations. It is short, because an
	// authorization server that has dropped a registration reports that to the user and not to us. See also
	// dropUnansweredClient.
	registrationMaxAge = 24 * time.Hour
)

// dropUnansweredClient drops the registration with which latest, the user's latest authorization, began, if that is at
// least half of signInTimeout ago and the user has not come back. Perhaps the authorization server no longer knows the
// client, for example because it lost its registrations in a restart. Its sign-in page then shows an error and does not
// send the browser back (RFC 6749 section 4.1.2.1), so this is the only sign of it. The authorization that begins now
// registers another client. It does nothing if latest is nil, or if the registration was replaced already.
func (u *userTokens) dropUnansweredClient(ctx context.Context, latest *storedAuthorization) {
	if latest == nil || latest.Status != statusPending || u.c.leavesTime(latest) {
		return
	}
	u.c.discovery.forgetClient(ctx, &grant{server: &latest.Server, client: u.c.restoreClient(latest.Client, &latest.Server)})
}

// registerClient registers a new client at server for scopes (RFC 7591). The client has a secret if server accepts
// one. It is a native application if its redirect URL is http, and otherwise a web application (SEP-837). Errors quote
// nothing of the reply.
//
// oauthex.RegisterClient is not used: it cannot request dpop_bound_access_tokens (RFC 9449 section 5.2), and its
// errors quote the reply without its status.
func (c *Client) registerClient(ctx context.Context, server *authServer, scopes []string) (clientIdentity, error) {
	method := registeredAuthMethod(server)
	body, err := json.Marshal(c.clientMetadata(method, scopes))
	if err != nil {
		return clientIdentity{}, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, server.RegisterURL, bytes.NewReader(body))
	if err != nil {
		return clientIdentity{}, fetchErrorf("%s cannot be requested", registration)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json")
	httpClient := c.egress.httpClientFor(server.RegisterURL, server.Configured)
	reply, err := fetch.Do(httpClient, req, registration, maxRegistration)
	if err != nil {
		return clientIdentity{}, err
	}
	if reply.Status != http.StatusCreated && reply.Status != http.StatusOK {
		code := token.ErrorCode(reply.Body) // such as invalid_redirect_uri, if it accepts only certain redirect URLs
		return clientIdentity{}, &fetch.Error{Public: registration + " refused the registration", Status: reply.Status, Code: code}
	}
	return parseRegistration(reply.Body, method, scopes)
}

// clientMetadata returns the body of a registration (RFC 7591 section 2) for a client with this authentication method
// and these scopes.
func (c *Client) clientMetadata(method string, scopes []string) map[string]any {
	applicationType := "web"
	if u, err := url.Parse(c.cfg.RedirectURL); err == nil && u.Scheme == "http" {
		applicationType = "native" // http is for the loopback address only (OpenID Connect Registration section 2)
	}
	metadata := map[string]any{
		"client_name":                "answerd",
		"application_type":           applicationType,
		"redirect_uris":              []string{c.cfg.RedirectURL},
		"grant_types":                []string{"authorization_code", "refresh_token"},
		"response_types":             []string{"code"},
		"token_endpoint_auth_method": method,
		"dpop_bound_access_tokens":   c.cfg.DPoP,
	}
	if len(scopes) > 0 {
		metadata["scope"] = strings.Join(scopes, " ")
	}
	return metadata
}

// parseRegistration decodes body, the reply to a registration (RFC 7591 section 3.2.1), and returns the client.
// requestedMethod is the authentication method in the request; the server may choose another one. scopes are those in
// the request. The client expires after registrationMaxAge, or when its secret expires if that is earlier.
func parseRegistration(body []byte, requestedMethod string, scopes []string) (clientIdentity, error) {
	var decoded struct {
		ID      string  `json:"client_id"`
		Secret  string  `json:"client_secret"`
		Expires float64 `json:"client_secret_expires_at"`
		Method  string  `json:"token_endpoint_auth_method"`
	}
	isTooLarge := func(text string) bool { return len(text) > maxClientID }
	if json.Unmarshal(body, &decoded) != nil || decoded.ID == "" || isTooLarge(decoded.ID) || isTooLarge(decoded.Secret) {
		return clientIdentity{}, fetchErrorf("%s returned no client id", registration)
	}
	client := clientIdentity{
		id:      decoded.ID,
		secret:  auth.NewSecret(decoded.Secret),
		method:  cmp.Or(decoded.Method, requestedMethod),
		expires: time.Now().Add(registrationMaxAge),
		scopes:  scopes,
	}
	if !slices.Contains([]string{methodBasic, methodPost, methodNone}, client.method) {
		return clientIdentity{}, fetchErrorf("%s requires an unsupported client authentication method", registration)
	}
	if decoded.Secret == "" {
		client.method = methodNone // a public client (RFC 7591 section 3.2.1); some servers still name another method
	}
	if decoded.Expires > 0 { // 0: the secret does not expire
		secretExpires := time.Unix(int64(min(decoded.Expires, maxUnixTime)), 0)
		if secretExpires.Before(client.expires) {
			client.expires = secretExpires
		}
	}
	return client, nil
}

const maxUnixTime = 1e11 // in the year 5138; larger values could overflow an int64
