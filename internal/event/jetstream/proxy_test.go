package jetstream_test

import (
	"io"
	"net"
	"net/url"
	"sync"
	"testing"
)

// proxy stands between a log and its server. It can stop passing anything on, as a
// partition does, and cut what is connected.
type proxy struct {
	listener net.Listener
	server   string
	wg       sync.WaitGroup

	mu      sync.Mutex // guards what follows
	conns   map[net.Conn]bool
	stopped chan struct{} // closed when traffic goes on; nil while it does
	deaf    bool          // what the server says is thrown away
}

func startProxy(t testing.TB, server string) *proxy {
	t.Helper()
	u, err := url.Parse(server)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{listener: l, server: u.Host, conns: make(map[net.Conn]bool)}
	p.wg.Go(p.accept)
	t.Cleanup(func() {
		_ = l.Close()
		p.resume()
		p.cut()
		p.wg.Wait()
	})
	return p
}

func (p *proxy) url() string { return "nats://" + p.listener.Addr().String() }

func (p *proxy) accept() {
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

func (p *proxy) pass(to, from net.Conn, answers bool) {
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

func (p *proxy) close(conns ...io.Closer) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range conns {
		_ = c.Close()
		delete(p.conns, c.(net.Conn))
	}
}

// stop holds everything back until resume.
func (p *proxy) stop() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stopped = make(chan struct{})
}

func (p *proxy) resume() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stopped != nil {
		close(p.stopped)
		p.stopped = nil
	}
	p.deaf = false
}

// deafen throws away what the server says, acknowledgements above all.
func (p *proxy) deafen() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.deaf = true
}

// cut closes all connections; new ones are taken.
func (p *proxy) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		_ = c.Close()
	}
}
