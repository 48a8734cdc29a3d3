package api

import (
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"

	"answerd/internal/agent"
)

// maxCallbackQuery bounds the query of an OAuth callback, in bytes.
const maxCallbackQuery = 8 << 10

// oauthCallback serves GET /oauth/callback, to which a browser returns from an MCP server's authorization server. The
// request is not authenticated: the state in its query identifies the sign-in, and is valid once. The pages are fixed
// texts without anything from the query, which another site may have written. If the store of sign-ins cannot be read,
// the answer is 503, and the user can reload the page, because the state has not been used.
func (h *Handler) oauthCallback(w http.ResponseWriter, r *http.Request) {
	found, err := h.finishSignIn(r)
	switch {
	case !found && err != nil: // the store did not answer
		h.Logger.WarnContext(r.Context(), "a sign-in cannot be completed now", "error", err)
		w.Header().Set("Retry-After", "1")
		writeHTML(w, http.StatusServiceUnavailable, "Please try again", "The sign-in cannot be completed at the moment. Reload this page to try again.")
	case !found:
		writeHTML(w, http.StatusBadRequest, "This link is not valid any more", "It was used before, is too old, or was never issued. Ask your question again.")
	case err != nil: // for example, the user refused
		writeHTML(w, http.StatusBadRequest, "Sign-in failed", "No access was granted. You may close this window and ask your question again.")
	default:
		writeHTML(w, http.StatusOK, "Done", "You may close this window. Your question continues by itself.")
	}
}

// finishSignIn completes the sign-in that the query's state identifies (Agent.FinishSignIn). found is false without an
// error if the query is malformed or too long.
func (h *Handler) finishSignIn(r *http.Request) (found bool, err error) {
	query, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil || len(r.URL.RawQuery) > maxCallbackQuery {
		return false, nil
	}
	return h.Agent.FinishSignIn(r.Context(), query)
}

// signOut serves DELETE /servers/{name}/sign-in: it removes the caller's tokens for an MCP server.
func (h *Handler) signOut(w http.ResponseWriter, r *http.Request) error {
	err := h.Agent.SignOut(r.Context(), identity(r), pathParam(r, "name"))
	switch {
	case errors.Is(err, agent.ErrUnknownServer):
		return newProblem("not_found", "There is no MCP server with this name at which users sign in.")
	case err == nil:
		writeNoContent(w)
	}
	return err
}

// writeHTML answers with a page for a browser. title and text are inserted as HTML, so they must be fixed texts. The
// URL in the browser contains an authorization code, so the page sends no Referer and is not cached (RFC 9700 section
// 4.2).
func writeHTML(w http.ResponseWriter, status int, title, text string) {
	header := w.Header()
	header.Set("Content-Type", "text/html; charset=utf-8")
	header.Set("Content-Security-Policy", "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'")
	header.Set("Referrer-Policy", "no-referrer")
	header.Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_, _ = io.WriteString(w, "<!doctype html>\n"+
		"<html lang=\"en\"><head><meta charset=\"utf-8\"><title>"+title+"</title></head>\n"+
		"<body><h1>"+title+"</h1><p>"+text+"</p></body></html>\n")
}

// resourceMetadataPath is the path of protected resource metadata. The path of the resource
// follows it (RFC 9728 section 3.1).
const resourceMetadataPath = "/.well-known/oauth-protected-resource"

// getResourceMetadata serves the protected resource metadata (RFC 9728), which tells clients where to get a token. The
// whole service is one resource and /mcp is another, because MCP clients use the MCP server's URL as the resource.
func (h *Handler) getResourceMetadata(w http.ResponseWriter, r *http.Request) error {
	if h.Verifier == nil {
		return newProblem("not_found", "There is nothing at this path.")
	}
	resource := h.publicURL(r) + strings.TrimPrefix(r.URL.Path, resourceMetadataPath) // its base path is stripped
	body, err := json.Marshal(h.Verifier.Metadata(resource))
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "public, max-age=3600")
	_, _ = w.Write(body) // fails only if the caller has left
	return nil
}

// metadataURL returns the URL of the metadata document for the resource that r requests: /mcp or the whole service
// (getResourceMetadata). WWW-Authenticate challenges contain this URL (RFC 9728 section 5.1).
func (h *Handler) metadataURL(r *http.Request) string {
	resourcePath := ""
	if r.URL.Path == "/mcp" {
		resourcePath = r.URL.Path
	}
	return h.publicURL(r) + resourceMetadataPath + resourcePath
}

// publicURL returns the service's URL as the client knows it. That is PublicURL or, if it is not set, the requested
// host with https, or with http on the loopback interface. checkHost has accepted the host. X-Forwarded headers are
// ignored, because any client can set them.
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
		scheme = "http" // only on loopback: anywhere else, a token must not be sent over plain HTTP
	}
	return scheme + "://" + r.Host
}
