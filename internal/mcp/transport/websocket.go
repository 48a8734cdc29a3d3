package transport

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coder/websocket"
)

// subprotocol is the WebSocket subprotocol that the handshake offers, as the TypeScript and Python SDKs do; MCP does
// not specify a WebSocket transport. A server need not select it.
const subprotocol = "mcp"

// WebSocketConfig configures a server over a WebSocket.
type WebSocketConfig struct {
	URL *url.URL // with scheme http or https
	// RoundTripper sends the WebSocket handshakes. It adds the headers, the query parameters and the token.
	RoundTripper http.RoundTripper
	Logger       *slog.Logger
}

// NewWebSocket returns the endpoint of a server over a WebSocket, with one JSON-RPC message in each text message. It
// sends nothing. Each session has its own TCP connection.
func NewWebSocket(cfg WebSocketConfig) Endpoint {
	var sockets sync.WaitGroup
	open := func(ctx context.Context) (MessageConn, error) {
		h := &wsHandshake{next: cfg.RoundTripper}
		conn, err := h.dial(ctx, cfg.URL.String())
		if err != nil {
			return nil, err
		}
		return newSocket(conn, h.netConn, &sockets, cfg.Logger), nil
	}
	return NewStream(open, sockets.Wait, cfg.Logger)
}

// wsHandshake is the WebSocket handshake of one session. It is the http.RoundTripper with which the library sends it.
type wsHandshake struct {
	next http.RoundTripper
	// netConn is the WebSocket's network connection; nil before the server has switched protocols. socket needs it to
	// close the connection within closeTimeout: the library does not export it, and its Close waits longer.
	netConn io.Closer
}

// dial performs the handshake with url, whose scheme is http or https, and sets h.netConn. After the handshake, the
// end of ctx does not end the connection. The error is a *Failure.
func (h *wsHandshake) dial(ctx context.Context, url string) (*websocket.Conn, error) {
	conn, resp, err := websocket.Dial(ctx, url, &websocket.DialOptions{
		// A new client for each session costs nothing, because next has what sessions share, such as TLS sessions.
		HTTPClient:   &http.Client{Transport: h, CheckRedirect: refuseRedirect},
		Subprotocols: []string{subprotocol},
	})
	switch {
	case err == nil:
		return conn, nil
	case h.netConn != nil:
		// Status 101, but with wrong headers. The library has closed the connection.
		return nil, BadReply("its WebSocket handshake is not valid", err)
	case resp != nil && resp.StatusCode != http.StatusSwitchingProtocols:
		return nil, replyFailure(resp)
	}
	return nil, unsentFailure(err)
}

// RoundTrip implements http.RoundTripper. If the reply has status 101, its body is the network connection, and
// RoundTrip sets h.netConn to it.
func (h *wsHandshake) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := h.next.RoundTrip(r.Clone(r.Context())) // a clone, because next changes its request
	if err == nil && resp.StatusCode == http.StatusSwitchingProtocols {
		h.netConn = resp.Body
	}
	return resp, err
}

// refuseRedirect is an http.Client.CheckRedirect function. It makes the client return a redirect as the reply instead
// of following it, because the redirect's target was not configured.
func refuseRedirect(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }

// Time limits of a socket. Together they detect within 30 s that the peer is gone.
const (
	pingInterval = 20 * time.Second
	pongTimeout  = 10 * time.Second
	// messageTimeout limits the time between a message's first and last frame, because endless frames without payload
	// do not reach the read limit.
	messageTimeout = 25 * time.Second
	writeTimeout   = 10 * time.Second
	closeTimeout   = time.Second
)

// socket is a WebSocket as a MessageConn: each text message is one message.
//
// The library must not get the context of a call: if a context ends within a frame, the library closes the connection,
// which all calls share. Instead, timers that end the socket limit the time of each operation.
type socket struct {
	conn      *websocket.Conn
	log       *slog.Logger
	netConn   io.Closer       // conn's network connection
	work      *sync.WaitGroup // counts the socket's goroutines; Endpoint.Close waits for it
	receiving atomic.Bool     // Read has received a part of a message but not all of it
	readLimit atomic.Int64    // maximum size of a message, in bytes

	endOnce sync.Once
	ended   chan struct{} // closed when the socket has ended
	cause   error         // why the socket has ended; set before ended is closed
}

// newSocket returns a socket over conn, whose network connection is netConn, and starts its pingLoop. work counts the
// socket's goroutines. The caller must call Close.
func newSocket(conn *websocket.Conn, netConn io.Closer, work *sync.WaitGroup, log *slog.Logger) *socket {
	s := &socket{conn: conn, log: log, netConn: netConn, work: work, ended: make(chan struct{})}
	s.SetReadLimit(MaxMessage)
	work.Go(s.pingLoop)
	return s
}

// SetReadLimit implements MessageConn.
func (s *socket) SetReadLimit(bytes int) {
	s.readLimit.Store(int64(bytes))
	s.conn.SetReadLimit(int64(bytes))
}

