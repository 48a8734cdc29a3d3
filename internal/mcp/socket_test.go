package mcp

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"answerd/internal/mcp/transport"

	"github.com/coder/websocket"
)

// pipeNet is a network of one host, inside a bubble of fake time.
type pipeNet struct {
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
	dead   atomic.Bool // the network takes what we send, and nothing arrives
	stuck  atomic.Bool // nothing is taken from us any more
}

func newPipeNet() *pipeNet { return &pipeNet{conns: make(chan net.Conn), closed: make(chan struct{})} }

func (p *pipeNet) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p *pipeNet) Close() error   { p.once.Do(func() { close(p.closed) }); return nil }
func (p *pipeNet) Addr() net.Addr { return &net.TCPAddr{} }

func (p *pipeNet) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	ours, theirs := net.Pipe()
	select {
	case p.conns <- theirs:
		return &pipeConn{Conn: ours, net: p, gone: make(chan struct{})}, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

// pipeConn is our end of a connection. Since the other end is never told when it is
// closed while the network is dead, nothing but our own clock can find out.
type pipeConn struct {
	net.Conn
	net  *pipeNet
	once sync.Once
	gone chan struct{}
}

func (c *pipeConn) Write(p []byte) (int, error) {
	if c.net.stuck.Load() {
		<-c.gone
		return 0, net.ErrClosed
	}
	if c.net.dead.Load() {
		return len(p), nil
	}
	return c.Conn.Write(p)
}

func (c *pipeConn) Close() error {
	c.once.Do(func() { close(c.gone) })
	return c.Conn.Close()
}

// dialPipe is a socket to a server that does what peer says, on a network of its own.
// The function ends both.
func dialPipe(t *testing.T, network *pipeNet, peer func(*websocket.Conn, *bufio.ReadWriter)) (*socket, func()) {
	t.Helper()
	var server sync.WaitGroup
	web := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		server.Add(1)
		defer server.Done()
		hw := &hijacked{ResponseWriter: w}
		conn, err := websocket.Accept(hw, r, &websocket.AcceptOptions{Subprotocols: []string{"mcp"}})
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.CloseNow()
		peer(conn, hw.raw)
	})}
	server.Go(func() { _ = web.Serve(network) })
	wire := &http.Transport{DialContext: network.dial}
	x := newExchange(t.Context(), t.Context(), time.Now().Add(handshakeTime))
	defer x.finish()
	work := new(sync.WaitGroup)
	u := &upgrade{next: wire}
	conn, err := u.dial(x.ctx, "http://pipe/")
	if err != nil {
		t.Fatal(err)
	}
	s := newSocket(conn, u.wire, work, slog.New(slog.DiscardHandler))
	return s, func() {
		_ = s.close()
		work.Wait()
		_ = web.Close()
		server.Wait()
		wire.CloseIdleConnections()
	}
}

// hijacked keeps the connection below a WebSocket, for frames that the library would
// not send.
type hijacked struct {
	http.ResponseWriter
	raw *bufio.ReadWriter
}

func (h *hijacked) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	c, rw, err := http.NewResponseController(h.ResponseWriter).Hijack()
	h.raw = bufio.NewReadWriter(bufio.NewReader(c), bufio.NewWriter(c))
	return c, rw, err
}

// frame is the head of an unmasked frame: final or not, its opcode, its length.
func frame(final bool, opcode byte, length int) []byte {
	if final {
		opcode |= 0x80
	}
	if length < 126 {
		return []byte{opcode, byte(length)}
	}
	return binary.BigEndian.AppendUint64([]byte{opcode, 127}, uint64(length))
}

// reading is what one Read gives, and when.
func reading(s *socket) (took time.Duration, _ []byte, err error) {
	begin := time.Now()
	data, err := s.read()
	return time.Since(begin), data, err
}

// F25, no pong: a server that reads and sends but never answers a ping is given up.
func TestSocketWithoutPongs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, end := dialPipe(t, newPipeNet(), func(_ *websocket.Conn, raw *bufio.ReadWriter) {
			_, _ = io.Copy(io.Discard, raw) // below the library, which would answer
		})
		defer end()
		took, _, err := reading(s)
		f, ok := errors.AsType[*transport.Failure](err)
		if !ok || f.Kind != UnknownOutcome || took > pingEvery+pongTime {
			t.Errorf("%v after %s", err, took)
		}
	})
}

