// Package api is answerd over HTTP: routes, the one stream loop, errors as problems.
//
//	h := api.New(api.Options{Agent: a, Log: log, OpenAPI: doc})
//	srv := &http.Server{Handler: h, ReadHeaderTimeout: api.ReadHeaderTimeout, …}
//	// at the end:
//	h.MarkUnready()      // /readyz says so
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

	"answerd/internal/agent"
	"answerd/internal/auth"
	"answerd/internal/event"
	"answerd/internal/mcp/mcpserver"
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
	// OnAuthFailure counts a request that Verifier did not let in, by one of auth.Reasons; nil
	// counts nothing.
	OnAuthFailure func(ctx context.Context, reason string)
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
	host    *mcpserver.Handler
	crowd   *crowd
}
