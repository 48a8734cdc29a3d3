package oauth

import (
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"

	"answerd/internal/auth"
	"answerd/internal/auth/fetch"
	"answerd/internal/auth/sealed"
	"answerd/internal/tlsconfig"
)

// Kind is the grant with which tokens are requested.
type Kind string

// The kinds of grants.
const (
	// ClientCredentials gets the service's own token (RFC 6749 section 4.4).
	ClientCredentials Kind = "client_credentials"
	// JWTBearer exchanges an assertion for the service's own token: workload identity federation (RFC 7523 section
	// 2.1, SEP-1933).
	JWTBearer Kind = "jwt_bearer"
	// AuthorizationCode gets a token per user, who signs in with a browser (OAuth 2.1 section 4.1).
	AuthorizationCode Kind = "authorization_code"
	// Enterprise exchanges the user's own token at the identity provider for an assertion (ID-JAG, RFC 8693), and the
	// assertion at the server's authorization server for a token (RFC 7523, SEP-990).
	Enterprise Kind = "enterprise"
)

// Config says how tokens for one MCP server are requested. Kind and URL are required.
type Config struct {
	Kind Kind
	Name string // the MCP server's name in the configuration; sign-ins are stored under it
	URL  string // the MCP server's URL: https, or http on loopback
	// Resource is the URI of the resource for which tokens are requested (RFC 8707); "" means the resource that the
	// server's own metadata names.
	Resource string
	// Issuer or TokenURL, if set, says where to request tokens, instead of the MCP server's metadata and challenges.
	// At most one may be set.
	Issuer, TokenURL string

	// ClientID is answerd's client at the authorization server. If it is "", AuthorizationCode uses ClientMetadataURL
	// as the client id, if that is set and the authorization server accepts it, or else registers a client (RFC 7591).
	// The other kinds then send no client id.
	ClientID          string
	ClientMetadataURL string
	ClientSecret      auth.Secret
	PrivateKey        Text // PEM, for private_key_jwt; replaces ClientSecret

	Scope     string // separated by spaces; "" requests what the server requires
	Assertion Text   // for JWTBearer
	// RedirectURL is the page that browsers come back to (AuthorizationCode).
	RedirectURL string
	// IdP is the identity provider that issues the assertions for Enterprise.
	IdP IdP
	// DPoP binds tokens to a key (RFC 9449). Each sign-in has its own key. All other tokens share one key, which ends
	// with the Client.
	DPoP bool
	// Store stores users' pending and granted sign-ins for all processes that share it. If it is nil, sign-ins end
	// with the Client.
	Store *sealed.Store
	// TLS has the root certificates and the client certificate (RFC 8705) for authorization servers. If it is nil, the
	// system's roots are used without a client certificate.
	TLS *tlsconfig.Source

	Logger *slog.Logger // logs a debug line per token and a warning per failure; nil logs nothing
}

// IdP is the users' identity provider, answerd's client there, and the type of the users' tokens.
type IdP struct {
	TokenURL         string
	ClientID         string
	ClientSecret     auth.Secret // zero: a public client
	SubjectTokenType string      // type of the token that users send; "" means an ID token
}

// maxText is the maximum size of a key or an assertion, in bytes.
const maxText = 64 << 10

// Text is a secret, from the configuration or from a file. The file is read for each use, because such files are
// replaced, for example a Kubernetes projected token.
type Text struct {
	Value auth.Secret // used if File is ""
	File  string      // the path
}

// IsZero reports whether neither Value nor File is set.
func (t Text) IsZero() bool { return t == Text{} }

// readText returns the secret. It removes line breaks at the end of a file, which may have at most maxText bytes. what
// is the secret's name in errors, which are *fetch.Error.
func (t Text) readText(what string) (string, error) {
	if t.File == "" {
		return t.Value.Reveal(), nil
	}
	f, err := os.Open(t.File)
	if err != nil {
		return "", &fetch.Error{Public: what + " cannot be read", Err: err}
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxText+1))
	text := strings.TrimRight(string(b), "\r\n")
	switch {
	case err != nil:
		return "", &fetch.Error{Public: what + " cannot be read", Err: err}
	case len(b) > maxText:
		return "", &fetch.Error{Public: what + " is too large", Err: fmt.Errorf("more than %d bytes", maxText)}
	case text == "":
		return "", &fetch.Error{Public: what + " is empty"}
	}
	return text, nil
}
