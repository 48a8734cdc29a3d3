package console

import (
	"context"
	"encoding/json"
	"net/url"
	"strings"
	"time"
)

// signInWait bounds how long a request for the page waits for SignIn.
const signInWait = 2 * time.Second

// SignIn describes how the page gets a token with an authorization code and PKCE (RFC 6749 section 4.1,
// RFC 7636). The page's own URL is the redirect URI.
type SignIn struct {
	Issuer                string `json:"issuer"`
	ClientID              string `json:"client_id"` // of a public client
	AuthorizationEndpoint string `json:"authorization_endpoint"`
	TokenEndpoint         string `json:"token_endpoint"`
	EndSessionEndpoint    string `json:"end_session_endpoint,omitempty"`
	// IssuerInResponse means that authorization responses without iss are not the issuer's (RFC 9207).
	IssuerInResponse bool   `json:"iss_in_response"`
	Scope            string `json:"scope"`
	Audience         string `json:"audience"` // that the tokens must have
}

// noEndpoints is what the page says if SignIn has failed. The log has the reason.
const noEndpoints = `{"problem":"You cannot sign in at this time, because the service cannot read where. Load the page again in a while, or use a token."}`

// withSignIn returns the page with what it needs to sign in, and the origin that it must be able to
// send requests to.
func withSignIn(ctx context.Context, signIn func(context.Context) (SignIn, error), f file) (_ file, tokenOrigin string) {
	ctx, cancel := context.WithTimeout(ctx, signInWait)
	defer cancel()
	configuration := []byte(noEndpoints)
	if s, err := signIn(ctx); err == nil {
		if origin, ok := originOf(s.TokenEndpoint); ok {
			tokenOrigin = origin
			configuration, _ = json.Marshal(s) // strings and a bool: it cannot fail
		}
	}
	return newFile(setContent(f.content, noSignIn, string(configuration)), f.contentType), tokenOrigin
}

// originOf returns the origin of a URL as a host-source of CSP. A host may have characters, such as a
// semicolon, that would end the directive.
func originOf(rawURL string) (origin string, ok bool) {
	u, err := url.Parse(rawURL)
	if err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Host == "" {
		return "", false
	}
	host := strings.ToLower(u.Host)
	if strings.Trim(host, "abcdefghijklmnopqrstuvwxyz0123456789.-:[]") != "" {
		return "", false
	}
	return u.Scheme + "://" + host, true
}
