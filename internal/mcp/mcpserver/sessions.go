package mcpserver

import (
	"maps"
	"sync"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// sessionUse says who began a session, and when they last used it.
type sessionUse struct {
	owner    string
	lastUsed time.Time
}

// sessionRegistry records the use of each session, which the SDK does not.
type sessionRegistry struct {
	mu   sync.Mutex            // protects uses
	uses map[string]sessionUse // by session id
}

// add registers a session that the SDK has begun for owner. id is "" if the SDK has refused to; then add does nothing.
func (s *sessionRegistry) add(id, owner string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if id != "" {
		s.uses[id] = sessionUse{owner, time.Now()}
	}
}

// recordUse sets the time of the last use of a session to now. It does nothing if the session is unknown or owner has
// not begun it.
func (s *sessionRegistry) recordUse(id, owner string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if use, ok := s.uses[id]; ok && use.owner == owner {
		s.uses[id] = sessionUse{owner, time.Now()}
	}
}

// openSessions returns the sessions of the server by their ids, and removes all other sessions from s. It holds the
// mutex while it lists the sessions: a session that add registered in between would be missing in the list, and be
// removed.
func (s *sessionRegistry) openSessions(server *sdk.Server) map[string]*sdk.ServerSession {
	s.mu.Lock()
	defer s.mu.Unlock()
	open := make(map[string]*sdk.ServerSession)
	for session := range server.Sessions() {
		open[session.ID()] = session
	}
	maps.DeleteFunc(s.uses, func(id string, _ sessionUse) bool { return open[id] == nil })
	return open
}

// leastRecentlyUsed returns the id of the session to end so that owner can begin one: of the sessions of the callers
// with the most sessions, the least recently used that is not in busy. It returns "" if there is no such session, or if
// owner, with one session more, would have as many sessions as these callers or more.
func (s *sessionRegistry) leastRecentlyUsed(owner string, busy map[string]bool) (oldest string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	counts := make(map[string]int) // of sessions, by owner
	maxCount := 0
	for _, use := range s.uses {
		counts[use.owner]++
		maxCount = max(maxCount, counts[use.owner])
	}
	if counts[owner]+1 >= maxCount {
		return ""
	}
	for id, use := range s.uses {
		if busy[id] || counts[use.owner] < maxCount {
			continue
		}
		if oldest == "" || use.lastUsed.Before(s.uses[oldest].lastUsed) {
			oldest = id
		}
	}
	return oldest
}

// admitSession reports whether owner may begin another session. If there are MaxSessions already, it ends an idle
// session of a caller who has more sessions than owner: otherwise one caller could use all sessions. The client of the
// ended session gets 404 for its next request, and begins a new session (MCP 2025-11-25, Streamable HTTP, Session
// Management). Requests that arrive at the same time can together exceed MaxSessions.
func (h *Handler) admitSession(owner string) bool {
	open := h.sessions.openSessions(h.statefulServer)
	if len(open) < h.MaxSessions {
		return true
	}
	session := open[h.sessions.leastRecentlyUsed(owner, h.calls.busySessions())]
	if session == nil {
		return false
	}
	_ = session.Close() // fails only if the connection is gone already
	return true
}
