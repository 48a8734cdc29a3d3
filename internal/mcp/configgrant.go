package mcp

import (
	"net/url"
	"strings"

	"answerd/internal/auth"
	"answerd/internal/mcp/oauth"
)

// TokenGrant is how the tokens of a server are got that has an authorization server.
// Which fields there may be depends on the AuthType.
type TokenGrant struct {
	// Issuer or TokenURL, if set, says where, and then never the server. Issuer's own
	// metadata must name it letter by letter. AuthExchange needs one of them; without
	// any, the server's metadata says where (RFC 9728).
	Issuer, TokenURL string

	// Who we are there. AuthAuthorizationCode works without: ClientMetadataURL is our
	// client id where the authorization server takes that, or it registers us.
	ClientID          string
	ClientSecret      auth.Secret
	PrivateKey        auth.Secret // PEM, instead of ClientSecret: private_key_jwt
	PrivateKeyFile    string      // read each time
	ClientMetadataURL string

	Scope    string // "": what the server asks for; of AuthExchange: none
	Audience string // of AuthExchange; "" names none
	Resource string // RFC 8707; "": the server's URL without its query, or what its metadata calls it
	DPoP     bool   // RFC 9449; not of AuthExchange

	Assertion     auth.Secret // of AuthJWTBearer
	AssertionFile string      // read each time
	RedirectURL   string      // of AuthAuthorizationCode; "": Options.RedirectURL

	// Of AuthEnterprise: the callers' identity provider, and who we are there.
	IdPTokenURL, IdPClientID string
	IdPClientSecret          auth.Secret
	SubjectTokenType         string // of what callers bring; "": an ID token
}

// grantField reads one field of auth, which servers of these types may have.
type grantField struct {
	of  []AuthType
	set func(*TokenGrant, value) error
}

var grantFields = func() map[string]grantField {
	text := func(to func(*TokenGrant) *string) func(*TokenGrant, value) error {
		return func(g *TokenGrant, v value) (err error) { *to(g), err = v.text(); return }
	}
	secret := func(to func(*TokenGrant) *auth.Secret) func(*TokenGrant, value) error {
		return func(g *TokenGrant, v value) (err error) { *to(g), err = v.secret(); return }
	}
	cc, jb, ex, en, ac := AuthClientCredentials, AuthJWTBearer, AuthExchange, AuthEnterprise, AuthAuthorizationCode
	all, oauth2 := []AuthType{cc, jb, ex, en, ac}, []AuthType{cc, jb, en, ac}
	return map[string]grantField{
		"issuer":            {all, text(func(g *TokenGrant) *string { return &g.Issuer })},
		"tokenUrl":          {[]AuthType{cc, jb, ex}, text(func(g *TokenGrant) *string { return &g.TokenURL })},
		"clientId":          {all, text(func(g *TokenGrant) *string { return &g.ClientID })},
		"clientSecret":      {all, secret(func(g *TokenGrant) *auth.Secret { return &g.ClientSecret })},
		"privateKey":        {oauth2, secret(func(g *TokenGrant) *auth.Secret { return &g.PrivateKey })},
		"privateKeyFile":    {oauth2, text(func(g *TokenGrant) *string { return &g.PrivateKeyFile })},
		"clientMetadataUrl": {[]AuthType{ac}, text(func(g *TokenGrant) *string { return &g.ClientMetadataURL })},
		"scope":             {all, text(func(g *TokenGrant) *string { return &g.Scope })},
		"audience":          {[]AuthType{ex}, text(func(g *TokenGrant) *string { return &g.Audience })},
		"resource":          {all, text(func(g *TokenGrant) *string { return &g.Resource })},
		"dpop":              {oauth2, func(g *TokenGrant, v value) (err error) { g.DPoP, err = v.boolean(); return }},
		"assertion":         {[]AuthType{jb}, secret(func(g *TokenGrant) *auth.Secret { return &g.Assertion })},
		"assertionFile":     {[]AuthType{jb}, text(func(g *TokenGrant) *string { return &g.AssertionFile })},
		"redirectUrl":       {[]AuthType{ac}, text(func(g *TokenGrant) *string { return &g.RedirectURL })},
		"idpTokenUrl":       {[]AuthType{en}, text(func(g *TokenGrant) *string { return &g.IdPTokenURL })},
		"idpClientId":       {[]AuthType{en}, text(func(g *TokenGrant) *string { return &g.IdPClientID })},
		"idpClientSecret":   {[]AuthType{en}, secret(func(g *TokenGrant) *auth.Secret { return &g.IdPClientSecret })},
		"subjectTokenType":  {[]AuthType{en}, func(g *TokenGrant, v value) error { return g.setSubjectTokenType(v) }},
	}
}()

