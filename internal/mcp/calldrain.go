package mcp

import (
	"context"
	"errors"

	"answerd/internal/mcp/transport"
)

// errRemoved is the cause of the end of a removed server's life.
var errRemoved = errors.New("the server was removed from the configuration")

// errReconfigured is the failure of a call that was not sent, because its server was removed or its tool now belongs
// to another server. Compare it with ==. Client.Call then looks the tool up again.
var errReconfigured = &transport.Failure{Kind: Unavailable, Public: "it is no longer configured", NotRun: true, Err: errRemoved}

// endedFailure returns the failure of a call that was not sent before the server's life ended.
func (s *server) endedFailure() *transport.Failure {
	if context.Cause(s.life) == errRemoved {
		return errReconfigured
	}
	return shutdownFailure(transport.ErrClosed)
}

// beginCall counts a call as in flight and returns true. If the server is being removed, it counts nothing and returns
// false. After true, endCall must be called.
func (d *callDrain) beginCall() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if transport.IsClosed(d.started) {
		return false
	}
	d.inFlight++
	return true
}

// endCall ends a call that beginCall has counted. After start, the end of the last call closes d.ended.
func (d *callDrain) endCall() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.inFlight--
	if transport.IsClosed(d.started) && d.inFlight == 0 {
		close(d.ended)
	}
}

// start makes beginCall return false from now on, and closes d.started. It also closes d.ended if no call is in
// flight. It must be called at most once.
func (d *callDrain) start() {
	d.mu.Lock()
	defer d.mu.Unlock()
	close(d.started)
	if d.inFlight == 0 {
		close(d.ended)
	}
}

// drainAndClose waits until a removed server's calls have ended or the Client closes. Then it ends the server's life,
// and waits until the server's goroutines and sessions have ended.
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
