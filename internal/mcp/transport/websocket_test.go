package transport

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

	"answerd/internal/mcp/transport/transporttest"

	"github.com/coder/websocket"
)

// dialPipe returns a socket to a server that runs peer on network, and a function that ends both.
func dialPipe(t *testing.T, network *transporttest.Network, peer func(*websocket.Conn, *bufio.ReadWriter)) (*socket, func()) {
	t.Helper()
	var server sync.WaitGroup
	web := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		server.Add(1)
		defer server.Done()
		hw := &hijackedWriter{ResponseWriter: w}
		conn, err := websocket.Accept(hw, r, &websocket.AcceptOptions{Subprotocols: []string{"mcp"}})
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.CloseNow()
		peer(conn, hw.raw)
	})}
	server.Go(func() { _ = web.Serve(network) })
	wire := &http.Transport{DialContext: network.Dial}
	work := new(sync.WaitGroup)
	u := &wsHandshake{next: wire}
	conn, err := u.dial(t.Context(), "http://pipe/")
	if err != nil {
		t.Fatal(err)
	}
	s := newSocket(conn, u.netConn, work, slog.New(slog.DiscardHandler))
	return s, func() {
		_ = s.Close()
		work.Wait()
		_ = web.Close()
		server.Wait()
		wire.CloseIdleConnections()
	}
}

// hijackedWriter keeps the connection below a WebSocket, for frames that the library would not send.
type hijackedWriter struct {
	http.ResponseWriter
	raw *bufio.ReadWriter
}

func (h *hijackedWriter) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	c, rw, err := http.NewResponseController(h.ResponseWriter).Hijack()
	h.raw = bufio.NewReadWriter(bufio.NewReader(c), bufio.NewWriter(c))
	return c, rw, err
}

// frameHeader returns the header of an unmasked frame.
func frameHeader(final bool, opcode byte, length int) []byte {
	if final {
		opcode |= 0x80
	}
	if length < 126 {
		return []byte{opcode, byte(length)}
	}
	return binary.BigEndian.AppendUint64([]byte{opcode, 127}, uint64(length))
}

// timeRead reads one message and returns how long that took.
func timeRead(s *socket) (took time.Duration, _ []byte, err error) {
	begin := time.Now()
	data, err := s.Read()
	return time.Since(begin), data, err
}

// F25: a server that reads and sends but never answers a ping is given up.
func TestSocketWithoutPongs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, end := dialPipe(t, transporttest.NewNetwork(), func(_ *websocket.Conn, raw *bufio.ReadWriter) {
			_, _ = io.Copy(io.Discard, raw) // below the library, which would answer
		})
		defer end()
		took, _, err := timeRead(s)
		f, ok := errors.AsType[*Failure](err)
		if !ok || f.Kind != UnknownOutcome || took > pingInterval+pongTimeout {
			t.Errorf("Read: got %v after %s, want %s within %s", err, took, UnknownOutcome, pingInterval+pongTimeout)
		}
	})
}

// F25: on a half-open TCP connection what we send is lost, and nothing arrives any more.
func TestSocketThatIsHalfOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network := transporttest.NewNetwork()
		s, end := dialPipe(t, network, func(c *websocket.Conn, _ *bufio.ReadWriter) {
			_, _, _ = c.Read(context.Background())
		})
		defer end()
		time.AfterFunc(time.Hour, func() { network.Dead.Store(true) }) // an hour of pongs
		took, _, err := timeRead(s)
		if took -= time.Hour; err == nil || took <= 0 || took > 30*time.Second {
			t.Errorf("Read: got %v after %s, want an error within 30s", err, took)
		}
	})
}

// F25: a peer that does not read any more ends the socket after writeTimeout.
func TestSocketThatIsStuck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network := transporttest.NewNetwork()
		s, end := dialPipe(t, network, func(c *websocket.Conn, _ *bufio.ReadWriter) {
			_, _, _ = c.Read(context.Background())
		})
		defer end()
		network.Stuck.Store(true)
		begin := time.Now()
		if err := s.Write([]byte("{}")); err == nil || time.Since(begin) != writeTimeout {
			t.Errorf("Write: got %v after %s, want an error after %s", err, time.Since(begin), writeTimeout)
		}
		if f, ok := errors.AsType[*Failure](s.Write([]byte("{}"))); !ok || !f.NotRun {
			t.Errorf("Write afterwards: got %v, want a failure that was not sent", f)
		}
	})
}

