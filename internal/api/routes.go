package api

import (
	"cmp"
	"context"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"github.com/go-chi/chi/v5"
)

// newRouter returns the route table of the service. The first middleware of a list runs first.
func (h *Handler) newRouter() chi.Router {
	router := chi.NewRouter()
	// prepareResponse is first: it makes the deadlineWriter for all others, and logs the status that recoverPanic
	// sends. handleCORS precedes the middleware that refuses requests, because a page can read a problem only with CORS
	// headers. Checks of the connection and the headers precede those that need the caller's identity.
	router.Use(h.prepareResponse, h.recoverPanic, h.handleCORS, h.rejectOverLimit, h.checkHost, h.rejectDuplicateHeaders)
	router.NotFound(h.withProblems(notFound))
	router.MethodNotAllowed(h.withProblems(methodNotAllowed))

	h.addPublicRoutes(router)

	// Metrics need a token like the API, but they count as no open request.
	if h.Metrics != nil {
		getOrHead(router, "/metrics", h.authenticate(h.Metrics))
	}

	router.Group(func(r chi.Router) {
		// A preflight has no token: handleCORS has answered it before. limitOpenRequests counts by caller, so it
		// follows authenticate. countBody must wrap the body before a handler reads it.
		r.Use(h.rejectCrossSite, h.rejectInvalidQuery, h.authenticate, h.limitOpenRequests, h.countBody)
		h.addNativeRoutes(r)
		h.addOpenAIRoutes(r)
		h.addProtocolRoutes(r)
	})
	return router
}

// addPublicRoutes adds the routes that need no token.
func (h *Handler) addPublicRoutes(router chi.Router) {
	getOrHead(router, "/healthz", h.withProblems(h.getHealth))
	getOrHead(router, "/readyz", h.withProblems(h.getReadiness))
	getOrHead(router, "/openapi.yaml", h.withProblems(h.getOpenAPI))
	getOrHead(router, "/openapi/{file}", h.withProblems(h.getOpenAPI))
	getOrHead(router, "/.well-known/jwks.json", h.withProblems(h.getReceiptKeys))
	getOrHead(router, resourceMetadataPath, h.withProblems(h.getResourceMetadata))
	getOrHead(router, resourceMetadataPath+"/mcp", h.withProblems(h.getResourceMetadata))
	if h.Console != nil {
		getOrHead(router, "/", h.withProblems(h.getConsole))
		getOrHead(router, "/console/*", h.withProblems(h.getConsole))
	}

	// The browser comes here from the page of an authorization server, so rejectCrossSite must not refuse it. There is
	// no HEAD, because the state in the query can be used only once.
	router.Get("/oauth/callback", h.oauthCallback)
}

// addNativeRoutes adds the routes of the native format.
func (h *Handler) addNativeRoutes(r chi.Router) {
	// Ask a question.
	r.Post("/answer", h.withProblems(accepting("application/json", h.postAnswer)))
	r.Post("/answer/stream", h.withProblems(accepting("text/event-stream", h.postAnswerStream)))
	r.Get("/answer/stream", h.withProblems(accepting("text/event-stream", h.getAnswerStream)))

	// Runs of any API format, and input from people.
	getOrHead(r, "/runs", h.withProblems(accepting("application/json", h.listRuns)))
	getOrHead(r, "/runs/{run_id}", h.withProblems(h.getRun))
	r.Delete("/runs/{run_id}", h.withProblems(h.deleteRun))
	r.Get("/runs/{run_id}/events", h.withProblems(accepting("text/event-stream", h.streamEvents)))
	getOrHead(r, "/runs/{run_id}/export", h.withProblems(accepting("application/json", h.exportRun)))
	getOrHead(r, "/runs/{run_id}/receipt", h.withProblems(h.getReceipt))
	getOrHead(r, "/runs/{run_id}/results/{call_id}", h.withProblems(accepting("application/json", h.getResult)))
	r.Post("/runs/{run_id}/input", h.withProblems(h.postInput))
	r.Post("/runs/{run_id}/cancel", h.withProblems(h.cancelRun))

	// Threads of any API format.
	getOrHead(r, "/threads", h.withProblems(accepting("application/json", h.listThreads)))
	getOrHead(r, "/threads/{thread_id}", h.withProblems(accepting("application/json", h.getThread)))
	r.Patch("/threads/{thread_id}", h.withProblems(h.renameThread))
	r.Delete("/threads/{thread_id}", h.withProblems(h.deleteThread))

	// Tools, agents and MCP servers, without a run.
	getOrHead(r, "/tools", h.withProblems(h.listTools))
	r.Post("/tools/{name}/call", h.withProblems(accepting("application/json", h.callTool)))
	getOrHead(r, "/agents", h.withProblems(h.listAgents))
	getOrHead(r, "/agents/{id}", h.withProblems(h.getAgent))
	getOrHead(r, "/servers", h.withProblems(h.listServers))
	r.Post("/servers/{name}/refresh", h.withProblems(h.refreshServer))
	getOrHead(r, "/servers/{name}/prompts", h.withProblems(h.listPrompts))
	r.Delete("/servers/{name}/sign-in", h.withProblems(h.signOut))
}

