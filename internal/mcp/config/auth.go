package config

import (
	"cmp"
	"net/url"
	"slices"
	"strings"

	"answerd/internal/auth"
	"answerd/internal/auth/fetch"
	"answerd/internal/auth/token"
	"answerd/internal/mcp/oauth"
)

// AuthType selects whose token answerd sends to an MCP server, and how it obtains that token.
type AuthType string

// The types of authentication.
const (
	AuthNone AuthType = "none"
	AuthJWT  AuthType = "jwt" // the service's own token, if it has one
	// AuthClientCredentials sends a token of the service that is valid only at this server
	// (RFC 6749 section 4.4, RFC 8707).
	AuthClientCredentials AuthType = "client_credentials"
	// AuthJWTBearer sends the same kind of token, which is issued for an assertion about the service, as in workload
	// identity federation (RFC 7523).
	AuthJWTBearer AuthType = "jwt_bearer"
	// AuthExchange exchanges the caller's token for one that is valid at the MCP server (RFC 8693). Each caller has
	// their own sessions.
	AuthExchange AuthType = "exchange"
	// AuthEnterprise also exchanges the caller's token, through the callers' identity provider and the MCP server's
	// authorization server (SEP-990).
	AuthEnterprise AuthType = "enterprise"
	// AuthAuthorizationCode sends a token that the caller authorized in their browser (RFC 6749
	// section 4.1). Each caller has their own sessions.
	AuthAuthorizationCode AuthType = "authorization_code"
)

// authTypes lists all types, in the same order as authTypesText.
var authTypes = []AuthType{AuthNone, AuthJWT, AuthClientCredentials, AuthJWTBearer, AuthExchange, AuthEnterprise, AuthAuthorizationCode}

// authTypesText is the error for an unknown type.
const authTypesText = "must be none, jwt, client_credentials, jwt_bearer, exchange, enterprise or authorization_code"

// HasAuthorizationServer reports whether tokens of this type are issued by an authorization server, which Grant
// describes.
func (t AuthType) HasAuthorizationServer() bool { return t != "" && t != AuthNone && t != AuthJWT }

// IsDelegated reports whether a server of this type is used on behalf of the caller, with a token for that caller.
func (t AuthType) IsDelegated() bool {
	return t == AuthExchange || t == AuthEnterprise || t == AuthAuthorizationCode
}

// NeedsCallerToken reports whether a caller must send a token of their own to use a server of this type.
func (t AuthType) NeedsCallerToken() bool { return t == AuthExchange || t == AuthEnterprise }

// parseAuth reads the field auth. A known member that is not allowed for the type is an error rather than a warning,
// because an operator who writes a client secret expects it to be used. The OAuth client that Cursor writes is ignored
// with a warning.
func parseAuth(server *Server, v jsonValue) error {
	switch {
	case v.isNull():
		return nil
	case v.raw.Kind() == '"':
		return parseBearerAuth(server, v)
	}
	fields, err := v.readObject()
	if err != nil {
		return err
	}

	// The type decides which other fields are allowed, so it is read first.
	if server.Auth, err = readAuthType(fields); err != nil {
		return err
	}
	// Cursor writes an OAuth client without a type. answerd does not use it: a sign-in must be configured with a type.
	if server.Auth == "" && slices.ContainsFunc(fields, func(f jsonValue) bool { return f.name == "CLIENT_ID" }) {
		v.reader.warn(v.errorf("the OAuth client of another host is not used; see type authorization_code").Error())
		return nil
	}
	if server.Auth == "" {
		return v.errorf("has no type")
	}

	for _, f := range fields {
		known, ok := grantFields[f.name]
		switch {
		case f.name == "type": // readAuthType has read it
		case !ok:
			f.warnUnknown()
		case !slices.Contains(known.types, server.Auth):
			return f.errorf("is not for auth type %s", server.Auth)
		default:
			if err := known.read(&server.Grant, f); err != nil {
				return err
			}
		}
	}
	return nil
}

