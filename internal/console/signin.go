package console

import (
	"context"
	"encoding/json"
	"net/url"
	"strings"
	"time"
)

// signInTimeout bounds how long a request for the page waits for Options.SignIn.
const signInTimeout = 2 * time.Second

// SignIn describes how the page gets a token with an authorization code and PKCE (RFC 6749 section 4.1,
// RFC 7636). The page's own URL is the redirect URI.
type SignIn struct {
	Issuer                string `json:"issuer"`
	ClientID              string `json:"client_id"` // a public client (RFC 6749 section 2.1)
	AuthorizationEndpoint string `json:"authorization_endpoint"`
	TokenEndpoint         string `json:"token_endpoint"`
	EndSessionEndpoint    string `json:"end_session_endpoint,omitempty"`
	// IssuerInResponse means that the page must refuse an authorization response without the parameter iss (RFC 9207).
	IssuerInResponse bool   `json:"iss_in_response"`
	Scope            string `json:"scope"`
	Audience         string `json:"audience"` // the audience that tokens must have
}

// signInProblem takes the place of a SignIn if that is unknown: the page shows its text. The log has the reason.
const signInProblem = `{"problem":"You cannot sign in at this time, because the service cannot read where. Load the page again in a while, or use a token."}`

// withSignIn returns a copy of the page f that contains the result of signIn, and the origin of the token endpoint, to
// which the page must be able to send requests. If signIn fails or the token endpoint is not a usable URL, the page
// contains signInProblem, and tokenOrigin is "".
func withSignIn(ctx context.Context, signIn func(context.Context) (SignIn, error), f file) (_ file, tokenOrigin string) {
	ctx, cancel := context.WithTimeout(ctx, signInTimeout)
	defer cancel()
	configuration := []byte(signInProblem)
	if s, err := signIn(ctx); err == nil {
		if origin, ok := originOf(s.TokenEndpoint); ok {
			tokenOrigin = origin
			configuration, _ = json.Marshal(s) // strings and a bool: it cannot fail
		}
	}
	return newFile(setContent(f.content, signInPlaceholder, string(configuration)), f.contentType), tokenOrigin
}

// originOf returns the origin of an http or https URL, in the form of a host-source of CSP. ok is false for another
// URL, and for a host with a character that has a meaning in CSP, such as a semicolon, which would end the directive.
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
