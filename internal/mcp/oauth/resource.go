package oauth

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"answerd/internal/auth/fetch"
	"answerd/internal/auth/token"
)

const (
	resourceMetadata = "the server's protected resource metadata"
	maxMetadata      = 256 << 10 // bytes
	wellKnown        = "/.well-known/oauth-protected-resource"
)

// fetchResource requests the MCP server's metadata and returns the resource in it. If ch has a URL for the metadata,
// it uses only that URL. Otherwise it tries the well-known URL for the endpoint's path and then the one for the root
// (RFC 9728 section 3.1). If both are absent, the server is its own authorization server, as the MCP specification
// said before 2025-06-18.
//
// Only a 4xx that does not ask to try again later means that a location has no metadata. Any other status is an error.
// Otherwise, while such an error lasts, the next location could send users to a different authorization server, which
// would get the configured credentials. If there are none, the page of a web application or a redirect also means that a
// location has no metadata (isAbsent).
//
// oauthex.GetProtectedResourceMetadata is not used. It refuses every server in a private network that has no name
// (10.0.0.7), accepts only one spelling of the resource, and does not distinguish missing metadata from metadata that
// cannot be read now.
func (c *Client) fetchResource(ctx context.Context, ch challenge) (resource, error) {
	const isConfigured = false // the MCP server names the URLs
	for _, metadataURL := range c.metadataURLs(ch.metadata) {
		if err := fetch.CheckEndpoint(resourceMetadata, metadataURL); err != nil {
			return resource{}, &fetch.Error{Public: err.Error()}
		}
		client := c.egress.httpClientFor(metadataURL, isConfigured)
		reply, err := fetch.Get(ctx, client, metadataURL, resourceMetadata, maxMetadata)
		switch {
		case ch.metadata == "" && c.isAbsent(reply, err): // try the next location
		case err != nil:
			return resource{}, err
		case reply.Status == http.StatusOK:
			return parseResource(reply.Body, c.resourcesAt(metadataURL))
		default:
			return resource{}, &fetch.Error{Public: resourceMetadata + " cannot be read", Status: reply.Status}
		}
	}
	return resource{name: c.server.String(), issuer: origin(c.server)}, nil
}

// isAbsent reports whether reply and err, the result of a request for metadata at a well-known URL, mean that there is
// none.
func (c *Client) isAbsent(reply fetch.Reply, err error) bool {
	failure, isFailure := errors.AsType[*fetch.Error](err)
	isRedirect := isFailure && failure.Status/100 == 3
	isPage := err == nil && reply.Status == http.StatusOK && !reply.IsObject()
	if isRedirect || isPage {
		return !c.discovery.hasBoundCredentials()
	}
	return err == nil && fetch.IsAbsent(reply.Status)
}

// metadataURLs returns where to look for the MCP server's metadata, in order. challenged is the URL in the challenge;
// "" if it has none.
func (c *Client) metadataURLs(challenged string) []string {
	atRoot := origin(c.server) + wellKnown
	path := strings.TrimSuffix(c.server.EscapedPath(), "/")
	switch {
	case challenged != "":
		return []string{challenged}
	case path == "":
		return []string{atRoot}
	}
	return []string{atRoot + path, atRoot}
}

// resourcesAt returns the resources that the metadata at metadataURL may describe. Only the document at the root of the
// origin may describe the whole origin. Otherwise an endpoint that shares its host with other services could get a
// token from us that is valid for all of them.
func (c *Client) resourcesAt(metadataURL string) []string {
	endpoint, root := c.server.String(), origin(c.server)
	if canonicalResource(metadataURL) == root+wellKnown {
		return []string{endpoint, root}
	}
	return []string{endpoint}
}

// canonicalResource returns the URI of a resource in a form for comparisons: with a canonical host, and without a
// trailing slash.
func canonicalResource(name string) string {
	if u, err := url.Parse(name); err == nil {
		u.Host = canonicalHost(u)
		name = u.String()
	}
	return strings.TrimSuffix(name, "/")
}

// parseResource decodes body, protected resource metadata. If it names several authorization servers, parseResource
// returns the first: RFC 9728 section 7.6 leaves the choice to the client. Errors quote nothing of body.
//
// The metadata must describe one of resources. Otherwise a server could name another server's resource, and get a
// token that it can use there (section 7.3). Section 3.3 requires identical strings, but parseResource compares
// canonical ones: MCP asks clients to accept capitals in scheme and host (basic/authorization, canonical server URI),
// and URL libraries add and remove the default port and a trailing slash.
func parseResource(body []byte, resources []string) (resource, error) {
	var decoded struct {
		Resource string   `json:"resource"`
		Servers  []string `json:"authorization_servers"`
		Scopes   []string `json:"scopes_supported"`
	}
	if json.Unmarshal(body, &decoded) != nil {
		return resource{}, fetchErrorf("%s is not the JSON of RFC 9728", resourceMetadata)
	}
	named := canonicalResource(decoded.Resource)
	matches := slices.ContainsFunc(resources, func(r string) bool { return canonicalResource(r) == named })
	switch {
	case !matches:
		return resource{}, fetchErrorf("%s names another resource", resourceMetadata)
	case len(decoded.Servers) == 0:
		return resource{}, fetchErrorf("%s names no authorization server", resourceMetadata)
	}
	issuer := decoded.Servers[0]
	if err := token.CheckTokenEndpoint(issuer, ""); err != nil {
		return resource{}, fetchErrorf("%s names an authorization server that cannot be used: %s", resourceMetadata, err)
	}
	return resource{name: decoded.Resource, issuer: issuer, scopes: validScopes(decoded.Scopes)}, nil
}
