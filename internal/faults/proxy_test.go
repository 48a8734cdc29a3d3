package faults

import (
	"errors"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"testing"
)

// proxy is a TCP proxy to an upstream that can be stopped, and whose connections, open ones
// too, can be disturbed.
type proxy struct {
	t                 testing.TB
	url               string // of the upstream, through the proxy
	address, upstream string // host and port of both

	mu                 sync.Mutex // guards the fields below
	toClient, toServer disturbance
	listener           net.Listener
	conns              []net.Conn
	stopped            chan struct{} // closed by stop
	work               sync.WaitGroup
}

// disturbance passes data on, or less than that. sent is how many bytes were read before; an
// error closes the connection.
type disturbance func(to *net.TCPConn, data []byte, sent int, stopped <-chan struct{}) error

var errCut = errors.New("cut")

// forwardAll forwards everything.
func forwardAll(to *net.TCPConn, data []byte, _ int, _ <-chan struct{}) error {
	_, err := to.Write(data)
	return err
}

// stallConnection forwards nothing and keeps the connection open.
func stallConnection(_ *net.TCPConn, _ []byte, _ int, stopped <-chan struct{}) error {
	<-stopped
	return errCut
}

// resetConnection ends the connection with an RST in place of the first data.
func resetConnection(to *net.TCPConn, _ []byte, _ int, _ <-chan struct{}) error {
	_ = to.SetLinger(0)
	return errCut
}

// cutAfter closes the connection after so many bytes.
func cutAfter(bytes int) disturbance {
	return func(to *net.TCPConn, data []byte, sent int, _ <-chan struct{}) error {
		if left := bytes - sent; len(data) >= left {
			_, _ = to.Write(data[:left])
			return errCut
		}
		return forwardAll(to, data, sent, nil)
	}
}

// sliceBytes forwards everything in pieces of 1 to 7 bytes.
func sliceBytes(to *net.TCPConn, data []byte, _ int, _ <-chan struct{}) error {
	for len(data) > 0 {
		n := min(1+rand.IntN(7), len(data))
		if _, err := to.Write(data[:n]); err != nil {
			return err
		}
		data = data[n:]
	}
	return nil
}

// newProxy starts a proxy to the host of a URL. It forwards everything until disturb is called.
func newProxy(t testing.TB, upstream string) *proxy {
	t.Helper()
	scheme, rest, _ := strings.Cut(upstream, "://")
	host, path, _ := strings.Cut(rest, "/")
	// A port of its own, so that it is the same one after a stop.
	p := &proxy{t: t, address: closedPort(t), upstream: host, toClient: forwardAll, toServer: forwardAll}
	p.url = scheme + "://" + p.address + "/" + path
	p.start()
	t.Cleanup(p.stop)
	return p
}

// disturb changes how data is passed on from now on.
func (p *proxy) disturb(toClient, toServer disturbance) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.toClient, p.toServer = toClient, toServer
}

func (p *proxy) start() {
	p.t.Helper()
	l, err := net.Listen("tcp", p.address)
	if err != nil {
		p.t.Fatal(err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.listener, p.stopped = l, make(chan struct{})
	p.work.Go(func() { p.accept(l) })
}

// stop refuses connections, closes the open ones and waits for them.
func (p *proxy) stop() {
	p.mu.Lock()
	if p.listener != nil {
		_ = p.listener.Close()
		close(p.stopped)
	}
	for _, c := range p.conns {
		_ = c.Close()
	}
	p.listener, p.conns = nil, nil
	p.mu.Unlock()
	p.work.Wait()
}

func (p *proxy) accept(l net.Listener) {
	for {
		client, err := l.Accept()
		if err != nil {
			return
		}
		server, err := net.Dial("tcp", p.upstream)
		if err != nil {
			_ = client.Close()
			continue
		}
		p.mu.Lock()
		if p.listener != l { // stopped meanwhile
			_, _ = client.Close(), server.Close()
		} else {
			p.conns = append(p.conns, client, server)
			p.work.Go(func() { p.copy(client, server, &p.toClient, p.stopped) })
			p.work.Go(func() { p.copy(server, client, &p.toServer, p.stopped) })
		}
		p.mu.Unlock()
	}
}

// copy passes data on in one direction until one side ends the connection.
func (p *proxy) copy(to, from net.Conn, how *disturbance, stopped <-chan struct{}) {
	defer to.Close()
	defer from.Close()
	buf := make([]byte, 32<<10)
	for sent := 0; ; {
		n, err := from.Read(buf)
		p.mu.Lock()
		now := *how
		p.mu.Unlock()
		if n > 0 && now(to.(*net.TCPConn), buf[:n], sent, stopped) != nil || err != nil {
			return
		}
		sent += n
	}
}
