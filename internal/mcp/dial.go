package mcp

import (
	"context"
	"net/http"
	"net/url"
	"sync"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// A dialer makes sessions with one server. There is one for each type of server
// that this build supports; dialers is the list of them.
type dialer struct {
	connect func(context.Context) (*sdk.ClientSession, error)
	close   func()        // frees what sessions shared, after the last one
	time    time.Duration // that one handshake may take; 0: handshakeTime
	behalf  *behalf       // of servers that are used on behalf of their callers
}

// dialers makes the dialer of a server, by its type.
var dialers = map[string]func(ServerConfig, Options) (dialer, error){
	TypeHTTP:      dialHTTP,
	TypeStdio:     dialStdio,
	TypeWebSocket: dialWebSocket,
}

// dialHTTP is Streamable HTTP. The http.Client and its connections are made once
// and outlive sessions (S3.1); each session has its own SDK transport, as the SDK
// wants.
func dialHTTP(cfg ServerConfig, o Options) (dialer, error) {
	base, err := url.Parse(cfg.URL)
	if err != nil {
		return dialer{}, err
	}
	out, err := newOutgoing(cfg, o, base)
	if err != nil {
		return dialer{}, err
	}
	edge := guard{next: out, listen: cfg.StandaloneStream, watch: len(cfg.Resources) > 0, log: o.Logger.With("mcp_server", cfg.Name), rests: new(sync.WaitGroup)}
	client := &http.Client{Transport: edge, CheckRedirect: noRedirect}
	mcp := sdkClient(cfg, o)
	spoken := &speech{pinned: cfg.ProtocolVersion}
	connect := func(ctx context.Context) (*sdk.ClientSession, error) {
		return spoken.shake(ctx, func(version string) (*sdk.ClientSession, error) {
			return mcp.Connect(ctx, &sdk.StreamableClientTransport{
				Endpoint:   cfg.URL,
				HTTPClient: client,
				// The guard ends a stream that cannot be resumed; here, the end of
				// retries would be the end of the session.
				MaxRetries:           1000,
				DisableStandaloneSSE: !edge.listen && !edge.watch, // see standing
				MaxEventSize:         maxBody + maxError,          // the guard's bound comes first
			}, &sdk.ClientSessionOptions{ProtocolVersion: version})
		})
	}
	closeAll := func() {
		edge.rests.Wait()
		out.close()
	}
	return dialer{connect: connect, close: closeAll, behalf: out.behalf}, nil
}

// newOutgoing is the way to a server over HTTP, with the connections at its end.
func newOutgoing(cfg ServerConfig, o Options, base *url.URL) (*outgoingTrip, error) {
	pooled := http.DefaultTransport.(*http.Transport).Clone() // proxies from the environment (S3.7)
	pooled.MaxIdleConns = 0                                   // one host, so the next line is the bound
	// Twice the calls: a call may begin while the stream of the one before is read
	// to its end.
	pooled.MaxIdleConnsPerHost = max(64, 2*cfg.MaxConcurrentCalls)
	pooled.MaxResponseHeaderBytes = maxError
	var wire http.RoundTripper = pooled
	if o.Transport != nil {
		wire = o.Transport(pooled)
	}
	creds, err := newCredentials(cfg, o)
	if err != nil {
		return nil, err
	}
	return &outgoingTrip{
		next: wire, base: base, headers: cfg.Headers, query: cfg.Query, tokens: creds.source, behalf: creds.behalf,
		close: func() {
			creds.close()
			pooled.CloseIdleConnections()
		},
	}, nil
}

// noRedirect makes a redirect the reply: where it leads to was not configured (F19).
func noRedirect(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }

// sdkClient is the SDK's side of a server, whatever the transport. It may make many
// sessions.
func sdkClient(cfg ServerConfig, o Options) *sdk.Client {
	c := sdk.NewClient(&sdk.Implementation{Name: "answerd", Version: o.Version}, clientOptions(cfg, o.Logger))
	enableListen(c)
	return c
}
