package demo

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"strings"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// Paths and bounds of the MCP server.
const (
	// MCPPath is where the MCP server listens for MCP.
	MCPPath = "/mcp"
	// resourceMetadataPath is RFC 9728's well-known prefix before the resource's path.
	resourceMetadataPath = "/.well-known/oauth-protected-resource" + MCPPath
	// sessionIdle ends sessions that their client forgot.
	sessionIdle = 30 * time.Minute
	// maxMCPBody bounds a request's body; the longest argument here is 200 characters.
	maxMCPBody = 256 << 10
)

// MCPConfig says whose tokens the MCP server takes.
type MCPConfig struct {
	Issuer   string // required
	JWKSURL  string // where the issuer's keys are, over HTTP; required
	Audience string // "" is DefaultAudience
	Scope    string // all of it is needed, separated by spaces; "" is DefaultScope
	// URL is where a browser reaches this server, without a slash at the end; "" leaves
	// out connect_calendar, which sends people there.
	URL string
	// Logger, nil to discard, gets one line "session opened" per session and one
	// line "tool call" per call, with the token's subject and never the token.
	Logger *slog.Logger
}

// MCPServer offers the demo's tools over MCP's Streamable HTTP at MCPPath, with
// sessions, to holders of a valid access token.
type MCPServer struct {
	mux    *http.ServeMux
	server *sdk.Server
	keys   *keySet
}

// NewMCPServer refuses a configuration without issuer or keys: that the JWT is
// verified is the point of the demo. It makes no request: the IAM may start later.
func NewMCPServer(c MCPConfig) (*MCPServer, error) {
	if c.Issuer == "" || c.JWKSURL == "" {
		return nil, errors.New("demo MCP server: the issuer or the URL of its keys is missing")
	}
	if c.Audience == "" {
		c.Audience = DefaultAudience
	}
	if c.Scope == "" {
		c.Scope = DefaultScope
	}
	log := logger(c.Logger)
	s := &MCPServer{mux: http.NewServeMux(), keys: newKeySet(c.JWKSURL), server: newToolServer(log)}
	guard := bearer{newVerifier(c.Issuer, c.Audience, s.keys), strings.Fields(c.Scope), log}
	streamable := sdk.NewStreamableHTTPHandler(func(*http.Request) *sdk.Server { return s.server },
		&sdk.StreamableHTTPOptions{SessionTimeout: sessionIdle, MaxRequestBodyBytes: maxMCPBody})
	s.mux.Handle(MCPPath, guard.require(streamable))
	s.mux.HandleFunc("GET "+resourceMetadataPath, func(w http.ResponseWriter, r *http.Request) {
		writeJSON(w, http.StatusOK, map[string]any{
			"resource":                 origin(r) + MCPPath,
			"authorization_servers":    []string{c.Issuer},
			"scopes_supported":         guard.scopes,
			"bearer_methods_supported": []string{"header"},
		})
	})
	s.mux.HandleFunc("GET /healthz", healthz)
	if c.URL != "" {
		addCalendar(s.server, s.mux, c.URL)
	}
	return s, nil
}

// ServeHTTP implements http.Handler.
func (s *MCPServer) ServeHTTP(w http.ResponseWriter, r *http.Request) { s.mux.ServeHTTP(w, r) }

// Close ends all sessions, their open streams and running calls, and lets go of the
// connections to the IAM. Without it an http.Server's Shutdown waits for clients.
func (s *MCPServer) Close() {
	for session := range s.server.Sessions() {
		_ = session.Close() // the only error is that it is closed already
	}
	s.keys.close()
}

// newToolServer is the server behind the guard, with all tools.
func newToolServer(log *slog.Logger) *sdk.Server {
	s := sdk.NewServer(&sdk.Implementation{Name: "answerd-demo", Title: "answerd's demo tools", Version: "1"}, &sdk.ServerOptions{
		Instructions: "Harmless tools to try answerd with: time, arithmetic, conversions, answerd's documentation, notes, a table to book, one slow tool and one that always fails.",
		InitializedHandler: func(_ context.Context, r *sdk.InitializedRequest) {
			log.Info("session opened", "subject", subject(r))
		},
	})
	addClock(s)
	addCalculator(s)
	addConverter(s)
	addSearch(s)
	addReport(s)
	addFlaky(s)
	addNotes(s, newNotebook())
	addBooking(s)
	s.AddReceivingMiddleware(logCalls(log), objectArguments)
	return s
}

// objectArguments makes {} of "arguments": null. Without it that one request ends
// the process: SDK 1.8 decodes null into a nil map and then writes the schema's
// defaults into it, in a goroutine that nobody recovers.
func objectArguments(next sdk.MethodHandler) sdk.MethodHandler {
	return func(ctx context.Context, method string, req sdk.Request) (sdk.Result, error) {
		if call, ok := req.(*sdk.CallToolRequest); ok && call.Params != nil && string(bytes.TrimSpace(call.Params.Arguments)) == "null" {
			call.Params.Arguments = json.RawMessage("{}")
		}
		return next(ctx, method, req)
	}
}

// logCalls writes the line of each call. Arguments stay out: they are the user's.
func logCalls(log *slog.Logger) sdk.Middleware {
	return func(next sdk.MethodHandler) sdk.MethodHandler {
		return func(ctx context.Context, method string, req sdk.Request) (sdk.Result, error) {
			call, ok := req.(*sdk.CallToolRequest)
			if !ok || call.Params == nil {
				return next(ctx, method, req)
			}
			began := time.Now()
			res, err := next(ctx, method, req)
			failed := err != nil
			if r, ok := res.(*sdk.CallToolResult); ok && r != nil {
				failed = failed || r.IsError
			}
			log.Info("tool call", "tool", call.Params.Name, "subject", subject(req), "failed", failed, "duration", time.Since(began))
			return res, err
		}
	}
}

// subject is whose token the request brought.
func subject(r sdk.Request) string {
	if e := r.GetExtra(); e != nil && e.TokenInfo != nil {
		return e.TokenInfo.UserID
	}
	return ""
}
