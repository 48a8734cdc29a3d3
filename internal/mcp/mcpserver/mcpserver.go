// Package mcpserver serves tools to MCP clients over Streamable HTTP: one tool for everybody, and further tools that
// depend on the caller. It supports every protocol version that the SDK supports.
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
// The package implements the protocol. CallTool implements the tools and is called concurrently. A call's context ends
// when the client cancels the call, when its request's connection is lost, or when Close cancels it.
//
// Protocol 2026-07-28 has no sessions, so the server keeps no state between calls. An elicitation is the result of a
// call, and its answer comes with another call. In older versions, an elicitation is sent on the call's open stream,
// and its answer is another request of the same session. There are at most MaxSessions sessions, shared fairly among
// callers. A session can be used only by its owner and ends when it is idle for too long.
package mcpserver

//lint:file-ignore SA1019 2026-07-28 deprecates logging (SEP-2577); clients still ask for it.

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"time"

	sdkauth "github.com/modelcontextprotocol/go-sdk/auth"
	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// firstStateless is the first protocol version without sessions. Versions are dates, so they compare as strings.
const firstStateless = "2026-07-28"

// Tool is a tool as clients see it. The schemas must have the type object. OutputSchema may be nil. This package does
// not check arguments against InputSchema, so CallTool must.
type Tool struct {
	Name, Title, Description  string
	InputSchema, OutputSchema json.RawMessage
}

// Options configures a Handler. Tool and CallTool are required.
type Options struct {
	Tool       Tool
	ServerName string // the service's name; "" means Tool.Name
	Version    string // the service's version
	// MoreTools returns further tools that the caller of an HTTP request may use. It may be nil. Calls of these tools
	// go to CallTool as well.
	MoreTools func(*http.Request) []Tool
	// CallTool executes a call. If the call fails, it returns a Result with IsError.
	CallTool func(context.Context, *Call) Result
	// Owner returns a text that identifies the caller of a request. Only a session's owner can use the session. If
	// Owner is nil, all callers count as the same.
	Owner func(*http.Request) string

	Heartbeat          time.Duration // silence of a stream before a comment is sent; 0 means 15 s
	MaxSessions        int           // for all callers together; 0 means 1024
	SessionIdleTimeout time.Duration // a session without a request for this long ends; 0 means 10 min
	Logger             *slog.Logger  // for panics of CallTool; nil discards them
}

// Handler serves the tools. It is an http.Handler for POST and DELETE requests. It must not get GET requests, which
// would open a stream for messages that belong to no call, because it never sends such messages.
type Handler struct {
	Options
	// Requests of protocol version firstStateless or later go to the stateless handler, older ones to the stateful one.
	statelessHandler, statefulHandler http.Handler
	statefulServer                    *sdk.Server
	calls                             callRegistry
	sessions                          sessionRegistry // the sessions of statefulServer
	drain                             SessionDrain
}

// New returns a Handler. It replaces options that are not set by their defaults. Callers must call Close.
func New(opts Options) *Handler {
	opts.Heartbeat = cmp.Or(opts.Heartbeat, 15*time.Second)
	opts.MaxSessions = cmp.Or(opts.MaxSessions, 1024)
	opts.SessionIdleTimeout = cmp.Or(opts.SessionIdleTimeout, 10*time.Minute)
	if opts.Owner == nil {
		opts.Owner = func(*http.Request) string { return "" }
	}
	opts.ServerName = cmp.Or(opts.ServerName, opts.Tool.Name)
	opts.Logger = cmp.Or(opts.Logger, slog.New(slog.DiscardHandler))
	h := &Handler{
		Options:  opts,
		calls:    callRegistry{open: make(map[*Call]context.CancelCauseFunc)},
		sessions: sessionRegistry{uses: make(map[string]sessionUse)},
	}
	h.statefulServer = h.newSDKServer()
	stateful := &sdk.StreamableHTTPOptions{SessionTimeout: opts.SessionIdleTimeout}
	h.statefulHandler = newTransport(h.statefulServer, stateful)
	h.statelessHandler = newTransport(h.newSDKServer(), &sdk.StreamableHTTPOptions{Stateless: true})
	return h
}

