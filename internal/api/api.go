// Package api serves answerd over HTTP: the routes, the stream loop, errors as problem documents.
//
//	h := api.New(api.Options{Agent: a, Log: log, OpenAPI: documents})
//	srv := &http.Server{Handler: h, ReadHeaderTimeout: api.ReadHeaderTimeout, …}
//	// To shut down:
//	h.MarkUnready()   // /readyz fails from now on
//	a.Drain(ctx)      // every reader of a stream sees its run end
//	h.Close(ctx)      // the sessions of MCP clients end
//	srv.Shutdown(ctx)
//
// Start reading at routes.go, the route table. A handler decodes the request, calls one method of the agent or the log,
// and encodes the result. Middleware does the work that every request needs (middleware.go). streamRun writes all
// streams. It reads only the event log, so a stream's whole state is a position in a run and an encoder.
//
// A Handler is safe for concurrent use. Only the goroutine that serves a request writes to its ResponseWriter.
package api

import (
	"context"
	"io/fs"
	"log/slog"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/go-chi/chi/v5"

	"answerd/internal/agent"
	"answerd/internal/auth"
	"answerd/internal/event"
	"answerd/internal/mcp/mcpserver"
	"answerd/internal/receipt"
)

// Bounds of the http.Server that serves the API. WriteTimeout must stay 0, because it would end
// streams; deadlineWriter gives every write a deadline of its own instead.
const (
	ReadHeaderTimeout = 5 * time.Second
	ReadTimeout       = 15 * time.Second
	IdleTimeout       = 120 * time.Second
	MaxHeaderBytes    = 16 << 10
	// WriteBuffer is the kernel's send buffer of one connection, in bytes. It bounds how much the service buffers for a
	// stalled reader outside of the event log.
	WriteBuffer = 64 << 10
)

// Options holds the parts and limits of the API. Agent and Log are required.
type Options struct {
	Agent *agent.Agent
	Log   event.Log

	Verifier *auth.Verifier // nil treats every caller as anonymous
	// OnAuthFailure is called with one of auth.Reasons for every request that Verifier refuses;
	// it may be nil.
	OnAuthFailure func(ctx context.Context, reason string)
	// CORSOrigins are the exact origins whose pages may call the API. AllowedHosts are the host names, without port,
	// that a request's Host may have; nil allows any.
	CORSOrigins  []string
	AllowedHosts []string
	// PublicURL is the service's URL as clients know it, perhaps with a path. If it is "", the service derives its URL
	// from each request's Host.
	PublicURL string

	MaxBody      int64         // largest request body, in bytes; 0 means 1 MiB
	Heartbeat    time.Duration // a stream sends a comment after this time without events; 0 means 15 s
	WriteTimeout time.Duration // how long a client may take to accept 64 KiB; 0 means 10 s
	// MaxStreams is the limit of open requests; 0 means 10,000. MaxStreamsPerCaller is the limit for each caller; 0
	// means no limit.
	MaxStreams, MaxStreamsPerCaller int

	Version  string          // this service's version
	Metrics  http.Handler    // needs a token if Verifier is set; nil serves no metrics
	OpenAPI  fs.FS           // the OpenAPI documents: openapi.yaml, and openapi/*.yaml; nil serves none
	Receipts *receipt.Signer // signs receipts of runs; nil signs none
	Console  http.Handler    // the page at /; nil serves none
	Logger   *slog.Logger
	TraceID  func(context.Context) string // returns a request's trace id, for problem documents
}

// Handler serves the API. Its fields are set by New and do not change.
type Handler struct {
	Options
	http.Handler
	routes     chi.Router  // the routes at the root, without basePath
	basePath   string      // the path of PublicURL, such as /answerd; "" if it has none
	unready    atomic.Bool // set by MarkUnready
	started    time.Time   // when New was called
	deliveries deliveryTracker
	mcpServer  *mcpserver.Handler
	limiter    *streamLimiter
	rejections rejectionLog // requests for unknown hosts or from unknown origins
	refusals   rejectionLog // requests of callers that exceed a limit
}

// MarkUnready makes /readyz fail from now on, so that load balancers send no new requests.
func (h *Handler) MarkUnready() { h.unready.Store(true) }

// Close ends the sessions of MCP clients and waits until they have ended. The runs that their calls started must end
// first (Agent.Drain). Close waits for calls in progress until ctx ends, and then cancels them. It does not wait for
// any other request; http.Server.Shutdown does.
func (h *Handler) Close(ctx context.Context) { h.mcpServer.Close(ctx) }
