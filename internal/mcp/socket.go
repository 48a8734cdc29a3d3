package mcp

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"answerd/internal/mcp/transport"

	"github.com/coder/websocket"
)

// Bounds of a socket. Together they find a peer that is gone within 30 s (F25).
const (
	pingEvery = 20 * time.Second
	pongTime  = 10 * time.Second
	// messageTime bounds one message from its first frame to its last: fragments
	// without payload never come to the bound of bytes.
	messageTime = 25 * time.Second
	writeTime   = 10 * time.Second
	closeTime   = time.Second
)

// socket is one WebSocket as the frames of a link: a message per text frame.
//
// No caller's context ever reaches the library, which closes the connection, for all
// callers, when a context ends in the middle of a frame. What must not last goes by
// timers that give the socket up.
type socket struct {
	conn      *websocket.Conn
	log       *slog.Logger
	wire      io.Closer       // the connection below conn
	work      *sync.WaitGroup // the socket's goroutines; whoever made it waits
	receiving atomic.Bool     // in the middle of a message

	over  sync.Once
	ended chan struct{} // closed when the socket is given up; then cause is set
	cause error
}

// newSocket is a socket over conn, which runs on wire. Its goroutines are counted in
// work and end with it.
func newSocket(conn *websocket.Conn, wire io.Closer, work *sync.WaitGroup, log *slog.Logger) *socket {
	conn.SetReadLimit(maxBody)
	s := &socket{conn: conn, log: log, wire: wire, work: work, ended: make(chan struct{})}
	work.Go(s.ping)
	return s
}

// read is the next message. It implements frames, as write and close do.
func (s *socket) read() ([]byte, error) {
	kind, r, err := s.conn.Reader(context.Background())
	if err != nil {
		return nil, s.broken(err)
	}
	if kind != websocket.MessageText {
		return nil, s.end(websocket.StatusUnsupportedData, transport.BadReply("a binary WebSocket message", nil))
	}
	s.receiving.Store(true)
	defer s.receiving.Store(false)
	slow := time.AfterFunc(messageTime, func() {
		_ = s.end(websocket.StatusPolicyViolation, transport.BadReply("a WebSocket message without end", nil))
	})
	defer slow.Stop()
	data, err := io.ReadAll(r)
	switch {
	case errors.Is(err, websocket.ErrMessageTooBig):
		// The library has sent the close frame; here it only waits for the other one.
		return nil, s.end(websocket.StatusMessageTooBig, newOverlong(data))
	case err != nil:
		return nil, s.broken(err)
	}
	return data, nil
}

// broken is why reading failed: err, unless the socket was given up before.
func (s *socket) broken(err error) error {
	switch code := websocket.CloseStatus(err); code {
	case -1:
		return s.lose(transport.NoReply(err, true))
	case websocket.StatusNormalClosure, websocket.StatusGoingAway:
		return s.lose(io.EOF)
	default:
		return s.lose(&transport.Failure{Kind: UnknownOutcome, Err: err,
			Public: fmt.Sprintf("it closed the connection (WebSocket %d)", code)})
	}
}

// write sends one message.
func (s *socket) write(data []byte) error {
	select {
	case <-s.ended:
		return transport.LostSession(s.cause)
	default:
	}
	stuck := time.AfterFunc(writeTime, func() {
		_ = s.lose(&transport.Failure{Kind: UnknownOutcome, Public: "it does not read"})
	})
	defer stuck.Stop()
	// A server must close the connection at text that is not UTF-8 (RFC 6455 section
	// 8.1), and a call's arguments may have come from anywhere.
	data = bytes.ToValidUTF8(data, []byte("\uFFFD"))
	if err := s.conn.Write(context.Background(), websocket.MessageText, data); err != nil {
		return s.lose(transport.NoReply(err, true))
	}
	return nil
}

// ping is the goroutine that finds out when nobody is there any more: a connection
// whose other end lost its power looks like a quiet one.
func (s *socket) ping() {
	defer transport.Recover(s.log, func(f *transport.Failure) { _ = s.lose(f) }) // a peer that nobody watches may be gone
	tick := time.NewTicker(pingEvery)
	defer tick.Stop()
	for {
		select {
		case <-s.ended:
			return
		case <-tick.C:
		}
		ctx, stop := context.WithTimeout(context.Background(), pongTime)
		err := s.conn.Ping(ctx)
		stop()
		// A pong cannot overtake a long message that is on its way, and messageTime
		// bounds that.
		if err != nil && !s.receiving.Load() {
			_ = s.lose(&transport.Failure{Kind: UnknownOutcome, Public: "it does not answer any more", Err: err})
		}
	}
}

// close closes the socket in good order, on a goroutine of its own.
func (s *socket) close() error {
	_ = s.end(websocket.StatusNormalClosure, io.EOF)
	return nil
}

// end gives the socket up because of cause, telling the peer code, and returns the
// first cause that there was.
func (s *socket) end(code websocket.StatusCode, cause error) error {
	return s.finish(cause, func() {
		// What the peer still sends is read and thrown away meanwhile: TCP would answer
		// the rest with a reset, and the peer might never see the close frame.
		cut := time.AfterFunc(closeTime, func() { _ = s.wire.Close() })
		defer cut.Stop()
		_ = s.conn.Close(code, "")
	})
}

// lose gives the socket up because of cause without a word to the peer, and returns
// the first cause that there was.
func (s *socket) lose(cause error) error {
	return s.finish(cause, func() { _ = s.conn.CloseNow() })
}

// finish notes the first cause and closes the connection on a goroutine of its own: if need
// be, by the wire alone.
func (s *socket) finish(cause error, closing func()) error {
	s.over.Do(func() {
		s.cause = cause
		s.work.Go(func() { // before ping ends, so that work doesn't come to 0
			defer transport.Recover(s.log, func(*transport.Failure) { _ = s.wire.Close() })
			closing()
		})
		close(s.ended)
	})
	return s.cause
}
