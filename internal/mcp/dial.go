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

	"answerd/internal/mcp/config"
	"answerd/internal/mcp/limiter"
	"answerd/internal/mcp/session"
	"answerd/internal/mcp/transport"
	"answerd/internal/tlsconfig"
)

// dialers maps the type of a server to the function that makes its dialer.
var dialers = map[string]func(config.Server, Options) (dialer, error){
	config.TypeHTTP:      dialHTTP,
	config.TypeStdio:     dialStdio,
	config.TypeWebSocket: dialWebSocket,
	config.TypeSSE:       dialLegacySSE,
}

// dialHTTP returns the dialer of a server over Streamable HTTP, or over HTTP+SSE if the server refuses
// Streamable HTTP. The TCP connections of the endpoint outlive sessions.
func dialHTTP(cfg config.Server, opts Options) (dialer, error) {
	base, err := url.Parse(cfg.URL)
	if err != nil {
		return dialer{}, err
	}
	roundTripper, err := newRoundTripper(cfg, opts, base)
	if err != nil {
		return dialer{}, err
	}
	endpoint := transport.NewHTTP(transport.HTTPConfig{
		URL:              cfg.URL,
		RoundTripper:     roundTripper,
		StandaloneStream: cfg.StandaloneStream,
		WatchResources:   len(cfg.Resources) > 0,
		Logger:           serverLogger(cfg, opts),
	})
	d := dialEndpoint(cfg, opts, endpoint, roundTripper.close)
	d.delegation = roundTripper.delegation
	d.tls = roundTripper.tls
	if d.delegation == nil { // a server with delegation has one session for each caller, and no fallback
		legacy := dialEndpoint(legacySSE(cfg), opts, newLegacySSE(cfg, opts, base, roundTripper), func() {})
		d.connect = legacyFallback(d.connect, legacy, &d)
	}
	return d, nil
}

// dialLegacySSE returns the dialer of a server over HTTP+SSE.
func dialLegacySSE(cfg config.Server, o Options) (dialer, error) {
	base, err := url.Parse(cfg.URL)
	if err != nil {
		return dialer{}, err
	}
	out, err := newRoundTripper(cfg, o, base)
	if err != nil {
		return dialer{}, err
	}
	d := dialEndpoint(legacySSE(cfg), o, newLegacySSE(cfg, o, base, out), out.close)
	d.tls = out.tls
	return d, nil
}

func newLegacySSE(cfg config.Server, o Options, base *url.URL, out *roundTripper) transport.Endpoint {
	return transport.NewLegacySSE(transport.LegacySSEConfig{URL: base, RoundTripper: out, Logger: serverLogger(cfg, o)})
}

// legacySSE returns cfg with a protocol version that begins with initialize: servers over HTTP+SSE
// do not know server/discover.
func legacySSE(cfg config.Server) config.Server {
	if cfg.ProtocolVersion == "" {
		cfg.ProtocolVersion = session.LastInitialize
	}
	return cfg
}

// legacyRetry is how long a server that refused both transports is not asked for HTTP+SSE again.
const legacyRetry = 10 * time.Minute

// legacyFallback returns a connect that makes a session by streamable, or by legacy if the server
// refuses that (2025-11-25 basic/transports, "Backwards Compatibility"). It keeps to
// the transport that worked. d closes both.
func legacyFallback(streamable func(context.Context) (*sdk.ClientSession, error), legacy dialer, d *dialer) func(context.Context) (*sdk.ClientSession, error) {
	closeStreamable := d.close
	d.close = func() {
		legacy.close()
		closeStreamable()
	}

	var mu sync.Mutex // protects what follows
	var useLegacy, useStreamable bool
	var refused time.Time // when both were refused last
	return func(ctx context.Context) (*sdk.ClientSession, error) {
		mu.Lock()
		defer mu.Unlock()
		if useLegacy {
			cs, err := legacy.connect(ctx)
			if !refusesTransport(err) {
				return cs, err
			}
			useLegacy = false // the server may have been upgraded
		}
		cs, err := streamable(ctx)
		if err == nil {
			useStreamable = true
			return cs, nil
		}
		refusedRecently := !refused.IsZero() && time.Since(refused) < legacyRetry
		if useStreamable || refusedRecently || !refusesTransport(err) {
			return nil, err
		}
		cs, legacyErr := legacy.connect(ctx)
		if legacyErr != nil {
			refused = time.Now()
			return nil, err
		}
		useLegacy = true
		return cs, nil
	}
}

