package mcp

import "time"

// Bounds of how long a list of tools holds.
const (
	minListLife = 5 * time.Second
	maxListLife = 24 * time.Hour
	// pinnedListLife is how long a list holds whose tools are pinned: a definition
	// that changes unannounced is to be noticed (F22).
	pinnedListLife = time.Minute
	// renewalGap is the least time from one list to the next that the server asks
	// for: one that announces changes without end gets one request a second.
	renewalGap = time.Second
)

// listExpiry is when a server's tools are listed again (S3.8): when the server says that
// they changed, when the time is over that it said they hold, and, where they are
// pinned, after a minute. All others hold until somebody asks, or the session is made
// again. It is protected by its server's mutex.
type listExpiry struct {
	listed  time.Time // when they were listed last
	due     time.Time // zero: they hold
	changes int       // times that the server said so
}

// recordList takes a new list down that holds for ttl; 0 where the server didn't say. It was
// asked for after so many changes: one that was announced meanwhile may be in it or
// not.
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
	if pinned && (ttl == 0 || ttl > pinnedListLife) {
		ttl = pinnedListLife
	}
	r.due = r.listed.Add(ttl)
}

// handleListChanged makes the tools be listed again where a notification says that they have
// changed. The one that reads resources names them.
func (s *server) handleListChanged(method string) {
	if method == "notifications/tools/list_changed" || method == "notifications/resources/list_changed" && len(s.cfg.Resources) > 0 {
		s.markOutdated()
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

// nextRenewal is how long the tools hold; ever is true where nobody said.
func (s *server) nextRenewal() (wait time.Duration, ever bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.renewal.due.IsZero() {
		return 0, true
	}
	return time.Until(s.renewal.due), false
}
