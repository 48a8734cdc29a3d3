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
	maxRegistration = 64 << 10 // bytes of its reply
	maxClientID     = 2 << 10  // bytes
	// registrationMaxAge is how long a registration is used for new authorizations. An
	// authorization server that has dropped it tells the user and not us, so it is short.
	registrationMaxAge = 24 * time.Hour
)

// registerClient registers a client at a (RFC 7591) for these scopes, as a web application or as a native one
// (SEP-837). oauthex.RegisterClient does not fit: it cannot request
// dpop_bound_access_tokens (RFC 9449 section 5.2), and its errors quote the reply without its
// status.
func (c *Client) registerClient(ctx context.Context, server *authServer, scopes []string) (clientIdentity, error) {
	method := methodNone
	if server.authMethods == nil || slices.Contains(server.authMethods, methodBasic) || slices.Contains(server.authMethods, methodPost) {
		method = secretAuthMethod(server)
	}
	kind := "web"
	if u, err := url.Parse(c.cfg.RedirectURL); err == nil && u.Scheme == "http" {
		kind = "native" // http is for the loopback address only (OpenID Connect Registration section 2)
	}
	metadata := map[string]any{
		"client_name": "answerd", "application_type": kind, "redirect_uris": []string{c.cfg.RedirectURL},
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
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, server.registerURL, bytes.NewReader(body))
	if err != nil {
		return clientIdentity{}, fetchErrorf("%s cannot be requested", registration)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json")
	got, err := fetch.Do(c.egress.clientFor(server.registerURL, server.trusted), req, registration, maxRegistration)
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

// parseRegistration reads the registered client (RFC 7591 section 3.2.1). requested is the
// authentication method that we asked for, which the server may change. The registration is used for
// registrationMaxAge, or until its secret expires if that is earlier.
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
	if end := time.Unix(int64(min(decoded.Expires, 1e11)), 0); decoded.Expires > 0 && end.Before(client.expires) {
		client.expires = end
	}
	return client, nil
}
