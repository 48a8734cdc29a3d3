package mcp

import (
	"net/url"
	"strings"

	"answerd/internal/auth"
)

// AuthType is whose token goes to a server.
type AuthType string

// The types of authentication.
const (
	AuthNone AuthType = "none"
	AuthJWT  AuthType = "jwt" // the service's own token, if it has one
	// AuthClientCredentials is a token of the service's own that is good at this
	// server alone (RFC 6749 section 4.4, RFC 8707).
	AuthClientCredentials AuthType = "client_credentials"
	// AuthExchange is a token on behalf of the caller, which the one that he brought
	// is exchanged for (RFC 8693). The server's sessions are his, too.
	AuthExchange AuthType = "exchange"
)

// TokenGrant is how the tokens of AuthClientCredentials and AuthExchange are got.
type TokenGrant struct {
	// Issuer or TokenURL, and never the server, says where. Issuer's own metadata
	// must name it letter by letter.
	Issuer, TokenURL string
	ClientID         string
	ClientSecret     auth.Secret
	Scope            string // "" asks for none
	Audience         string // of AuthExchange; "" names none
	Resource         string // RFC 8707; "": the server's URL without its query
}

// granted reports whether t is one of the types that a TokenGrant belongs to.
func (t AuthType) granted() bool { return t == AuthClientCredentials || t == AuthExchange }

// parseAuth reads whose token the server gets.
func parseAuth(s *ServerConfig, v value) error {
	fields, err := v.object()
	if err != nil {
		return err
	}
	// The type says which other fields there may be, wherever it stands.
	for _, f := range fields {
		if f.name != "type" {
			continue
		}
		t, err := f.text()
		if err != nil {
			return err
		}
		switch s.Auth = AuthType(t); s.Auth {
		case AuthNone, AuthJWT, AuthClientCredentials, AuthExchange:
		default:
			return f.errorf("must be none, jwt, client_credentials or exchange")
		}
	}
	for _, f := range fields {
		set := grantSetters[f.name]
		switch {
		case f.name == "type":
		case set == nil, !s.Auth.granted(), f.name == "audience" && s.Auth != AuthExchange:
			return f.unknown()
		default:
			if err := set(&s.Grant, f); err != nil {
				return err
			}
		}
	}
	if s.Auth == "" {
		return v.errorf("has no type")
	}
	return nil
}

var grantSetters = map[string]func(*TokenGrant, value) error{
	"issuer":       func(g *TokenGrant, v value) (err error) { g.Issuer, err = v.text(); return },
	"tokenUrl":     func(g *TokenGrant, v value) (err error) { g.TokenURL, err = v.text(); return },
	"clientId":     func(g *TokenGrant, v value) (err error) { g.ClientID, err = v.text(); return },
	"clientSecret": func(g *TokenGrant, v value) (err error) { g.ClientSecret, err = v.secret(); return },
	"scope":        func(g *TokenGrant, v value) (err error) { g.Scope, err = v.text(); return },
	"audience":     func(g *TokenGrant, v value) (err error) { g.Audience, err = v.text(); return },
	"resource":     func(g *TokenGrant, v value) (err error) { g.Resource, err = v.text(); return },
}

// checkAuth is what is wrong with whose token the server gets.
func (s *ServerConfig) checkAuth() *fieldError {
	switch s.Auth {
	case "", AuthNone:
		return nil
	case AuthJWT, AuthClientCredentials, AuthExchange:
	default:
		return wrong("auth.type", "must be none, jwt, client_credentials or exchange")
	}
	if !s.BearerToken.IsZero() {
		return wrong("bearerToken", "cannot be set together with auth type %s", string(s.Auth))
	}
	if !s.Auth.granted() {
		return nil
	}
	switch {
	case s.Auth == AuthExchange && s.kind() != TypeHTTP:
		return wrong("auth.type", "exchange is for servers of type http")
	case s.Auth == AuthExchange && s.Pin:
		// A pinned server is listed every minute, with nobody's token.
		return wrong("pin", "cannot be set together with auth type exchange")
	case s.Auth == AuthExchange && len(s.Resources) > 0:
		// The list of one caller's would be shown to all.
		return wrong("resources", "cannot be set together with auth type exchange")
	}
	return s.Grant.check()
}

func (g *TokenGrant) check() *fieldError {
	switch {
	case g.Issuer == "" && g.TokenURL == "":
		return wrong("auth", "needs issuer or tokenUrl")
	case g.Issuer != "" && g.TokenURL != "":
		return wrong("auth", "has both issuer and tokenUrl")
	case g.ClientID == "":
		return wrong("auth.clientId", "is missing")
	case g.ClientSecret.IsZero():
		return wrong("auth.clientSecret", "is missing")
	}
	if err := auth.CheckTokenEndpoint(g.Issuer, g.TokenURL); err != nil {
		field := "auth.issuer"
		if g.Issuer == "" {
			field = "auth.tokenUrl"
		}
		return wrong(field, "cannot be used: %s", err)
	}
	// RFC 8707 section 2: an absolute URI without a fragment.
	if g.Resource != "" {
		if u, err := url.Parse(g.Resource); err != nil || !u.IsAbs() || strings.Contains(g.Resource, "#") {
			return wrong("auth.resource", "must be an absolute URI without a fragment")
		}
	}
	return nil
}

// resource is whom the server's tokens are for: MCP wants the server's own URI where
// the configuration doesn't name another (basic/authorization).
func (s *ServerConfig) resource() string {
	if s.Grant.Resource != "" {
		return s.Grant.Resource
	}
	u, err := url.Parse(s.URL)
	if err != nil {
		return "" // checkURL has refused it
	}
	u.RawQuery, u.ForceQuery, u.Fragment = "", false, ""
	if scheme, ok := map[string]string{"ws": "http", "wss": "https"}[u.Scheme]; ok {
		u.Scheme = scheme // the handshake's, which is what carries the token
	}
	return u.String()
}
