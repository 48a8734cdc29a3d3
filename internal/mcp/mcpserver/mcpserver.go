// Package mcpserver serves one tool, and further ones that depend on the caller, to MCP clients over Streamable HTTP, in every protocol version
// that the SDK supports.
//
//	h := mcpserver.New(mcpserver.Options{
//		Tool: mcpserver.Tool{Name: "answer", InputSchema: in, OutputSchema: out},
//		CallTool: func(ctx context.Context, c *mcpserver.Call) mcpserver.Result {
//			c.Progress(1, "searching")
//			return mcpserver.Result{Text: "42"}
//		},
//	})
//	http.Handle("/mcp", h) // behind authentication, with a bounded body and write deadlines
//	defer h.Close(ctx)
//
// The package implements the protocol; CallTool implements the tool. CallTool is called from any
// number of goroutines. The context of a call ends when the client cancels the call or the
// connection of its request is gone.
//
// Protocol 2026-07-28 has no sessions, so no state of it can be lost: an elicitation is the result
// of a call, and its answer comes with another call. In older versions an elicitation goes out on
// the open stream of the call, and its answer is another request of the same session. There are
// at most MaxSessions sessions, shared fairly among callers. An idle session ends, and only its owner can use it.
package mcpserver

//lint:file-ignore SA1019 2026-07-28 deprecates logging (SEP-2577); clients still ask for it.

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"slices"
	"time"

	sdkauth "github.com/modelcontextprotocol/go-sdk/auth"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// firstStateless is the first protocol version without sessions. Versions are dates, so they
// compare as strings.
const firstStateless = "2026-07-28"

// Tool describes the tool.
type Tool struct {
	Name, Title, Description  string
	InputSchema, OutputSchema json.RawMessage // of type object; CallTool must check the arguments itself
}

// Options are the tool and its limits. Tool and CallTool are required.
type Options struct {
	Tool       Tool
	ServerName string // the name of this service; "" means that of the tool
	Version    string // of the service
	// MoreTools returns the further tools that the caller of a request may use; nil means that there are
	// none. CallTool gets the calls of all tools.
	MoreTools func(*http.Request) []Tool
	// CallTool executes a call. A call that fails returns a Result too.
	CallTool func(context.Context, *Call) Result
	// Owner returns what identifies the caller of a request; only the owner of a session can use
	// it. nil treats all callers as the same.
	Owner func(*http.Request) string

	Heartbeat          time.Duration // silence of a stream before a comment; 0 means 15 s
	MaxSessions        int           // 0 means 1024; of all callers together
	SessionIdleTimeout time.Duration // a session without a request for this long ends; 0 means 10 min
	Logger             *slog.Logger
}

// Handler serves the tool. It is an http.Handler for POST and DELETE. It does not serve GET, which
// would open a stream for messages that belong to no call, because there are none.
type Handler struct {
	Options
	statelessHandler, statefulHandler http.Handler
	statelessServer, statefulServer   *sdk.Server
	calls                             callRegistry
	sessions                          sessionRegistry
	drain                             SessionDrain
}

// New returns a Handler. The caller must Close it.
func New(opts Options) *Handler {
	if opts.Heartbeat <= 0 {
		opts.Heartbeat = 15 * time.Second
	}
	if opts.MaxSessions <= 0 {
		opts.MaxSessions = 1024
	}
	if opts.SessionIdleTimeout <= 0 {
		opts.SessionIdleTimeout = 10 * time.Minute
	}
	if opts.Owner == nil {
		opts.Owner = func(*http.Request) string { return "" }
	}
	if opts.ServerName == "" {
		opts.ServerName = opts.Tool.Name
	}
	if opts.Logger == nil {
		opts.Logger = slog.New(slog.DiscardHandler)
	}
	h := &Handler{
		Options: opts, calls: callRegistry{open: make(map[*Call]context.CancelCauseFunc)},
		sessions: sessionRegistry{uses: make(map[string]sessionUse)},
	}
	h.statelessServer, h.statefulServer = h.newSDKServer(), h.newSDKServer()
	h.statelessHandler = h.newTransport(h.statelessServer, true)
	h.statefulHandler = h.newTransport(h.statefulServer, false)
	return h
}

