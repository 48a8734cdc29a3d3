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

// dialers maps the type of a server to the function that makes its dialer.
var dialers = map[string]func(config.Server, Options) (dialer, error){
	config.TypeHTTP:      dialHTTP,
	config.TypeStdio:     dialStdio,
	config.TypeWebSocket: dialWebSocket,
	config.TypeSSE:       dialLegacySSE,
}

// dialHTTP returns the dialer of a server over Streamable HTTP, which changes to HTTP+SSE if the server refuses
// Streamable HTTP. All sessions use the same TCP connections. dialHTTP connects to nothing.
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
	if d.delegation != nil {
		return d, nil // one fallback cannot serve the sessions of many users
	}
	legacy := dialLegacyEndpoint(cfg, opts, base, roundTripper, func() {})
	closeStreamable := d.close
	d.close = func() {
		legacy.close()
		closeStreamable()
	}
	d.connect = legacyFallback(d.connect, legacy.connect)
	return d, nil
}

// dialLegacySSE returns the dialer of a server over HTTP+SSE.
func dialLegacySSE(cfg config.Server, o Options) (dialer, error) {
	base, err := url.Parse(cfg.URL)
	if err != nil {
		return dialer{}, err
	}
	roundTripper, err := newRoundTripper(cfg, o, base)
	if err != nil {
		return dialer{}, err
	}
	d := dialLegacyEndpoint(cfg, o, base, roundTripper, roundTripper.close)
	d.tls = roundTripper.tls
	return d, nil
}

// dialLegacyEndpoint returns the dialer of an HTTP+SSE endpoint that sends its requests with roundTripper. Its
// sessions begin with initialize unless cfg has another version: servers over HTTP+SSE do not know server/discover.
func dialLegacyEndpoint(cfg config.Server, o Options, base *url.URL, roundTripper *roundTripper, closeShared func()) dialer {
	if cfg.ProtocolVersion == "" {
		cfg.ProtocolVersion = session.LastInitialize
	}
	return dialEndpoint(cfg, o, transport.NewLegacySSE(transport.LegacySSEConfig{
		URL: base, RoundTripper: roundTripper, Logger: serverLogger(cfg, o),
	}), closeShared)
}

// connectFunc makes a session.
type connectFunc = func(context.Context) (*sdk.ClientSession, error)

// legacyRetry is how long a server that refused both transports is not asked for HTTP+SSE again.
const legacyRetry = 10 * time.Minute

// legacyFallback returns a function that makes a session with streamable, or with legacy if the server refuses
// Streamable HTTP (2025-11-25 basic/transports, "Backwards Compatibility"). Once streamable has succeeded, legacy is
// never tried again. Once legacy has succeeded, it is used until the server refuses it. The returned function makes
// one session at a time; its error is that of streamable unless legacy is in use.
func legacyFallback(streamable, legacy connectFunc) connectFunc {
	var mu sync.Mutex // protects the variables below, and is held while a session is made
	var legacyWorks, streamableWorked bool
	var bothFailedAt time.Time // zero: never
	return func(ctx context.Context) (*sdk.ClientSession, error) {
		mu.Lock()
		defer mu.Unlock()
		if legacyWorks {
			cs, err := legacy(ctx)
			if !refusesTransport(err) {
				return cs, err
			}
			legacyWorks = false // the server may have been upgraded
		}
		cs, err := streamable(ctx)
		if err == nil {
			streamableWorked = true
			return cs, nil
		}
		failedRecently := !bothFailedAt.IsZero() && time.Since(bothFailedAt) < legacyRetry
		if streamableWorked || failedRecently || !refusesTransport(err) {
			return nil, err
		}
		cs, legacyErr := legacy(ctx)
		if legacyErr != nil {
			bothFailedAt = time.Now()
			return nil, err
		}
		legacyWorks = true
		return cs, nil
	}
}

// refusesTransport reports whether err is a refusal with one of the HTTP statuses that servers of another transport
// answer with: 404 and 405, and 400 as the SSE server of the go-sdk does. It returns false for nil.
func refusesTransport(err error) bool {
	f, ok := errors.AsType[*transport.Failure](err)
	return ok && slices.Contains([]int{http.StatusBadRequest, http.StatusNotFound, http.StatusMethodNotAllowed}, f.Status)
}

