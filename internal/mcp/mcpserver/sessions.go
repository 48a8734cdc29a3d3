package mcpserver

import (
	"maps"
	"sync"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// sessionUse records who began a session and when they last used it.
type sessionUse struct {
	owner    string
	lastUsed time.Time
}

// sessionRegistry records when each session was last used, because the SDK does not.
type sessionRegistry struct {
	mu   sync.Mutex            // protects uses
	uses map[string]sessionUse // by session id
}

// add registers a session that the SDK has begun for owner. It does nothing if id is "", which means that the SDK did
// not begin a session.
func (s *sessionRegistry) add(id, owner string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if id != "" {
		s.uses[id] = sessionUse{owner, time.Now()}
	}
}

// recordUse records that a session is being used now, and returns true. If the session is unknown or has another owner,
// recordUse does nothing and returns false.
func (s *sessionRegistry) recordUse(id, owner string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	use, ok := s.uses[id]
	if !ok || use.owner != owner {
		return false
	}
	s.uses[id] = sessionUse{owner, time.Now()}
	return true
}

// openSessions returns the server's sessions by their ids, and removes all other sessions from s. It holds s.mu while
// it lists them. Otherwise a session that add registers at the same time would be missing from the list and be removed.
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

// leastRecentlyUsed returns the id of the session to end so that owner can begin another one. It considers only the
// sessions of those callers who have the most sessions, leaves out the sessions in busy, and returns the one that was
// not used for the longest time. It returns "" if there is no such session, or if another session would give owner at
// least as many sessions as these callers have.
func (s *sessionRegistry) leastRecentlyUsed(owner string, busy map[string]bool) (oldest string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	counts := make(map[string]int) // number of sessions by owner
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

// admitSession reports whether owner may begin another session. If there are already MaxSessions, it ends an idle
// session of a caller who has more sessions than owner, so that one caller cannot use all sessions. The ended session's
// client gets 404 for its next request and begins a new session (MCP 2025-11-25, Streamable HTTP, Session Management).
// Concurrent requests can together exceed MaxSessions.
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