// F25, half-open TCP: what we send is swallowed, and nothing comes any more.
func TestSocketThatIsHalfOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network := newPipeNet()
		s, end := dialPipe(t, network, func(c *websocket.Conn, _ *bufio.ReadWriter) {
			_, _, _ = c.Read(context.Background())
		})
		defer end()
		time.AfterFunc(time.Hour, func() { network.dead.Store(true) }) // an hour of pongs
		took, _, err := reading(s)
		if took -= time.Hour; err == nil || took <= 0 || took > 30*time.Second {
			t.Errorf("%v after %s", err, took)
		}
	})
}

// F25: a peer that takes nothing any more costs the socket its write time-out.
func TestSocketThatIsStuck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network := newPipeNet()
		s, end := dialPipe(t, network, func(c *websocket.Conn, _ *bufio.ReadWriter) {
			_, _, _ = c.Read(context.Background())
		})
		defer end()
		network.stuck.Store(true)
		begin := time.Now()
		if err := s.write([]byte("{}")); err == nil || time.Since(begin) != writeTime {
			t.Errorf("%v after %s", err, time.Since(begin))
		}
		if f, ok := errors.AsType[*transport.Failure](s.write([]byte("{}"))); !ok || !f.NotRun {
			t.Errorf("written afterwards: %v", f)
		}
	})
}

// F25, fragment flood: fragments that never end, with and without payload.
func TestSocketFloodedWithFragments(t *testing.T) {
	for name, payload := range map[string]int{"empty": 0, "one byte": 1} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				closed := make(chan error, 1)
				s, end := dialPipe(t, newPipeNet(), func(_ *websocket.Conn, raw *bufio.ReadWriter) {
					go func() {
						_, err := io.Copy(io.Discard, raw)
						closed <- err
					}()
					opcode := byte(1)
					for {
						_, _ = raw.Write(append(frame(false, opcode, payload), make([]byte, payload)...))
						if raw.Flush() != nil {
							return
						}
						opcode = 0
						<-time.After(10 * time.Millisecond) // fake time
					}
				})
				defer end()
				took, _, err := reading(s)
				f, ok := errors.AsType[*transport.Failure](err)
				if !ok || f.Kind != Protocol || took > 30*time.Second {
					t.Errorf("%v after %s", err, took)
				}
				<-closed
			})
		})
	}
}

// A long message on a slow line holds up the pongs behind it, and is no reason to
// give up.
func TestSlowMessageIsNoSilence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const size = 20
		const message = `{"jsonrpc":"2.0","method":"x"}`
		s, end := dialPipe(t, newPipeNet(), func(_ *websocket.Conn, raw *bufio.ReadWriter) {
			closed := make(chan error, 1)
			go func() {
				_, err := io.Copy(io.Discard, raw)
				closed <- err
			}()
			<-time.After(pingEvery - time.Second) // fake time
			_, _ = raw.Write(frame(true, 1, len(message)))
			for i := range len(message) {
				_ = raw.WriteByte(message[i])
				_ = raw.Flush()
				if i < size {
					<-time.After(time.Second) // fake time
				}
			}
			<-closed
		})
		defer end()
		took, data, err := reading(s)
		if err != nil || len(data) != len(message) || took < pingEvery+size*time.Second-time.Second {
			t.Errorf("%s, %v after %s", data, err, took)
		}
	})
}

// F25, binary frame: refused with 1003 (RFC 6455 section 7.4.1).
func TestSocketRefusesBinary(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		closed := make(chan error, 1)
		s, end := dialPipe(t, newPipeNet(), func(c *websocket.Conn, _ *bufio.ReadWriter) {
			_ = c.Write(context.Background(), websocket.MessageBinary, []byte(`{"jsonrpc":"2.0","method":"x"}`))
			_, _, err := c.Read(context.Background())
			closed <- err
		})
		defer end()
		_, data, err := reading(s)
		f, ok := errors.AsType[*transport.Failure](err)
		if !ok || f.Kind != Protocol {
			t.Errorf("%s, %v", data, err)
		}
		if code := websocket.CloseStatus(<-closed); code != websocket.StatusUnsupportedData {
			t.Errorf("closed with %d", code)
		}
	})
}

