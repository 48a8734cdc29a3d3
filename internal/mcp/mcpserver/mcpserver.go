// Package mcpserver serves one tool to MCP hosts over streamable HTTP, in every version of the
// protocol that the SDK speaks.
//
//	h := mcpserver.New(mcpserver.Options{
//		Tool: mcpserver.Tool{Name: "answer", InputSchema: in, OutputSchema: out},
//		Call: func(ctx context.Context, c *mcpserver.Call) mcpserver.Result {
//			c.Progress(1, "at it")
//			return mcpserver.Result{Text: "42"}
//		},
//	})
//	http.Handle("/mcp", h) // behind authentication, with a bounded body and time for each write
//	defer h.Close(ctx)
//
// It knows the protocol, and not what the tool does. A call lives as long as its request:
// its context ends when the host cancels it or its connection is gone. Call is invoked
// from any number of goroutines.
//
// 2026-07-28 has no sessions, and so nothing here that could be lost: what a person is
// asked goes out as a result, and the answer comes with another call. In the older
// protocols it goes out on the open stream of the call, and the answer comes by another
// request, which takes a session. There are MaxSessions at most; one that is idle ends, and
// belongs to who began it.
package mcpserver

//lint:file-ignore SA1019 2026-07-28 deprecates logging (SEP-2577); hosts go on asking for it.

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"time"

	sdkauth "github.com/modelcontextprotocol/go-sdk/auth"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// stateless is the first protocol without sessions. Versions are dates.
const stateless = "2026-07-28"

// Tool is what is served.
type Tool struct {
	Name, Title, Description  string
	InputSchema, OutputSchema json.RawMessage // of type object; the host checks, Call has to as well
}

// Options are the tool and its bounds. Tool and Call are required.
type Options struct {
	Tool         Tool
	ServerName   string // the name of this service; "" is the tool's
	Version      string // of the service
	Instructions string // for the host's model
	// Call carries a call out. Whatever becomes of it is a Result.
	CallTool func(context.Context, *Call) Result
	// Owner tells callers apart, by their request: a session is its owner's. nil takes all
	// for the same.
	Owner func(*http.Request) string

	Heartbeat          time.Duration // silence of a stream before a comment; 0 means 15 s
	MaxSessions        int           // 0 means 1024
	SessionIdleTimeout time.Duration // of a session without a request; 0 means 10 min
	Logger             *slog.Logger
}

// Handler serves the tool. It is an http.Handler for POST and DELETE: a stream for what
// belongs to no call, which GET would open, has nothing to carry here.
type Handler struct {
	Options
	modern, legacy    http.Handler
	single, sessional *sdk.Server // what the two serve: requests of their own, and sessions
	calls             calls
}

