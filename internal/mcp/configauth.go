package mcp

import (
	"net/url"
	"slices"
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
	// AuthJWTBearer is the same, given for an assertion about the service: workload
	// identity federation (RFC 7523).
	AuthJWTBearer AuthType = "jwt_bearer"
	// AuthExchange is a token on behalf of the caller, which the one that he brought
	// is exchanged for (RFC 8693). The server's sessions are his, too.
	AuthExchange AuthType = "exchange"
	// AuthEnterprise is the same, by way of the callers' identity provider and of the
	// server's own authorization server (SEP-990).
	AuthEnterprise AuthType = "enterprise"
	// AuthAuthorizationCode is a token that the caller agrees to in his browser. The
	// server's sessions are his, too.
	AuthAuthorizationCode AuthType = "authorization_code"
)

// authTypes are all of them, as error messages list them.
var authTypes = []AuthType{AuthNone, AuthJWT, AuthClientCredentials, AuthJWTBearer, AuthExchange, AuthEnterprise, AuthAuthorizationCode}

const authTypesText = "must be none, jwt, client_credentials, jwt_bearer, exchange, enterprise or authorization_code"

// granted reports whether t is one of the types that a TokenGrant belongs to.
func (t AuthType) granted() bool { return t != "" && t != AuthNone && t != AuthJWT }

// OfCallers reports whether a server of that type is used on behalf of its callers.
func (t AuthType) OfCallers() bool {
	return t == AuthExchange || t == AuthEnterprise || t == AuthAuthorizationCode
}

// TakesToken reports whether callers of such a server must have brought a token.
func (t AuthType) TakesToken() bool { return t == AuthExchange || t == AuthEnterprise }

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
		if s.Auth = AuthType(t); !slices.Contains(authTypes, s.Auth) {
			return f.errorf(authTypesText)
		}
	}
	for _, f := range fields {
		known := grantFields[f.name]
		switch {
		case f.name == "type":
		case !slices.Contains(known.of, s.Auth):
			return f.unknown()
		default:
			if err := known.set(&s.Grant, f); err != nil {
				return err
			}
		}
	}
	if s.Auth == "" {
		return v.errorf("has no type")
	}
	return nil
}

// checkAuth is what is wrong with whose token the server gets.
func (s *ServerConfig) checkAuth() *fieldError {
	switch {
	case s.Auth == "", s.Auth == AuthNone:
		return nil
	case !slices.Contains(authTypes, s.Auth):
		return wrong("auth.type", authTypesText)
	case !s.BearerToken.IsZero():
		return wrong("bearerToken", "cannot be set together with auth type %s", string(s.Auth))
	case !s.Auth.granted():
		return nil
	case s.Auth.OfCallers() && s.kind() != TypeHTTP:
		return wrong("auth.type", "%s is for servers of type http", string(s.Auth))
	case s.Auth.OfCallers() && s.Pin:
		// A pinned server is listed every minute, with nobody's token.
		return wrong("pin", "cannot be set together with auth type %s", string(s.Auth))
	case s.Auth.OfCallers() && len(s.Resources) > 0:
		// The list of one caller's would be shown to all.
		return wrong("resources", "cannot be set together with auth type %s", string(s.Auth))
	}
	return s.Grant.check(s.Auth)
}

// resource is whom the server's tokens are for: MCP wants the server's own URI where
// the configuration doesn't name another (basic/authorization).
func (s *ServerConfig) resource() string {
	if s.Grant.Resource != "" {
		return s.Grant.Resource
	}
	return s.httpURL()
}

// httpURL is the server's address without its query, of scheme http or https.
func (s *ServerConfig) httpURL() string {
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
