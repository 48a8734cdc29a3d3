package mcp

import (
	"errors"
	"sync"

	"answerd/internal/mcp/transport"
)

// errRemoved ends what still waits for a server that the configuration no longer has.
var errRemoved = errors.New("the server has left the configuration")

// moved is a call that found its server gone, or its tool under another binding, before
// it was sent: who asked looks the tool up again.
var moved = &transport.Failure{Kind: Unavailable, Public: "it is no longer configured", NotRun: true, Err: errRemoved}

// departure counts the calls of a server, so that one which has left the configuration
// lets those end that were sent, and no other begin.
type departure struct {
	leaving chan struct{} // closed when no more may begin
	empty   chan struct{} // closed when, besides, none is under way

	mu    sync.Mutex // protects what follows
	calls int
	left  bool
}

func newDeparture() *departure {
	return &departure{leaving: make(chan struct{}), empty: make(chan struct{})}
}

// begin counts a call in, unless no more may begin. Each needs an end.
func (d *departure) begin() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.left {
		return false
	}
	d.calls++
	return true
}

func (d *departure) end() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.calls--
	if d.left && d.calls == 0 {
		close(d.empty)
	}
}

// leave lets no more calls begin. It must be called once at most.
func (d *departure) leave() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.left = true
	close(d.leaving)
	if d.calls == 0 {
		close(d.empty)
	}
}

// retire ends a server that has left the configuration, when its calls have ended or
// the Client closes; then its session and its goroutines.
func (s *server) retire() {
	s.departure.leave()
	select {
	case <-s.departure.empty:
	case <-s.life.Done():
	}
	s.end(errRemoved)
	if s.live() {
		s.close()
	}
	s.log.Info("MCP server has left the configuration")
}