// newSDKServer returns an SDK server with the tool.
func (h *Handler) newSDKServer() *sdk.Server {
	server := sdk.NewServer(&sdk.Implementation{Name: h.ServerName, Title: h.Tool.Title, Version: h.Version}, &sdk.ServerOptions{
		Capabilities: &sdk.ServerCapabilities{Tools: &sdk.ToolCapabilities{}, Logging: &sdk.LoggingCapabilities{}},
		// Without further tools, the list is the same for every caller until the next release.
		SetCacheable: func(_ context.Context, _ sdk.Request, c *sdk.Cacheable) {
			c.TTLMs = int(time.Hour.Milliseconds())
			if h.MoreTools != nil {
				c.TTLMs, c.CacheScope = int(time.Minute.Milliseconds()), "private"
			}
		},
	})
	server.AddTool(h.Tool.sdkTool(), h.handleCall)
	if h.MoreTools != nil {
		server.AddReceivingMiddleware(h.serveMoreTools)
	}
	return server
}

// sdkTool returns the tool as the SDK has it.
func (t Tool) sdkTool() *sdk.Tool {
	tool := &sdk.Tool{
		Name: t.Name, Title: t.Title, Description: t.Description, InputSchema: t.InputSchema,
		// No hints such as readOnlyHint: the tool may do whatever the agent's tools do.
		Annotations: &sdk.ToolAnnotations{Title: t.Title},
	}
	if t.OutputSchema != nil {
		tool.OutputSchema = t.OutputSchema
	}
	return tool
}

// serveMoreTools lists and calls the tools of MoreTools. The SDK's own tools are the same for every
// caller, and these are not.
func (h *Handler) serveMoreTools(next sdk.MethodHandler) sdk.MethodHandler {
	return func(ctx context.Context, method string, req sdk.Request) (sdk.Result, error) {
		extra := req.GetExtra()
		isAboutTools := method == "tools/list" || method == "tools/call"
		if !isAboutTools || extra == nil || extra.TokenInfo == nil {
			return next(ctx, method, req)
		}
		cr, ok := extra.TokenInfo.Extra[callRequestKey].(callRequest)
		if !ok {
			return next(ctx, method, req)
		}
		tools := h.MoreTools(cr.request)
		if call, ok := req.(*sdk.CallToolRequest); ok && slices.ContainsFunc(tools, func(t Tool) bool { return t.Name == call.Params.Name }) {
			return h.handleCall(ctx, call)
		}
		res, err := next(ctx, method, req)
		if list, ok := res.(*sdk.ListToolsResult); ok && err == nil && list.NextCursor == "" {
			for _, t := range tools {
				list.Tools = append(list.Tools, t.sdkTool())
			}
		}
		return res, err
	}
}

// newTransport returns the HTTP handler of an SDK server.
func (h *Handler) newTransport(s *sdk.Server, stateless bool) http.Handler {
	return sdk.NewStreamableHTTPHandler(func(*http.Request) *sdk.Server { return s }, &sdk.StreamableHTTPOptions{
		Stateless: stateless, PropagateRequestCancellation: true, SessionTimeout: h.SessionIdleTimeout,
		// Middleware in front of this handler bounds the body and checks the Host header.
		MaxRequestBodyBytes: -1, DisableLocalhostProtection: true,
	})
}

// ServeHTTP implements http.Handler.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	session := r.Header.Get("Mcp-Session-Id")
	stateless := r.Header.Get("Mcp-Protocol-Version") >= firstStateless
	switch {
	case r.Method == http.MethodDelete && stateless:
		w.Header().Set("Allow", http.MethodPost)
		http.Error(w, "this version of the protocol has no sessions", http.StatusMethodNotAllowed)
		return
	case r.Method == http.MethodDelete:
		// The SDK waits for the calls of a session that it ends.
		h.calls.cancelMatching(nil, func(c *Call) bool { return c.session == session && c.owner == h.Owner(r) })
	case !stateless && session == "" && !h.admitSession(h.Owner(r)):
		w.Header().Set("Retry-After", "1")
		http.Error(w, "the service has too many open sessions", http.StatusServiceUnavailable)
		return
	}
	if stateless || session == "" {
		if !h.drain.Begin(w) {
			return
		}
		defer h.drain.End()
	}
	s := newStream(w, h.Heartbeat)
	defer s.finish()
	next := h.statefulHandler
	switch {
	case stateless:
		next = h.statelessHandler
	case session == "":
		defer func() { h.sessions.add(w.Header().Get("Mcp-Session-Id"), h.Owner(r)) }()
	default:
		h.sessions.recordUse(session, h.Owner(r))
	}
	h.attachRequest(next, r, s).ServeHTTP(s, h.withPlaceholderToken(r))
}