// refusesTransport reports whether err is a refusal with one of the HTTP statuses that mean an older
// transport: 404 and 405, and 400, with which the SSE server of the go-sdk answers.
func refusesTransport(err error) bool {
	f, ok := errors.AsType[*transport.Failure](err)
	return ok && slices.Contains([]int{http.StatusBadRequest, http.StatusNotFound, http.StatusMethodNotAllowed}, f.Status)
}

// startTimeout bounds the handshake with a child process, which has to start first: npx and uvx
// download a package on first use, and would start over if they were killed meanwhile.
const startTimeout = time.Minute

// dialStdio returns the dialer of a server that is a child process. The process gets exactly the
// environment of cfg.
func dialStdio(cfg config.Server, o Options) (dialer, error) {
	env := make([]string, 0, len(cfg.Env))
	for _, name := range slices.Sorted(maps.Keys(cfg.Env)) {
		env = append(env, name+"="+cfg.Env[name].Reveal())
	}
	d := dialEndpoint(cfg, o, transport.NewStdio(transport.StdioConfig{
		Command: cfg.Command, Args: cfg.Args, Dir: cfg.WorkDir, Env: env, Query: len(cfg.Query) > 0, Logger: serverLogger(cfg, o),
	}), func() {})
	d.time = startTimeout
	return d, nil
}

// dialWebSocket returns the dialer of a server over a WebSocket. Headers, query parameters and token
// go with the handshake, which is plain HTTP.
func dialWebSocket(cfg config.Server, opts Options) (dialer, error) {
	base, err := url.Parse(cfg.URL)
	if err != nil {
		return dialer{}, err
	}
	base.Scheme = map[string]string{"ws": "http", "wss": "https"}[base.Scheme]
	out, err := newRoundTripper(cfg, opts, base)
	if err != nil {
		return dialer{}, err
	}
	d := dialEndpoint(cfg, opts, transport.NewWebSocket(transport.WebSocketConfig{
		URL:          base,
		RoundTripper: out,
		Logger:       serverLogger(cfg, opts),
	}), out.close)
	d.tls = out.tls
	return d, nil
}

func serverLogger(cfg config.Server, o Options) *slog.Logger {
	return o.Logger.With("mcp_server", cfg.Name)
}

// dialEndpoint returns the dialer of a server behind an endpoint. closeShared is called after the
// endpoint was closed.
func dialEndpoint(cfg config.Server, o Options, e transport.Endpoint, closeShared func()) dialer {
	c := session.NewConnector(session.ConnectorOptions{
		Endpoint: e, Protocol: cfg.ProtocolVersion, ClientVersion: o.Version, Sampling: cfg.Sampling, Logger: o.Logger,
	})
	return dialer{connect: c.Connect, useInitialize: c.UseInitialize, close: func() {
		e.Close()
		closeShared()
	}}
}

// maxResponseHeader bounds the headers of a reply, in bytes.
const maxResponseHeader = 64 << 10

// roundTripper sends requests to one server over HTTP, with the configured headers and a token.
type roundTripper struct {
	transport.HeaderTransport
	delegation *delegation          // of servers that are used on behalf of their callers
	tls        *tlsconfig.Transport // below it
	close      func()               // to be called after the last request
}

// newRoundTripper returns the roundTripper of a server, with TCP connections of its own.
func newRoundTripper(cfg config.Server, opts Options, base *url.URL) (*roundTripper, error) {
	pooled := http.DefaultTransport.(*http.Transport).Clone() // proxies from the environment
	pooled.MaxIdleConns = 0                                   // one host, so the next line is the bound
	// Twice the calls: a call may begin while the stream of the one before is read to its end.
	pooled.MaxIdleConnsPerHost = max(64, 2*orElse(cfg.MaxConcurrentCalls, limiter.Max))
	pooled.MaxResponseHeaderBytes = maxResponseHeader
	pooled.WriteBufferSize = 8 << 10 // a call's header and body are sent in one write
	secured := opts.tls.all[cfg.TLS].Transport(pooled)
	var next http.RoundTripper = secured
	if opts.Transport != nil {
		next = opts.Transport(secured)
	}
	creds, err := newCredentials(cfg, opts)
	if err != nil {
		return nil, err
	}
	return &roundTripper{
		HeaderTransport: transport.HeaderTransport{Next: next, Base: base, Headers: cfg.Headers, Query: cfg.Query, Tokens: creds.source},
		delegation:      creds.delegation,
		tls:             secured,
		close: func() {
			creds.close()
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
