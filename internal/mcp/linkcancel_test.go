package mcp

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"answerd/internal/mcp/config"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
)

// heardConn is a server's end of a pipe that notes what it reads.
type heardConn struct {
	net.Conn
	heard *syncBuffer
}

func (h heardConn) Read(p []byte) (int, error) {
	n, err := h.Conn.Read(p)
	_, _ = h.heard.Write(p[:n])
	return n, err
}

// F13: a server that doesn't read when a call is cancelled is told when it reads again, be
// it after the 5 s that the SDK gives to cancellations. In fake time.
func TestACancellationIsSaidWhenTheServerReadsAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var heard syncBuffer
		ids, read := make(chan string, 2), make(chan struct{})
		c := piped(t, Options{}, config.Server{}, func(conn net.Conn) {
			lines(func(m message, _ func(string)) { ids <- string(m.ID); <-read })(heardConn{conn, &heard})
		})
		var all sync.WaitGroup
		for i := range 2 { // the second one is being written when the first is cancelled
			all.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i+1)*time.Second)
				defer cancel()
				_, err := c.Call(ctx, Call{Tool: "t"})
				kind(t, err)
			})
			synctest.Wait()
		}
		all.Wait()
		<-time.After(time.Minute)
		close(read)
		synctest.Wait()
		for range 2 {
			if want := `"requestId":` + <-ids; !strings.Contains(heard.String(), want+"}") {
				t.Errorf("the server did not hear %s:\n%s", want, heard.String())
			}
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
}

// F13: a call that is given up while the writer takes it is sent not at all, or cancelled
// as well.
func TestACallGivenUpWhileItIsTakenDoesNotGoOn(t *testing.T) {
	ours, theirs := net.Pipe()
	l := newLink(nil, quietLog(), new(sync.Once))
	l.conn = &pipe{ours, bufio.NewReader(ours)}
	go l.write()
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
				t.Error(err)
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
		recall := &jsonrpc.Request{Method: cancelled, Params: fmt.Appendf(nil, `{"requestId":%d}`, i)}
		if err := l.Write(t.Context(), recall); err != nil {
			t.Error(err)
		}
	}
	_ = l.Close()
	server.Wait()
	for id := range calls {
		if !cancels[id] {
			t.Errorf("call %s was sent and not cancelled", id)
		}
	}
	if len(calls) == 0 || len(calls) == 20_000 {
		t.Errorf("%d calls were sent, which tells nothing", len(calls))
	}
}