// F25: fragments that never end, with and without payload.
func TestSocketFloodedWithFragments(t *testing.T) {
	for name, payload := range map[string]int{"empty": 0, "one byte": 1} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				closed := make(chan error, 1)
				s, end := dialPipe(t, transporttest.NewNetwork(), func(_ *websocket.Conn, raw *bufio.ReadWriter) {
					go func() {
						_, err := io.Copy(io.Discard, raw)
						closed <- err
					}()
					opcode := byte(1)
					for {
						_, _ = raw.Write(append(frameHeader(false, opcode, payload), make([]byte, payload)...))
						if raw.Flush() != nil {
							return
						}
						opcode = 0
						<-time.After(10 * time.Millisecond) // fake time
					}
				})
				defer end()
				took, _, err := timeRead(s)
				f, ok := errors.AsType[*Failure](err)
				if !ok || f.Kind != Protocol || took > 30*time.Second {
					t.Errorf("Read: got %v after %s, want %s within 30s", err, took, Protocol)
				}
				<-closed
			})
		})
	}
}

// A long message on a slow line delays the pongs behind it, and does not end the socket.
func TestSocketAcceptsSlowMessages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const size = 20
		const message = `{"jsonrpc":"2.0","method":"x"}`
		s, end := dialPipe(t, transporttest.NewNetwork(), func(_ *websocket.Conn, raw *bufio.ReadWriter) {
			closed := make(chan error, 1)
			go func() {
				_, err := io.Copy(io.Discard, raw)
				closed <- err
			}()
			<-time.After(pingInterval - time.Second) // fake time
			_, _ = raw.Write(frameHeader(true, 1, len(message)))
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
		took, data, err := timeRead(s)
		if err != nil || len(data) != len(message) || took < pingInterval+size*time.Second-time.Second {
			t.Errorf("Read: got %s, %v after %s, want %s", data, err, took, message)
		}
	})
}

// F25: a binary frame is refused with 1003 (RFC 6455 section 7.4.1).
func TestSocketRefusesBinary(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		closed := make(chan error, 1)
		s, end := dialPipe(t, transporttest.NewNetwork(), func(c *websocket.Conn, _ *bufio.ReadWriter) {
			_ = c.Write(context.Background(), websocket.MessageBinary, []byte(`{"jsonrpc":"2.0","method":"x"}`))
			_, _, err := c.Read(context.Background())
			closed <- err
		})
		defer end()
		_, data, err := timeRead(s)
		f, ok := errors.AsType[*Failure](err)
		if !ok || f.Kind != Protocol {
			t.Errorf("Read: got %s, %v, want a failure of the kind %s", data, err, Protocol)
		}
		if code := websocket.CloseStatus(<-closed); code != websocket.StatusUnsupportedData {
			t.Errorf("got the close code %d, want %d", code, websocket.StatusUnsupportedData)
		}
	})
}

// F25: a message that is too large is refused with 1009, which arrives.
func TestSocketRefusesHugeMessages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		closed := make(chan error, 1)
		s, end := dialPipe(t, transporttest.NewNetwork(), func(c *websocket.Conn, _ *bufio.ReadWriter) {
			go func() {
				_, _, err := c.Read(context.Background())
				closed <- err
			}()
			_ = c.Write(context.Background(), websocket.MessageText, []byte(strings.Repeat("x", 16<<20)))
		})
		defer end()
		_, err := s.Read()
		f, ok := errors.AsType[*Failure](err)
		if !ok || f.Kind != TooLarge {
			t.Errorf("Read: got %v, want a failure of the kind %s", err, TooLarge)
		}
		if code := websocket.CloseStatus(<-closed); code != websocket.StatusMessageTooBig {
			t.Errorf("got the close code %d, want %d", code, websocket.StatusMessageTooBig)
		}
	})
}

// A message that is written while Read refuses one that is too large is not the reason why the socket ends.
func TestSocketKeepsTheReasonOfRead(t *testing.T) {
	huge := []byte("{" + strings.Repeat(`"a":0,`, MaxMessage/6+1)) // the search for its id takes some time
	for range 50 {                                                 // Write may return before or after Read
		synctest.Test(t, func(t *testing.T) {
			reads := make(chan struct{})
			s, end := dialPipe(t, transporttest.NewNetwork(), func(c *websocket.Conn, _ *bufio.ReadWriter) {
				go func() { _ = c.Write(context.Background(), websocket.MessageText, huge) }()
				<-reads
				_, _, _ = c.Read(context.Background())
			})
			defer end()

			read, wrote := make(chan error, 1), make(chan error, 1)
			go func() {
				_, err := s.Read()
				read <- err
			}()
			synctest.Wait() // until the library sends the close frame, which the peer does not read yet
			go func() { wrote <- s.Write([]byte("{}")) }()
			synctest.Wait()
			close(reads)

			for name, err := range map[string]error{"Read": <-read, "Write": <-wrote} {
				if f, ok := errors.AsType[*Failure](err); !ok || f.Kind != TooLarge {
					t.Errorf("%s: got %v, want a failure of the kind %s", name, err, TooLarge)
				}
			}
		})
	}
}

