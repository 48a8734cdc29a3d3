package api

import (
	"encoding/json"
	"net"
	"net/http"
	"strings"
)

// wellKnown is where RFC 9728 section 3.1 has the metadata of a resource: in front of the
// resource's own path.
const wellKnown = "/.well-known/oauth-protected-resource"

// protectedResource is the answer to clients that want to know where to get a token. Of
// all paths only /mcp is a resource of its own, as MCP clients take the address of a server.
func (h *Handler) protectedResource(w http.ResponseWriter, r *http.Request) error {
	if h.Verifier == nil {
		return notFound(w, r)
	}
	body, err := json.Marshal(h.Verifier.Metadata(h.publicURL(r) + strings.TrimPrefix(r.URL.Path, wellKnown)))
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "public, max-age=3600")
	_, _ = w.Write(body) // an error is a caller that left
	return nil
}

// metadataURL is where the metadata of what r asks for is (RFC 9728 section 5.1).
func (h *Handler) metadataURL(r *http.Request) string {
	of := ""
	if r.URL.Path == "/mcp" {
		of = r.URL.Path
	}
	return h.publicURL(r) + wellKnown + of
}

// publicURL is our address as the caller knows it: the one that the operator gave, else the
// host that was asked for, of which checkHost knows that it is ours. What a proxy says in
// headers, anybody can say.
func (h *Handler) publicURL(r *http.Request) string {
	if h.PublicURL != "" {
		return h.PublicURL
	}
	scheme, name := "https", r.Host
	if host, _, err := net.SplitHostPort(r.Host); err == nil {
		name = host
	}
	name = strings.Trim(name, "[]")
	if ip := net.ParseIP(name); strings.EqualFold(name, "localhost") || ip != nil && ip.IsLoopback() {
		scheme = "http" // elsewhere a token has no business on plain HTTP
	}
	return scheme + "://" + r.Host
}
