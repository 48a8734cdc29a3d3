package mcp

import "time"

// Bounds of how long a list of tools holds.
const (
	minListLife = 5 * time.Second // package session bounds what a server says from above
	// pinnedListLife is how long a list holds whose tools are pinned: a definition
	// that changes unannounced is to be noticed (F22).
	pinnedListLife = time.Minute
	// renewalGap is the minimum time between two lists that the server's notifications cause. A
	// server that announces changes continuously gets one request per second.
	renewalGap = time.Second
)

// recordList records a new list that is valid for ttl; 0 if the server gave none. changes is the
// number of change notifications when the list was requested. A change announced since then may be
// missing from the list, so the list is requested again.
func (r *listExpiry) recordList(ttl time.Duration, pinned bool, changes int) {
	changed := r.changes != changes
	*r = listExpiry{listed: time.Now(), changes: r.changes}
	switch {
	case changed:
		ttl = renewalGap
	case ttl > 0:
		ttl = max(ttl, minListLife)
	case !pinned:
		return
	}
	isLong := ttl == 0 || ttl > pinnedListLife
	if pinned && isLong {
		ttl = pinnedListLife
	}
	r.due = r.listed.Add(ttl)
}

// handleListChanged has the tools listed again after a notification that they have changed. A
// change of the resources counts too, because the read tool's description names them.
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

// markOutdated makes the supervisor list the tools again.
func (s *server) markOutdated() {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := &s.renewal
	r.changes++
	due := r.listed.Add(renewalGap)
	if now := time.Now(); due.Before(now) {
		due = now
	}
	if r.due.IsZero() || due.Before(r.due) {
		r.due = due
		s.wakeSupervisor()
	}
}

// isRenewalDue reports whether the tools are to be listed again, and how many changes the
// server has announced so far.
func (s *server) isRenewalDue() (due bool, changes int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	due = !s.renewal.due.IsZero() && !time.Now().Before(s.renewal.due)
	return due, s.renewal.changes
}

// nextRenewal returns how long the list of tools is still valid. ever is true if it does not
// expire.
func (s *server) nextRenewal() (wait time.Duration, ever bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.renewal.due.IsZero() {
		return 0, true
	}
	return time.Until(s.renewal.due), false
}