// F25: close 1011, and normal closes.
func TestSocketClosedByTheServer(t *testing.T) {
	for code, eof := range map[websocket.StatusCode]bool{
		websocket.StatusInternalError: false, websocket.StatusPolicyViolation: false,
		websocket.StatusNormalClosure: true, websocket.StatusGoingAway: true,
	} {
		synctest.Test(t, func(t *testing.T) {
			s, end := dialPipe(t, transporttest.NewNetwork(), func(c *websocket.Conn, _ *bufio.ReadWriter) {
				_ = c.Close(code, "secret reason")
			})
			defer end()
			took, _, err := timeRead(s)
			f, ok := errors.AsType[*Failure](err)
			if eof != errors.Is(err, io.EOF) || eof == ok || took > closeTimeout {
				t.Errorf("close code %d: got %v after %s, want EOF: %t, within %s", code, err, took, eof, closeTimeout)
			}
			if ok && (f.Kind != UnknownOutcome || strings.Contains(f.Public, "secret")) {
				t.Errorf("close code %d: got %s, %q, want %s without the reason", code, f.Kind, f.Public, UnknownOutcome)
			}
			if err := s.Write([]byte("{}")); err == nil {
				t.Errorf("close code %d: Write got no error, want one", code)
			}
		})
	}
}

// Our own close is a closing handshake if the peer answers, and bounded if it does not.
func TestSocketCloseIsBounded(t *testing.T) {
	for name, polite := range map[string]bool{"polite": true, "deaf": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				closed := make(chan error, 1)
				s, end := dialPipe(t, transporttest.NewNetwork(), func(c *websocket.Conn, raw *bufio.ReadWriter) {
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
					_, err := s.Read()
					read <- err
				}()

				synctest.Wait()
				if err := s.Close(); err != nil || time.Since(begin) != 0 {
					t.Errorf("Close: got %v after %s, want none at once", err, time.Since(begin))
				}
				if err := <-read; !errors.Is(err, io.EOF) {
					t.Errorf("Read: got %v, want EOF", err)
				}
				err := <-closed
				took, want := time.Since(begin), closeTimeout
				if polite {
					want = 0
					if status := websocket.CloseStatus(err); status != websocket.StatusNormalClosure {
						t.Errorf("the peer got %v, want a normal close", err)
					}
				}
				if took != want {
					t.Errorf("the peer got %v after %s, want it after %s", err, took, want)
				}
			})
		})
	}
}

// Bytes that are not UTF-8 would end the session for everyone (RFC 6455 section 8.1).
func TestSocketSendsOnlyUTF8(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		got := make(chan []byte, 1)
		s, end := dialPipe(t, transporttest.NewNetwork(), func(c *websocket.Conn, _ *bufio.ReadWriter) {
			_, data, _ := c.Read(context.Background())
			got <- data
		})
		defer end()
		if err := s.Write([]byte("{\"a\":\"\xff\"}")); err != nil {
			t.Fatal(err)
		}
		if data := string(<-got); data != "{\"a\":\"\uFFFD\"}" {
			t.Errorf("the peer got %q, want U+FFFD for the bad byte", data)
		}
	})
}

// closeRecorder notes that it was closed.
type closeRecorder struct{ closed atomic.Bool }

func (w *closeRecorder) Close() error { w.closed.Store(true); return nil }

// F32: the socket does not have a connection, so its ping panics first and its close next.
func TestSocketClosesItsConnectionAfterPanic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, work := new(closeRecorder), new(sync.WaitGroup)
		s := &socket{log: slog.New(slog.DiscardHandler), netConn: w, work: work, ended: make(chan struct{})}
		work.Go(s.pingLoop)
		work.Wait()
		if f, ok := errors.AsType[*Failure](s.cause); !ok || f.Kind != Protocol || !w.closed.Load() {
			t.Errorf("got %v, closed %t, want a failure of the kind %s, closed", s.cause, w.closed.Load(), Protocol)
		}
	})
}
