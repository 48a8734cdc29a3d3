package oauth

import (
	"context"
	"encoding/json"
	"slices"

	"answerd/internal/auth/fetch"
)

const issuerMetadata = "the authorization server's metadata"

// fetchAuthServer requests issuer's metadata and returns the authorization server that it describes. configured says
// that the configuration, and not the MCP server, names the issuer. Errors are *fetch.Error.
func (c *Client) fetchAuthServer(ctx context.Context, issuer string, configured bool) (*authServer, error) {
	body, err := fetch.Metadata(ctx, c.egress.httpClientFor(issuer, configured), issuer, issuerMetadata)
	if err != nil {
		return nil, err
	}
	return c.parseAuthServer(body, issuer, configured)
}

// parseAuthServer decodes and checks body, the metadata of issuer. Errors are *fetch.Error and quote nothing of body.
//
// The document must name exactly the issuer that was requested (RFC 8414 section 3.3). Otherwise an attacker's
// document could pass as that of an honest issuer, and its endpoints would get our credentials, codes and refresh
// tokens (section 6.2). One exception: an issuer at the MCP server's own origin may have an additional slash at its
// end. Servers from before 2025-06-18 write it so, and their issuer does not come from a document but is derived from
// the MCP server's URL.
func (c *Client) parseAuthServer(body []byte, issuer string, configured bool) (*authServer, error) {
	var decoded struct {
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
	if json.Unmarshal(body, &decoded) != nil {
		return nil, fetchErrorf("%s is not the JSON of RFC 8414", issuerMetadata)
	}
	if decoded.Issuer == issuer+"/" && issuer == origin(c.server) {
		issuer = decoded.Issuer
	}
	if decoded.Issuer != issuer {
		return nil, fetchErrorf("%s names another issuer", issuerMetadata)
	}

	needsSignIn := c.cfg.Kind == AuthorizationCode
	if err := checkEndpoints(issuer, []namedEndpoint{
		{"token", decoded.Token, true},
		{"authorization", decoded.Authorize, needsSignIn},
		{"registration", decoded.Register, false},
		{"revocation", decoded.Revoke, false},
	}); err != nil {
		return nil, err
	}

	// MCP basic/authorization: clients must refuse an authorization server that does not state S256, because it may
	// accept a stolen code.
	if needsSignIn && !slices.Contains(decoded.PKCE, "S256") {
		return nil, fetchErrorf("%s offers no PKCE with S256", issuerMetadata)
	}
	// A server that does not state its algorithms may still support DPoP.
	if c.cfg.DPoP && decoded.DPoP != nil && !slices.Contains(decoded.DPoP, proofAlgorithm) {
		return nil, fetchErrorf("%s offers no DPoP with %s", issuerMetadata, proofAlgorithm)
	}

	return &authServer{
		Issuer:          issuer,
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

// namedEndpoint is an endpoint in an issuer's metadata. url is "" if the metadata has none.
type namedEndpoint struct {
	name, url string
	required  bool
}

// checkEndpoints returns an error if a required endpoint is missing or one of the endpoints must not be used: its URL
// is not safe for secrets, or it is a port of this machine although the issuer is elsewhere.
func checkEndpoints(issuer string, endpoints []namedEndpoint) error {
	for _, e := range endpoints {
		if e.url == "" && !e.required {
			continue
		}
		if !fetch.AllowsEndpoint(issuer, e.url) {
			return fetchErrorf("%s names no %s endpoint that may be used", issuerMetadata, e.name)
		}
	}
	return nil
}
