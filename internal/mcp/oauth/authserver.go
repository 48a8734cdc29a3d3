package oauth

import (
	"context"
	"encoding/json"
	"slices"

	"answerd/internal/auth/fetch"
)

const issuerMetadata = "the authorization server's metadata" // what errors call it

// authServerMetadata has the members of an issuer's metadata (RFC 8414 section 2) that answerd uses.
type authServerMetadata struct {
	Issuer    string   `json:"issuer"`
	Token     string   `json:"token_endpoint"`
	Authorize string   `json:"authorization_endpoint"`
	Register  string   `json:"registration_endpoint"`
	Revoke    string   `json:"revocation_endpoint"`
	Methods   []string `json:"token_endpoint_auth_methods_supported"`
	Scopes    []string `json:"scopes_supported"`
	PKCE      []string `json:"code_challenge_methods_supported"`
	DPoP      []string `json:"dpop_signing_alg_values_supported"`
	Iss       bool     `json:"authorization_response_iss_parameter_supported"`
	CIMD      bool     `json:"client_id_metadata_document_supported"`
}

// fetchAuthServer requests issuer's metadata and returns the authorization server that it describes. configured says
// that the configuration, and not the MCP server, names the issuer. Errors are *fetch.Error.
func (c *Client) fetchAuthServer(ctx context.Context, issuer string, configured bool) (*authServer, error) {
	body, err := fetch.Metadata(ctx, c.egress.httpClientFor(issuer, configured), issuer, issuerMetadata, "")
	if err != nil {
		return nil, err
	}
	return c.parseAuthServer(body, issuer, configured)
}

// parseAuthServer decodes and checks body, the metadata of issuer. Errors are *fetch.Error and quote nothing of body.
//
// The document must name exactly the issuer that was requested (RFC 8414 section 3.3). Otherwise an attacker's
// document could pass as that of an honest issuer, and its endpoints would get our credentials, codes and refresh
// tokens (section 6.2). There are two exceptions. In both, the spelling in the document is the issuer:
//   - The MCP server may name the issuer with an additional slash at its end, which pydantic adds in servers in Python.
//     A configured issuer must not have it.
//   - An issuer at the MCP server's own origin may have one in its document. Servers from before 2025-06-18 write it so,
//     and their issuer does not come from a document but is derived from the MCP server's URL.
func (c *Client) parseAuthServer(body []byte, issuer string, configured bool) (*authServer, error) {
	var decoded authServerMetadata
	if json.Unmarshal(body, &decoded) != nil {
		return nil, fetchErrorf("%s is not the JSON of RFC 8414", issuerMetadata)
	}
	isNamedWithSlash := decoded.Issuer+"/" == issuer && !configured
	isOwnOrigin := decoded.Issuer == issuer+"/" && issuer == origin(c.server)
	if decoded.Issuer != issuer && !isNamedWithSlash && !isOwnOrigin {
		return nil, fetchErrorf("%s names another issuer", issuerMetadata)
	}

	if err := c.checkMetadata(&decoded); err != nil {
		return nil, err
	}
	return &authServer{
		Issuer:          decoded.Issuer,
		Configured:      configured,
		TokenURL:        decoded.Token,
		AuthorizeURL:    decoded.Authorize,
		RegisterURL:     decoded.Register,
		RevokeURL:       decoded.Revoke,
		AuthMethods:     decoded.Methods,
		Scopes:          validScopes(decoded.Scopes),
		ReturnsIssuer:   decoded.Iss,
		AcceptsMetadata: decoded.CIMD,
	}, nil
}

// checkMetadata returns an error if m lacks something that the configured kind of grant needs, or if one of the
// endpoints must not be used: its URL is not safe for secrets, or it is a port of this machine although the issuer is
// elsewhere.
func (c *Client) checkMetadata(m *authServerMetadata) error {
	needsSignIn := c.cfg.Kind == AuthorizationCode
	for _, endpoint := range []struct {
		name, url  string
		isRequired bool
	}{
		{name: "token", url: m.Token, isRequired: true},
		{name: "authorization", url: m.Authorize, isRequired: needsSignIn},
		{name: "registration", url: m.Register},
		{name: "revocation", url: m.Revoke},
	} {
		isUsed := endpoint.isRequired || endpoint.url != ""
		if isUsed && !fetch.AllowsEndpoint(m.Issuer, endpoint.url) {
			return fetchErrorf("%s names no %s endpoint that may be used", issuerMetadata, endpoint.name)
		}
	}
	// MCP basic/authorization: clients must refuse an authorization server that does not state S256, because it may
	// accept a stolen code.
	if needsSignIn && !slices.Contains(m.PKCE, "S256") {
		return fetchErrorf("%s offers no PKCE with S256", issuerMetadata)
	}
	// A server that does not state its algorithms may still support DPoP.
	if c.cfg.DPoP && m.DPoP != nil && !slices.Contains(m.DPoP, proofAlgorithm) {
		return fetchErrorf("%s offers no DPoP with %s", issuerMetadata, proofAlgorithm)
	}
	return nil
}
