package mcpserver

import (
	"maps"
	"sync"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// sessionUse is who began a session, and when they last used it.
type sessionUse struct {
	owner string
	last  time.Time
}

// sessionRegistry holds the use of each session, which the SDK does not have.
type sessionRegistry struct {
	mu   sync.Mutex // protects uses
	uses map[string]sessionUse
}

// add registers a session that has begun; id is "" if the SDK refused it.
func (s *sessionRegistry) add(id, owner string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if id != "" {
		s.uses[id] = sessionUse{owner, time.Now()}
	}
}

// recordUse notes that the owner of a session uses it.
func (s *sessionRegistry) recordUse(id, owner string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if use, ok := s.uses[id]; ok && use.owner == owner {
		s.uses[id] = sessionUse{owner, time.Now()}
	}
}

// openSessions returns the sessions of the server by their ids, and removes those that have ended. The mutex is
// held meanwhile, so that it does not remove one that begins.
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

// leastRecentlyUsed returns the session that was not used for longest of the callers with the most sessions, leaving
// out those that are busy. It returns "" if there is none, or if owner would then have more sessions than they.
func (s *sessionRegistry) leastRecentlyUsed(owner string, busy map[string]bool) (oldest string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	counts, most := make(map[string]int), 0
	for _, use := range s.uses {
		counts[use.owner]++
		most = max(most, counts[use.owner])
	}
	if counts[owner]+1 >= most {
		return ""
	}
	for id, use := range s.uses {
		if counts[use.owner] == most && !busy[id] && (oldest == "" || use.last.Before(s.uses[oldest].last)) {
			oldest = id
		}
	}
	return oldest
}

// admitSession reports whether owner may begin another session. If there are MaxSessions, it ends an idle session of a
// caller who has more of them: otherwise one caller could keep all others out. That caller's client gets 404, and
// begins a new session (MCP 2025-11-25, Streamable HTTP, Session Management). Requests that arrive at the same time
// can together exceed MaxSessions.
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
