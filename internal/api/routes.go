package api

import (
	"context"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"github.com/go-chi/chi/v5"
)

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
	if o.OnAuthFailure == nil {
		o.OnAuthFailure = func(context.Context, string) {}
	}
	h := &Handler{Options: o, started: time.Now(), crowd: newCrowd()}
	h.host = h.newHost()
	h.Handler = h.routes()
	return h
}

// MarkUnready makes /readyz fail from now on, so that no new traffic is sent here.
func (h *Handler) MarkUnready() { h.unready.Store(true) }

// Close returns when what MCP hosts have open is gone. It waits for their calls, whose runs
// have ended, until ctx ends, and then cancels them. The listener may go on.
func (h *Handler) Close(ctx context.Context) { h.host.Close(ctx) }

// routes is every route there is.
func (h *Handler) routes() http.Handler {
	r := chi.NewRouter()
	r.Use(h.contain, h.rejectOverLimit, h.checkHost, h.onceEach, h.crossOrigin)
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

// RoutePattern is the pattern of the route that r goes to, "" if there is none. It names
// the request in traces.
func (h *Handler) RoutePattern(r *http.Request) string {
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

func notFound(http.ResponseWriter, *http.Request) error {
	return newProblem("not_found", "There is nothing at this address.")
}

// methodNotAllowed names the methods that there are (RFC 9110 section 15.5.6).
func methodNotAllowed(w http.ResponseWriter, r *http.Request) error {
	routes := chi.RouteContext(r.Context()).Routes
	var allow []string
	for _, m := range []string{http.MethodGet, http.MethodHead, http.MethodPost, http.MethodDelete} {
		if routes.Match(chi.NewRouteContext(), m, r.URL.Path) {
			allow = append(allow, m)
		}
	}
	if allow == nil { // a method that chi doesn't know, at an address that there is not
		return notFound(w, r)
	}
	p := newProblem("method_not_allowed", "The address does not take this method.")
	p.header.Set("Allow", strings.Join(allow, ", "))
	return p
}
