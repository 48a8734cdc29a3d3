// Package mcpserver serves one tool, and further tools that depend on the caller, to MCP clients over Streamable HTTP,
// in every protocol version that the SDK supports.
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
// The package implements the protocol; CallTool implements the tools. CallTool is called from any
// number of goroutines. The context of a call ends when the client cancels the call, when the
// connection of its request is gone, or when Close cancels it.
//
// Protocol 2026-07-28 has no sessions, so the server keeps no state between calls: an elicitation is the result
// of a call, and its answer comes with another call. In older versions an elicitation is sent on
// the open stream of the call, and its answer is another request of the same session. There are
// at most MaxSessions sessions, shared fairly among callers. An idle session ends. Only its owner can use a session.
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

// Tool is a tool as clients see it. The schemas have the type object; OutputSchema may be nil. The package does not
// check arguments against InputSchema: CallTool must.
type Tool struct {
	Name, Title, Description  string
	InputSchema, OutputSchema json.RawMessage
}

// Options are the tools and their limits. Tool and CallTool are required.
type Options struct {
	Tool       Tool
	ServerName string // the name of this service; "" means the name of the tool
	Version    string // of the service
	// MoreTools returns further tools that the caller of a request may use. It may be nil. CallTool gets the calls of
	// all tools.
	MoreTools func(*http.Request) []Tool
	// CallTool executes a call. The Result of a call that fails has IsError.
	CallTool func(context.Context, *Call) Result
	// Owner returns a text that identifies the caller of a request; only the owner of a session can use
	// the session. nil treats all callers as the same.
	Owner func(*http.Request) string

	Heartbeat          time.Duration // silence of a stream before a comment is sent; 0 means 15 s
	MaxSessions        int           // of all callers together; 0 means 1024
	SessionIdleTimeout time.Duration // a session without a request for this long ends; 0 means 10 min
	Logger             *slog.Logger  // for panics of CallTool; nil discards them
}

// Handler serves the tools. It is an http.Handler for POST and DELETE. It must not get GET requests, which
// would open a stream for messages that belong to no call: it sends no messages of that kind.
type Handler struct {
	Options
	// Stateless requests are of protocol version firstStateless or later; stateful requests are of older versions.
	statelessHandler, statefulHandler http.Handler
	statelessServer, statefulServer   *sdk.Server
	calls                             callRegistry
	sessions                          sessionRegistry // of statefulServer
	drain                             SessionDrain
}

// New returns a Handler with the given options, or the defaults for those that are not set. The caller must Close it.
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

// newSDKServer returns an SDK server with the tool, and with the middleware for MoreTools.
func (h *Handler) newSDKServer() *sdk.Server {
	server := sdk.NewServer(&sdk.Implementation{Name: h.ServerName, Title: h.Tool.Title, Version: h.Version}, &sdk.ServerOptions{
		Capabilities: &sdk.ServerCapabilities{Tools: &sdk.ToolCapabilities{}, Logging: &sdk.LoggingCapabilities{}},
		// Without further tools, the list is the same for every caller until the next release.
		SetCacheable: func(_ context.Context, _ sdk.Request, c *sdk.Cacheable) {
			c.TTLMs = int(time.Hour.Milliseconds())
			if h.MoreTools != nil {
				c.TTLMs = int(time.Minute.Milliseconds())
				c.CacheScope = "private"
			}
		},
	})
	server.AddTool(h.Tool.sdkTool(), h.handleCall)
	if h.MoreTools != nil {
		server.AddReceivingMiddleware(h.serveMoreTools)
	}
	return server
}

// sdkTool returns the tool in the type of the SDK.
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

