package main

import (
	"context"
	"net"
	"sync"

	"answerd/internal/api"
)

// limitedListener counts connections. Those beyond the limit are marked as surplus: they are told
// so, and probes are answered on them. Beyond those too, nobody is accepted until somebody
// leaves; the kernel keeps a few more waiting.
type limitedListener struct {
	net.Listener
	limit  int
	slots  chan struct{} // one for every connection that may be open
	closed chan struct{}
	once   sync.Once // closes closed

	mu   sync.Mutex // protects open
	open int
}

// newLimitedListener makes l accept so many connections, and a few as surplus.
func newLimitedListener(l net.Listener, limit int) *limitedListener {
	return &limitedListener{Listener: l, limit: limit, slots: make(chan struct{}, limit+min(max(limit/4, 4), 256)), closed: make(chan struct{})}
}

// Accept implements net.Listener. The errors of the socket under it are passed on:
// net/http waits a little when there are no more descriptors, and tries again.
func (l *limitedListener) Accept() (net.Conn, error) {
	select {
	case l.slots <- struct{}{}:
	case <-l.closed:
		return nil, net.ErrClosed
	}
	c, err := l.Listener.Accept()
	if err != nil {
		<-l.slots
		return nil, err
	}
	if tcp, ok := c.(*net.TCPConn); ok {
		// Not fatal: the kernel then keeps more for a reader that stalls.
		_ = tcp.SetWriteBuffer(api.WriteBuffer)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open++
	return &countedConn{Conn: c, listener: l, overLimit: l.open > l.limit}, nil
}

// Close implements net.Listener.
func (l *limitedListener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return l.Listener.Close()
}

// countedConn is a connection that is counted.
type countedConn struct {
	net.Conn
	listener  *limitedListener
	overLimit bool
	once      sync.Once
}

// Close implements net.Conn.
func (c *countedConn) Close() error {
	c.once.Do(func() {
		c.listener.mu.Lock()
		c.listener.open--
		c.listener.mu.Unlock()
		<-c.listener.slots
	})
	return c.Conn.Close()
}

// CloseWrite lets net/http end a connection so that its last response is still read.
func (c *countedConn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return nil
}

// markOverLimit is the ConnContext of the server.
func markOverLimit(ctx context.Context, c net.Conn) context.Context {
	if c, ok := c.(*countedConn); ok && c.overLimit {
		return api.OverLimit(ctx)
	}
	return ctx
}

// maxConnections is how many connections there may be at a time. Every run has others
// besides its client's: to the model and to MCP servers.
func (c *config) maxConnections() int {
	if c.MaxConnections > 0 {
		return c.MaxConnections
	}
	n := c.MaxStreams + c.MaxStreams/10 + 1
	if files := maxOpenFiles(); files > 0 {
		n = min(n, max(files/3, 1))
	}
	return n
}