// startTimeout bounds the handshake with a child process, including the start of the process: npx and uvx download a
// package on first use, and would begin the download again if they were killed during it.
const startTimeout = time.Minute

// dialStdio returns the dialer of a server that is a child process. The process gets exactly the environment of cfg.
func dialStdio(cfg config.Server, o Options) (dialer, error) {
	env := make([]string, 0, len(cfg.Env))
	for _, name := range slices.Sorted(maps.Keys(cfg.Env)) {
		env = append(env, name+"="+cfg.Env[name].Reveal())
	}
	d := dialEndpoint(cfg, o, transport.NewStdio(transport.StdioConfig{
		Command: cfg.Command, Args: cfg.Args, Dir: cfg.WorkDir, Env: env, Query: len(cfg.Query) > 0, Logger: serverLogger(cfg, o),
	}), func() {})
	d.handshakeTimeout = startTimeout
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
	roundTripper, err := newRoundTripper(cfg, opts, base)
	if err != nil {
		return dialer{}, err
	}
	d := dialEndpoint(cfg, opts, transport.NewWebSocket(transport.WebSocketConfig{
		URL:          base,
		RoundTripper: roundTripper,
		Logger:       serverLogger(cfg, opts),
	}), roundTripper.close)
	d.tls = roundTripper.tls
	return d, nil
}

func serverLogger(cfg config.Server, o Options) *slog.Logger {
	return o.Logger.With("mcp_server", cfg.Name)
}

// dialEndpoint returns a dialer that makes sessions at the endpoint. The dialer's close closes the endpoint and then
// calls closeShared, which closes what the caller has made for the endpoint. The caller sets delegation and tls.
func dialEndpoint(cfg config.Server, o Options, endpoint transport.Endpoint, closeShared func()) dialer {
	c := session.NewConnector(session.ConnectorOptions{
		Endpoint: endpoint, Protocol: cfg.ProtocolVersion, ClientVersion: o.Version, Sampling: cfg.Sampling, Logger: o.Logger,
	})
	return dialer{connect: c.Connect, useInitialize: c.UseInitialize, close: func() {
		endpoint.Close()
		closeShared()
	}}
}

// maxResponseHeader bounds the headers of a reply, in bytes.
const maxResponseHeader = 64 << 10

// roundTripper sends requests to one server over HTTP, with the configured headers and a token.
type roundTripper struct {
	transport.HeaderTransport
	delegation *delegation          // nil unless the server is used on behalf of its callers
	tls        *tlsconfig.Transport // sends what HeaderTransport has completed
	close      func()               // to be called after the last request
}

// newRoundTripper returns the roundTripper of a server, with TCP connections of its own. It sends no request. base is
// the endpoint's URL with the scheme http or https.
func newRoundTripper(cfg config.Server, opts Options, base *url.URL) (*roundTripper, error) {
	pooled := http.DefaultTransport.(*http.Transport).Clone() // uses proxies from the environment
	pooled.MaxIdleConns = 0                                   // no limit besides MaxIdleConnsPerHost: there is one host
	// Two per call: a call may begin while the stream of the call before it is still read to its end.
	pooled.MaxIdleConnsPerHost = max(64, 2*orElse(cfg.MaxConcurrentCalls, limiter.Max))
	pooled.MaxResponseHeaderBytes = maxResponseHeader
	pooled.WriteBufferSize = 8 << 10 // a call's header and body are sent in one write
	secured := opts.tls.byFiles[cfg.TLS].Transport(pooled)
	var next http.RoundTripper = fetch.Transport{RoundTripper: secured}
	if opts.Transport != nil {
		next = opts.Transport(next)
	}
	creds, err := newCredentials(cfg, opts)
	if err != nil {
		return nil, err
	}
	return &roundTripper{
		HeaderTransport: transport.HeaderTransport{Next: next, Base: base, Headers: cfg.Headers, Query: cfg.Query, Tokens: creds.sender},
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
