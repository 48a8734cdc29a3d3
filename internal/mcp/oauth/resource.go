package oauth

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"

	"answerd/internal/auth/fetch"
	"answerd/internal/auth/token"
)

const (
	resourceMetadata = "the server's protected resource metadata"
	maxMetadata      = 256 << 10 // bytes
	wellKnown        = "/.well-known/oauth-protected-resource"
)

// resource is what a server's own metadata says (RFC 9728).
type resource struct {
	name   string // whom tokens are for (RFC 8707), letter by letter as published
	issuer string
	scopes []string // scopes_supported
}

// place is where metadata may be, and whose it must be if it is there: one of names.
type place struct {
	url   string
	names []string
}

// protectedResource reads the server's metadata: where the challenge says that it is, and
// nowhere else if it says so; or at the path of the endpoint, then at the root. Without
// any, the server's origin is its own authorization server, as it was before 2025-06-18.
//
// oauthex.GetProtectedResourceMetadata does not fit: it refuses every server in a private
// network that has no name (10.0.0.7), takes one spelling of the resource only, and does not
// say whether there is no metadata (4xx) or none now.
func (c *Client) protectedResource(ctx context.Context, ch challenge) (resource, error) {
	for _, p := range c.places(ch.metadata) {
		if err := fetch.CheckEndpoint(resourceMetadata, p.url); err != nil {
			return resource{}, &fetch.Error{Public: err.Error()}
		}
		got, err := fetch.Get(ctx, c.egress.to(p.url, false), p.url, resourceMetadata, maxMetadata)
		switch {
		case err != nil:
			return resource{}, err
		case got.Status == http.StatusOK:
			return readResource(got.Body, p.names)
		case ch.metadata != "" || got.Status/100 != 4:
			return resource{}, &fetch.Error{Public: resourceMetadata + " cannot be read", Status: got.Status}
		}
	}
	return resource{name: c.server.String(), issuer: origin(c.server)}, nil
}

// places are where the server's metadata may be. What is published for the endpoint is
// the endpoint's own. Only what lies at the root of the origin may speak for all of it:
// an endpoint that shares its host with others could else have us bring a token that is
// good at those.
func (c *Client) places(given string) []place {
	self, root := c.server.String(), origin(c.server)
	atRoot := place{root + wellKnown, []string{self, root}}
	if given != "" {
		if given == atRoot.url {
			return []place{atRoot}
		}
		return []place{{given, []string{self}}}
	}
	path := strings.TrimSuffix(c.server.EscapedPath(), "/")
	if path == "" {
		return []place{atRoot}
	}
	return []place{{root + wellKnown + path, []string{self}}, atRoot}
}

// readResource reads metadata that must be of one of names. RFC 9728 section 3.3 compares
// letter by letter; a slash at the end, which URL libraries add and drop, is not looked at.
func readResource(body []byte, names []string) (resource, error) {
	var w struct {
		Resource string   `json:"resource"`
		Servers  []string `json:"authorization_servers"`
		Scopes   []string `json:"scopes_supported"`
	}
	if json.Unmarshal(body, &w) != nil {
		return resource{}, wrong("%s is not the JSON of RFC 9728", resourceMetadata)
	}
	mine := false
	for _, n := range names {
		mine = mine || strings.TrimSuffix(n, "/") == strings.TrimSuffix(w.Resource, "/")
	}
	switch {
	case !mine:
		return resource{}, wrong("%s names another resource", resourceMetadata)
	case len(w.Servers) == 0:
		return resource{}, wrong("%s names no authorization server", resourceMetadata)
	}
	if err := token.CheckTokenEndpoint(w.Servers[0], ""); err != nil {
		return resource{}, wrong("%s names an authorization server that cannot be used: %s", resourceMetadata, err)
	}
	return resource{name: w.Resource, issuer: w.Servers[0], scopes: cleanScopes(w.Scopes)}, nil
}