// parseBearerAuth reads a string in the field auth. In files of FastMCP, that is a bearer token, or "oauth" if the user
// has to sign in, which is ignored with a warning.
func parseBearerAuth(server *Server, v jsonValue) error {
	token, err := v.readSecret()
	if err != nil {
		return err
	}
	if token.Reveal() == "oauth" {
		v.reader.warn(v.errorf("the sign-in of another host is not used; see type authorization_code").Error())
		return nil
	}
	server.BearerToken = token
	return nil
}

// readAuthType returns the value of the field type among the fields of auth, or "" if there is no such field.
func readAuthType(fields []jsonValue) (AuthType, error) {
	i := slices.IndexFunc(fields, func(f jsonValue) bool { return f.name == "type" })
	if i < 0 {
		return "", nil
	}
	text, err := fields[i].readString()
	if err != nil {
		return "", err
	}
	if !slices.Contains(authTypes, AuthType(text)) {
		return "", fields[i].errorf(authTypesText)
	}
	return AuthType(text), nil
}

// checkAuth returns the first mistake in the fields about tokens, or nil if there is none.
func (s *Server) checkAuth() *fieldError {
	switch {
	case s.Auth == "", s.Auth == AuthNone:
		return nil
	case !slices.Contains(authTypes, s.Auth):
		return fieldErrorf("auth.type", authTypesText)
	case !s.BearerToken.IsZero():
		return fieldErrorf("bearerToken", "cannot be set together with auth type %s", string(s.Auth))
	case !s.Auth.HasAuthorizationServer():
		return nil
	case s.Auth.IsDelegated() && s.TransportType() != TypeHTTP:
		return fieldErrorf("auth.type", "%s is for servers of type http", string(s.Auth))
	case s.Auth.IsDelegated() && s.Pin:
		// A pinned server's tools are listed every minute, when no caller's token is available.
		return fieldErrorf("pin", "cannot be set together with auth type %s", string(s.Auth))
	case s.Auth.IsDelegated() && len(s.Resources) > 0:
		// One caller's list of resources would be shown to all callers.
		return fieldErrorf("resources", "cannot be set together with auth type %s", string(s.Auth))
	}
	return s.Grant.checkGrant(s.Auth)
}

// TokenResource returns the resource for which the server's tokens are issued (RFC 8707). That is the configured one
// or, as MCP requires (basic/authorization), the server's own URI.
func (s *Server) TokenResource() string {
	if s.Grant.Resource != "" {
		return s.Grant.Resource
	}
	return s.HTTPURL()
}

// HTTPURL returns the server's URL without its query and fragment. It replaces the schemes ws and wss by http and
// https.
func (s *Server) HTTPURL() string {
	u, err := url.Parse(s.URL)
	if err != nil {
		return "" // cannot happen: checkURL has parsed it
	}
	u.RawQuery = ""
	u.ForceQuery = false
	u.Fragment = ""
	if scheme, ok := map[string]string{"ws": "http", "wss": "https"}[u.Scheme]; ok {
		u.Scheme = scheme // the token is sent in the handshake, which is an HTTP request
	}
	return u.String()
}

// Grant describes how tokens are obtained from a server's authorization server. The AuthType
// decides which fields are allowed.
type Grant struct {
	// Issuer or TokenURL names the authorization server. If both are empty, the MCP server's metadata names it (RFC
	// 9728). The issuer's own metadata must repeat Issuer exactly. AuthExchange needs one of the two.
	Issuer, TokenURL string

	// ClientID and the fields below are answerd's OAuth client there. AuthAuthorizationCode works
	// without them: if the authorization server supports that, ClientMetadataURL is the client id, and
	// otherwise answerd registers itself (RFC 7591).
	ClientID          string
	ClientSecret      auth.Secret
	PrivateKey        auth.Secret // PEM, instead of ClientSecret, for private_key_jwt
	PrivateKeyFile    string      // read at each use
	ClientMetadataURL string

	Scope    string // "": what the server asks for; for AuthExchange: none
	Audience string // for AuthExchange; "" sends none
	Resource string // RFC 8707; "": the server's URL without its query, or the one in its metadata
	DPoP     bool   // RFC 9449; not for AuthExchange

	Assertion     auth.Secret // for AuthJWTBearer
	AssertionFile string      // read at each use
	RedirectURL   string      // for AuthAuthorizationCode; "": the client's default

	// For AuthEnterprise: the callers' identity provider, and answerd's client there.
	IdPTokenURL, IdPClientID string
	IdPClientSecret          auth.Secret
	SubjectTokenType         string // of the tokens that callers present; "": an ID token
}

