package conformance

import (
	"context"
	"strings"

	"answerd/internal/auth"
	"answerd/internal/mcp"
	"answerd/internal/mcp/catalog"
	"answerd/internal/mcp/config"
)

// authContext is the context that the suite gives a scenario about authorization.
type authContext struct {
	ClientID     string `json:"client_id"`
	ClientSecret string `json:"client_secret"`
	Issuer       string `json:"issuer"`
	PrivateKey   string `json:"private_key_pem"`
	Assertion    string `json:"valid_jwt"`
	IDToken      string `json:"idp_id_token"`
	IdPClientID  string `json:"idp_client_id"`
	IdPTokenURL  string `json:"idp_token_endpoint"`
}

// metadataURL is what the suite expects as our client id, where it takes one of a client
// id metadata document.
const metadataURL = "https://conformance-test.local/client-metadata.json"

// authorize configures the server's auth as an operator would in mcp.json who was given
// this.
func (s scenario) authorize(server *config.Server) {
	name, ok := strings.CutPrefix(s.name, "auth/")
	if !ok {
		return
	}
	g := &server.Grant
	g.ClientID, g.ClientSecret, g.Issuer = s.given.ClientID, auth.NewSecret(s.given.ClientSecret), s.given.Issuer
	switch {
	case strings.HasPrefix(name, "client-credentials-"):
		server.Auth, g.PrivateKey = config.AuthClientCredentials, auth.NewSecret(s.given.PrivateKey)
	case s.given.Assertion != "":
		server.Auth, g.Assertion = config.AuthJWTBearer, auth.NewSecret(s.given.Assertion)
	case s.given.IDToken != "":
		server.Auth, g.IdPTokenURL, g.IdPClientID = config.AuthEnterprise, s.given.IdPTokenURL, s.given.IdPClientID
	default:
		server.Auth, g.DPoP = config.AuthAuthorizationCode, strings.HasPrefix(name, "dpop")
		if g.ClientID == "" {
			g.ClientMetadataURL = metadataURL
		}
	}
}

// list returns the tools of the scenario's caller, who signs in first if sign_in is the only tool.
func (s scenario) list(ctx context.Context, client *mcp.Client) ([]catalog.Tool, error) {
	tools := client.ToolsFor(ctx, s.caller)
	if len(tools) != 1 || tools[0].Original != "sign_in" {
		return tools, nil
	}
	if _, err := (person{client}).call(ctx, mcp.Call{Tool: tools[0].Name, Principal: s.caller}); err != nil {
		return nil, err
	}
	return client.ToolsFor(ctx, s.caller), nil
}
