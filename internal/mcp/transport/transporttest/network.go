// Package transporttest provides an in-memory network that tests can break. It works with the fake time of
// testing/synctest.
//
//	network := transporttest.NewNetwork()
//	server := &http.Server{Handler: handler}
//	go server.Serve(network)
//	client := &http.Client{Transport: &http.Transport{DialContext: network.Dial}}
//	resp, err := client.Get("http://localhost/")
//	// What the client sends from here on does not arrive.
//	network.Dead.Store(true)
//	resp, err = client.Get("http://localhost/")
//	_ = server.Close()
package transporttest

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
)

// Network is the network of one server: a net.Listener, and Dial for its clients.
type Network struct {
	Dead  atomic.Bool // what clients write is accepted but does not arrive
	Stuck atomic.Bool // clients' writes block until the connection is closed

	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

// NewNetwork returns a network that is neither Dead nor Stuck.
func NewNetwork() *Network {
	return &Network{conns: make(chan net.Conn), closed: make(chan struct{})}
}

// Accept implements net.Listener.
func (n *Network) Accept() (net.Conn, error) {
	select {
	case c := <-n.conns:
		return c, nil
	case <-n.closed:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (n *Network) Close() error { n.once.Do(func() { close(n.closed) }); return nil }

// Addr implements net.Listener.
func (n *Network) Addr() net.Addr { return &net.TCPAddr{} }

// Dial connects to the server. It ignores the network and the address.
func (n *Network) Dial(ctx context.Context, _, _ string) (net.Conn, error) {
	client, server := net.Pipe()
	select {
	case n.conns <- server:
		return &clientConn{Conn: client, network: n, closed: make(chan struct{})}, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-n.closed:
		return nil, net.ErrClosed
	}
}

// clientConn is the client's end of a connection. While the network is dead, the server never learns that the client
// has closed it, and the client notices nothing except through its own timers.
type clientConn struct {
	net.Conn
	network *Network
	once    sync.Once
	closed  chan struct{}
}

func (c *clientConn) Write(p []byte) (int, error) {
	if c.network.Stuck.Load() {
		<-c.closed
		return 0, net.ErrClosed
	}
	if c.network.Dead.Load() {
		return len(p), nil
	}
	return c.Conn.Write(p)
}

func (c *clientConn) Close() error {
	c.once.Do(func() { close(c.closed) })
	return c.Conn.Close()
}
