package config

import (
	"fmt"
	"strings"
	"testing"

	"answerd/internal/auth"
)

// fileWithAuth returns a file with one server that has these fields in auth.
func fileWithAuth(fields string) string { return fileWithHTTPServer(`, "auth": {` + fields + `}`) }

func TestParseReadsGrants(t *testing.T) {
	for file, want := range map[string]Server{
		fileWithAuth(`"clientId": "me", "clientSecret": "${TOKEN}", "issuer": "https://iam.${HOST}/t", "type": "client_credentials"`): {
			Auth: AuthClientCredentials, Grant: Grant{Issuer: "https://iam.example.com/t", ClientID: "me", ClientSecret: auth.NewSecret("secret-token")},
		},
		fileWithAuth(`"type": "exchange", "tokenUrl": "http://localhost:1/token", "clientId": "me", "clientSecret": "x",
			"scope": "a b", "audience": "crm", "resource": "urn:crm"`): {
			Auth: AuthExchange, Grant: Grant{TokenURL: "http://localhost:1/token", ClientID: "me", ClientSecret: auth.NewSecret("x"),
				Scope: "a b", Audience: "crm", Resource: "urn:crm"},
		},
		fileWithAuth(`"type": "client_credentials", "clientId": "me", "privateKeyFile": "/k.pem", "dpop": true`): {
			Auth: AuthClientCredentials, Grant: Grant{ClientID: "me", PrivateKeyFile: "/k.pem", DPoP: true},
		},
		fileWithAuth(`"type": "authorization_code"`): {Auth: AuthAuthorizationCode},
		fileWithAuth(`"type": "authorization_code", "clientMetadataUrl": "https://me.example/client.json", "redirectUrl": "https://me.example/cb", "scope": "a"`): {
			Auth: AuthAuthorizationCode, Grant: Grant{ClientMetadataURL: "https://me.example/client.json", RedirectURL: "https://me.example/cb", Scope: "a"},
		},
		fileWithAuth(`"type": "jwt_bearer", "assertion": "${TOKEN}"`):                          {Auth: AuthJWTBearer, Grant: Grant{Assertion: auth.NewSecret("secret-token")}},
		fileWithAuth(`"type": "jwt_bearer", "assertionFile": "/a", "tokenUrl": "https://i/t"`): {Auth: AuthJWTBearer, Grant: Grant{AssertionFile: "/a", TokenURL: "https://i/t"}},
		fileWithAuth(`"type": "enterprise", "clientId": "me", "clientSecret": "x", "idpTokenUrl": "https://idp/t", "idpClientId": "we", "subjectTokenType": "access_token"`): {
			Auth: AuthEnterprise, Grant: Grant{ClientID: "me", ClientSecret: auth.NewSecret("x"), IdPTokenURL: "https://idp/t", IdPClientID: "we",
				SubjectTokenType: "urn:ietf:params:oauth:token-type:access_token"},
		},
	} {
		got, _, err := Parse([]byte(file), testGetenv)
		if err != nil || len(got) != 1 || got[0].Auth != want.Auth || got[0].Grant != want.Grant {
			t.Errorf("Parse(%s)\n got %+v, %v\nwant %+v", file, got, err, want)
		}
		if strings.Contains(fmt.Sprintf("%+v %#v", got, got), "secret-token") {
			t.Errorf("printed configuration = %+v, want no secret in it", got)
		}
	}
}

