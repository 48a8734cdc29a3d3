package main

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"answerd/internal/agent/agenttest"
	"answerd/internal/api"
	"answerd/internal/llm/llmtest"
)

// pipeListener is a listener of connections in memory, on which time can be false.
type pipeListener struct {
	conns chan net.Conn
	once  sync.Once
	over  chan struct{}
}

func (p *pipeListener) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.over:
		return nil, net.ErrClosed
	}
}

func (p *pipeListener) Close() error   { p.once.Do(func() { close(p.over) }); return nil }
func (p *pipeListener) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)} }

// F30: whoever sends slowly has 5 s for the headers and 15 s for all of the request, and
// keeps nobody else from anything.
func TestSlowRequestsAreCutOff(t *testing.T) {
	house := agenttest.NewFixture(t, llmtest.Turns(llmtest.Says("Yes.")), nil)
	synctest.Test(t, func(t *testing.T) {
		p := &pipeListener{conns: make(chan net.Conn), over: make(chan struct{})}
		server := newServer(api.New(api.Options{Agent: house.Agent, Log: house.Log}))
		var serving sync.WaitGroup
		serving.Go(func() { _ = server.Serve(p) })
		// sent writes a byte a second and returns what came back, and when the end did.
		sent := func(at string, rest string) (status int, after time.Duration) {
			ours, theirs := net.Pipe()
			defer ours.Close()
			p.conns <- theirs
			began := time.Now()
			var writing sync.WaitGroup
			writing.Go(func() {
				if _, err := io.WriteString(ours, at); err != nil {
					return
				}
				for ; rest != ""; rest = rest[1:] {
					<-time.After(time.Second)
					if _, err := io.WriteString(ours, rest[:1]); err != nil {
						return
					}
				}
			})
			defer writing.Wait()
			defer ours.Close()
			resp, err := http.ReadResponse(bufio.NewReader(ours), nil)
			if err != nil {
				return 0, time.Since(began)
			}
			_, _ = io.Copy(io.Discard, resp.Body)
			return resp.StatusCode, time.Since(began)
		}
		head := "POST /answer HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
		many := strings.Repeat("a", 1000)
		for _, c := range []struct {
			name, at, rest string
			status         int
			limit          time.Duration
		}{
			{"nothing", "", "", 0, api.ReadHeaderTimeout},
			{"a slow request line", "", "GET /" + many, 400, api.ReadHeaderTimeout},
			{"slow headers", head + "X: ", many, 0, api.ReadHeaderTimeout},
			{"no body", head + "Content-Length: 1000\r\n\r\n", "", 408, api.ReadTimeout},
			{"a slow body", head + "Content-Length: 1000\r\n\r\n", many, 408, api.ReadTimeout},
			{"slow chunks", head + "Transfer-Encoding: chunked\r\n\r\n", strings.Repeat("1\r\na\r\n", 100), 408, api.ReadTimeout},
		} {
			status, after := sent(c.at, c.rest)
			if status != c.status || after < c.limit || after > c.limit+time.Second {
				t.Errorf("%s: status %d after %s", c.name, status, after)
			}
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := server.Shutdown(ctx); err != nil {
			t.Error(err)
		}
		serving.Wait()
	})
}
