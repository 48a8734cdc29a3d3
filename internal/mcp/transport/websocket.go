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

// subprotocol is offered in the handshake, as the TypeScript and Python SDKs do: MCP itself does not
// have a WebSocket transport. A server that selects none is accepted too.
const subprotocol = "mcp"

// WebSocketConfig configures a server over a WebSocket.
type WebSocketConfig struct {
	URL *url.URL // of scheme http or https
	// RoundTripper sends the handshakes, which are plain HTTP: headers, query parameters and token
	// go with them.
	RoundTripper http.RoundTripper
	Logger       *slog.Logger
}

// NewWebSocket returns the endpoint of a server over a WebSocket, with one JSON-RPC message per text
// frame. It sends nothing. Each session has a TCP connection of its own.
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

// wsHandshake is the WebSocket handshake of one session.
type wsHandshake struct {
	next http.RoundTripper
	// netConn is the connection below the WebSocket. The library does not give it out, and its own
	// Close waits for a silent peer longer than we do.
	netConn io.Closer
}

// dial makes the handshake with url, of scheme http or https. ctx bounds the handshake, and nothing
// after it. The error is a *Failure.
func (h *wsHandshake) dial(ctx context.Context, url string) (*websocket.Conn, error) {
	conn, resp, err := websocket.Dial(ctx, url, &websocket.DialOptions{
		// The client is new for each session so that netConn can be kept; what is worth keeping
		// between sessions, such as TLS sessions, is below it.
		HTTPClient:   &http.Client{Transport: h, CheckRedirect: refuseRedirect},
		Subprotocols: []string{subprotocol},
	})
	switch {
	case err == nil:
		return conn, nil
	case h.netConn != nil:
		// A status of 101, but not to what we asked. The library has closed the connection.
		return nil, BadReply("its WebSocket handshake is not valid", err)
	case resp != nil && resp.StatusCode != http.StatusSwitchingProtocols:
		return nil, refusal(resp)
	}
	return nil, noReply(err, false)
}

// RoundTrip sends the handshake and keeps the connection that it was upgraded to.
func (h *wsHandshake) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := h.next.RoundTrip(r.Clone(r.Context())) // the library's request is not ours to change
	if err == nil && resp.StatusCode == http.StatusSwitchingProtocols {
		h.netConn = resp.Body
	}
	return resp, err
}

// refuseRedirect makes a redirect the reply: its target was not configured.
func refuseRedirect(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }

// Bounds of a socket. Together they detect a peer that is gone within 30 s.
const (
	pingInterval = 20 * time.Second
	pongTimeout  = 10 * time.Second
	// messageTimeout bounds one message from its first frame to its last: fragments without payload
	// never reach the bound in bytes.
	messageTimeout = 25 * time.Second
	writeTimeout   = 10 * time.Second
	closeTimeout   = time.Second
)

// socket is a WebSocket as a MessageConn: one message per text frame.
//
// No caller's context ever reaches the library, which closes the connection for all callers when a
// context ends in the middle of a frame. Timers that end the socket bound its operations instead.
type socket struct {
	conn      *websocket.Conn
	log       *slog.Logger
	netConn   io.Closer       // the connection below conn
	work      *sync.WaitGroup // the socket's goroutines; the endpoint waits for them
	receiving atomic.Bool     // it is in the middle of a message
	readLimit atomic.Int64    // bytes that a message may have

	once  sync.Once
	ended chan struct{} // closed when the socket has ended; then cause is set
	cause error
}

// newSocket returns a socket over conn, which runs on netConn. Its goroutines are counted in work and
// end with it.
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

// Read implements MessageConn.
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
	slow := time.AfterFunc(messageTimeout, func() {
		_ = s.closeWith(websocket.StatusPolicyViolation, BadReply("a WebSocket message without end", nil))
	})
	defer slow.Stop()
	data, err := io.ReadAll(r)
	switch {
	case errors.Is(err, websocket.ErrMessageTooBig):
		// The library has sent the close frame; here it only waits for the other one.
		return nil, s.closeWith(websocket.StatusMessageTooBig, newOversizeError(data, int(s.readLimit.Load())))
	case err != nil:
		return nil, s.readError(err)
	}
	return data, nil
}

// readError returns why reading failed: err, unless the socket had ended before.
func (s *socket) readError(err error) error {
	switch code := websocket.CloseStatus(err); code {
	case -1:
		return s.closeNow(noReply(err, true))
	case websocket.StatusNormalClosure, websocket.StatusGoingAway:
		return s.closeNow(io.EOF)
	default:
		return s.closeNow(&Failure{Kind: UnknownOutcome, Err: err,
			Public: fmt.Sprintf("it closed the connection (WebSocket %d)", code)})
	}
}

// Write implements MessageConn.
func (s *socket) Write(data []byte) error {
	select {
	case <-s.ended:
		return LostSession(s.cause)
	default:
	}
	stuck := time.AfterFunc(writeTimeout, func() {
		_ = s.closeNow(&Failure{Kind: UnknownOutcome, Public: "it does not read"})
	})
	defer stuck.Stop()
	// A server must close the connection at text that is not UTF-8 (RFC 6455 section 8.1), and a
	// call's arguments may have any source.
	data = bytes.ToValidUTF8(data, []byte("\uFFFD"))
	err := s.conn.Write(context.Background(), websocket.MessageText, data)
	if errors.Is(err, net.ErrClosed) {
		<-s.ended // Read is about to report why the library has closed the connection; stuck bounds the wait
		return s.cause
	}
	if err != nil {
		return s.closeNow(noReply(err, true))
	}
	return nil
}

// pingLoop detects that the peer is gone: a connection whose other end lost its power looks like a
// quiet one.
func (s *socket) pingLoop() {
	defer Recover(s.log, func(f *Failure) { _ = s.closeNow(f) }) // without pings, a lost peer would go unnoticed
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
		// A pong cannot overtake a long message that is being received, and messageTimeout bounds
		// that. If the connection is closed, Read reports why.
		if err != nil && !errors.Is(err, net.ErrClosed) && !s.receiving.Load() {
			_ = s.closeNow(&Failure{Kind: UnknownOutcome, Public: "it does not answer any more", Err: err})
		}
	}
}

// Close implements MessageConn. It sends a close frame on a goroutine of its own.
func (s *socket) Close() error {
	_ = s.closeWith(websocket.StatusNormalClosure, io.EOF)
	return nil
}

// closeWith ends the socket because of cause with a close frame of that code, and returns the first
// cause that there was.
func (s *socket) closeWith(code websocket.StatusCode, cause error) error {
	return s.endOnce(cause, func() {
		// What the peer still sends is read and discarded meanwhile: TCP would answer it with a reset,
		// and the peer might never see the close frame.
		cut := time.AfterFunc(closeTimeout, func() { _ = s.netConn.Close() })
		defer cut.Stop()
		_ = s.conn.Close(code, "")
	})
}

// closeNow ends the socket because of cause without a close frame, and returns the first cause that
// there was.
func (s *socket) closeNow(cause error) error {
	return s.endOnce(cause, func() { _ = s.conn.CloseNow() })
}

// endOnce keeps the first cause and closes the connection on a goroutine of its own. A panic of
// closing closes the network connection.
func (s *socket) endOnce(cause error, closing func()) error {
	s.once.Do(func() {
		s.cause = cause
		s.work.Go(func() { // before pingLoop ends, so that work does not reach 0
			defer Recover(s.log, func(*Failure) { _ = s.netConn.Close() })
			closing()
		})
		close(s.ended)
	})
	return s.cause
}
