package oauth

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"slices"
	"time"

	"answerd/internal/auth"
	"answerd/internal/auth/fetch"
)

const (
	registration    = "the registration endpoint"
	maxRegistration = 64 << 10 // bytes of its reply
	maxClientID     = 2 << 10  // bytes
	// registeredFor is how long a registration is used for new authorizations: an
	// authorization server that has forgotten it says so to the person, not to us.
	registeredFor = 24 * time.Hour
)

// register makes us a client of a (RFC 7591). What for is that of a server with a
// browser's help, or on the user's own machine (SEP-837). oauthex.RegisterClient does not
// fit: it cannot ask for dpop_bound_access_tokens (RFC 9449 section 5.2), and its errors
// quote the reply without its status.
func (c *Client) register(ctx context.Context, a *authority) (identity, error) {
	method := methodNone
	if a.methods == nil || slices.Contains(a.methods, methodBasic) || slices.Contains(a.methods, methodPost) {
		method = secretMethod(a)
	}
	kind := "web"
	if u, err := url.Parse(c.cfg.RedirectURL); err == nil && u.Scheme == "http" {
		kind = "native" // which http is for: loopback only (OpenID Connect Registration section 2)
	}
	body, err := json.Marshal(map[string]any{
		"client_name": "answerd", "application_type": kind, "redirect_uris": []string{c.cfg.RedirectURL},
		"grant_types": []string{"authorization_code", "refresh_token"}, "response_types": []string{"code"},
		"token_endpoint_auth_method": method, "dpop_bound_access_tokens": c.key != nil,
	})
	if err != nil {
		return identity{}, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, a.register, bytes.NewReader(body))
	if err != nil {
		return identity{}, wrong("%s cannot be asked", registration)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json")
	got, err := fetch.Do(c.egress.to(a.register, a.trusted), req, registration, maxRegistration)
	if err != nil {
		return identity{}, err
	}
	if got.Status != http.StatusCreated && got.Status != http.StatusOK {
		return identity{}, &fetch.Error{Public: registration + " refused us", Status: got.Status}
	}
	return readRegistration(got.Body, method)
}

// readRegistration reads who we have become. asked is the method that we wished for,
// which the server may change.
func readRegistration(body []byte, asked string) (identity, error) {
	var w struct {
		ID      string  `json:"client_id"`
		Secret  string  `json:"client_secret"`
		Expires float64 `json:"client_secret_expires_at"`
		Method  string  `json:"token_endpoint_auth_method"`
	}
	if json.Unmarshal(body, &w) != nil || w.ID == "" || len(w.ID) > maxClientID || len(w.Secret) > maxClientID {
		return identity{}, wrong("%s gave no client id", registration)
	}
	who := identity{id: w.ID, secret: auth.NewSecret(w.Secret), method: asked, expires: time.Now().Add(registeredFor)}
	if w.Method != "" {
		who.method = w.Method
	}
	if !slices.Contains([]string{methodBasic, methodPost, methodNone}, who.method) || who.method != methodNone && w.Secret == "" {
		return identity{}, wrong("%s wants us to authenticate in a way that is not known here", registration)
	}
	if end := time.Unix(int64(min(w.Expires, 1e11)), 0); w.Expires > 0 && end.Before(who.expires) {
		who.expires = end
	}
	return who, nil
}
