package mcpserver

import (
	"net/http"
	"sync"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// SessionDrain closes the sessions of an SDK server when no request can begin one any more. If a session were
// closed while the SDK connects it, the SDK would panic (docs/internals/upstream/close_while_connecting.md). The
// zero value works.
type SessionDrain struct {
	mu     sync.RWMutex // held for reading by each request that may begin a session
	closed bool
}

// Begin counts a request that may begin a session, until End. After Close it answers the request with 503 and
// returns false.
func (d *SessionDrain) Begin(w http.ResponseWriter) bool {
	if d.mu.TryRLock() { // false only while Close waits
		if !d.closed {
			return true
		}
		d.mu.RUnlock()
	}
	http.Error(w, ErrClosed.Error(), http.StatusServiceUnavailable)
	return false
}

// End ends what Begin began.
func (d *SessionDrain) End() { d.mu.RUnlock() }

// Close refuses further requests, waits for those that Begin has counted, and closes all sessions of the server.
// It returns when the calls of the sessions have ended.
func (d *SessionDrain) Close(server *sdk.Server) {
	d.mu.Lock()
	d.closed = true
	d.mu.Unlock()
	for session := range server.Sessions() {
		_ = session.Close() // fails only if the connection is gone already
	}
}
