package oauth

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"strings"

	"answerd/internal/auth/fetch"
	"answerd/internal/auth/token"
)

const (
	resourceMetadata = "the server's protected resource metadata"
	maxMetadata      = 256 << 10 // bytes
	wellKnown        = "/.well-known/oauth-protected-resource"
)

// metadataLocation is a URL where metadata may be, and the resources that it may describe.
type metadataLocation struct {
	url       string
	resources []string
}

// fetchResource reads the server's metadata: at the URL in the challenge and nowhere else, if
// there is one; otherwise at the well-known URL of the endpoint's path, then of the root (RFC
// 9728 section 3.1). A server without any is its own authorization server, as the MCP
// specification said before 2025-06-18. Only a 4xx that does not ask to try again later means that
// there is no metadata: after another error, to take the next location or the server itself could send
// users to a different authorization server for as long as the error lasts.
//
// oauthex.GetProtectedResourceMetadata does not fit: it refuses every server in a private
// network that has no name (10.0.0.7), takes one spelling of the resource only, and does not
// say whether there is no metadata or none now.
func (c *Client) fetchResource(ctx context.Context, ch challenge) (resource, error) {
	for _, p := range c.metadataLocations(ch.metadata) {
		if err := fetch.CheckEndpoint(resourceMetadata, p.url); err != nil {
			return resource{}, &fetch.Error{Public: err.Error()}
		}
		got, err := fetch.Get(ctx, c.egress.clientFor(p.url, false), p.url, resourceMetadata, maxMetadata)
		switch {
		case err != nil:
			return resource{}, err
		case got.Status == http.StatusOK:
			return parseResource(got.Body, p.resources)
		case ch.metadata != "" || !fetch.IsAbsent(got.Status):
			return resource{}, &fetch.Error{Public: resourceMetadata + " cannot be read", Status: got.Status}
		}
	}
	return resource{name: c.server.String(), issuer: origin(c.server)}, nil
}

// metadataLocations returns where the server's metadata may be; given is the URL in the
// challenge. What is published for the endpoint may describe only the endpoint. Only the
// document at the root of the origin may describe the whole origin: otherwise an endpoint
// that shares its host with others could make us send a token that is valid for those.
func (c *Client) metadataLocations(given string) []metadataLocation {
	self, root := c.server.String(), origin(c.server)
	atRoot := metadataLocation{root + wellKnown, []string{self, root}}
	if given != "" {
		if canonicalResource(given) == atRoot.url {
			return []metadataLocation{{given, atRoot.resources}}
		}
		return []metadataLocation{{given, []string{self}}}
	}
	path := strings.TrimSuffix(c.server.EscapedPath(), "/")
	if path == "" {
		return []metadataLocation{atRoot}
	}
	return []metadataLocation{{root + wellKnown + path, []string{self}}, atRoot}
}

// canonicalResource returns a resource for comparisons: with a canonical host, and without a trailing slash.
func canonicalResource(name string) string {
	if u, err := url.Parse(name); err == nil {
		u.Host = canonicalHost(u)
		name = u.String()
	}
	return strings.TrimSuffix(name, "/")
}

// parseResource reads metadata that must describe one of resources. RFC 9728 section 3.3 requires
// identical strings. MCP asks clients to accept capitals in scheme and host too (basic/authorization,
// canonical server URI), and URL libraries add and remove the default port and a trailing slash. The
// check prevents that a server names the resource of another one, and gets a token that it can use there
// (section 7.3). Of several authorization servers the first is used: section 7.6 leaves the choice to the
// client.
func parseResource(body []byte, resources []string) (resource, error) {
	var decoded struct {
		Resource string   `json:"resource"`
		Servers  []string `json:"authorization_servers"`
		Scopes   []string `json:"scopes_supported"`
	}
	if json.Unmarshal(body, &decoded) != nil {
		return resource{}, fetchErrorf("%s is not the JSON of RFC 9728", resourceMetadata)
	}
	matches := false
	for _, n := range resources {
		matches = matches || canonicalResource(n) == canonicalResource(decoded.Resource)
	}
	switch {
	case !matches:
		return resource{}, fetchErrorf("%s names another resource", resourceMetadata)
	case len(decoded.Servers) == 0:
		return resource{}, fetchErrorf("%s names no authorization server", resourceMetadata)
	}
	if err := token.CheckTokenEndpoint(decoded.Servers[0], ""); err != nil {
		return resource{}, fetchErrorf("%s names an authorization server that cannot be used: %s", resourceMetadata, err)
	}
	return resource{name: decoded.Resource, issuer: decoded.Servers[0], scopes: validScopes(decoded.Scopes)}, nil
}