// serveMoreTools is middleware of the SDK that adds the tools of MoreTools: it appends them to the last page of
// tools/list, and executes their calls. They cannot be added to the SDK's server, whose tools are the same for every
// caller.
func (h *Handler) serveMoreTools(next sdk.MethodHandler) sdk.MethodHandler {
	return func(ctx context.Context, method string, req sdk.Request) (sdk.Result, error) {
		if method != "tools/list" && method != "tools/call" {
			return next(ctx, method, req)
		}
		tools := h.moreTools(req)
		call, isCall := req.(*sdk.CallToolRequest)
		if isCall && slices.ContainsFunc(tools, func(t Tool) bool { return t.Name == call.Params.Name }) {
			return h.handleCall(ctx, call)
		}
		res, err := next(ctx, method, req)
		if list, isList := res.(*sdk.ListToolsResult); isList && err == nil && list.NextCursor == "" {
			for _, t := range tools {
				list.Tools = append(list.Tools, t.sdkTool())
			}
		}
		return res, err
	}
}

// moreTools returns the tools of MoreTools for the HTTP request of req. It returns nil if req came without one.
func (h *Handler) moreTools(req sdk.Request) []Tool {
	extra := req.GetExtra()
	if extra == nil || extra.TokenInfo == nil {
		return nil
	}
	cr, ok := extra.TokenInfo.Extra[callRequestKey].(callRequest)
	if !ok {
		return nil
	}
	return h.MoreTools(cr.request)
}

// newTransport returns the HTTP handler of an SDK server.
func (h *Handler) newTransport(s *sdk.Server, stateless bool) http.Handler {
	return sdk.NewStreamableHTTPHandler(func(*http.Request) *sdk.Server { return s }, &sdk.StreamableHTTPOptions{
		Stateless: stateless, PropagateRequestCancellation: true, SessionTimeout: h.SessionIdleTimeout,
		// Middleware in front of this handler bounds the body and checks the Host header.
		MaxRequestBodyBytes: -1, DisableLocalhostProtection: true,
	})
}

// ServeHTTP implements http.Handler. It refuses a request that would exceed MaxSessions, or that arrives after Close
// and may begin a session, with 503. It returns after the call of the request has ended.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	owner := h.Owner(r)
	session := r.Header.Get("Mcp-Session-Id")
	stateless := r.Header.Get("Mcp-Protocol-Version") >= firstStateless
	switch {
	case r.Method == http.MethodDelete && stateless:
		w.Header().Set("Allow", http.MethodPost)
		http.Error(w, "this version of the protocol has no sessions", http.StatusMethodNotAllowed)
		return
	case r.Method == http.MethodDelete:
		// The SDK will end the session, and wait for its calls.
		h.calls.cancelMatching(nil, func(c *Call) bool { return c.session == session && c.owner == owner })
	case !stateless && session == "" && !h.admitSession(owner):
		w.Header().Set("Retry-After", "1")
		http.Error(w, "the service has too many open sessions", http.StatusServiceUnavailable)
		return
	}
	// For a stateless request, the SDK begins a session that ends with the request.
	mayBeginSession := stateless || session == ""
	if mayBeginSession {
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
		// The SDK writes the id of a session that it begins to the header of the response.
		defer func() { h.sessions.add(w.Header().Get("Mcp-Session-Id"), owner) }()
	default:
		h.sessions.recordUse(session, owner)
	}
	h.attachRequest(next, r, s).ServeHTTP(s, withPlaceholderToken(r))
}

// callRequest is the HTTP request of a call and the stream of its response.
type callRequest struct {
	request *http.Request
	stream  *stream
}

// callRequestKey is the key of the callRequest in the TokenInfo of a request (attachRequest).
const callRequestKey = "callRequest"

// attachRequest returns next with middleware through which r and s reach handleCall and serveMoreTools. The context
// that the SDK gives to a call is that of the session's first request, which has another stream, another trace and a
// token that may have expired. The only value that the SDK takes from the current request is its TokenInfo, so that
// carries r and s. The SDK also checks that all requests of a session have the same UserID, which is the owner here.
// The caller's real token was verified before.
func (h *Handler) attachRequest(next http.Handler, r *http.Request, s *stream) http.Handler {
	info := &sdkauth.TokenInfo{
		UserID: "of " + h.Owner(r), // never empty, which would disable the SDK's check
		Extra:  map[string]any{callRequestKey: callRequest{r, s}},
	}
	verify := func(context.Context, string, *http.Request) (*sdkauth.TokenInfo, error) { return info, nil }
	return sdkauth.RequireBearerToken(verify, &sdkauth.RequireBearerTokenOptions{AllowMissingExpiration: true})(next)
}

