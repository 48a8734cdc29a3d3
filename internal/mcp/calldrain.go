package mcp

import (
	"errors"

	"answerd/internal/mcp/transport"
)

// errRemoved is the cause with which the life of a removed server ends.
var errRemoved = errors.New("the server was removed from the configuration")

// errReconfigured is the failure of a call whose server was removed, or whose tool now belongs to another server,
// before the call was sent. Callers compare it with ==. Client.Call then looks the tool up again.
var errReconfigured = &transport.Failure{Kind: Unavailable, Public: "it is no longer configured", NotRun: true, Err: errRemoved}

// beginCall counts a call as in flight and returns true, or returns false if the server is being removed. The caller
// must call endCall after true, and must not after false.
func (d *callDrain) beginCall() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.draining {
		return false
	}
	d.inFlight++
	return true
}

// endCall ends a call that beginCall has counted. While the server is drained, the last call to end closes d.ended.
func (d *callDrain) endCall() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.inFlight--
	if d.draining && d.inFlight == 0 {
		close(d.ended)
	}
}

// start makes beginCall refuse further calls, and closes d.started. d.ended is closed when no call is in flight,
// which may be at once. start must be called at most once.
func (d *callDrain) start() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.draining = true
	close(d.started)
	if d.inFlight == 0 {
		close(d.ended)
	}
}

// drainAndClose waits until the calls of a removed server have ended or the Client closes. Then it ends the server's
// life, its goroutines and its sessions, and waits for them.
func (s *server) drainAndClose() {
	s.drain.start()
	select {
	case <-s.drain.ended:
	case <-s.life.Done():
	}
	s.endLife(errRemoved)
	if s.isLive() {
		s.closeServer()
	}
	s.log.Info("MCP server removed from the configuration")
}
