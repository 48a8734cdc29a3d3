package api_test

import (
	"net"
	"net/http"
	"testing"
)

// pipes is a listener without sockets, so that the time of its connections is the
// bubble's.
type pipes struct {
	conns chan net.Conn
	done  chan struct{}
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.done:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error {
	close(p.done)
	return nil
}

func (p *pipes) Addr() net.Addr { return &net.TCPAddr{} }

// overPipes serves h without sockets until the test ends, and gives a way to connect.
func overPipes(t *testing.T, h http.Handler) (dial func() net.Conn) {
	t.Helper()
	l := &pipes{conns: make(chan net.Conn), done: make(chan struct{})}
	server := &http.Server{Handler: h}
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = server.Serve(l)
	}()
	t.Cleanup(func() {
		server.Close()
		<-served
	})
	return func() net.Conn {
		client, conn := net.Pipe()
		l.conns <- conn
		return client
	}
}