// grantField describes one field of auth: the types for which it is allowed, and the function that reads it into a
// Grant.
type grantField struct {
	types []AuthType
	read  func(*Grant, jsonValue) error
}

// grantFields describes each field of auth except type.
var grantFields = func() map[string]grantField {
	text := func(to func(*Grant) *string) func(*Grant, jsonValue) error {
		return func(g *Grant, v jsonValue) (err error) { *to(g), err = v.readString(); return }
	}
	secret := func(to func(*Grant) *auth.Secret) func(*Grant, jsonValue) error {
		return func(g *Grant, v jsonValue) (err error) { *to(g), err = v.readSecret(); return }
	}
	clientCredentials, jwtBearer, exchange := []AuthType{AuthClientCredentials}, []AuthType{AuthJWTBearer}, []AuthType{AuthExchange}
	enterprise, signIn := []AuthType{AuthEnterprise}, []AuthType{AuthAuthorizationCode}
	allButExchange := slices.Concat(clientCredentials, jwtBearer, enterprise, signIn)
	all := slices.Concat(allButExchange, exchange)
	return map[string]grantField{
		"issuer":            {all, text(func(g *Grant) *string { return &g.Issuer })},
		"tokenUrl":          {slices.Concat(clientCredentials, jwtBearer, exchange), text(func(g *Grant) *string { return &g.TokenURL })},
		"clientId":          {all, text(func(g *Grant) *string { return &g.ClientID })},
		"clientSecret":      {all, secret(func(g *Grant) *auth.Secret { return &g.ClientSecret })},
		"privateKey":        {allButExchange, secret(func(g *Grant) *auth.Secret { return &g.PrivateKey })},
		"privateKeyFile":    {allButExchange, text(func(g *Grant) *string { return &g.PrivateKeyFile })},
		"clientMetadataUrl": {signIn, text(func(g *Grant) *string { return &g.ClientMetadataURL })},
		"scope":             {all, text(func(g *Grant) *string { return &g.Scope })},
		"audience":          {exchange, text(func(g *Grant) *string { return &g.Audience })},
		"resource":          {all, text(func(g *Grant) *string { return &g.Resource })},
		"dpop":              {allButExchange, func(g *Grant, v jsonValue) (err error) { g.DPoP, err = v.readBool(); return }},
		"assertion":         {jwtBearer, secret(func(g *Grant) *auth.Secret { return &g.Assertion })},
		"assertionFile":     {jwtBearer, text(func(g *Grant) *string { return &g.AssertionFile })},
		"redirectUrl":       {signIn, text(func(g *Grant) *string { return &g.RedirectURL })},
		"idpTokenUrl":       {enterprise, text(func(g *Grant) *string { return &g.IdPTokenURL })},
		"idpClientId":       {enterprise, text(func(g *Grant) *string { return &g.IdPClientID })},
		"idpClientSecret":   {enterprise, secret(func(g *Grant) *auth.Secret { return &g.IdPClientSecret })},
		"subjectTokenType":  {enterprise, func(g *Grant, v jsonValue) error { return g.readSubjectTokenType(v) }},
	}
}()

// readSubjectTokenType reads the type of the tokens that callers send. The file has only the last part of the token
// type identifier (RFC 8693 section 3).
func (g *Grant) readSubjectTokenType(v jsonValue) error {
	name, err := v.readString()
	if err != nil {
		return err
	}
	if name != "id_token" && name != "access_token" {
		return v.errorf("must be id_token or access_token")
	}
	g.SubjectTokenType = "urn:ietf:params:oauth:token-type:" + name
	return nil
}

