// Package demo has the three services of `answerd demo`: an IAM that issues JWTs, an MCP server that
// verifies them, and a stand-in for a language model. They serve real HTTP, and answerd uses them like
// any other service.
//
//	iam, err := demo.NewIAM(demo.IAMConfig{Issuer: iamURL, ClientID: id, ClientSecret: secret})
//	tools, err := demo.NewMCPServer(demo.MCPConfig{Issuer: iamURL, JWKSURL: iamURL + demo.JWKSPath})
//	defer tools.Close()
//	model := demo.NewModel(demo.TokenDelay)
//
// All three are http.Handlers and may be used concurrently. Requests are bounded and untrusted, because
// `answerd demo` may listen on an address that others can reach.
//
// The IAM issues a token for client credentials alone (iam.go). The MCP server is one of the go-sdk, behind
// a check of that token (mcpserver.go), with tools that show what a server can do: structured results,
// progress, failures, approval, a form and a page (tools.go). The stand-in keeps no conversation: it
// derives its answer from the messages of each request. Rules recognize kinds of questions and give the
// calls for them (rules.go); once the results of all these calls are among the messages, it writes a text
// (model.go).
package demo

import (
	"encoding/json"
	"net/http"
	"strings"
)

// Claims of the tokens that the IAM issues and the MCP server expects.
const (
	Audience = "answerd-demo"
	Scope    = "urn:opc:idm:__myscopes__" // as with an OCI identity domain
)

// encodeJSON returns v as JSON without escaping <, > and &. It ignores errors, because all callers
// pass values that can be encoded.
func encodeJSON(v any) string {
	var b strings.Builder
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(v)
	return strings.TrimSuffix(b.String(), "\n")
}

// writeJSON sends a response with the status and v as JSON. It ignores an error of Write, which means that the
// client has disconnected.
func writeJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write([]byte(encodeJSON(v)))
}

// serveHealth serves GET /healthz, for container health checks.
func serveHealth(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, map[string]string{"status": "ok"})
}
