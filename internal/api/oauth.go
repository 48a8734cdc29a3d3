package api

import (
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
)

// maxCallback bounds the query that a browser brings back, in bytes.
const maxCallback = 8 << 10

// authorized is GET /oauth/callback: a browser comes back from the authorization server
// of an MCP server. It is nobody's request by its headers; the state in its query says
// whom it belongs to, and is good once. The pages are fixed texts: nothing of what the
// browser brought, which another site may have made up, is in them.
func (h *Handler) authorized(w http.ResponseWriter, r *http.Request) {
	var found bool
	var err error
	if query, bad := url.ParseQuery(r.URL.RawQuery); bad == nil && len(r.URL.RawQuery) <= maxCallback {
		found, err = h.Agent.Tools.Callback(r.Context(), query)
	}
	switch {
	case !found:
		writePage(w, http.StatusBadRequest, "This address is not good any more", "It was used before, is too old, or was never given out. Ask your question again.")
	case err != nil:
		writePage(w, http.StatusBadRequest, "That did not work", "Nothing was allowed. You may close this window and ask your question again.")
	default:
		writePage(w, http.StatusOK, "Done", "You may close this window. Your question goes on by itself.")
	}
}

// writePage answers a person. The address that the browser shows has a code in it, spent
// or not, so the page tells it to nobody and is kept nowhere (RFC 9700 section 4.2).
func writePage(w http.ResponseWriter, status int, title, text string) {
	header := w.Header()
	header.Set("Content-Type", "text/html; charset=utf-8")
	header.Set("Content-Security-Policy", "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'")
	header.Set("Referrer-Policy", "no-referrer")
	header.Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_, _ = io.WriteString(w, "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>"+title+"</title></head>\n<body><h1>"+title+"</h1><p>"+text+"</p></body></html>\n")
}

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
