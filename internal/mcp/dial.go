package mcp

import (
	"context"
	"net/http"
	"net/url"
	"time"

	"answerd/internal/mcp/config"

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
var dialers = map[string]func(config.Server, Options) (dialer, error){
	config.TypeHTTP:      dialHTTP,
	config.TypeStdio:     dialStdio,
	config.TypeWebSocket: dialWebSocket,
}

// dialHTTP is Streamable HTTP. The way to the server and its connections are made once
// and outlive sessions (S3.1); each session is a streamable of its own.
func dialHTTP(cfg config.Server, o Options) (dialer, error) {
	base, err := url.Parse(cfg.URL)
	if err != nil {
		return dialer{}, err
	}
	out, err := newOutgoing(cfg, o, base)
	if err != nil {
		return dialer{}, err
	}
	at := &site{way: out, url: cfg.URL, listen: cfg.StandaloneStream, watch: len(cfg.Resources) > 0, log: o.Logger.With("mcp_server", cfg.Name)}
	client := sdkClient(cfg, o)
	negotiator := &versionNegotiator{pinned: cfg.ProtocolVersion}
	connect := func(ctx context.Context) (*sdk.ClientSession, error) {
		return negotiator.connectNegotiated(ctx, func(version string) (*sdk.ClientSession, error) {
			return client.Connect(ctx, newStreamable(at), &sdk.ClientSessionOptions{ProtocolVersion: version})
		})
	}
	closeAll := func() {
		at.rests.Wait()
		out.close()
	}
	return dialer{connect: connect, close: closeAll, behalf: out.behalf}, nil
}

// newOutgoing is the way to a server over HTTP, with the connections at its end.
func newOutgoing(cfg config.Server, o Options, base *url.URL) (*outgoingTrip, error) {
	pooled := http.DefaultTransport.(*http.Transport).Clone() // proxies from the environment (S3.7)
	pooled.MaxIdleConns = 0                                   // one host, so the next line is the bound
	// Twice the calls: a call may begin while the stream of the one before is read
	// to its end.
	pooled.MaxIdleConnsPerHost = max(64, 2*cfg.MaxConcurrentCalls)
	pooled.MaxResponseHeaderBytes = maxError
	pooled.WriteBufferSize = 8 << 10 // a call's header and body go out in one write
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