func TestParseErrorsInAuth(t *testing.T) {
	const client = `"clientId": "me", "clientSecret": "s3cret"`
	for fields, want := range map[string]string{
		`"type": "magic"`:                       `auth.type: must be none, jwt, client_credentials, jwt_bearer, exchange, enterprise or authorization_code`,
		`"type": 7`:                             `auth.type: must be a string, not a number`,
		`"type": "jwt", "clientId": "me"`:       `auth.clientId: is not for auth type jwt`,
		`"type": "none", "issuer": "https://i"`: `auth.issuer: is not for auth type none`,
		`"issuer": "https://i"`:                 `auth: has no type`,
		`"type": "client_credentials", "audience": "a", ` + client:                                        `auth.audience: is not for auth type client_credentials`,
		`"type": "exchange", ` + client:                                                                   `auth: needs issuer or tokenUrl`,
		`"type": "exchange", "issuer": "https://i", "tokenUrl": "https://i", ` + client:                   `auth: has both issuer and tokenUrl`,
		`"type": "exchange", "issuer": "https://i", "clientSecret": "s3cret"`:                             `auth.clientId: is missing`,
		`"type": "exchange", "issuer": "https://i", "clientId": "me"`:                                     `auth.clientSecret: is missing`,
		`"type": "exchange", "issuer": "https://i", "clientId": "me", "clientSecret": "${MISSING}"`:       `auth.clientSecret: needs the environment variable MISSING, which is not set`,
		`"type": "exchange", "tokenUrl": "http://iam.example/t", ` + client:                               `auth.tokenUrl: cannot be used: the token URL must be https, or http on the loopback address`,
		`"type": "client_credentials", "tokenUrl": "https://u:s3cret@i/t", ` + client:                     `auth.tokenUrl: cannot be used: the token URL must not contain credentials or a fragment`,
		`"type": "exchange", "issuer": "http://iam.example", ` + client:                                   `auth.issuer: cannot be used: the issuer must be https, or http on the loopback address`,
		`"type": "exchange", "issuer": "https://i?x=s3cret", ` + client:                                   `auth.issuer: cannot be used: the issuer must not have a query or a fragment`,
		`"type": "exchange", "issuer": "https://i", "resource": "crm", ` + client:                         `auth.resource: must be an absolute URI without a fragment`,
		`"type": "client_credentials", "issuer": "https://i", "resource": "https://h/#s3cret", ` + client: `auth.resource: must be an absolute URI without a fragment`,
		`"type": "client_credentials", "clientId": "me"`:                                                  `auth.clientSecret: is missing`,
		`"type": "client_credentials", "privateKeyFile": "/k"`:                                            `auth.clientId: is missing`,
		`"type": "client_credentials", "privateKeyFile": "/k", ` + client:                                 `auth: has more than one of clientSecret, privateKey and privateKeyFile`,
		`"type": "client_credentials", "clientId": "me", "privateKey": "s3cret"`:                          `auth.privateKey: cannot be used: the private key is not PEM`,
		`"type": "client_credentials", "dpop": "true", ` + client:                                         `auth.dpop: must be a boolean, not a string`,
		`"type": "exchange", "dpop": true, ` + client:                                                     `auth.dpop: is not for auth type exchange`,
		`"type": "jwt_bearer"`: `auth: needs assertion or assertionFile`,
		`"type": "jwt_bearer", "assertion": "a", "assertionFile": "b"`:                           `auth: has both assertion and assertionFile`,
		`"type": "enterprise", "idpClientId": "a", ` + client:                                    `auth.idpTokenUrl: is missing`,
		`"type": "enterprise", "idpTokenUrl": "https://i", ` + client:                            `auth.idpClientId: is missing`,
		`"type": "enterprise", "idpTokenUrl": "http://i.example", "idpClientId": "a", ` + client: `auth.idpTokenUrl: cannot be used: the token URL must be https, or http on the loopback address`,
		`"type": "enterprise", "tokenUrl": "https://i", ` + client:                               `auth.tokenUrl: is not for auth type enterprise`,
		`"type": "enterprise", "subjectTokenType": "saml", ` + client:                            `auth.subjectTokenType: must be id_token or access_token`,
		`"type": "authorization_code", "clientSecret": "s3cret"`:                                 `auth.clientId: is missing`,
		`"type": "authorization_code", "clientMetadataUrl": "https://me.example"`:                `auth.clientMetadataUrl: must be an https:// URL with a path`,
		`"type": "authorization_code", "clientMetadataUrl": "https://me.example/c", ` + client:   `auth: has both clientId and clientMetadataUrl`,
		`"type": "authorization_code", "redirectUrl": "http://me.example/cb"`:                    `auth.redirectUrl: cannot be used: the redirect URL must be https, or http on the loopback address`,
	} {
		_, _, err := Parse([]byte(fileWithAuth(fields)), testGetenv)
		if want = `mcp.json: server "crm", ` + want + ` (line 3)`; err == nil || err.Error() != want {
			t.Errorf("Parse of fields %s\n got %v\nwant %s", fields, err, want)
		}
	}

	grant := `"auth": {"type": "client_credentials", "issuer": "https://i", ` + client + `}`
	exchange := strings.Replace(grant, "client_credentials", "exchange", 1)
	code := `"auth": {"type": "authorization_code"}`
	for fields, want := range map[string]string{
		`"url": "http://h", ` + grant:                                 `url: must be https://, since tokens would be sent unencrypted`,
		`"url": "https://h", "bearerToken": "s3cret", ` + grant:       `bearerToken: cannot be set together with auth type client_credentials`,
		`"type": "stdio", "command": "x", ` + grant:                   `auth.type: a server of type stdio gets no token; put it into env`,
		`"type": "websocket", "url": "wss://h", ` + grant:             ``,
		`"type": "websocket", "url": "ws://h", ` + grant:              `url: must be wss://, since tokens would be sent unencrypted`,
		`"type": "websocket", "url": "wss://h", ` + exchange:          `auth.type: exchange is for servers of type http`,
		`"url": "https://h", "resources": ["x:*"], ` + exchange:       `resources: cannot be set together with auth type exchange`,
		`"url": "https://h", "pin": true, ` + exchange:                `pin: cannot be set together with auth type exchange`,
		`"url": "https://h", "pin": true, ` + code:                    `pin: cannot be set together with auth type authorization_code`,
		`"type": "websocket", "url": "wss://h", ` + code:              `auth.type: authorization_code is for servers of type http`,
		`"url": "http://h", ` + code:                                  `url: must be https://, since tokens would be sent unencrypted`,
		`"url": "https://h", ` + code:                                 ``,
		`"url": "http://127.0.0.1:1", "headers": {"X": ""}, ` + grant: ``,
	} {
		_, _, err := Parse([]byte(`{"mcpServers": {"crm": {`+fields+`}}}`), testGetenv)
		if want == "" && err == nil {
			continue
		}
		if want = `mcp.json: server "crm", ` + want + ` (line 1)`; err == nil || err.Error() != want {
			t.Errorf("Parse of fields %s\n got %v\nwant %s", fields, err, want)
		}
	}
}

// RFC 8707: the query of a URL does not belong to the resource that a token is for.
func TestTokenResourceIsTheServersURL(t *testing.T) {
	for url, want := range map[string]string{
		"https://h/mcp?tenant=a": "https://h/mcp", "https://h": "https://h", "https://h:8443/a/?": "https://h:8443/a/", "wss://h/mcp?x": "https://h/mcp",
	} {
		if got := (&Server{URL: url}).TokenResource(); got != want {
			t.Errorf("TokenResource() of %s = %q, want %q", url, got, want)
		}
	}
}