// checkGrant returns the first mistake in the grant of a server with the given type, or nil if there is none.
func (g *Grant) checkGrant(authType AuthType) *fieldError {
	if mistake := cmp.Or(g.checkClient(authType), g.checkEndpoints(authType)); mistake != nil {
		return mistake
	}
	switch {
	case authType == AuthJWTBearer && g.Assertion.IsZero() && g.AssertionFile == "":
		return fieldErrorf("auth", "needs assertion or assertionFile")
	case !g.Assertion.IsZero() && g.AssertionFile != "":
		return fieldErrorf("auth", "has both assertion and assertionFile")
	case authType == AuthEnterprise && g.IdPTokenURL == "":
		return fieldErrorf("auth.idpTokenUrl", "is missing")
	case authType == AuthEnterprise && g.IdPClientID == "":
		return fieldErrorf("auth.idpClientId", "is missing")
	}
	// RFC 8707 section 2 requires an absolute URI without a fragment.
	if g.Resource != "" {
		if u, err := url.Parse(g.Resource); err != nil || !u.IsAbs() || strings.Contains(g.Resource, "#") {
			return fieldErrorf("auth.resource", "must be an absolute URI without a fragment")
		}
	}
	return nil
}

// checkClient returns the first mistake in the fields about answerd's OAuth client, or nil if there is none.
func (g *Grant) checkClient(authType AuthType) *fieldError {
	needsSecret := slices.Contains([]AuthType{AuthClientCredentials, AuthExchange, AuthEnterprise}, authType)
	credentials := 0 // how many of the three are configured
	for _, isSet := range []bool{!g.ClientSecret.IsZero(), !g.PrivateKey.IsZero(), g.PrivateKeyFile != ""} {
		if isSet {
			credentials++
		}
	}
	switch {
	case g.ClientID == "" && (needsSecret || credentials > 0):
		return fieldErrorf("auth.clientId", "is missing")
	case credentials > 1:
		return fieldErrorf("auth", "has more than one of clientSecret, privateKey and privateKeyFile")
	case credentials == 0 && needsSecret:
		return fieldErrorf("auth.clientSecret", "is missing")
	case g.ClientID != "" && g.ClientMetadataURL != "":
		return fieldErrorf("auth", "has both clientId and clientMetadataUrl")
	}
	if !g.PrivateKey.IsZero() {
		if _, _, err := oauth.ParsePrivateKey(g.PrivateKey.Reveal()); err != nil {
			return fieldErrorf("auth.privateKey", "cannot be used: %s", err)
		}
	}
	if g.ClientMetadataURL != "" && !isClientMetadataURL(g.ClientMetadataURL) {
		return fieldErrorf("auth.clientMetadataUrl", "must be an https:// URL with a path")
	}
	return nil
}

// isClientMetadataURL reports whether rawURL can be a client id that is also the URL of the client's metadata
// (draft-ietf-oauth-client-id-metadata-document section 3).
func isClientMetadataURL(rawURL string) bool {
	u, err := url.Parse(rawURL)
	return err == nil && u.Scheme == "https" && u.Host != "" && u.User == nil && u.Fragment == "" && len(u.Path) >= 2
}

// checkEndpoints returns the first mistake in the URLs of the authorization server, the callers' identity provider and
// the redirect, or nil if there is none.
func (g *Grant) checkEndpoints(authType AuthType) *fieldError {
	switch {
	case g.Issuer != "" && g.TokenURL != "":
		return fieldErrorf("auth", "has both issuer and tokenUrl")
	case g.Issuer != "":
		if err := token.CheckTokenEndpoint(g.Issuer, ""); err != nil {
			return fieldErrorf("auth.issuer", "cannot be used: %s", err)
		}
	case g.TokenURL != "":
		if err := token.CheckTokenEndpoint("", g.TokenURL); err != nil {
			return fieldErrorf("auth.tokenUrl", "cannot be used: %s", err)
		}
	case authType == AuthExchange:
		return fieldErrorf("auth", "needs issuer or tokenUrl")
	}
	for _, endpoint := range []struct{ field, name, url string }{
		{"auth.idpTokenUrl", "the token URL", g.IdPTokenURL}, {"auth.redirectUrl", "the redirect URL", g.RedirectURL},
	} {
		if endpoint.url == "" {
			continue
		}
		if err := fetch.CheckEndpoint(endpoint.name, endpoint.url); err != nil {
			return fieldErrorf(endpoint.field, "cannot be used: %s", err)
		}
	}
	return nil
}
