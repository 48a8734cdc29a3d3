// Package demo is the loopback world of `answerd demo`: the three services that the
// main job needs and that a newcomer has not installed. All of them are real HTTP;
// nothing in answerd knows that it is talking to a demo.
//
//	iam, err := demo.NewIAM(demo.IAMConfig{Issuer: iamURL, ClientID: id, ClientSecret: secret})
//	tools, err := demo.NewMCPServer(demo.MCPConfig{Issuer: iamURL, JWKSURL: iamURL + demo.JWKSPath})
//	defer tools.Close()
//	model := demo.NewModel(demo.ModelConfig{})
//	go iamServer.Serve(iamListener) // each of the three is an http.Handler
//
// IAM issues RS256 access tokens by client credentials and publishes its key.
// MCPServer offers a handful of tools to whoever brings such a token; it fetches the
// key over HTTP and may be started before the IAM. Model speaks OpenAI's Chat
// Completions, but it is a stand-in and not a language model: rules choose the tools
// by the words of the question and the tools' schemas, and every answer says so.
//
// The handlers may be used concurrently. The IAM and the model start no goroutine;
// the MCP server owns its sessions until Close. What they are sent is bounded and
// treated as hostile, as everything from outside is: `answerd demo` may be run on a
// reachable address.
package demo

import (
	"encoding/json"
	"log/slog"
	"net/http"
)

// What the parts agree on where their configuration says nothing.
const (
	// DefaultAudience is the aud of the IAM's tokens and what the MCP server expects.
	DefaultAudience = "answerd-demo"
	// DefaultScope is the scope that a client asks an OCI identity domain for.
	DefaultScope = "urn:opc:idm:__myscopes__"
)

// logger is l, or one that discards.
func logger(l *slog.Logger) *slog.Logger {
	if l == nil {
		return slog.New(slog.DiscardHandler)
	}
	return l
}

// writeJSON answers with v. Whatever v is made of here can be encoded, so an error
// is a client that went away.
func writeJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(v)
}

// healthz says that the part is alive, in the words of the service itself.
func healthz(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, map[string]string{"status": "ok"})
}
