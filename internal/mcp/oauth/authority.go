package oauth

import (
	"context"
	"encoding/json"
	"slices"

	"answerd/internal/auth/fetch"
	"answerd/internal/auth/token"
)

const issuerMetadata = "the authorization server's metadata"

// authority is an authorization server, as its metadata describes it, and what we ask it
// for. It is not changed.
type authority struct {
	issuer   string // "" where only the token endpoint is configured
	trusted  bool   // the configuration names it
	resource string // whom tokens are for
	wanted   []string

	token, authorize, register string // endpoints; the last two may be ""

	methods    []string // of client authentication; nil where it doesn't say
	scopes     []string // scopes_supported
	returnsIss bool     // its responses have an iss (RFC 9207)
	takesURL   bool     // as a client id: of a client id metadata document
}

// authorityOf reads the metadata of an issuer.
func (c *Client) authorityOf(ctx context.Context, issuer string, trusted bool) (*authority, error) {
	body, err := token.FetchMetadata(ctx, c.egress.to(issuer, trusted), issuer, issuerMetadata)
	if err != nil {
		return nil, err
	}
	return c.readAuthority(body, issuer, trusted)
}

// readAuthority checks metadata. RFC 8414 section 3.3: it must name the very issuer that
// it was asked for, letter by letter, or it is somebody else's.
func (c *Client) readAuthority(body []byte, issuer string, trusted bool) (*authority, error) {
	var w struct {
		Issuer    string   `json:"issuer"`
		Token     string   `json:"token_endpoint"`
		Authorize string   `json:"authorization_endpoint"`
		Register  string   `json:"registration_endpoint"`
		Methods   []string `json:"token_endpoint_auth_methods_supported"`
		Scopes    []string `json:"scopes_supported"`
		PKCE      []string `json:"code_challenge_methods_supported"`
		DPoP      []string `json:"dpop_signing_alg_values_supported"`
		Iss       bool     `json:"authorization_response_iss_parameter_supported"`
		CIMD      bool     `json:"client_id_metadata_document_supported"`
	}
	if json.Unmarshal(body, &w) != nil {
		return nil, wrong("%s is not the JSON of RFC 8414", issuerMetadata)
	}
	if w.Issuer != issuer {
		return nil, wrong("%s names another issuer", issuerMetadata)
	}
	personal := c.cfg.Kind == AuthorizationCode
	for _, e := range []struct {
		name, url string
		required  bool
	}{{"token", w.Token, true}, {"authorization", w.Authorize, personal}, {"registration", w.Register, false}} {
		if e.url == "" && !e.required {
			continue
		}
		// An issuer elsewhere must not point at a port of this machine either.
		if fetch.CheckEndpoint("", e.url) != nil || !token.EndpointAllowed(issuer, e.url) {
			return nil, wrong("%s names no %s endpoint that may be used", issuerMetadata, e.name)
		}
	}
	// The specification wants clients to refuse one that doesn't say S256: it may take a
	// code from whoever stole it.
	if personal && !slices.Contains(w.PKCE, "S256") {
		return nil, wrong("%s offers no PKCE with S256", issuerMetadata)
	}
	if c.key != nil && w.DPoP != nil && !slices.Contains(w.DPoP, proofAlg) {
		return nil, wrong("%s offers no DPoP with %s", issuerMetadata, proofAlg)
	}
	return &authority{
		issuer: issuer, trusted: trusted, token: w.Token, authorize: w.Authorize, register: w.Register,
		methods: w.Methods, scopes: cleanScopes(w.Scopes), returnsIss: w.Iss, takesURL: w.CIMD,
	}, nil
}