// callRequest is the HTTP request of a call and the stream of its response.
type callRequest struct {
	request *http.Request
	stream  *stream
}

const callRequestKey = "callRequest"

// attachRequest makes the SDK pass the HTTP request to the call. The context that the SDK gives
// to a call is that of the session's first request, which has another stream, another trace and a
// token that may have expired. The only value that the SDK takes from the current request is its
// TokenInfo, so the request travels there. The SDK also checks that all requests of a session
// have the same UserID. The caller's real token was verified before.
func (h *Handler) attachRequest(next http.Handler, r *http.Request, s *stream) http.Handler {
	return sdkauth.RequireBearerToken(func(context.Context, string, *http.Request) (*sdkauth.TokenInfo, error) {
		return &sdkauth.TokenInfo{UserID: "of " + h.Owner(r), Extra: map[string]any{callRequestKey: callRequest{r, s}}}, nil
	}, &sdkauth.RequireBearerTokenOptions{AllowMissingExpiration: true})(next)
}

// withPlaceholderToken returns r with a bearer token that means nothing, because the SDK's
// middleware requires one.
func (h *Handler) withPlaceholderToken(r *http.Request) *http.Request {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer none")
	return r
}

// Close refuses new calls and sessions, and returns when those that are open have ended. It waits for
// the calls until ctx ends, and then cancels them with ErrClosed as the cause.
func (h *Handler) Close(ctx context.Context) {
	h.calls.refuseNew()
	defer context.AfterFunc(ctx, func() { h.calls.cancelMatching(ErrClosed, func(*Call) bool { return true }) })()
	h.drain.Close(h.statefulServer) // a session of statelessServer ends with its request
}

// handleCall is the SDK's handler of the tool. Its failures are results, not errors: an error of
// the protocol does not reach the client's model.
func (h *Handler) handleCall(ctx context.Context, req *sdk.CallToolRequest) (res *sdk.CallToolResult, _ error) {
	defer h.recoverCall(ctx, &res)
	cr, ok := req.Extra.TokenInfo.Extra[callRequestKey].(callRequest)
	if !ok {
		return nil, errors.New("a call without a request")
	}
	cr.stream.openStream()

	call := &Call{
		Tool: req.Params.Name, Arguments: req.Params.Arguments, Meta: req.Params.Meta, Request: cr.request, RequestState: req.Params.RequestState,
		req: req, ctx: ctx, session: req.Session.ID(), owner: h.Owner(cr.request),
	}
	if len(call.Arguments) == 0 {
		call.Arguments = json.RawMessage("{}")
	}
	call.OpenStream = call.session != ""
	if caps := req.ClientCapabilities(); caps != nil && caps.Elicitation != nil {
		call.SupportsURL = caps.Elicitation.URL != nil
		call.SupportsForm = caps.Elicitation.Form != nil || !call.SupportsURL // before URL mode existed, clients declared no mode
	}

	for id, given := range req.Params.InputResponses {
		if r, ok := given.(*sdk.ElicitResult); ok {
			if call.InputResponses == nil {
				call.InputResponses = make(map[string]ElicitResult)
			}
			call.InputResponses[id] = newElicitResult(r)
		}
	}

	// The call ends with its request. In 2026-07-28 that is how a client cancels. In older
	// versions, too, nobody could receive the result without the request.
	callCtx, cancel := context.WithCancelCause(cr.request.Context())
	defer cancel(nil)
	defer context.AfterFunc(ctx, func() { cancel(nil) })()
	if !h.calls.add(call, cancel) {
		return sdkResult(Result{Text: ErrClosed.Error(), IsError: true}), nil
	}
	defer h.calls.remove(call)
	return sdkResult(h.CallTool(callCtx, call)), nil
}

// recoverCall, when deferred, recovers a panic of a call and makes it a result. The call executes
// on a goroutine of the SDK, where a panic would end the process.
func (h *Handler) recoverCall(ctx context.Context, res **sdk.CallToolResult) {
	if v := recover(); v != nil {
		h.Logger.ErrorContext(ctx, "panic in a tool call", "panic", v)
		*res = sdkResult(Result{Text: "Something went wrong inside the service.", IsError: true})
	}
}