// Read implements MessageConn. A binary message ends the socket, as does a message that is too large or takes longer
// than messageTimeout.
func (s *socket) Read() ([]byte, error) {
	kind, r, err := s.conn.Reader(context.Background())
	if err != nil {
		return nil, s.readError(err)
	}
	if kind != websocket.MessageText {
		return nil, s.closeWith(websocket.StatusUnsupportedData, BadReply("a binary WebSocket message", nil))
	}
	s.receiving.Store(true)
	defer s.receiving.Store(false)
	timeout := time.AfterFunc(messageTimeout, func() {
		_ = s.closeWith(websocket.StatusPolicyViolation, BadReply("a WebSocket message without end", nil))
	})
	defer timeout.Stop()
	data, err := io.ReadAll(r)
	switch {
	case errors.Is(err, websocket.ErrMessageTooBig):
		// The library has already sent the close frame; closeWith waits for the peer's.
		return nil, s.closeWith(websocket.StatusMessageTooBig, newOversizeError(data, int(s.readLimit.Load())))
	case err != nil:
		return nil, s.readError(err)
	}
	return data, nil
}

// readError ends the socket because reading failed with err, and returns the reason: the peer's close frame, a broken
// connection, or the earlier cause if the socket had already ended.
func (s *socket) readError(err error) error {
	switch code := websocket.CloseStatus(err); code {
	case -1: // no close frame
		return s.closeNow(unansweredFailure(err))
	case websocket.StatusNormalClosure, websocket.StatusGoingAway:
		return s.closeNow(io.EOF)
	default:
		return s.closeNow(&Failure{Kind: UnknownOutcome, Err: err,
			Public: fmt.Sprintf("it closed the connection (WebSocket %d)", code)})
	}
}

// Write implements MessageConn. If the peer does not read the message within writeTimeout, Write ends the socket.
func (s *socket) Write(data []byte) error {
	select {
	case <-s.ended:
		return LostSession(s.cause)
	default:
	}
	timeout := time.AfterFunc(writeTimeout, func() {
		_ = s.closeNow(&Failure{Kind: UnknownOutcome, Public: "it does not read"})
	})
	defer timeout.Stop()
	// A server must close the connection if text is not UTF-8 (RFC 6455 section 8.1). The arguments of one call must
	// not end the session for all calls.
	data = bytes.ToValidUTF8(data, []byte("\uFFFD"))
	err := s.conn.Write(context.Background(), websocket.MessageText, data)
	if errors.Is(err, net.ErrClosed) {
		<-s.ended // Read gets the library's reason and sets the cause; timeout limits the wait
		return s.cause
	}
	if err != nil {
		return s.closeNow(unansweredFailure(err))
	}
	return nil
}

// pingLoop sends pings until the socket ends, and ends the socket if a pong is missing. Without pings, a peer that has
// lost power would look like a silent one.
func (s *socket) pingLoop() {
	defer Recover(s.log, func(f *Failure) { _ = s.closeNow(f) })
	tick := time.NewTicker(pingInterval)
	defer tick.Stop()
	for {
		select {
		case <-s.ended:
			return
		case <-tick.C:
		}
		ctx, stop := context.WithTimeout(context.Background(), pongTimeout)
		err := s.conn.Ping(ctx)
		stop()
		// While Read receives a long message, the pong has to wait behind it; messageTimeout limits that time. If the
		// connection is closed, Read ends the socket with the reason.
		if err != nil && !errors.Is(err, net.ErrClosed) && !s.receiving.Load() {
			_ = s.closeNow(&Failure{Kind: UnknownOutcome, Public: "it does not answer any more", Err: err})
		}
	}
}

// Close implements MessageConn. It sends a close frame in the background.
func (s *socket) Close() error {
	_ = s.closeWith(websocket.StatusNormalClosure, io.EOF)
	return nil
}

// closeWith ends the socket because of cause, and sends a close frame with the given code in the background. It
// returns cause, or the earlier cause if the socket had already ended.
func (s *socket) closeWith(code websocket.StatusCode, cause error) error {
	return s.end(cause, func() {
		timeout := time.AfterFunc(closeTimeout, func() { _ = s.netConn.Close() })
		defer timeout.Stop()
		// Until timeout, Close also reads and discards what the peer sends. Otherwise TCP would answer that with a
		// reset, and the peer might not see the close frame.
		_ = s.conn.Close(code, "")
	})
}

// closeNow ends the socket because of cause, without a close frame. It returns cause, or the earlier cause if the
// socket had already ended.
func (s *socket) closeNow(cause error) error {
	return s.end(cause, func() { _ = s.conn.CloseNow() })
}

// end ends the socket because of cause, and runs closeConn in the background. If the socket has already ended, it does
// nothing. It returns the first cause. If closeConn panics, end closes the network connection.
func (s *socket) end(cause error, closeConn func()) error {
	s.endOnce.Do(func() {
		s.cause = cause
		// Start this before ended is closed, which ends pingLoop: otherwise work could reach 0 too early.
		s.work.Go(func() {
			defer Recover(s.log, func(*Failure) { _ = s.netConn.Close() })
			closeConn()
		})
		close(s.ended)
	})
	return s.cause
}
