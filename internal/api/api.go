// Package api is answerd over HTTP: routes, the one stream loop, errors as problems.
//
//	h := api.New(api.Options{Agent: a, Log: log, OpenAPI: doc})
//	srv := &http.Server{Handler: h, ReadHeaderTimeout: api.ReadHeaderTimeout, …}
//	// at the end:
//	h.Unready()      // /readyz says so
//	a.Drain(ctx)     // every follower sees its run end
//	h.Close(ctx)     // the sessions of MCP hosts end
//	srv.Shutdown(ctx)
//
// A handler decodes, calls one method, encodes. What every request needs stands in
// front of them, once, in middleware.go. Nothing but follow writes a stream, and
// nothing but the log feeds it: whoever reads is a position in a run.
package api

import (
	"context"
	"log/slog"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/go-chi/chi/v5"

	"answerd/internal/agent"
	"answerd/internal/auth"
	"answerd/internal/event"
	"answerd/internal/mcp/host"
)

// Bounds of the http.Server that serves the API. WriteTimeout must stay 0: it would
// cut streams; every write has a deadline of its own instead, see tracked.
const (
	ReadHeaderTimeout = 5 * time.Second
	ReadTimeout       = 15 * time.Second
	IdleTimeout       = 120 * time.Second
	MaxHeaderBytes    = 16 << 10
	// WriteBuffer is the kernel's send buffer of one connection, in bytes: what a
	// stalled reader can make us keep besides the log.
	WriteBuffer = 64 << 10
)

// Options are the parts and limits of the API. Agent and Log are required.
type Options struct {
	Agent *agent.Agent
	Log   event.Log

	Verifier *auth.Verifier // nil leaves every caller anonymous
	// Refused counts a request that Verifier did not let in, by one of auth.Reasons; nil
	// counts nothing.
	Refused func(ctx context.Context, reason string)
	// CORSOrigins are the exact origins whose pages may call. AllowedHosts are the
	// names, without port, that requests may be addressed to; nil allows any.
	CORSOrigins  []string
	AllowedHosts []string
	// PublicURL is under which address callers know us, without a path; "" goes by the
	// host that they ask for.
	PublicURL string

	MaxBody      int64         // bytes of a request body; 0 means 1 MiB
	Heartbeat    time.Duration // silence of a stream before a comment; 0 means 15 s
	WriteTimeout time.Duration // how long a reader may take for 64 KiB; 0 means 10 s
	// MaxStreams is how many requests may be open, 0 means 10,000, and MaxStreamsPerCaller
	// how many of one caller, 0 means any number.
	MaxStreams, MaxStreamsPerCaller int

	Version string       // of this service
	Metrics http.Handler // behind a token, where callers bring one
	OpenAPI []byte
	Console http.Handler
	Logger  *slog.Logger
	TraceID func(context.Context) string // the trace of a request, for its problems
}

// Handler is the API. It is an http.Handler.
type Handler struct {
	Options
	http.Handler
	unready atomic.Bool
	started time.Time
	told    told
	host    *host.Handler
	crowd   *crowd
}