// F25, 64 MiB message (see TestWebSocketFaults): refused with 1009, which arrives.
func TestSocketRefusesHugeMessages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		closed := make(chan error, 1)
		s, end := dialPipe(t, newPipeNet(), func(c *websocket.Conn, _ *bufio.ReadWriter) {
			go func() {
				_, _, err := c.Read(context.Background())
				closed <- err
			}()
			_ = c.Write(context.Background(), websocket.MessageText, []byte(strings.Repeat("x", 16<<20)))
		})
		defer end()
		_, err := s.read()
		f, ok := errors.AsType[*transport.Failure](err)
		if !ok || f.Kind != TooLarge {
			t.Error(err)
		}
		if code := websocket.CloseStatus(<-closed); code != websocket.StatusMessageTooBig {
			t.Errorf("closed with %d", code)
		}
	})
}

// F25, close 1011, and closes in good order.
func TestSocketClosedByTheServer(t *testing.T) {
	for code, eof := range map[websocket.StatusCode]bool{
		websocket.StatusInternalError: false, websocket.StatusPolicyViolation: false,
		websocket.StatusNormalClosure: true, websocket.StatusGoingAway: true,
	} {
		synctest.Test(t, func(t *testing.T) {
			s, end := dialPipe(t, newPipeNet(), func(c *websocket.Conn, _ *bufio.ReadWriter) {
				_ = c.Close(code, "secret reason")
			})
			defer end()
			took, _, err := reading(s)
			f, ok := errors.AsType[*transport.Failure](err)
			if eof != errors.Is(err, io.EOF) || eof == ok || took > closeTime {
				t.Errorf("%d: %v after %s", code, err, took)
			}
			if ok && (f.Kind != UnknownOutcome || strings.Contains(f.Public, "secret")) {
				t.Errorf("%d: %s", code, f.Public)
			}
			if err := s.write([]byte("{}")); err == nil {
				t.Errorf("%d: written to a closed socket", code)
			}
		})
	}
}

// Our own close is in good order where the peer plays along, and bounded where not.
func TestSocketCloseIsBounded(t *testing.T) {
	for name, polite := range map[string]bool{"polite": true, "deaf": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				closed := make(chan error, 1)
				s, end := dialPipe(t, newPipeNet(), func(c *websocket.Conn, raw *bufio.ReadWriter) {
					if !polite {
						_, err := io.Copy(io.Discard, raw)
						closed <- err
						return
					}
					_, _, err := c.Read(context.Background())
					closed <- err
				})
				defer end()
				begin := time.Now()
				read := make(chan error, 1)
				go func() {
					_, err := s.read()
					read <- err
				}()
				synctest.Wait()
				if err := s.close(); err != nil || time.Since(begin) != 0 {
					t.Errorf("%v after %s", err, time.Since(begin))
				}
				if err := <-read; !errors.Is(err, io.EOF) {
					t.Errorf("read: %v", err)
				}
				err := <-closed
				if took := time.Since(begin); polite && (took != 0 || websocket.CloseStatus(err) != websocket.StatusNormalClosure) ||
					!polite && took != closeTime {
					t.Errorf("%v after %s", err, took)
				}
			})
		})
	}
}

// What is no UTF-8 would end the session for everybody (RFC 6455 section 8.1).
func TestSocketSendsOnlyUTF8(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		got := make(chan []byte, 1)
		s, end := dialPipe(t, newPipeNet(), func(c *websocket.Conn, _ *bufio.ReadWriter) {
			_, data, _ := c.Read(context.Background())
			got <- data
		})
		defer end()
		if err := s.write([]byte("{\"a\":\"\xff\"}")); err != nil {
			t.Fatal(err)
		}
		if data := string(<-got); data != "{\"a\":\"\uFFFD\"}" {
			t.Errorf("%q", data)
		}
	})
}
