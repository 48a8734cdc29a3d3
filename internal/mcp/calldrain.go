package mcp

import (
	"errors"

	"answerd/internal/mcp/transport"
)

// errRemoved is the cause with which the life of a removed server ends.
var errRemoved = errors.New("the server was removed from the configuration")

// errReconfigured is the failure of a call whose server was removed, or whose tool moved to another
// server, before the call was sent. Client.Call then looks the tool up again.
var errReconfigured = &transport.Failure{Kind: Unavailable, Public: "it is no longer configured", NotRun: true, Err: errRemoved}

// beginCall counts a call, or returns false if the server is being removed. Call endCall for each
// counted call.
func (d *callDrain) beginCall() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.left {
		return false
	}
	d.calls++
	return true
}

// endCall ends what beginCall began. The last call of a drain closes empty.
func (d *callDrain) endCall() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.calls--
	if d.left && d.calls == 0 {
		close(d.empty)
	}
}

// refuseCalls refuses further calls; empty is closed when the last call in flight ends. It must be
// called at most once.
func (d *callDrain) refuseCalls() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.left = true
	close(d.leaving)
	if d.calls == 0 {
		close(d.empty)
	}
}

// drainAndClose waits until the calls of a removed server have ended or the Client closes. Then it
// ends the server's session and goroutines.
func (s *server) drainAndClose() {
	s.drain.refuseCalls()
	select {
	case <-s.drain.empty:
	case <-s.life.Done():
	}
	s.end(errRemoved)
	if s.isLive() {
		s.closeServer()
	}
	s.log.Info("MCP server removed from the configuration")
}
