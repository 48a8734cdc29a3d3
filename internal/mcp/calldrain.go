package mcp

import (
	"errors"
	"sync"

	"answerd/internal/mcp/transport"
)

// errRemoved ends what still waits for a server that the configuration no longer has.
var errRemoved = errors.New("the server has left the configuration")

// errReconfigured is a call that found its server gone, or its tool under another binding, before
// it was sent: who asked looks the tool up again.
var errReconfigured = &transport.Failure{Kind: Unavailable, Public: "it is no longer configured", NotRun: true, Err: errRemoved}

// callDrain counts the calls of a server, so that one which has left the configuration
// lets those end that were sent, and no other begin.
type callDrain struct {
	leaving chan struct{} // closed when no more may begin
	empty   chan struct{} // closed when, besides, none is under way

	mu    sync.Mutex // protects what follows
	calls int
	left  bool
}

func newCallDrain() *callDrain {
	return &callDrain{leaving: make(chan struct{}), empty: make(chan struct{})}
}

// beginCall counts a call, or returns false if the server is being removed. Each counted call
// needs an endCall.
func (d *callDrain) beginCall() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.left {
		return false
	}
	d.calls++
	return true
}

func (d *callDrain) endCall() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.calls--
	if d.left && d.calls == 0 {
		close(d.empty)
	}
}

// waitForCalls refuses further calls and waits for the others. It must be called at most once.
func (d *callDrain) waitForCalls() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.left = true
	close(d.leaving)
	if d.calls == 0 {
		close(d.empty)
	}
}

// drainAndClose ends a server that has left the configuration, when its calls have ended or
// the Client closes; then its session and its goroutines.
func (s *server) drainAndClose() {
	s.drain.waitForCalls()
	select {
	case <-s.drain.empty:
	case <-s.life.Done():
	}
	s.end(errRemoved)
	if s.isLive() {
		s.closeServer()
	}
	s.log.Info("MCP server has left the configuration")
}
