package mcp

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"sync"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"answerd/internal/auth/fetch"
	"answerd/internal/mcp/config"
	"answerd/internal/mcp/limiter"
	"answerd/internal/mcp/session"
	"answerd/internal/mcp/transport"
	"answerd/internal/tlsconfig"
)

// dialers maps a server's type to the function that returns its dialer.
var dialers = map[string]func(config.Server, Options) (dialer, error){
	config.TypeHTTP:      dialHTTP,
	config.TypeStdio:     dialStdio,
	config.TypeWebSocket: dialWebSocket,
	config.TypeSSE:       dialLegacySSE,
}

// dialHTTP returns the dialer of a Streamable HTTP server. If the server refuses Streamable HTTP, the dialer changes
// to HTTP+SSE, unless the server has per-user sessions. All sessions share one pool of TCP connections. dialHTTP
// itself opens no connection.
func dialHTTP(cfg config.Server, opts Options) (dialer, error) {
	roundTripper, err := newRoundTripper(cfg, opts)
	if err != nil {
		return dialer{}, err
	}
	endpoint := transport.NewHTTP(transport.HTTPConfig{
		URL:              cfg.URL,
		RoundTripper:     roundTripper,
		StandaloneStream: cfg.StandaloneStream,
		WatchResources:   len(cfg.Resources) > 0,
		Sampling:         cfg.Sampling,
		Logger:           serverLogger(cfg, opts),
	})
	d := dialEndpoint(cfg, opts, endpoint, roundTripper.close)
	d.delegation = roundTripper.delegation
	d.tls = roundTripper.tls
	if d.delegation != nil {
		return d, nil // legacyFallback decides once for all sessions, and makes one at a time
	}
	legacy := dialLegacyEndpoint(cfg, opts, roundTripper, func() {}) // closeStreamable closes roundTripper
	closeStreamable := d.close
	d.close = func() {
		legacy.close()
		closeStreamable()
	}
	d.connect = legacyFallback(d.connect, legacy.connect)
	return d, nil
}

// dialLegacySSE returns the dialer of a server over HTTP+SSE.
func dialLegacySSE(cfg config.Server, opts Options) (dialer, error) {
	roundTripper, err := newRoundTripper(cfg, opts)
	if err != nil {
		return dialer{}, err
	}
	d := dialLegacyEndpoint(cfg, opts, roundTripper, roundTripper.close)
	d.tls = roundTripper.tls
	return d, nil
}

// dialLegacyEndpoint returns the dialer of an HTTP+SSE endpoint that sends its requests with roundTripper. Unless cfg
// sets another version, sessions begin with initialize, because HTTP+SSE servers do not know server/discover. The
// dialer's close also calls closeShared.
func dialLegacyEndpoint(cfg config.Server, opts Options, roundTripper *roundTripper, closeShared func()) dialer {
	if cfg.ProtocolVersion == "" {
		cfg.ProtocolVersion = session.LastInitialize
	}
	endpoint := transport.NewLegacySSE(transport.LegacySSEConfig{URL: roundTripper.Base, RoundTripper: roundTripper, Logger: serverLogger(cfg, opts)})
	return dialEndpoint(cfg, opts, endpoint, closeShared)
}

// connectFunc opens a session and performs the handshake.
type connectFunc = func(context.Context) (*sdk.ClientSession, error)

// legacyRetry is the pause before HTTP+SSE is tried again with a server that refused both transports.
const legacyRetry = 10 * time.Minute

// legacyFallback returns a function that opens a session with streamable, or with legacy if the server refuses
// Streamable HTTP (2025-11-25 basic/transports, "Backwards Compatibility"). After a first success of streamable,
// legacy is never tried again. After a success of legacy, legacy is used until the server refuses it. The returned
// function opens one session at a time. It returns the error of streamable, except while legacy is in use.
func legacyFallback(streamable, legacy connectFunc) connectFunc {
	var mu sync.Mutex // protects the variables below; held while a session is opened
	var usesLegacy, streamableWorked bool
	var bothFailedAt time.Time // zero: never
	return func(ctx context.Context) (*sdk.ClientSession, error) {
		mu.Lock()
		defer mu.Unlock()
		if usesLegacy {
			opened, err := legacy(ctx)
			if !refusesTransport(err) {
				return opened, err
			}
			usesLegacy = false // the server may have been upgraded
		}
		opened, err := streamable(ctx)
		if err == nil {
			streamableWorked = true
			return opened, nil
		}
		failedRecently := !bothFailedAt.IsZero() && time.Since(bothFailedAt) < legacyRetry
		if streamableWorked || failedRecently || !refusesTransport(err) {
			return nil, err
		}
		opened, legacyErr := legacy(ctx)
		if legacyErr != nil {
			bothFailedAt = time.Now()
			return nil, err
		}
		usesLegacy = true
		return opened, nil
	}
}

// refusesTransport reports whether err has one of the HTTP statuses with which a server of another transport answers:
// 404, 405, and 400, which the SSE server of the go-sdk sends. It returns false for nil.
func refusesTransport(err error) bool {
	failure, ok := errors.AsType[*transport.Failure](err)
	return ok && slices.Contains([]int{http.StatusBadRequest, http.StatusNotFound, http.StatusMethodNotAllowed}, failure.Status)
}

