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

// MCPPath is the path of the MCP endpoint. resourceMetadataPath is that of its protected resource
// metadata (RFC 9728 section 3.1).
const (
	MCPPath              = "/mcp"
	resourceMetadataPath = "/.well-known/oauth-protected-resource" + MCPPath
)

// MCPConfig configures which tokens the MCP server accepts.
type MCPConfig struct {
	Issuer  string // required
	JWKSURL string // URL of the issuer's keys: https, or http on loopback; required
	// URL is the URL of this server for browsers, without a slash at the end. "" leaves out the tool
	// connect_calendar, which needs a page.
	URL string
	// Logger gets one line "session opened" per session and one line "tool call" per call, with the
	// token's subject and never the token. nil means no log.
	Logger *slog.Logger
}

// MCPServer serves the demo's tools over Streamable HTTP at MCPPath, with sessions, to clients
// with a valid access token.
type MCPServer struct {
	http.Handler
	server   *sdk.Server
	drain    mcpserver.SessionDrain // lets Close wait for requests that may begin a session
	verifier *auth.Verifier         // of access tokens
	log      *slog.Logger
}

// NewMCPServer returns an MCP server with the tools of the demo; connect_calendar only if cfg.URL is set. It returns an
// error if the issuer is missing or the URL of its keys is not allowed. It sends no request, because the IAM may start
// later. The caller must Close the server.
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

// Close refuses new sessions, closes the open ones with their streams, waits for their running calls, and closes the
// connections to the IAM. Call Close before http.Server.Shutdown, which would otherwise wait until the clients close
// their streams.
func (s *MCPServer) Close() {
	s.drain.Close(s.server)
	s.verifier.Close()
}

// identityKey is the context key of the caller's identity.
type identityKey struct{}

// requireToken returns a handler that calls next for requests with a valid access token that has the scope. It answers
// other requests with a challenge (RFC 6750 section 3), or with 503 while the IAM's keys cannot be fetched.
func (s *MCPServer) requireToken(next http.Handler) http.Handler {
	// The SDK binds sessions to callers, and gives tools the caller, by the TokenInfo that only its middleware can
	// set. The middleware would answer 500 while the IAM is unreachable, so the token is verified before it runs;
	// its own verifier only converts the result.
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

// refuseToken answers a request whose token is missing or was not accepted because of err, and logs the reason.
func (s *MCPServer) refuseToken(w http.ResponseWriter, r *http.Request, err error) {
	s.log.Info("token refused", "reason", auth.Reason(err))
	status, challenge := auth.Challenge(err, "http://"+r.Host+resourceMetadataPath)
	if challenge != "" {
		w.Header().Set("WWW-Authenticate", challenge)
	} else {
		w.Header().Set("Retry-After", "1") // there are no keys yet, so the token may be valid
	}
	http.Error(w, http.StatusText(status), status)
}

// newToolServer returns the MCP server with all tools except the calendar. It logs sessions and
// calls.
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

// logCalls returns a handler that passes all requests to next and logs tool calls when they have ended. It does not log
// the arguments, because they are text of the user. It also replaces the arguments null, which the SDK cannot handle.
func logCalls(log *slog.Logger, next sdk.MethodHandler) sdk.MethodHandler {
	return func(ctx context.Context, method string, req sdk.Request) (sdk.Result, error) {
		call, ok := req.(*sdk.CallToolRequest)
		if !ok || call.Params == nil {
			return next(ctx, method, req)
		}
		// SDK 1.8 decodes null to a nil map and writes the schema's defaults into it. That panics
		// in a goroutine without a recover, which would end the process.
		if string(bytes.TrimSpace(call.Params.Arguments)) == "null" {
			call.Params.Arguments = json.RawMessage("{}")
		}
		began := time.Now()
		res, err := next(ctx, method, call)
		result, _ := res.(*sdk.CallToolResult)
		failed := err != nil || result != nil && result.IsError
		log.Info("tool call", "tool", call.Params.Name, "subject", tokenSubject(call), "failed", failed, "duration", time.Since(began))
		return res, err
	}
}

// tokenSubject returns the subject of the request's token, or "" if there is none.
func tokenSubject(r sdk.Request) string {
	if e := r.GetExtra(); e != nil && e.TokenInfo != nil {
		return e.TokenInfo.UserID
	}
	return ""
}
