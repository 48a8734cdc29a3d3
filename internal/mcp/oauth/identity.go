package oauth

import (
	"net/url"
	"slices"
	"time"

	"answerd/internal/auth"
)

// The methods of client authentication (RFC 7591 section 2, OpenID Connect Core section 9).
const (
	methodBasic = "client_secret_basic"
	methodPost  = "client_secret_post"
	methodNone  = "none"
	methodKey   = "private_key_jwt"
)

// identity is who we are at one authorization server. It is sent to that one only.
type identity struct {
	id      string
	secret  auth.Secret
	method  string
	expires time.Time // from here on another one is registered; zero: it is configured
}

// configured is the client of the configuration.
func (c *Client) configured(a *authority) identity {
	who := identity{id: c.cfg.ClientID, secret: c.cfg.ClientSecret}
	switch {
	case !c.cfg.PrivateKey.IsZero():
		who.method = methodKey
	case who.secret.IsZero():
		who.method = methodNone
	default:
		who.method = secretMethod(a)
	}
	return who
}

// secretMethod is how a client secret is shown: in the header unless a takes it in the
// form only (RFC 8414 section 2: basic where it doesn't say).
func secretMethod(a *authority) string {
	if slices.Contains(a.methods, methodPost) && !slices.Contains(a.methods, methodBasic) {
		return methodPost
	}
	return methodBasic
}

// sign makes a token request who's, as far as the form can.
func (c *Client) sign(form url.Values, a *authority, who identity) error {
	switch who.method {
	case methodBasic:
		return nil // in the header
	case methodPost:
		form.Set("client_secret", who.secret.Reveal())
	case methodKey:
		assertion, err := c.assertion(a, who)
		if err != nil {
			return err
		}
		form.Set("client_assertion_type", assertionType)
		form.Set("client_assertion", assertion)
	}
	if who.id != "" {
		form.Set("client_id", who.id)
	}
	return nil
}
