package mcp

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"answerd/internal/mcp/transport"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
)

// closeRecorder notes that it was closed.
type closeRecorder struct{ closed atomic.Bool }

func (w *closeRecorder) Close() error { w.closed.Store(true); return nil }

// F32: the socket has no connection, at which its ping strikes first and its close next.
func TestAPanicOfASocketClosesItsWire(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, work := new(closeRecorder), new(sync.WaitGroup)
		s := &socket{log: quietLog(), wire: w, work: work, ended: make(chan struct{})}
		work.Go(s.ping)
		work.Wait()
		if f, ok := errors.AsType[*transport.Failure](s.cause); !ok || f.Kind != Protocol || !w.closed.Load() {
			t.Errorf("%v, closed %t", s.cause, w.closed.Load())
		}
	})
}

func TestAPanicAtTheStartOfAChildIsToldToWhoWaits(t *testing.T) {
	started := make(chan error, 1)
	(&child{log: quietLog()}).launch(started) // without a command
	if err := <-started; err == nil {
		t.Error("it has started")
	}
}

// buggyLog is a log with a bug that strikes once, at that message.
type buggyLog struct {
	slog.Handler
	message string
	struck  *atomic.Bool
}

func (b buggyLog) Enabled(context.Context, slog.Level) bool { return true }

func (b buggyLog) Handle(_ context.Context, r slog.Record) error {
	if r.Message == b.message && !b.struck.Swap(true) {
		panic("a bug")
	}
	return nil
}

// Whatever strikes at the end of a process, the process is gone, and its place is free
// for the next.
func TestAPanicAtTheEndOfAChildLeavesNothingOfIt(t *testing.T) {
	cfg := stdioConfig("exit", "127.0.0.1:1")
	log := buggyLog{Handler: slog.DiscardHandler, message: "MCP server process ended", struck: new(atomic.Bool)}
	c, err := startChild(&cfg, slog.New(log))
	if err != nil {
		t.Fatal(err)
	}
	select {
	case <-c.gone:
	case <-time.After(time.Minute):
		t.Fatal("it is not gone after a minute")
	}
	if !log.struck.Load() || !isClosed(c.reaped) {
		t.Error("not struck, or not reaped")
	}
	// And before: without a process to signal, what waits for the end of it comes to it.
	lost := &child{log: quietLog(), cmd: c.cmd, stop: make(chan struct{}), exited: make(chan struct{}), reap: make(chan struct{}), reaped: c.reaped,
		stdin: c.stdin, stdout: c.stdout, stderr: c.stderr, gone: make(chan struct{})}
	close(lost.exited)
	lost.cmd.Process = nil
	lost.run()
	if !isClosed(lost.reap) || !isClosed(lost.gone) {
		t.Error("it waits for ever")
	}
}

// buggyFrames is a connection with a bug in its writing.
type buggyFrames struct{ closed chan struct{} }

func (buggyFrames) write([]byte) error      { panic("a bug") }
func (b buggyFrames) read() ([]byte, error) { <-b.closed; return nil, io.EOF }
func (b buggyFrames) close() error          { close(b.closed); return nil }

func TestAPanicOfAWriterEndsItsConnection(t *testing.T) {
	l := newLink(nil, quietLog(), new(sync.Once))
	l.conn = buggyFrames{make(chan struct{})}
	go l.write()
	msg := &jsonrpc.Request{Method: "notifications/initialized"}
	if f, ok := errors.AsType[*transport.Failure](l.Write(t.Context(), msg)); !ok || f.Kind != Protocol {
		t.Errorf("%v", f)
	}
	if !isClosed(l.ended) {
		t.Error("the connection goes on")
	}
	_ = l.Close()
}

// The first stream breaks with a bug in what reads it, and the next GET has one in what
// sends it; a third stream tells what there is.
func TestAPanicOverAStandingStreamCostsThatStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := 0
		way := roundTrip(func(r *http.Request) (*http.Response, error) {
			if n++; n == 2 {
				panic("a bug")
			}
			resp := emptyReply(r, http.StatusOK)
			resp.Header.Set("Content-Type", "text/event-stream")
			resp.Body = io.NopCloser(strings.NewReader("data: {\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\"}\n\n"))
			if n == 1 {
				resp.Body = buggyBody{resp.Body}
			}
			return resp, nil
		})
		c := newStreamable(&site{way: way, url: "http://server.test", log: quietLog()})
		ctx := context.WithValue(t.Context(), exchangeKey{}, &exchange{handshake: true, session: &session{pool: newPool(poolOptions{onNotification: func(string) {}})}})
		if _, err := c.Connect(ctx); err != nil {
			t.Fatal(err)
		}
		c.stand()
		m, err := c.Read(t.Context())
		if r, ok := m.(*jsonrpc.Request); err != nil || !ok || r.Method != "ping" || n != 3 {
			t.Errorf("%v, %v after %d GETs", m, err, n)
		}
		_ = c.Close()
	})
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }
