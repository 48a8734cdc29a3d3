package mcp

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"answerd/internal/mcp/transport"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

const (
	maxBody  = 4 << 20  // bytes of one answer, uncompressed: JSON, or one event (F20)
	maxError = 64 << 10 // bytes read of a refusal
	// sideTime bounds requests that no caller waits for: notifications, and the DELETE
	// that ends a session. The SDK sends them on contexts that nobody cancels.
	sideTime = 2 * time.Second
	// answerTime bounds answers to a server's requests: one that is lost leaves the
	// server, and so the call, waiting.
	answerTime = 20 * time.Second
	// maxWaiting is how many messages wait for the SDK before who read them does.
	maxWaiting = 10

	sessionHeader = "Mcp-Session-Id"
	cancelled     = "notifications/cancelled"
)

// site is a server over HTTP, as all of its sessions use it.
type site struct {
	way    http.RoundTripper // to the server; it may change requests
	url    string
	listen bool // each session has a standing stream, if the server has one
	watch  bool // where resources can be subscribed to
	log    *slog.Logger
	rests  sync.WaitGroup // what nobody else waits for: streams that are read to their end, and repeated cancellations
}

// streamable is the connection of one session over Streamable HTTP: each message of ours
// is a POST, whose reply has the answer (2025-11-25 and 2026-07-28 basic/transports). What
// link is for a connection of frames it is for HTTP. It notes for each exchange whether its
// request was sent, hands what the server says in the answer's stream to the exchange that it
// belongs to, and bounds what is read (F20). Whatever is wrong with a reply ends the exchange
// of that one request (exchange.fail): the session that all runs share lives (F16). The id of
// a session that the server forgot is never sent again.
//
// It is the sdk.Transport and the sdk.Connection of one session:
//
//	cs, err := sdkClient(cfg, o).Connect(ctx, newStreamable(end), opts)
type streamable struct {
	*site
	of      *session             // whose connection it is
	ctx     context.Context      // has the values of the handshake's, and ends with Close
	end     context.CancelFunc   // of ctx
	in      chan jsonrpc.Message // to the SDK
	work    sync.WaitGroup       // streams that no request is waiting for
	closing sync.Once
	err     error // of Close; closing protects it

	mu      sync.Mutex // protects what follows
	id      string     // of the session; "" before initialize, and where there is none
	version string     // that initialize settled on; "" before
	updates bool       // the server's resources can be subscribed to, as initialize said
}

// newStreamable is the transport of one session with the server at at.
func newStreamable(at *site) *streamable {
	return &streamable{site: at, in: make(chan jsonrpc.Message, maxWaiting)}
}

// Connect implements sdk.Transport. Nothing is sent yet.
func (c *streamable) Connect(ctx context.Context) (sdk.Connection, error) {
	c.of = exchangeOf(ctx).session
	c.ctx, c.end = context.WithCancel(context.WithoutCancel(ctx))
	return c, nil
}

// SessionID is the server's id for the session; "" before there is one, and for servers
// without sessions.
func (c *streamable) SessionID() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.id
}

// Read is the next message that concerns the SDK.
func (c *streamable) Read(ctx context.Context) (jsonrpc.Message, error) {
	select {
	case m := <-c.in:
		return m, nil
	case <-c.ctx.Done():
		return nil, io.EOF
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// deliver hands m to the SDK, and waits for it under ctx: a slow SDK slows the server down,
// and nothing piles up here.
func (c *streamable) deliver(ctx context.Context, m jsonrpc.Message) error {
	select {
	case c.in <- m:
		return nil
	case <-c.ctx.Done():
		return errLinkClosed
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Close tells the server that the session is over, if it had one and has not forgotten it,
// and returns when all that the connection started has ended. The SDK calls it when
// nothing is under way.
func (c *streamable) Close() error {
	c.closing.Do(func() {
		defer c.work.Wait()
		defer c.end()
		defer transport.Recover(c.log, func(f *transport.Failure) { c.err = f })
		if c.SessionID() != "" {
			c.err = c.aside(c.ctx, sideTime, http.MethodDelete, nil)
		}
	})
	return c.err
}

// stale reports whether requests would carry the id of a session that the server forgot.
func (c *streamable) stale() bool { return c.SessionID() != "" && c.of.lost.Load() }
