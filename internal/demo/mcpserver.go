package demo

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	sdkauth "github.com/modelcontextprotocol/go-sdk/auth"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"answerd/internal/auth"
	"answerd/internal/mcp/mcpserver"
)

// MCPPath is the path of the MCP endpoint.
const MCPPath = "/mcp"

// resourceMetadataPath is the path of the endpoint's protected resource metadata (RFC 9728 section 3.1).
const resourceMetadataPath = "/.well-known/oauth-protected-resource" + MCPPath

// MCPConfig configures the MCP server: the tokens that it accepts, its URL and its log.
type MCPConfig struct {
	Issuer  string // required
	JWKSURL string // URL of the issuer's keys: https, or http on loopback; required
	// URL is the URL at which browsers reach this server, without a trailing slash. If it is "", the server has no tool
	// connect_calendar, because that tool needs a page.
	URL string
	// Logger gets a line for each session, each tool call and each refused token. The lines may have the token's
	// subject but never the token. nil means no log.
	Logger *slog.Logger
}

// MCPServer serves the demo's tools to clients with a valid access token, over Streamable HTTP with sessions at
// MCPPath.
type MCPServer struct {
	http.Handler
	server   *sdk.Server
	drain    mcpserver.SessionDrain // lets Close wait for requests that may begin a session
	verifier *auth.Verifier         // checks access tokens
	log      *slog.Logger
}

// NewMCPServer returns an MCP server with the tools of the demo. It has connect_calendar only if cfg.URL is set. The
// error means that the issuer is missing or that the URL of its keys is not allowed. NewMCPServer sends no request,
// because the IAM may start later. The caller must Close the server.
func NewMCPServer(cfg MCPConfig) (*MCPServer, error) {
	log := cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler))
	verifier, err := auth.NewVerifier(auth.VerifierConfig{
		Issuer: cfg.Issuer, JWKSURL: cfg.JWKSURL, Audience: Audience, Scope: Scope,
		Algorithms: []string{"RS256"}, OnlyAccessTokens: true, Logger: log,
	})
	if err != nil {
		return nil, fmt.Errorf("demo MCP server: %w", err)
	}
	mux := http.NewServeMux()
	s := &MCPServer{Handler: mux, server: newToolServer(log), verifier: verifier, log: log}
	mux.Handle(MCPPath, s.requireToken(sdk.NewStreamableHTTPHandler(func(*http.Request) *sdk.Server { return s.server },
		&sdk.StreamableHTTPOptions{SessionTimeout: 30 * time.Minute, MaxRequestBodyBytes: 256 << 10})))
	mux.HandleFunc("GET "+resourceMetadataPath, func(w http.ResponseWriter, r *http.Request) {
		writeJSON(w, http.StatusOK, verifier.Metadata("http://"+r.Host+MCPPath))
	})
	mux.HandleFunc("GET /healthz", serveHealth)
	if cfg.URL != "" {
		addCalendar(s.server, mux, cfg.URL)
	}
	return s, nil
}

// Close refuses new sessions, ends the open ones with their streams, waits for running calls, and closes the
// connections to the IAM. Call it before http.Server.Shutdown, which would otherwise wait until the clients close their
// streams.
func (s *MCPServer) Close() {
	s.drain.Close(s.server)
	s.verifier.Close()
}

// identityKey is the context key of the caller's identity.
type identityKey struct{}

// requireToken returns a handler that passes requests with a valid access token of the right scope on to next. It
// answers other requests with a challenge (RFC 6750 section 3), or with 503 while the IAM's keys cannot be fetched.
func (s *MCPServer) requireToken(next http.Handler) http.Handler {
	// The SDK identifies callers by a TokenInfo, which only its middleware can set. That middleware would answer 500
	// while the IAM is unreachable. So the handler below verifies the token first, and the verifier here only converts
	// the result.
	withTokenInfo := sdkauth.RequireBearerToken(func(ctx context.Context, _ string, _ *http.Request) (*sdkauth.TokenInfo, error) {
		id, _ := ctx.Value(identityKey{}).(auth.Identity)
		return &sdkauth.TokenInfo{Scopes: id.Scopes, Expiration: id.Until(), UserID: id.Subject}, nil
	}, nil)(next)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var id auth.Identity
		token, err := auth.FromRequest(r)
		if err == nil {
			id, err = s.verifier.Verify(r.Context(), token)
		}
		if err != nil {
			s.refuseToken(w, r, err)
			return
		}
		if r.Header.Get("Mcp-Session-Id") == "" { // the request may begin a session
			if !s.drain.Begin(w) {
				return // Begin has answered 503
			}
			defer s.drain.End()
		}
		withTokenInfo.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), identityKey{}, id)))
	})
}

// refuseToken answers a request without a valid token, and logs the reason. err is the error of reading or verifying
// the token.
func (s *MCPServer) refuseToken(w http.ResponseWriter, r *http.Request, err error) {
	s.log.Info("token refused", "reason", auth.Reason(err))
	status, challenge := auth.Challenge(err, "http://"+r.Host+resourceMetadataPath)
	if challenge != "" {
		w.Header().Set("WWW-Authenticate", challenge)
	} else {
		w.Header().Set("Retry-After", "1") // without keys the token cannot be checked, so a later try may succeed
	}
	http.Error(w, http.StatusText(status), status)
}

// newToolServer returns an MCP server with all tools except the calendar. It logs sessions and calls.
func newToolServer(log *slog.Logger) *sdk.Server {
	server := sdk.NewServer(&sdk.Implementation{Name: "answerd-demo", Title: "answerd's demo tools", Version: "1"}, &sdk.ServerOptions{
		Instructions: "Harmless tools to try answerd with: time, arithmetic, conversions, answerd's documentation, notes, a table to book, one slow tool and one that always fails.",
		InitializedHandler: func(_ context.Context, r *sdk.InitializedRequest) {
			log.Info("session opened", "subject", tokenSubject(r))
		},
	})
	addTools(server)
	server.AddReceivingMiddleware(func(next sdk.MethodHandler) sdk.MethodHandler { return logCalls(log, next) })
	return server
}

// logCalls returns a handler that passes all requests on to next and logs each tool call when it has ended. It does not
// log the arguments, which may contain the user's text. It also replaces null arguments, which the SDK cannot handle.
func logCalls(log *slog.Logger, next sdk.MethodHandler) sdk.MethodHandler {
	return func(ctx context.Context, method string, req sdk.Request) (sdk.Result, error) {
		call, ok := req.(*sdk.CallToolRequest)
		if !ok || call.Params == nil {
			return next(ctx, method, req)
		}
		// SDK 1.8 decodes null to a nil map and then writes the schema's defaults into it. That panics in a goroutine
		// without recover, so it would end the process.
		if string(bytes.TrimSpace(call.Params.Arguments)) == "null" {
			call.Params.Arguments = json.RawMessage("{}")
		}
		began := time.Now()
		res, err := next(ctx, method, call)
		result, _ := res.(*sdk.CallToolResult)
		failed := err != nil || result != nil && result.IsError
		log.Info("tool executed", "tool", call.Params.Name, "subject", tokenSubject(call), "failed", failed, "duration_ms", time.Since(began).Milliseconds())
		return res, err
	}
}

// tokenSubject returns the subject of the request's token, or "" if the request has none.
func tokenSubject(r sdk.Request) string {
	if e := r.GetExtra(); e != nil && e.TokenInfo != nil {
		return e.TokenInfo.UserID
	}
	return ""
}