// newSDKServer returns an SDK server with the tool and, if MoreTools is set, with middleware for the further tools.
func (h *Handler) newSDKServer() *sdk.Server {
	server := sdk.NewServer(&sdk.Implementation{Name: h.ServerName, Title: h.Tool.Title, Version: h.Version}, &sdk.ServerOptions{
		Capabilities: &sdk.ServerCapabilities{Tools: &sdk.ToolCapabilities{}, Logging: &sdk.LoggingCapabilities{}},
		// Without MoreTools, the list is the same for every caller until the next release.
		SetCacheable: func(_ context.Context, _ sdk.Request, c *sdk.Cacheable) {
			c.TTLMs = int(time.Hour.Milliseconds())
			if h.MoreTools != nil {
				c.TTLMs = int(time.Minute.Milliseconds())
				c.CacheScope = "private"
			}
		},
	})
	server.AddTool(h.Tool.sdkTool(), h.handleCall)
	server.AddSendingMiddleware(sendForm)
	if h.MoreTools != nil {
		server.AddReceivingMiddleware(h.serveMoreTools)
	}
	return server
}

// sdkTool converts t to the SDK's type.
func (t Tool) sdkTool() *sdk.Tool {
	tool := &sdk.Tool{
		Name: t.Name, Title: t.Title, Description: t.Description, InputSchema: t.InputSchema,
		// Set no hints such as readOnlyHint, because the tool may do anything that the agent's tools do.
		Annotations: &sdk.ToolAnnotations{Title: t.Title},
	}
	if t.OutputSchema != nil {
		tool.OutputSchema = t.OutputSchema
	}
	return tool
}

// calledToolKey is the key of the context value that has the name of the called tool of MoreTools.
type calledToolKey struct{}

// serveMoreTools is SDK middleware for the tools of MoreTools. It appends them to the last page of tools/list. It passes
// their calls on as calls of Tool, with their own name in the context, so that the SDK sets the resultType of their
// results. They cannot be added to the SDK's server, whose tools are the same for every caller.
func (h *Handler) serveMoreTools(next sdk.MethodHandler) sdk.MethodHandler {
	return func(ctx context.Context, method string, req sdk.Request) (sdk.Result, error) {
		if method != "tools/list" && method != "tools/call" {
			return next(ctx, method, req)
		}
		tools := h.moreTools(req)
		call, isCall := req.(*sdk.CallToolRequest)
		if isCall && slices.ContainsFunc(tools, func(t Tool) bool { return t.Name == call.Params.Name }) {
			params := *call.Params
			params.Name = h.Tool.Name
			ctx = context.WithValue(ctx, calledToolKey{}, call.Params.Name)
			return next(ctx, method, &sdk.CallToolRequest{Session: call.Session, Params: &params, Extra: call.Extra})
		}
		result, err := next(ctx, method, req)
		list, isList := result.(*sdk.ListToolsResult)
		if isList && err == nil && list.NextCursor == "" {
			for _, tool := range tools {
				list.Tools = append(list.Tools, tool.sdkTool())
			}
		}
		return result, err
	}
}

// moreTools returns what MoreTools returns for the HTTP request that carried req. It returns nil if there is none.
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

// newTransport returns the HTTP handler of server. It sets those options that do not depend on the server.
func newTransport(server *sdk.Server, opts *sdk.StreamableHTTPOptions) http.Handler {
	opts.PropagateRequestCancellation = true
	// Middleware in front of the Handler limits the body and checks the Host header.
	opts.MaxRequestBodyBytes = -1
	opts.DisableLocalhostProtection = true
	return sdk.NewStreamableHTTPHandler(func(*http.Request) *sdk.Server { return server }, opts)
}

