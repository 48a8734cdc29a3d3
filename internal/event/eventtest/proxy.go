package eventtest

import (
	"io"
	"net"
	"net/url"
	"sync"
	"testing"
)

// Proxy is a TCP proxy between a log and its server. It can stop forwarding, like a network partition, drop the
// server's answers, and close connections.
type Proxy struct {
	listener net.Listener
	server   string
	wg       sync.WaitGroup

	mu          sync.Mutex // guards the fields below
	conns       map[net.Conn]bool
	stopped     chan struct{} // closed by Resume; nil unless stopped
	dropAnswers bool          // drop what the server sends
}

// StartProxy starts a proxy to the server at a nats:// URL. The proxy is stopped when the test ends.
func StartProxy(t testing.TB, server string) *Proxy {
	t.Helper()
	u, err := url.Parse(server)
	noError(t, err)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	noError(t, err)
	p := &Proxy{listener: l, server: u.Host, conns: make(map[net.Conn]bool)}
	p.wg.Go(p.acceptLoop)
	t.Cleanup(func() {
		_ = l.Close()
		p.Resume()
		p.Cut()
		p.wg.Wait()
	})
	return p
}

// URL returns the nats:// URL of the proxy.
func (p *Proxy) URL() string { return "nats://" + p.listener.Addr().String() }

// acceptLoop connects each client to the server, until the listener is closed.
func (p *Proxy) acceptLoop() {
	for {
		in, err := p.listener.Accept()
		if err != nil {
			return
		}
		out, err := net.Dial("tcp", p.server)
		if err != nil {
			_ = in.Close()
			continue
		}
		p.mu.Lock()
		p.conns[in], p.conns[out] = true, true
		p.mu.Unlock()
		p.wg.Go(func() { p.forward(out, in, false) })
		p.wg.Go(func() { p.forward(in, out, true) })
	}
}

// forward copies bytes in one direction until a connection ends. answers says that they come from the server.
func (p *Proxy) forward(to, from net.Conn, answers bool) {
	defer p.closeConns(to, from)
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		p.mu.Lock()
		stopped, dropAnswers := p.stopped, p.dropAnswers && answers
		p.mu.Unlock()
		if stopped != nil {
			<-stopped
		}
		if n > 0 && !dropAnswers {
			if _, err := to.Write(buf[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

func (p *Proxy) closeConns(conns ...io.Closer) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range conns {
		_ = c.Close()
		delete(p.conns, c.(net.Conn))
	}
}

// Stop holds all traffic back until Resume.
func (p *Proxy) Stop() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stopped == nil {
		p.stopped = make(chan struct{})
	}
}

// Resume forwards what Stop has held back, and all later traffic. It also ends DropAnswers.
func (p *Proxy) Resume() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stopped != nil {
		close(p.stopped)
		p.stopped = nil
	}
	p.dropAnswers = false
}

// DropAnswers drops everything that the server sends, such as acknowledgements, until Resume.
func (p *Proxy) DropAnswers() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.dropAnswers = true
}

// Cut closes all connections. The proxy still accepts new ones.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		_ = c.Close()
	}
}