// New returns a handler, which has to be closed.
func New(o Options) *Handler {
	if o.Heartbeat <= 0 {
		o.Heartbeat = 15 * time.Second
	}
	if o.MaxSessions <= 0 {
		o.MaxSessions = 1024
	}
	if o.SessionIdleTimeout <= 0 {
		o.SessionIdleTimeout = 10 * time.Minute
	}
	if o.Owner == nil {
		o.Owner = func(*http.Request) string { return "" }
	}
	if o.ServerName == "" {
		o.ServerName = o.Tool.Name
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	h := &Handler{Options: o, calls: calls{open: make(map[*Call]context.CancelCauseFunc)}}
	h.single, h.sessional = h.server(), h.server()
	h.modern, h.legacy = h.transport(h.single, true), h.transport(h.sessional, false)
	return h
}

func (h *Handler) server() *sdk.Server {
	s := sdk.NewServer(&sdk.Implementation{Name: h.ServerName, Title: h.Tool.Title, Version: h.Version}, &sdk.ServerOptions{
		Instructions: h.Instructions,
		Capabilities: &sdk.ServerCapabilities{Tools: &sdk.ToolCapabilities{}, Logging: &sdk.LoggingCapabilities{}},
		// The list is the same for everybody until the next release.
		SetCacheable: func(_ context.Context, _ sdk.Request, c *sdk.Cacheable) { c.TTLMs = int(time.Hour.Milliseconds()) },
	})
	tool := &sdk.Tool{
		Name: h.Tool.Name, Title: h.Tool.Title, Description: h.Tool.Description, InputSchema: h.Tool.InputSchema,
		// What the agent's own tools do, this one does.
		Annotations: &sdk.ToolAnnotations{Title: h.Tool.Title},
	}
	if h.Tool.OutputSchema != nil {
		tool.OutputSchema = h.Tool.OutputSchema
	}
	s.AddTool(tool, h.call)
	return s
}

func (h *Handler) transport(s *sdk.Server, modern bool) http.Handler {
	return sdk.NewStreamableHTTPHandler(func(*http.Request) *sdk.Server { return s }, &sdk.StreamableHTTPOptions{
		Stateless: modern, PropagateRequestCancellation: true, SessionTimeout: h.SessionIdleTimeout,
		// The body and the Host header are whoever's who stands in front of us.
		MaxRequestBodyBytes: -1, DisableLocalhostProtection: true,
	})
}

// ServeHTTP implements http.Handler.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	session := r.Header.Get("Mcp-Session-Id")
	modern := r.Header.Get("Mcp-Protocol-Version") >= stateless
	switch {
	case r.Method == http.MethodDelete && modern:
		w.Header().Set("Allow", http.MethodPost)
		http.Error(w, "this version of the protocol has no sessions", http.StatusMethodNotAllowed)
		return
	case r.Method == http.MethodDelete:
		// The SDK waits for the calls of a session that it ends.
		h.calls.cancel(nil, func(c *Call) bool { return c.session == session && c.owner == h.Owner(r) })
	case !modern && session == "" && !h.room():
		w.Header().Set("Retry-After", "1")
		http.Error(w, "as many sessions as this service allows are open", http.StatusServiceUnavailable)
		return
	}
	s := newStream(w, h.Heartbeat)
	defer s.end()
	next := h.legacy
	if modern {
		next = h.modern
	}
	h.tagged(next, r, s).ServeHTTP(s, h.withToken(r))
}

// room reports whether another session may begin. Requests that arrive together may
// together exceed the bound by as many as they are.
func (h *Handler) room() bool {
	n := 0
	for range h.sessional.Sessions() {
		if n++; n >= h.MaxSessions {
			return false
		}
	}
	return true
}

// exchange is the HTTP request of a call, and the stream that answers it.
type exchange struct {
	request *http.Request
	stream  *stream
}

const exchangeKey = "exchange"

// tagged has the SDK take the HTTP request along to the call: what it gives to a call
// is the context of the session's first request, which had another stream, another trace
// and a token that may have expired. The one thing that it takes along is what it knows of a
// bearer token, which it also holds the session to; the real token was checked before.
func (h *Handler) tagged(next http.Handler, r *http.Request, s *stream) http.Handler {
	return sdkauth.RequireBearerToken(func(context.Context, string, *http.Request) (*sdkauth.TokenInfo, error) {
		return &sdkauth.TokenInfo{UserID: "of " + h.Owner(r), Extra: map[string]any{exchangeKey: exchange{r, s}}}, nil
	}, &sdkauth.RequireBearerTokenOptions{AllowMissingExpiration: true})(next)
}

// withToken is r as the SDK gets it: with a token that says nothing.
func (h *Handler) withToken(r *http.Request) *http.Request {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer none")
	return r
}

// Close takes no more calls, and returns when those that go on and every session are gone.
// It waits for them until ctx ends, and then cancels them.
func (h *Handler) Close(ctx context.Context) {
	h.calls.close()
	defer context.AfterFunc(ctx, func() { h.calls.cancel(ErrClosed, func(*Call) bool { return true }) })()
	for _, server := range []*sdk.Server{h.single, h.sessional} {
		for s := range server.Sessions() {
			_ = s.Close() // of a connection that is gone
		}
	}
}
