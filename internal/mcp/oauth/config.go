package oauth

import (
	"log/slog"

	"answerd/internal/auth"
)

// Kind is how tokens are got.
type Kind string

// The kinds of grants.
const (
	// ClientCredentials is a token of the service's own (RFC 6749 section 4.4).
	ClientCredentials Kind = "client_credentials"
	// JWTBearer is one that an assertion about the service is given for: workload
	// identity federation (RFC 7523 section 2.1, SEP-1933).
	JWTBearer Kind = "jwt_bearer"
	// AuthorizationCode is one that each principal agrees to in his browser (OAuth 2.1
	// section 4.1).
	AuthorizationCode Kind = "authorization_code"
	// Enterprise is one that the principal's own token is exchanged for: at the identity
	// provider for an assertion (ID-JAG, RFC 8693), and with that at the server's
	// authorization server (RFC 7523, SEP-990).
	Enterprise Kind = "enterprise"
)

// Config says how the tokens for one MCP server are got. Kind and URL are required.
type Config struct {
	Kind Kind
	URL  string // of the MCP server: https, or http on loopback
	// Resource is whom tokens are for (RFC 8707); "": the server, by the name that its
	// metadata gives it.
	Resource string
	// Issuer or TokenURL, if set, says where tokens come from, and the server does not.
	Issuer, TokenURL string

	// Who we are there. Without ClientID it is ClientMetadataURL, where the
	// authorization server takes that, else it registers us (RFC 7591).
	ClientID          string
	ClientMetadataURL string
	ClientSecret      auth.Secret
	PrivateKey        Text // PEM, for private_key_jwt, instead of ClientSecret

	Scope     string // "" asks for what the server wants, with spaces between
	Assertion Text   // of JWTBearer
	// RedirectURL is where browsers come back to (AuthorizationCode).
	RedirectURL string
	// IdP is where Enterprise gets its assertions.
	IdP IdP
	// DPoP binds tokens to a key of this process (RFC 9449).
	DPoP bool

	Logger *slog.Logger // gets a debug line per token and a warning per failure; nil is silent
}

// IdP is the callers' identity provider, as whom we ask there, and what for.
type IdP struct {
	TokenURL         string
	ClientID         string
	ClientSecret     auth.Secret // zero: a public client
	SubjectTokenType string      // of the token that callers bring; "": an ID token
}
