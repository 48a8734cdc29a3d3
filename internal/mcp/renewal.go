package mcp

import "time"

// Times after which a list of tools is requested again.
const (
	minListLife = 5 * time.Second // lower bound of the server's ttl; package session has the upper bound
	// pinnedListLife is the maximum age of a list of pinned tools, even if the server gave no ttl or a longer one. A
	// definition may change without a notification, and must then be blocked.
	pinnedListLife = time.Minute
	// renewalGap is the minimum time between two lists that the server's notifications cause, so that a server that
	// announces changes continuously gets one request per second.
	renewalGap = time.Second
)

// schedule records that a list has arrived, and sets r.dueAt. ttl is the server's time to live for the list; 0 if it
// gave none. changes is what announcedChanges returned before the list was requested. A change that was announced after
// that may be missing from the list, so the list is then requested again after renewalGap. The server's mutex must be
// held.
func (r *listExpiry) schedule(ttl time.Duration, pinned bool, changes int) {
	isOutdated := r.changes != changes
	r.listedAt = time.Now()
	r.dueAt = time.Time{}
	switch {
	case isOutdated:
		ttl = renewalGap
	case ttl > 0:
		ttl = max(ttl, minListLife)
	case !pinned:
		return
	}
	isTooLong := ttl == 0 || ttl > pinnedListLife
	if pinned && isTooLong {
		ttl = pinnedListLife
	}
	r.dueAt = r.listedAt.Add(ttl)
}

// handleListChanged handles the server's notification method: it has the tools listed again if they may have changed.
// That includes changes of the resources, because the description of the tool that reads resources lists them.
func (s *server) handleListChanged(method string) {
	switch method {
	case "notifications/tools/list_changed":
		s.markOutdated()
	case "notifications/resources/list_changed":
		if len(s.cfg.Resources) > 0 {
			s.markOutdated()
		}
	}
}

// markOutdated records that the known tools may be out of date. The supervisor lists them again, but not within
// renewalGap of the latest list. If the server uses per-user tokens, the next user's request lists them.
func (s *server) markOutdated() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.renewal.changes++
	dueAt := s.renewal.listedAt.Add(renewalGap)
	if now := time.Now(); dueAt.Before(now) {
		dueAt = now
	}
	if s.renewal.dueAt.IsZero() || dueAt.Before(s.renewal.dueAt) {
		s.renewal.dueAt = dueAt
		s.wakeSupervisor()
	}
}

// announcedChanges returns how many changes of its lists the server has announced so far. Call it before the tools are
// requested, and pass the result to recordList.
func (s *server) announcedChanges() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.renewal.changes
}

// isRenewalDue reports whether the tools should be listed again now.
func (s *server) isRenewalDue() bool { return s.timeToRenewal() <= 0 }

// timeToRenewal returns how long to wait before the tools are listed again: at most 0 if they should be listed now, and
// untilWoken if the list is valid until something changes.
func (s *server) timeToRenewal() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.renewal.dueAt.IsZero() {
		return untilWoken
	}
	return time.Until(s.renewal.dueAt)
}
