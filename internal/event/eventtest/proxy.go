package eventtest

import (
	"io"
	"net"
	"net/url"
	"sync"
	"testing"
)

// Proxy stands between a log and its server. It can stop passing anything on, as a
// partition does, and cut what is connected.
type Proxy struct {
	listener net.Listener
	server   string
	wg       sync.WaitGroup

	mu      sync.Mutex // guards what follows
	conns   map[net.Conn]bool
	stopped chan struct{} // closed when traffic goes on; nil while it does
	deaf    bool          // what the server says is thrown away
}

// StartProxy starts one, until the end of the test, before the server of a nats:// URL.
func StartProxy(t testing.TB, server string) *Proxy {
	t.Helper()
	u, err := url.Parse(server)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &Proxy{listener: l, server: u.Host, conns: make(map[net.Conn]bool)}
	p.wg.Go(p.accept)
	t.Cleanup(func() {
		_ = l.Close()
		p.Resume()
		p.Cut()
		p.wg.Wait()
	})
	return p
}

// URL is where it listens.
func (p *Proxy) URL() string { return "nats://" + p.listener.Addr().String() }

func (p *Proxy) accept() {
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
		p.wg.Go(func() { p.pass(out, in, false) })
		p.wg.Go(func() { p.pass(in, out, true) })
	}
}

func (p *Proxy) pass(to, from net.Conn, answers bool) {
	defer p.close(to, from)
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		p.mu.Lock()
		stopped, deaf := p.stopped, p.deaf && answers
		p.mu.Unlock()
		if stopped != nil {
			<-stopped
		}
		if n > 0 && !deaf {
			if _, err := to.Write(buf[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

func (p *Proxy) close(conns ...io.Closer) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range conns {
		_ = c.Close()
		delete(p.conns, c.(net.Conn))
	}
}

// Stop holds everything back until Resume.
func (p *Proxy) Stop() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stopped = make(chan struct{})
}

// Resume passes on what was held back, and what comes.
func (p *Proxy) Resume() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stopped != nil {
		close(p.stopped)
		p.stopped = nil
	}
	p.deaf = false
}

// Deafen throws away what the server says, acknowledgements above all.
func (p *Proxy) Deafen() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.deaf = true
}

// Cut closes all connections; new ones are taken.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		_ = c.Close()
	}
}
