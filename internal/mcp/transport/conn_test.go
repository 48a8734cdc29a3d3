package transport

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"sync"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
)

// After more calls were given up than are kept, a message could be about any of them.
func TestStreamConnAttributesNothingAfterTooManyGivenUp(t *testing.T) {
	id := func(n int) jsonrpc.ID {
		id, _ := jsonrpc.MakeID(float64(n)) // numbers always are ids
		return id
	}
	l := newTestStreamConn()
	for i := range maxAbandoned + 1 {
		l.addAbandonedLocked(&pendingRequest{id: id(i), method: "tools/call"})
	}
	for i := range maxAbandoned + 1 {
		l.removeAbandoned(id(i))
	}
	l.pending[id(-1)] = &pendingRequest{roundTrip: &RoundTrip{}, method: "tools/call", sent: true}
	if len(l.abandoned) != 0 || l.callOf(logMessage) != nil {
		t.Errorf("got %d calls given up and the only call %v, want 0 and none", len(l.abandoned), l.callOf(logMessage))
	}
}

// A call that is given up while the writer takes it is not sent, or it is cancelled as well.
func TestStreamConnCancelsCallsGivenUpDuringWrite(t *testing.T) {
	ours, theirs := net.Pipe()
	l := newTestStreamConn()
	l.conn = lineConn{ours}

	calls, cancels := map[string]bool{}, map[string]bool{}
	var server sync.WaitGroup
	server.Go(func() {
		for in := bufio.NewScanner(theirs); in.Scan(); {
			var m struct {
				ID     json.RawMessage
				Params struct{ RequestID json.RawMessage }
			}
			switch err := json.Unmarshal(in.Bytes(), &m); {
			case err != nil:
				t.Errorf("decode a message: got %v, want no error", err)
			case m.ID != nil:
				calls[string(m.ID)] = true
			default:
				cancels[string(m.Params.RequestID)] = true
			}
		}
	})

	for i := range 20_000 {
		id, _ := jsonrpc.MakeID(float64(i)) // numbers always are ids
		ctx, cancel := context.WithCancel(t.Context())
		go cancel()
		if err := l.Write(ctx, &jsonrpc.Request{ID: id, Method: methodCall}); err == nil {
			<-ctx.Done()
		}
		cancellation := &jsonrpc.Request{Method: notificationCancelled, Params: fmt.Appendf(nil, `{"requestId":%d}`, i)}
		if err := l.Write(t.Context(), cancellation); err != nil {
			t.Errorf("write a cancellation: got %v, want no error", err)
		}
	}

	_ = l.Close()
	server.Wait()

	for id := range calls {
		if !cancels[id] {
			t.Errorf("call %s: got it sent and not cancelled, want both or neither", id)
		}
	}

	if len(calls) == 0 || len(calls) == 20_000 {
		t.Errorf("got %d calls sent, want some of 20000", len(calls))
	}
}

// brokenConn is a connection with a bug in its writing.
type brokenConn struct{ closed chan struct{} }

// SetReadLimit implements MessageConn.
func (brokenConn) SetReadLimit(int) {}

func (brokenConn) Write([]byte) error { panic("a defect") }

func (b brokenConn) Read() ([]byte, error) { <-b.closed; return nil, io.EOF }

func (b brokenConn) Close() error { close(b.closed); return nil }

func TestStreamConnEndsAfterPanicOfWrite(t *testing.T) {
	l := newTestStreamConn()
	l.conn = brokenConn{make(chan struct{})}
	msg := &jsonrpc.Request{Method: "notifications/initialized"}
	if f, ok := errors.AsType[*Failure](l.Write(t.Context(), msg)); !ok || f.Kind != Protocol {
		t.Errorf("Write: got %v, want a failure of the kind %s", f, Protocol)
	}
	if !IsClosed(l.ended) {
		t.Error("got an open connection, want it ended")
	}
	_ = l.Close()
}

// newTestStreamConn returns a connection of a session that was never opened.
func newTestStreamConn() *streamConn {
	return newStreamConn(&streamEndpoint{log: slog.New(slog.DiscardHandler)})
}

// lineConn writes one message per line, and is never read.
type lineConn struct{ net.Conn }

// SetReadLimit implements MessageConn.
func (lineConn) SetReadLimit(int) {}

func (lineConn) Read() ([]byte, error) { return nil, io.EOF }

func (c lineConn) Write(data []byte) error {
	_, err := c.Conn.Write(append(data, '\n'))
	return err
}
