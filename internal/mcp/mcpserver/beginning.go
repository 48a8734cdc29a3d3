package mcpserver

import (
	"net/http"
	"sync"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// SessionBeginnings counts the requests that may begin a session of an SDK server, so that none is closed while
// the SDK connects it: the SDK would panic (docs/internals/upstream/close_while_connecting.md). The zero value works.
type SessionBeginnings struct {
	mu     sync.RWMutex // held for reading by each of the requests
	closed bool
}

// Begin counts such a request until End. After Close it answers the request with 503 and returns false.
func (b *SessionBeginnings) Begin(w http.ResponseWriter) bool {
	if b.mu.TryRLock() { // fails only in Close
		if !b.closed {
			return true
		}
		b.mu.RUnlock()
	}
	http.Error(w, ErrClosed.Error(), http.StatusServiceUnavailable)
	return false
}

// End ends what Begin began.
func (b *SessionBeginnings) End() { b.mu.RUnlock() }

// Close refuses further requests, waits until the others have ended, and closes all sessions of the server. It
// returns when the calls of the sessions have ended.
func (b *SessionBeginnings) Close(server *sdk.Server) {
	b.mu.Lock()
	b.closed = true
	b.mu.Unlock()
	for session := range server.Sessions() {
		_ = session.Close() // fails only if the connection is gone already
	}
}