// startTimeout bounds the start of a child process and the handshake with it. It is long because npx and uvx download
// a package on first use. If they were killed during the download, they would begin it again.
const startTimeout = time.Minute

// dialStdio returns the dialer of a server that runs as a child process. The process gets the environment in cfg and
// no other variables.
func dialStdio(cfg config.Server, opts Options) (dialer, error) {
	env := make([]string, 0, len(cfg.Env))
	for _, name := range slices.Sorted(maps.Keys(cfg.Env)) {
		env = append(env, name+"="+cfg.Env[name].Reveal())
	}
	endpoint := transport.NewStdio(transport.StdioConfig{
		Command: cfg.Command, Args: cfg.Args, Dir: cfg.WorkDir, Env: env, Query: len(cfg.Query) > 0, Logger: serverLogger(cfg, opts),
	})
	d := dialEndpoint(cfg, opts, endpoint, func() {})
	d.handshakeTimeout = startTimeout
	return d, nil
}

// dialWebSocket returns the dialer of a WebSocket server. Headers, query parameters and the token are sent with the
// handshake, which is an HTTP request.
func dialWebSocket(cfg config.Server, opts Options) (dialer, error) {
	roundTripper, err := newRoundTripper(cfg, opts)
	if err != nil {
		return dialer{}, err
	}
	endpoint := transport.NewWebSocket(transport.WebSocketConfig{URL: roundTripper.Base, RoundTripper: roundTripper, Logger: serverLogger(cfg, opts)})
	d := dialEndpoint(cfg, opts, endpoint, roundTripper.close)
	d.tls = roundTripper.tls
	return d, nil
}

// serverLogger returns the logger of a server. Its records have the server's name.
func serverLogger(cfg config.Server, opts Options) *slog.Logger {
	return opts.Logger.With("mcp_server", cfg.Name)
}

// dialEndpoint returns a dialer that opens sessions at endpoint. The dialer's close closes endpoint and then calls
// closeShared, which must close everything else that belongs to the endpoint. dialEndpoint does not set delegation and
// tls.
func dialEndpoint(cfg config.Server, opts Options, endpoint transport.Endpoint, closeShared func()) dialer {
	connector := session.NewConnector(session.ConnectorOptions{
		Endpoint: endpoint, Protocol: cfg.ProtocolVersion, ClientVersion: opts.Version, Sampling: cfg.Sampling, Logger: opts.Logger,
	})
	return dialer{
		connect:       connector.Connect,
		useInitialize: connector.UseInitialize,
		close: func() {
			endpoint.Close()
			closeShared()
		},
	}
}

// maxResponseHeader bounds the headers of a reply, in bytes.
const maxResponseHeader = 64 << 10

// roundTripper sends HTTP requests to one server, with the configured headers and a token.
type roundTripper struct {
	transport.HeaderTransport
	delegation *delegation          // nil unless the server uses per-user tokens
	tls        *tlsconfig.Transport // sends the requests after HeaderTransport has added headers and query
	close      func()               // to be called after the last request
}

// newRoundTripper returns the roundTripper of one server, with its own pool of TCP connections. It sends no request. The
// result's Base is the endpoint's URL with the scheme http or https, also for a WebSocket.
func newRoundTripper(cfg config.Server, opts Options) (*roundTripper, error) {
	base, err := url.Parse(cfg.URL)
	if err != nil {
		return nil, err
	}
	if cfg.Type == config.TypeWebSocket {
		base.Scheme = map[string]string{"ws": "http", "wss": "https"}[base.Scheme] // the handshake is an HTTP request
	}
	pooled := fetch.NewTransport() // uses proxies from the environment
	pooled.MaxIdleConns = 0        // no limit: all go to one host, whose limit is below
	// Two per call, because a call may begin while the stream of an earlier call is still being read to its end.
	pooled.MaxIdleConnsPerHost = max(64, 2*orElse(cfg.MaxConcurrentCalls, limiter.Max))
	pooled.MaxResponseHeaderBytes = maxResponseHeader
	pooled.WriteBufferSize = 8 << 10 // large enough to send a call's header and body in one write
	secured := opts.tls.byFiles[cfg.TLS].Transport(pooled)
	var next http.RoundTripper = fetch.Transport{RoundTripper: secured}
	if opts.Transport != nil {
		next = opts.Transport(next)
	}
	tokens, err := newCredentials(cfg, opts)
	if err != nil {
		return nil, err
	}
	return &roundTripper{
		HeaderTransport: transport.HeaderTransport{Next: next, Base: base, Headers: cfg.Headers, Query: cfg.Query, Tokens: tokens.sender},
		delegation:      tokens.delegation,
		tls:             secured,
		close: func() {
			tokens.close()
			secured.CloseIdleConnections()
		},
	}, nil
}

// orElse returns v if it is positive, otherwise other.
func orElse[T int | time.Duration](v, other T) T {
	if v > 0 {
		return v
	}
	return other
}
