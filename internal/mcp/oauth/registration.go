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
)

const (
	registration    = "the registration endpoint"
	maxRegistration = 64 << 10 // size of its reply, in bytes
	maxClientID     = 2 << 10  // size of a client id and of a client secret, in bytes
	// registrationMaxAge is how long a registration is used for new authorizations. It is short, because an
	// authorization server that has dropped a registration reports that to the user and not to us.
	registrationMaxAge = 24 * time.Hour
)

// registerClient registers a new client at server for scopes (RFC 7591). The client has a secret if server accepts
// one. It is a native application if its redirect URL is http, and otherwise a web application (SEP-837). Errors quote
// nothing of the reply.
//
// oauthex.RegisterClient is not used: it cannot request dpop_bound_access_tokens (RFC 9449 section 5.2), and its
// errors quote the reply without its status.
func (c *Client) registerClient(ctx context.Context, server *authServer, scopes []string) (clientIdentity, error) {
	method := registeredAuthMethod(server)
	applicationType := "web"
	if u, err := url.Parse(c.cfg.RedirectURL); err == nil && u.Scheme == "http" {
		applicationType = "native" // http is for the loopback address only (OpenID Connect Registration section 2)
	}
	metadata := map[string]any{
		"client_name": "answerd", "application_type": applicationType, "redirect_uris": []string{c.cfg.RedirectURL},
		"grant_types": []string{"authorization_code", "refresh_token"}, "response_types": []string{"code"},
		"token_endpoint_auth_method": method, "dpop_bound_access_tokens": c.cfg.DPoP,
	}
	if len(scopes) > 0 {
		metadata["scope"] = strings.Join(scopes, " ")
	}
	body, err := json.Marshal(metadata)
	if err != nil {
		return clientIdentity{}, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, server.RegisterURL, bytes.NewReader(body))
	if err != nil {
		return clientIdentity{}, fetchErrorf("%s cannot be requested", registration)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json")
	got, err := fetch.Do(c.egress.httpClientFor(server.RegisterURL, server.Configured), req, registration, maxRegistration)
	if err != nil {
		return clientIdentity{}, err
	}
	if got.Status != http.StatusCreated && got.Status != http.StatusOK {
		return clientIdentity{}, &fetch.Error{Public: registration + " refused the registration", Status: got.Status}
	}
	client, err := parseRegistration(got.Body, method)
	client.scopes = scopes
	return client, err
}

// parseRegistration decodes body, the reply to a registration (RFC 7591 section 3.2.1), and returns the client without
// its scopes. requested is the authentication method in the request; the server may choose another one. The client
// expires after registrationMaxAge, or when its secret expires if that is earlier.
func parseRegistration(body []byte, requested string) (clientIdentity, error) {
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
		method:  cmp.Or(decoded.Method, requested),
		expires: time.Now().Add(registrationMaxAge),
	}
	isKnown := slices.Contains([]string{methodBasic, methodPost, methodNone}, client.method)
	lacksSecret := client.method != methodNone && decoded.Secret == ""
	if !isKnown || lacksSecret {
		return clientIdentity{}, fetchErrorf("%s requires an unsupported client authentication method", registration)
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