// setSubjectTokenType reads what callers bring, in the last word of its name in RFC 8693
// section 3.
func (g *TokenGrant) setSubjectTokenType(v value) error {
	t, err := v.text()
	if err != nil {
		return err
	}
	if t != "id_token" && t != "access_token" {
		return v.errorf("must be id_token or access_token")
	}
	g.SubjectTokenType = "urn:ietf:params:oauth:token-type:" + t
	return nil
}

// check is what is wrong with a grant of that type.
func (g *TokenGrant) check(t AuthType) *fieldError {
	if f := g.checkClient(t); f != nil {
		return f
	}
	if f := g.checkPlaces(t); f != nil {
		return f
	}
	switch {
	case t == AuthJWTBearer && g.Assertion.IsZero() == (g.AssertionFile == ""):
		return wrong("auth", "needs assertion or assertionFile")
	case t == AuthEnterprise && g.IdPTokenURL == "":
		return wrong("auth.idpTokenUrl", "is missing")
	case t == AuthEnterprise && g.IdPClientID == "":
		return wrong("auth.idpClientId", "is missing")
	}
	// RFC 8707 section 2: an absolute URI without a fragment.
	if g.Resource != "" {
		if u, err := url.Parse(g.Resource); err != nil || !u.IsAbs() || strings.Contains(g.Resource, "#") {
			return wrong("auth.resource", "must be an absolute URI without a fragment")
		}
	}
	return nil
}

// checkClient is what is wrong with who we are at the authorization server.
func (g *TokenGrant) checkClient(t AuthType) *fieldError {
	needsSecret := t == AuthClientCredentials || t == AuthExchange || t == AuthEnterprise
	keys := 0
	for _, there := range []bool{!g.ClientSecret.IsZero(), !g.PrivateKey.IsZero(), g.PrivateKeyFile != ""} {
		if there {
			keys++
		}
	}
	switch {
	case g.ClientID == "" && (needsSecret || keys > 0):
		return wrong("auth.clientId", "is missing")
	case keys > 1:
		return wrong("auth", "has more than one of clientSecret, privateKey and privateKeyFile")
	case keys == 0 && needsSecret:
		return wrong("auth.clientSecret", "is missing")
	case g.ClientID != "" && g.ClientMetadataURL != "":
		return wrong("auth", "has both clientId and clientMetadataUrl")
	}
	if !g.PrivateKey.IsZero() {
		if _, _, err := oauth.ParsePrivateKey(g.PrivateKey.Reveal()); err != nil {
			return wrong("auth.privateKey", "cannot be used: %s", err)
		}
	}
	if g.ClientMetadataURL == "" {
		return nil
	}
	// draft-ietf-oauth-client-id-metadata-document section 3.
	if u, err := url.Parse(g.ClientMetadataURL); err != nil || u.Scheme != "https" || u.Host == "" || len(u.Path) < 2 || u.Fragment != "" || u.User != nil {
		return wrong("auth.clientMetadataUrl", "must be an https:// URL with a path")
	}
	return nil
}

// checkPlaces is what is wrong with where tokens, and browsers, go.
func (g *TokenGrant) checkPlaces(t AuthType) *fieldError {
	switch {
	case g.Issuer == "" && g.TokenURL == "":
		if t == AuthExchange {
			return wrong("auth", "needs issuer or tokenUrl")
		}
	case g.Issuer != "" && g.TokenURL != "":
		return wrong("auth", "has both issuer and tokenUrl")
	default:
		if err := auth.CheckTokenEndpoint(g.Issuer, g.TokenURL); err != nil {
			field := "auth.issuer"
			if g.Issuer == "" {
				field = "auth.tokenUrl"
			}
			return wrong(field, "cannot be used: %s", err)
		}
	}
	for _, p := range []struct{ field, name, url string }{
		{"auth.idpTokenUrl", "the token URL", g.IdPTokenURL}, {"auth.redirectUrl", "the redirect URL", g.RedirectURL},
	} {
		if p.url == "" {
			continue
		}
		if err := auth.CheckEndpoint(p.name, p.url); err != nil {
			return wrong(p.field, "cannot be used: %s", err)
		}
	}
	return nil
}
