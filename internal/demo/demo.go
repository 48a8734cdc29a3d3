// Package demo has the three services of `answerd demo`: an IAM that issues JWTs, an MCP
// server that verifies them, and a stand-in for a language model. All of them are real
// HTTP; nothing in answerd knows that it talks to a demo.
//
//	iam, err := demo.NewIAM(demo.IAMConfig{Issuer: iamURL, ClientID: id, ClientSecret: secret})
//	tools, err := demo.NewMCPServer(demo.MCPConfig{Issuer: iamURL, JWKSURL: iamURL + demo.JWKSPath})
//	defer tools.Close()
//	model := demo.NewModel(demo.TokenDelay)
//
// The three are http.Handlers and may be used concurrently. Requests are bounded and treated
// as hostile, because `answerd demo` may run on a reachable address.
package demo

import (
	"encoding/json"
	"net/http"
	"strings"
)

// What the IAM issues and the MCP server expects.
const (
	Audience = "answerd-demo"             // aud of the tokens
	Scope    = "urn:opc:idm:__myscopes__" // what a client asks an OCI identity domain for
)

// encodeJSON returns v as JSON with < and > as they are. All that is encoded here can be.
func encodeJSON(v any) string {
	var b strings.Builder
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(v)
	return strings.TrimSuffix(b.String(), "\n")
}

// writeJSON answers with v. Write fails only when the client has disconnected.
func writeJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write([]byte(encodeJSON(v)))
}

// serveHealth answers that the service is alive.
func serveHealth(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, map[string]string{"status": "ok"})
}
