package mcpserver

import (
	"net/http"
	"sync"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// SessionDrain closes the sessions of an SDK server at a time when no request can begin a session. If a session were
// closed while the SDK connects it, the SDK would panic (docs/internals/upstream/close_while_connecting.md). The
// zero value is ready for use.
type SessionDrain struct {
	mu     sync.RWMutex // held for reading by each request between Begin and End; protects closed
	closed bool
}

// Begin must be called before a request that may begin a session, and End after it if Begin has returned true. Once
// Close was called, Begin answers the request with 503 and returns false. It does not block.
func (d *SessionDrain) Begin(w http.ResponseWriter) bool {
	if d.mu.TryRLock() { // fails only while Close waits or sets closed
		if !d.closed {
			return true
		}
		d.mu.RUnlock()
	}
	http.Error(w, ErrClosed.Error(), http.StatusServiceUnavailable)
	return false
}

// End must be called once after a request for which Begin has returned true.
func (d *SessionDrain) End() { d.mu.RUnlock() }

// Close makes Begin refuse further requests, waits for End of those in flight, and closes all sessions of the server.
// It returns when the calls of the sessions have ended.
func (d *SessionDrain) Close(server *sdk.Server) {
	d.mu.Lock()
	d.closed = true
	d.mu.Unlock()
	for session := range server.Sessions() {
		_ = session.Close() // fails only if the connection is gone already
	}
}