// ServeHTTP implements http.Handler. It returns after the request's call has ended. It answers 503 if a new session
// would exceed MaxSessions, or if the request may begin a session and Close has been called. A request without the
// session that its protocol version requires is 400 (MCP 2025-11-25, Streamable HTTP, Session Management).
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	owner := h.Owner(r)
	sessionID := r.Header.Get("Mcp-Session-Id")
	isStateless := r.Header.Get("Mcp-Protocol-Version") >= firstStateless
	needsSession := !isStateless && sessionID == "" // the request can only be one that begins a session
	switch {
	case r.Method == http.MethodDelete && isStateless:
		w.Header().Set("Allow", http.MethodPost)
		http.Error(w, "this version of the protocol has no sessions", http.StatusMethodNotAllowed)
		return
	case r.Method == http.MethodDelete:
		// Cancel the session's calls, because the SDK waits for them before it ends the session.
		h.calls.cancelMatching(nil, func(c *Call) bool { return c.session == sessionID && c.owner == owner })
	case needsSession && r.Method == http.MethodPost && readMessage(r).Method != "initialize":
		// The SDK would answer 200, and admitSession would end the session of another caller.
		http.Error(w, "the first request must be initialize, and all others must have the header Mcp-Session-Id", http.StatusBadRequest)
		return
	case needsSession && !h.admitSession(owner):
		w.Header().Set("Retry-After", "1")
		http.Error(w, "the service has too many open sessions", http.StatusServiceUnavailable)
		return
	}
	// The SDK begins a session even for a stateless request. That session ends with the request.
	if isStateless || needsSession {
		if !h.drain.Begin(w) {
			return
		}
		defer h.drain.End()
	}
	s := newStream(w, h.Heartbeat)
	defer s.finish()
	next := h.statefulHandler
	switch {
	case isStateless:
		next = h.statelessHandler
	case needsSession:
		// If the SDK begins a session, it writes the session's id to the response header.
		defer func() { h.sessions.add(w.Header().Get("Mcp-Session-Id"), owner) }()
	default:
		isOwn := h.sessions.recordUse(sessionID, owner)
		if isOwn && r.Method == http.MethodPost && answerUnknownMethod(s, readMessage(r)) {
			return
		}
	}
	h.attachRequest(next, r, s).ServeHTTP(s, withPlaceholderToken(r))
}

// message has the members of a JSON-RPC message that say how it is answered.
type message struct {
	ID     json.RawMessage
	Method string // "" for a response
}

// readMessage returns the message in the body of r, or the zero value if the body is something else, such as a batch.
// It replaces the body by a copy for the SDK. The middleware in front of the Handler has limited the body.
func readMessage(r *http.Request) (m message) {
	body, err := io.ReadAll(r.Body)
	r.Body = io.NopCloser(bytes.NewReader(body))
	if err != nil || json.Unmarshal(body, &m) != nil {
		return message{}
	}
	return m
}

// sessionMethods are the methods of requests and notifications that the server handles in a session.
var sessionMethods = []string{
	"initialize", "ping", "tools/list", "tools/call", "logging/setLevel", "prompts/list", "resources/list", "resources/templates/list",
	"notifications/initialized", "notifications/cancelled", "notifications/progress", "notifications/roots/list_changed",
}

// answerUnknownMethod answers m and returns true if m has a method that is not in sessionMethods. An unknown request
// gets a JSON-RPC error, and an unknown notification is ignored (JSON-RPC 2.0, 4.1 and 5.1). The SDK would answer both
// with 400, on which clients with the Python SDK 1 end the session.
func answerUnknownMethod(w http.ResponseWriter, m message) bool {
	if m.Method == "" || slices.Contains(sessionMethods, m.Method) {
		return false
	}
	if m.ID == nil {
		w.WriteHeader(http.StatusAccepted)
		return true
	}
	w.Header().Set("Content-Type", "application/json")
	answer, _ := json.Marshal(map[string]any{ // cannot fail: m.ID is JSON
		"jsonrpc": "2.0", "id": m.ID,
		"error": map[string]any{"code": jsonrpc.CodeMethodNotFound, "message": fmt.Sprintf("method not found: %.80q", m.Method)},
	})
	_, _ = w.Write(answer) // fails only if the client is gone
	return true
}

// callRequest has a call's HTTP request and the stream of the response.
type callRequest struct {
	request *http.Request
	stream  *stream
}

// callRequestKey is the key of the callRequest in TokenInfo.Extra (see attachRequest).
const callRequestKey = "callRequest"

// attachRequest wraps next in middleware that passes r and s on to handleCall and serveMoreTools. They cannot be passed
// in the context: the SDK gives a call the context of the session's first request, which has another stream and another
// trace, and a token that may have expired. The only value that the SDK takes from the current request is its
// TokenInfo, so the middleware puts r and s there.
//
// The SDK also checks that all requests of a session have the same UserID, which is the owner here. The caller's real
// token has already been verified.
func (h *Handler) attachRequest(next http.Handler, r *http.Request, s *stream) http.Handler {
	info := &sdkauth.TokenInfo{
		UserID: "of " + h.Owner(r), // never empty, which would disable the SDK's check
		Extra:  map[string]any{callRequestKey: callRequest{r, s}},
	}
	verify := func(context.Context, string, *http.Request) (*sdkauth.TokenInfo, error) { return info, nil }
	return sdkauth.RequireBearerToken(verify, &sdkauth.RequireBearerTokenOptions{AllowMissingExpiration: true})(next)
}

