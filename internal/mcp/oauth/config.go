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

// Kind is the grant by which tokens are requested.
type Kind string

// The kinds of grants.
const (
	// ClientCredentials gets the service's own token (RFC 6749 section 4.4).
	ClientCredentials Kind = "client_credentials"
	// JWTBearer gets the service's own token for an assertion: workload identity federation
	// (RFC 7523 section 2.1, SEP-1933).
	JWTBearer Kind = "jwt_bearer"
	// AuthorizationCode gets a token per user, who signs in with a browser (OAuth 2.1 section 4.1).
	AuthorizationCode Kind = "authorization_code"
	// Enterprise exchanges the user's own token: at the identity provider for an assertion
	// (ID-JAG, RFC 8693), and that at the server's authorization server (RFC 7523, SEP-990).
	Enterprise Kind = "enterprise"
)

// Config says how tokens for one MCP server are requested. Kind and URL are required.
type Config struct {
	Kind Kind
	Name string // of the MCP server in the configuration; sign-ins are stored for it
	URL  string // of the MCP server: https, or http on loopback
	// Resource is the URI of the server that tokens are for (RFC 8707); "" means the
	// resource that the server's own metadata names.
	Resource string
	// Issuer or TokenURL, if set, says where to request tokens. The MCP server's metadata and challenges then do not
	// decide it. At most one may be set.
	Issuer, TokenURL string

	// ClientID is our client at the authorization server. If it is "", AuthorizationCode uses ClientMetadataURL as
	// the client id if the authorization server accepts that, or else registers a client (RFC 7591). The other kinds
	// then send no client id.
	ClientID          string
	ClientMetadataURL string
	ClientSecret      auth.Secret
	PrivateKey        Text // PEM, for private_key_jwt, instead of ClientSecret

	Scope     string // separated by spaces; "" requests what the server requires
	Assertion Text   // of JWTBearer
	// RedirectURL is the page that browsers come back to (AuthorizationCode).
	RedirectURL string
	// IdP is the identity provider that gives the assertions of Enterprise.
	IdP IdP
	// DPoP binds tokens to a key (RFC 9449): each sign-in to a key of its own, and all other tokens to one key that
	// ends with the Client.
	DPoP bool
	// Store keeps sign-ins of users, pending and granted, for all processes that share it. nil means
	// that they end with the Client.
	Store *sealed.Store
	// TLS has the roots and the client certificate (RFC 8705) for authorization servers; nil means
	// the system's roots alone.
	TLS *tlsconfig.Source

	Logger *slog.Logger // gets a debug line per token and a warning per failure; nil is silent
}

// IdP is the callers' identity provider, our client there, and the type of callers' tokens.
type IdP struct {
	TokenURL         string
	ClientID         string
	ClientSecret     auth.Secret // zero: a public client
	SubjectTokenType string      // of the token that callers send; "" means an ID token
}

// maxText bounds a key or an assertion, in bytes.
const maxText = 64 << 10

// Text is a secret in the configuration or in a file. The file is read for each use, because
// such files are replaced: a Kubernetes projected token, for example.
type Text struct {
	Value auth.Secret // used if File is ""
	File  string      // the path
}

// IsZero reports whether neither Value nor File is set.
func (t Text) IsZero() bool { return t == Text{} }

// readText returns the secret. From a file of at most maxText bytes it removes the line ends at the end. what names
// the secret in errors, which are *fetch.Error.
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