// New returns the API with its routes.
func New(o Options) *Handler {
	if o.MaxBody <= 0 {
		o.MaxBody = 1 << 20
	}
	if o.Heartbeat <= 0 {
		o.Heartbeat = 15 * time.Second
	}
	if o.WriteTimeout <= 0 {
		o.WriteTimeout = 10 * time.Second
	}
	if o.MaxStreams <= 0 {
		o.MaxStreams = 10_000
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.TraceID == nil {
		o.TraceID = func(context.Context) string { return "" }
	}
	if o.Refused == nil {
		o.Refused = func(context.Context, string) {}
	}
	h := &Handler{Options: o, started: time.Now(), crowd: newCrowd()}
	h.host = h.newHost()
	h.Handler = h.routes()
	return h
}

// Unready makes /readyz fail from now on, so that no new traffic is sent here.
func (h *Handler) Unready() { h.unready.Store(true) }

// Close returns when what MCP hosts have open is gone. It waits for their calls, whose runs
// have ended, until ctx ends, and then cancels them. The listener may go on.
func (h *Handler) Close(ctx context.Context) { h.host.Close(ctx) }

// routes is every route there is.
func (h *Handler) routes() http.Handler {
	r := chi.NewRouter()
	r.Use(h.contain, h.refuseSurplus, h.checkHost, h.onceEach, h.crossOrigin)
	r.NotFound(h.handle(notFound))
	r.MethodNotAllowed(h.handle(methodNotAllowed))

	// What can be looked at without starting anything answers HEAD too (RFC 9110
	// section 9.1).
	look := func(path string, handler http.Handler) {
		r.Method(http.MethodGet, path, handler)
		r.Method(http.MethodHead, path, handler)
	}
	look("/healthz", h.handle(h.health))
	look("/readyz", h.handle(h.ready))
	look("/openapi.yaml", h.handle(h.openAPI))
	// Once only, and by a browser that another site sends: no HEAD, no token, any origin.
	r.Get("/oauth/callback", h.authorized)
	look(wellKnown, h.handle(h.protectedResource))
	look(wellKnown+"/mcp", h.handle(h.protectedResource))
	if h.Metrics != nil {
		look("/metrics", h.authenticate(h.Metrics))
	}
	if h.Console != nil {
		look("/", h.Console)
		look("/console/*", h.Console)
	}
	r.Group(func(r chi.Router) {
		r.Use(h.sameOrigin, h.readableQuery, h.authenticate, h.bounded)
		r.Post("/v1/chat/completions", h.handle(h.chatCompletions))
		r.Get("/v1/models", h.handle(h.models))
		r.Get("/v1/models/{model}", h.handle(h.model))
		r.Post("/v1/responses", h.handle(h.createResponse))
		r.Get("/v1/responses/{response_id}", h.handle(h.response))
		r.Delete("/v1/responses/{response_id}", h.handle(h.deleteResponse))
		r.Get("/v1/responses/{response_id}/input_items", h.handle(h.inputItems))
		r.Post("/v1/responses/{response_id}/cancel", h.handle(h.cancelResponse))
		r.Post("/api/chat", h.handle(h.uiChat))
		r.Get("/api/chat/{id}/stream", h.handle(h.uiResume))
		r.Post("/api/chat/{id}/stop", h.handle(h.uiStop))
		r.Post("/agui", h.handle(h.agui))
		r.Get("/agui/capabilities", h.handle(h.aguiCapabilities))
		r.Post("/mcp", h.handle(h.mcp))
		r.Delete("/mcp", h.handle(h.mcp))
		r.Post("/answer", h.handle(h.answer))
		r.Post("/answer/stream", h.handle(h.stream))
		r.Get("/answer/stream", h.handle(h.streamQuery))
		r.Get("/runs", h.handle(h.list))
		r.Get("/runs/{run_id}", h.handle(h.run))
		r.Delete("/runs/{run_id}", h.handle(h.forget))
		r.Get("/runs/{run_id}/events", h.handle(h.events))
		r.Get("/runs/{run_id}/results/{call_id}", h.handle(h.result))
		r.Post("/runs/{run_id}/input", h.handle(h.input))
		r.Post("/runs/{run_id}/cancel", h.handle(h.cancel))
		r.Get("/tools", h.handle(h.tools))
		r.Post("/tools/{name}/call", h.handle(h.callTool))
		r.Get("/servers", h.handle(h.servers))
		r.Post("/servers/{name}/refresh", h.handle(h.refresh))
		r.Get("/servers/{name}/prompts", h.handle(h.prompts))
	})
	return r
}

// Route is the pattern of the route that r goes to, "" if there is none. It names
// the request in traces.
func (h *Handler) Route(r *http.Request) string {
	routes, ok := h.Handler.(chi.Routes)
	if !ok {
		return ""
	}
	match := chi.NewRouteContext()
	if !routes.Match(match, r.Method, r.URL.Path) {
		return ""
	}
	return match.RoutePattern()
}