// withPlaceholderToken returns a copy of r with a meaningless bearer token, which the SDK's middleware requires.
func withPlaceholderToken(r *http.Request) *http.Request {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer none")
	return r
}

// Close rejects new calls and sessions, waits for the calls in flight, and ends all sessions. When ctx ends, it cancels
// the remaining calls with the cause ErrClosed. It returns only when all calls have returned.
func (h *Handler) Close(ctx context.Context) {
	h.calls.refuseNew()
	defer context.AfterFunc(ctx, func() { h.calls.cancelMatching(ErrClosed, func(*Call) bool { return true }) })()
	h.drain.Close(h.statefulServer) // a stateless request's session ends with the request
}

// handleCall is the SDK's handler for all tools. It opens the response stream and executes the call with CallTool. A
// failure is a result with IsError, because a protocol error would not reach the client's model. handleCall returns an
// error only if the request did not pass through attachRequest.
func (h *Handler) handleCall(ctx context.Context, req *sdk.CallToolRequest) (res *sdk.CallToolResult, _ error) {
	defer h.recoverCall(ctx, &res)
	cr, ok := req.Extra.TokenInfo.Extra[callRequestKey].(callRequest)
	if !ok {
		return nil, errors.New("a call without a request")
	}
	cr.stream.openStream()
	call := newCall(ctx, req, cr.request, h.Owner(cr.request))

	// The call ends when its request ends: in 2026-07-28, that is how a client cancels the call, and in older versions
	// the result could not be sent without the request. The call also ends with ctx, when an older client cancels it.
	callCtx, cancel := context.WithCancelCause(cr.request.Context())
	defer cancel(nil)
	defer context.AfterFunc(ctx, func() { cancel(nil) })()
	if !h.calls.add(call, cancel) {
		return sdkResult(Result{Text: ErrClosed.Error(), IsError: true}), nil
	}
	defer h.calls.remove(call)
	return sdkResult(h.CallTool(callCtx, call)), nil
}

// newCall converts the SDK's request req, which came with the HTTP request r. ctx is the SDK's context of the call.
func newCall(ctx context.Context, req *sdk.CallToolRequest, r *http.Request, owner string) *Call {
	moreTool, _ := ctx.Value(calledToolKey{}).(string) // "" for a call of Tool
	call := &Call{
		Tool: cmp.Or(moreTool, req.Params.Name), Arguments: req.Params.Arguments, Meta: req.Params.Meta,
		Request: r, RequestState: req.Params.RequestState, InputResponses: make(map[string]ElicitResult),
		req: req, ctx: ctx, session: req.Session.ID(), owner: owner,
	}
	if len(call.Arguments) == 0 {
		call.Arguments = json.RawMessage("{}")
	}
	call.OpenStream = call.session != ""
	if capabilities := req.ClientCapabilities(); capabilities != nil && capabilities.Elicitation != nil {
		modes := capabilities.Elicitation
		call.SupportsURL = modes.URL != nil
		// Before URL mode existed, clients that support forms declared no mode.
		call.SupportsForm = modes.Form != nil || modes.URL == nil
	}
	for id, response := range req.Params.InputResponses {
		if answer, ok := response.(*sdk.ElicitResult); ok {
			call.InputResponses[id] = newElicitResult(answer)
		}
	}
	return call
}

// recoverCall must be deferred. It recovers a panic of a call, logs it, and sets *res to a result with IsError. Without
// it, the panic would end the process, because the call runs on one of the SDK's goroutines.
func (h *Handler) recoverCall(ctx context.Context, res **sdk.CallToolResult) {
	if v := recover(); v != nil {
		h.Logger.ErrorContext(ctx, "panic in a tool call", "panic", v)
		*res = sdkResult(Result{Text: "Something went wrong inside the service.", IsError: true})
	}
}
