package mcp

import "time"

// When a list of tools is requested again.
const (
	minListLife = 5 * time.Second // even if the server gave a shorter ttl; package session bounds the ttl from above
	// pinnedListLife is for lists whose tools are pinned, even if the server gave no ttl or a longer one: a
	// definition may change without a notification, and must be blocked then.
	pinnedListLife = time.Minute
	// renewalGap is the minimum time between two lists that the server's notifications cause. A
	// server that announces changes continuously gets one request per second.
	renewalGap = time.Second
)

// schedule records that a list has arrived, and sets r.dueAt. ttl is the time to live that the server gave; 0 if it
// gave none. changes is what isRenewalDue returned when the list was requested. A change that was announced after
// that may be missing from the list, so the list is requested again after renewalGap.
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
	if pinned && (ttl == 0 || ttl > pinnedListLife) {
		ttl = pinnedListLife
	}
	r.dueAt = r.listedAt.Add(ttl)
}

// handleListChanged handles a notification of the server with that method: it has the tools listed again if they may
// have changed. A change of the resources counts too, because the description of the tool that reads them names them.
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

// markOutdated records that the known tools may be out of date. The supervisor lists them again, at once or when
// renewalGap has passed since the latest list; without a supervisor, the next caller does.
func (s *server) markOutdated() {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := &s.renewal
	r.changes++
	dueAt := r.listedAt.Add(renewalGap)
	if now := time.Now(); dueAt.Before(now) {
		dueAt = now
	}
	if r.dueAt.IsZero() || dueAt.Before(r.dueAt) {
		r.dueAt = dueAt
		s.wakeSupervisor()
	}
}

// isRenewalDue reports whether the tools are to be listed again now. changes is the number of changes that the server
// has announced so far, for listExpiry.schedule.
func (s *server) isRenewalDue() (due bool, changes int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	due = !s.renewal.dueAt.IsZero() && !time.Now().Before(s.renewal.dueAt)
	return due, s.renewal.changes
}

// timeToRenewal returns how long to wait until the tools are to be listed again, negative if that time has passed.
// notScheduled is true, and wait is 0, if the list is valid until something changes.
func (s *server) timeToRenewal() (wait time.Duration, notScheduled bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.renewal.dueAt.IsZero() {
		return 0, true
	}
	return time.Until(s.renewal.dueAt), false
}
