package mcpserver

import (
	"net/http"
	"sync"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// SessionDrain closes an SDK server's sessions while no request can begin a session. The SDK would panic if a session
// were closed while it is being connected (docs/internals/upstream/close_while_connecting.md). The zero value is ready.
type SessionDrain struct {
	mu     sync.RWMutex // protects closed; each request holds it for reading from Begin to End
	closed bool
}

// Begin must be called before a request that may begin a session. If it returns true, End must be called after the
// request. Once Close has been called, Begin answers the request with 503 and returns false. It does not block.
func (d *SessionDrain) Begin(w http.ResponseWriter) bool {
	if d.mu.TryRLock() { // fails only while Close waits for d.mu or holds it
		if !d.closed {
			return true
		}
		d.mu.RUnlock()
	}
	http.Error(w, ErrClosed.Error(), http.StatusServiceUnavailable)
	return false
}

// End must be called exactly once for each request for which Begin returned true.
func (d *SessionDrain) End() { d.mu.RUnlock() }

// Close makes Begin reject further requests, waits for those between Begin and End, and closes all sessions of server.
// It returns when the sessions' calls have ended.
func (d *SessionDrain) Close(server *sdk.Server) {
	d.mu.Lock()
	d.closed = true
	d.mu.Unlock()
	for session := range server.Sessions() {
		_ = session.Close() // fails only if the connection is gone already
	}
}