// withPlaceholderToken returns a copy of r with a bearer token that has no meaning, because the SDK's
// middleware requires a token.
func withPlaceholderToken(r *http.Request) *http.Request {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer none")
	return r
}

// Close refuses new calls and sessions, waits for the calls in flight, and ends all sessions. When ctx ends, it cancels
// the contexts of the calls with ErrClosed as the cause. It returns when all calls have returned.
func (h *Handler) Close(ctx context.Context) {
	h.calls.refuseNew()
	defer context.AfterFunc(ctx, func() { h.calls.cancelMatching(ErrClosed, func(*Call) bool { return true }) })()
	h.drain.Close(h.statefulServer) // a session of statelessServer ends with its request
}

// handleCall is the SDK's handler of all tools: it opens the stream of the response and executes the call with
// CallTool. Failures are results with IsError, because an error of the protocol does not reach the client's model. The
// error means that the request did not pass through attachRequest.
func (h *Handler) handleCall(ctx context.Context, req *sdk.CallToolRequest) (res *sdk.CallToolResult, _ error) {
	defer h.recoverCall(ctx, &res)
	cr, ok := req.Extra.TokenInfo.Extra[callRequestKey].(callRequest)
	if !ok {
		return nil, errors.New("a call without a request")
	}
	cr.stream.openStream()
	call := newCall(ctx, req, cr.request, h.Owner(cr.request))

	// The call ends with its request. In 2026-07-28, to end the request is how a client cancels the call. In older
	// versions, too, the result could not be sent without the request. ctx ends when an older client cancels the call.
	callCtx, cancel := context.WithCancelCause(cr.request.Context())
	defer cancel(nil)
	defer context.AfterFunc(ctx, func() { cancel(nil) })()
	if !h.calls.add(call, cancel) {
		return sdkResult(Result{Text: ErrClosed.Error(), IsError: true}), nil
	}
	defer h.calls.remove(call)
	return sdkResult(h.CallTool(callCtx, call)), nil
}

// newCall returns the Call for a request of the SDK. ctx is the context that the SDK gave to the call.
func newCall(ctx context.Context, req *sdk.CallToolRequest, r *http.Request, owner string) *Call {
	call := &Call{
		Tool: req.Params.Name, Arguments: req.Params.Arguments, Meta: req.Params.Meta,
		Request: r, RequestState: req.Params.RequestState,
		req: req, ctx: ctx, session: req.Session.ID(), owner: owner,
	}
	if len(call.Arguments) == 0 {
		call.Arguments = json.RawMessage("{}")
	}
	call.OpenStream = call.session != ""
	if caps := req.ClientCapabilities(); caps != nil && caps.Elicitation != nil {
		call.SupportsURL = caps.Elicitation.URL != nil
		declaresNoMode := caps.Elicitation.Form == nil && caps.Elicitation.URL == nil
		// Before URL mode existed, clients that support forms declared no mode.
		call.SupportsForm = caps.Elicitation.Form != nil || declaresNoMode
	}
	for id, response := range req.Params.InputResponses {
		if r, ok := response.(*sdk.ElicitResult); ok {
			if call.InputResponses == nil {
				call.InputResponses = make(map[string]ElicitResult)
			}
			call.InputResponses[id] = newElicitResult(r)
		}
	}
	return call
}

// recoverCall must be deferred. It recovers a panic of a call, logs it, and sets *res to a result with IsError. The
// call executes on a goroutine of the SDK, where a panic would end the process.
func (h *Handler) recoverCall(ctx context.Context, res **sdk.CallToolResult) {
	if v := recover(); v != nil {
		h.Logger.ErrorContext(ctx, "panic in a tool call", "panic", v)
		*res = sdkResult(Result{Text: "Something went wrong inside the service.", IsError: true})
	}
}