// addOpenAIRoutes adds the routes of OpenAI's formats.
func (h *Handler) addOpenAIRoutes(r chi.Router) {
	// OpenAI Chat Completions.
	r.Post("/v1/chat/completions", h.withProblems(h.chatCompletions))
	getOrHead(r, "/v1/models", h.withProblems(h.listModels))
	getOrHead(r, "/v1/models/{model}", h.withProblems(h.getModel))

	// OpenAI Responses, and Open Responses.
	r.Post("/v1/responses", h.withProblems(h.createResponse))
	r.Get("/v1/responses/{response_id}", h.withProblems(h.getResponse))
	r.Delete("/v1/responses/{response_id}", h.withProblems(h.deleteResponse))
	getOrHead(r, "/v1/responses/{response_id}/input_items", h.withProblems(h.listInputItems))
	r.Post("/v1/responses/{response_id}/cancel", h.withProblems(h.cancelResponse))
}

// addProtocolRoutes adds the routes of the AI SDK, AG-UI and MCP.
func (h *Handler) addProtocolRoutes(r chi.Router) {
	// The AI SDK's useChat.
	r.Post("/api/chat", h.withProblems(accepting("text/event-stream", h.postUIChat)))
	r.Get("/api/chat/{id}/stream", h.withProblems(accepting("text/event-stream", h.resumeUIChat)))
	r.Post("/api/chat/{id}/stop", h.withProblems(h.stopUIChat))

	// AG-UI.
	r.Post("/agui", h.withProblems(h.postAGUI))
	r.Post("/agui/{agent}", h.withProblems(h.postAGUI))
	getOrHead(r, "/agui/capabilities", h.withProblems(accepting("application/json", h.getAGUICapabilities)))

	// The agent as an MCP server.
	r.Post("/mcp", h.withProblems(h.serveMCP))
	r.Delete("/mcp", h.withProblems(h.serveMCP))
}

// getOrHead adds a route that answers both GET and HEAD (RFC 9110 section 9.1). It is not for routes that may answer
// with a stream: HEAD would start a run, or read one to its end.
func getOrHead(r chi.Router, path string, handler http.Handler) {
	r.Method(http.MethodGet, path, handler)
	r.Method(http.MethodHead, path, handler)
}

// New returns the API's handler. It replaces limits in opts that are not positive, and nil functions and loggers, by
// their defaults. The caller must call Close on the Handler.
func New(opts Options) *Handler {
	opts.MaxBody = cmp.Or(max(opts.MaxBody, 0), 1<<20)
	opts.Heartbeat = cmp.Or(max(opts.Heartbeat, 0), 15*time.Second)
	opts.WriteTimeout = cmp.Or(max(opts.WriteTimeout, 0), 10*time.Second)
	opts.MaxStreams = cmp.Or(max(opts.MaxStreams, 0), 10_000)
	opts.Logger = cmp.Or(opts.Logger, slog.New(slog.DiscardHandler))
	if opts.TraceID == nil {
		opts.TraceID = func(context.Context) string { return "" }
	}
	if opts.OnAuthFailure == nil {
		opts.OnAuthFailure = func(context.Context, string) {}
	}
	h := &Handler{Options: opts, started: time.Now(), limiter: newStreamLimiter()}
	h.mcpServer = h.newMCPServer()
	h.routes = h.newRouter()
	h.basePath = basePathOf(opts.PublicURL)
	h.Handler = h.stripBasePath(h.routes)
	return h
}

// RoutePattern returns the pattern of the route that serves r, such as /runs/{run_id}, or "" if no route does. Traces
// and metrics use the pattern as the request's name.
func (h *Handler) RoutePattern(r *http.Request) string {
	match := chi.NewRouteContext()
	if !h.routes.Match(match, r.Method, h.trimBasePath(routePath(r))) {
		return ""
	}
	return match.RoutePattern()
}

// notFound answers requests for a path that has no route.
func notFound(http.ResponseWriter, *http.Request) error {
	return newProblem("not_found", "There is nothing at this path.")
}

// methodNotAllowed answers a request whose path has routes, but none for its method. Allow lists the methods of the
// matching routes (RFC 9110 section 15.5.6). If a route without parameters matches, such as /agui/capabilities, routes
// that match only with a parameter, such as /agui/{agent}, are not listed.
func methodNotAllowed(w http.ResponseWriter, r *http.Request) error {
	routes := chi.RouteContext(r.Context()).Routes
	var allow, exact []string // methods of all routes that match, and of those without parameters
	for _, method := range []string{http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPatch, http.MethodDelete} {
		match := chi.NewRouteContext()
		if !routes.Match(match, method, routePath(r)) {
			continue
		}
		allow = append(allow, method)
		if len(match.URLParams.Keys) == 0 {
			exact = append(exact, method)
		}
	}
	if exact != nil {
		allow = exact
	}
	if allow == nil { // no route has this path: for a method that it does not know, chi does not check the path
		return notFound(w, r)
	}
	p := newProblem("method_not_allowed", "This path does not support this method.")
	p.header.Set("Allow", strings.Join(allow, ", "))
	return p
}
