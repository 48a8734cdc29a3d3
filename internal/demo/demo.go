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
// The IAM issues tokens only for client credentials (iam.go). The MCP server uses the go-sdk and checks the token of
// each request (mcpserver.go). Its tools show what a server can do: structured results, progress, failures, approval,
// a form and a page (tools.go). The stand-in stores no conversation. It derives its answer from the messages of each
// request: rules recognize kinds of questions and plan the calls for them (rules.go), and once the messages have the
// results of all calls, it writes a text (model.go).
package demo

import (
	"encoding/json"
	"net/http"
	"strings"
)

// Audience is the audience of the tokens that the IAM issues and the MCP server expects.
const Audience = "answerd-demo"

// Scope is the scope of these tokens, as with an OCI identity domain.
const Scope = "urn:opc:idm:__myscopes__"

// encodeJSON returns v as JSON without escaping <, > and &. It ignores errors, because callers pass only values that
// can be encoded.
func encodeJSON(v any) string {
	var b strings.Builder
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(v)
	return strings.TrimSuffix(b.String(), "\n")
}

// writeJSON sends a response with status and v as JSON. It ignores write errors, which mean that the client has
// disconnected.
func writeJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write([]byte(encodeJSON(v)))
}

// serveHealth serves GET /healthz, for container health checks.
func serveHealth(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, map[string]string{"status": "ok"})
}
