package mcp

import (
	"context"
	"io"
	"net/http"
	"net/url"
	"sync"

	"answerd/internal/mcp/config"
	"answerd/internal/mcp/transport"

	"github.com/coder/websocket"
)

// subprotocol is what we offer in the handshake, as the TypeScript and Python SDKs do:
// MCP itself has no WebSocket transport. A server that picks none is taken too.
const subprotocol = "mcp"

// dialWebSocket is one JSON-RPC message per text frame. The transport below is made
// once and outlives sessions (S3.1), though each session has a TCP connection to
// itself; headers, query and token go with the handshake, which is plain HTTP.
func dialWebSocket(cfg config.Server, o Options) (dialer, error) {
	base, err := url.Parse(cfg.URL)
	if err != nil {
		return dialer{}, err
	}
	base.Scheme = map[string]string{"ws": "http", "wss": "https"}[base.Scheme]
	out, err := newOutgoing(cfg, o, base)
	if err != nil {
		return dialer{}, err
	}
	var sockets sync.WaitGroup
	log := o.Logger.With("mcp_server", cfg.Name)
	d := &linkDialer{
		client:     sdkClient(cfg, o),
		log:        log,
		negotiator: versionNegotiator{pinned: cfg.ProtocolVersion},
		open: func(ctx context.Context) (frames, error) {
			u := &upgrade{next: out}
			conn, err := u.dial(ctx, base.String())
			if err != nil {
				return nil, err
			}
			return newSocket(conn, u.wire, &sockets, log), nil
		},
	}
	return dialer{connect: d.connect, close: func() {
		sockets.Wait()
		out.close()
	}}, nil
}

// upgrade is the WebSocket handshake of one session.
type upgrade struct {
	next http.RoundTripper
	// wire is the connection that the handshake left us. The library doesn't give it
	// out, and its own Close waits for a silent peer longer than we do.
	wire io.Closer
}

// dial makes the handshake with url, of scheme http or https. ctx bounds it, and
// nothing after it. The error is a *failure.
func (u *upgrade) dial(ctx context.Context, url string) (*websocket.Conn, error) {
	conn, resp, err := websocket.Dial(ctx, url, &websocket.DialOptions{
		// The client is made anew so that the wire can be kept; what is worth keeping
		// from one session to the next, such as TLS sessions, is below it.
		HTTPClient:   &http.Client{Transport: u, CheckRedirect: noRedirect},
		Subprotocols: []string{subprotocol},
	})
	switch {
	case err == nil:
		return conn, nil
	case u.wire != nil:
		// A status of 101, but not to what we asked. The library has closed the wire.
		return nil, transport.BadReply("its WebSocket handshake is not valid", err)
	case resp != nil && resp.StatusCode != http.StatusSwitchingProtocols:
		return nil, transport.Refusal(resp)
	}
	return nil, transport.NoReply(err, false)
}

// RoundTrip sends the handshake and keeps the connection that it was upgraded to.
func (u *upgrade) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := u.next.RoundTrip(r.Clone(r.Context())) // of the library's, which is not ours to change
	if err == nil && resp.StatusCode == http.StatusSwitchingProtocols {
		u.wire = resp.Body
	}
	return resp, err
}
