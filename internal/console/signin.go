package console

import (
	"context"
	"encoding/json"
	"net/url"
	"strings"
	"time"
)

// signInTimeout is how long a request for the page waits for Options.SignIn.
const signInTimeout = 2 * time.Second

// SignIn describes how the page gets a token with an authorization code and PKCE (RFC 6749 section 4.1, RFC 7636). The
// redirect URI is the page's own URL.
type SignIn struct {
	Issuer                string `json:"issuer"`
	ClientID              string `json:"client_id"` // a public client (RFC 6749 section 2.1)
	AuthorizationEndpoint string `json:"authorization_endpoint"`
	TokenEndpoint         string `json:"token_endpoint"`
	EndSessionEndpoint    string `json:"end_session_endpoint,omitempty"`
	// IssuerInResponse means that the page must reject an authorization response without the parameter iss (RFC 9207).
	IssuerInResponse bool   `json:"iss_in_response"`
	Scope            string `json:"scope"`
	Audience         string `json:"audience"` // required in tokens
}

// signInProblem replaces the SignIn if it is not known. The page shows its text. The reason is in the log.
const signInProblem = `{"problem":"You cannot sign in at this time, because the service cannot read where. Load the page again in a while, or use a token."}`

// withSignIn returns a copy of the page f with the result of signIn in it. tokenOrigin is the token endpoint's origin,
// to which the page must be allowed to send requests. If signIn fails, or if the token endpoint is not a usable URL,
// the page gets signInProblem instead, and tokenOrigin is "".
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
	content := setContent(f.content, signInPlaceholder, string(configuration))
	return newFile(content, f.contentType), tokenOrigin
}

// originOf returns the origin of an http or https URL as a host-source of CSP. ok is false for any other URL. It is
// also false for a host with a character that has a meaning in CSP, such as a semicolon, which would end the directive.
func originOf(rawURL string) (origin string, ok bool) {
	const hostCharacters = "abcdefghijklmnopqrstuvwxyz0123456789.-:[]"
	u, err := url.Parse(rawURL)
	if err != nil {
		return "", false
	}
	host := strings.ToLower(u.Host)
	isHTTP := u.Scheme == "https" || u.Scheme == "http"
	hasOtherCharacter := strings.Trim(host, hostCharacters) != ""
	if !isHTTP || host == "" || hasOtherCharacter {
		return "", false
	}
	return u.Scheme + "://" + host, true
}
