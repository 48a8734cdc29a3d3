package oauthtest

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
)

// Resource is a server that accepts only the tokens of one Server. Protect starts one.
type Resource struct {
	*httptest.Server
	sync.Mutex // protects the fields below

	As       *Server
	Metadata map[string]any                 // merged into the server's own metadata; nil removes a member
	Needs    func(r *http.Request) []string // scopes that a request needs; nil: none
	Nonce    string                         // nonce that proofs must have
	Silent   bool                           // refuse without a challenge
	Refuse   bool                           // refuse every token

	Sent     []string // the Authorization headers received, one per request
	Refusals int
	Reads    int // how often the metadata was read
}

// Protect serves next at /mcp for requests with a valid token. The header X-Subject tells next who the token's user is.
func (s *Server) Protect(t testing.TB, next http.Handler) *Resource {
	r := &Resource{As: s, Metadata: map[string]any{}}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /.well-known/oauth-protected-resource/mcp", r.serveMetadata)
	mux.HandleFunc("/mcp", func(w http.ResponseWriter, req *http.Request) {
		subject, challenge, status := r.checkToken(w, req)
		if status != 0 {
			if challenge != "" {
				w.Header().Set("WWW-Authenticate", challenge)
			}
			w.WriteHeader(status)
			return
		}
		req.Header.Set("X-Subject", subject)
		next.ServeHTTP(w, req)
	})
	r.Server = httptest.NewServer(mux)
	t.Cleanup(func() { r.CloseClientConnections(); r.Close() })
	return r
}

// serveMetadata serves the metadata of RFC 9728, merged with r.Metadata.
func (r *Resource) serveMetadata(w http.ResponseWriter, _ *http.Request) {
	r.Lock()
	defer r.Unlock()
	r.Reads++
	writeMetadata(w, map[string]any{
		"resource":              r.URL + "/mcp",
		"authorization_servers": []string{r.As.URL},
		"scopes_supported":      []string{"basic"},
	}, r.Metadata)
}

// checkToken returns the subject of the token in req. If req must be refused, it returns the challenge and the status
// instead; otherwise status is 0.
func (r *Resource) checkToken(w http.ResponseWriter, req *http.Request) (subject, challenge string, status int) {
	r.Lock()
	defer r.Unlock()
	header := req.Header.Get("Authorization")
	r.Sent = append(r.Sent, header)
	scheme, text, _ := strings.Cut(header, " ")
	r.As.Lock()
	t, isKnown := r.As.tokens[text]
	r.As.Unlock()
	metadataParam := fmt.Sprintf("resource_metadata=%q", r.URL+"/.well-known/oauth-protected-resource/mcp")

	refuse := func(status int, challenge string) (string, string, int) {
		r.Refusals++
		if r.Silent {
			challenge = ""
		}
		return "", challenge, status
	}

	if !isKnown || r.Refuse || t.resource != r.URL+"/mcp" {
		return refuse(http.StatusUnauthorized, "Bearer "+metadataParam)
	}
	if t.thumbprint != "" || scheme == "DPoP" {
		thumbprint, code := checkProof(req.Header.Get("DPoP"), req.Method, r.URL+"/mcp", text, r.Nonce)
		if r.Nonce != "" {
			w.Header().Set("DPoP-Nonce", r.Nonce)
		}
		if scheme != "DPoP" || code == "" && thumbprint != t.thumbprint {
			code = "invalid_token"
		}
		if code != "" {
			return refuse(http.StatusUnauthorized, fmt.Sprintf("DPoP error=%q, %s", code, metadataParam))
		}
	}
	if r.Needs != nil {
		for _, scope := range r.Needs(req) {
			if !slices.Contains(t.scopes, scope) {
				challenge = fmt.Sprintf("Bearer error=\"insufficient_scope\", scope=%q, %s", scope, metadataParam)
				return refuse(http.StatusForbidden, challenge)
			}
		}
	}
	return t.subject, "", 0
}
