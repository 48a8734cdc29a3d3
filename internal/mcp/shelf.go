package mcp

import (
	"encoding/json"
	"strings"
	"sync"
	"time"
)

// Bounds of what is kept of a server's resources.
const (
	maxShelf  = 64      // results
	maxShelfB = 8 << 20 // bytes of them all
	maxBook   = 1 << 20 // bytes of one; larger ones are read anew each time
	// maxWatched is how many resources of a session are subscribed to: first those that
	// the server lists, then those that are read.
	maxWatched = 128
)

// shelf is what was read of a server's resources in one session, for as long as it is
// known to be what the server has (S4.7): while the server tells us of changes and
// hasn't, or for the time that it gave (ttlMs, 2026-07-28). What is not known to be
// fresh is read again. It ends with its session, in which subscriptions are.
type shelf struct {
	wake chan struct{} // of capacity 1: there is something new to be watched

	mu      sync.Mutex // protects what follows
	books   map[bookKey]book
	size    int
	wanted  []string        // to be subscribed to, in that order
	watched map[string]bool // subscribed to, as the server confirmed
	hearing bool            // what it says about them reaches us
	turn    int             // changes so far
}

// bookKey tells results apart: a server may answer by the context of the call.
type bookKey struct{ uri, context string }

type book struct {
	raw   json.RawMessage
	until time.Time // by the server's ttlMs; zero: it gave none
}

func newShelf() *shelf {
	return &shelf{wake: make(chan struct{}, 1), books: map[bookKey]book{}, watched: map[string]bool{}}
}

// newBookKey is the key of uri as a call with that context reads it.
func newBookKey(uri string, context map[string]string) bookKey {
	k := bookKey{uri: uri}
	if len(context) > 0 {
		sorted, _ := json.Marshal(context) // a map's keys come sorted
		k.context = string(sorted)
	}
	return k
}

// take is what k gave when it was read last, if that is fresh; else nil. begun is for
// put.
func (s *shelf) take(k bookKey) (raw json.RawMessage, begun int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	b, ok := s.books[k]
	if ok && !s.freshLocked(k.uri, b) {
		s.removeLocked(k)
		b.raw = nil
	}
	return b.raw, s.turn
}

func (s *shelf) freshLocked(uri string, b book) bool {
	return s.hearing && s.watched[uri] || time.Now().Before(b.until)
}

// put keeps what k gave, if that is fresh: nothing has changed since the reading began.
func (s *shelf) put(k bookKey, raw json.RawMessage, ttl time.Duration, begun int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	b := book{raw: raw}
	if ttl > 0 {
		b.until = time.Now().Add(ttl)
	}
	s.removeLocked(k)
	if s.turn != begun || len(raw) > maxBook || !s.freshLocked(k.uri, b) {
		return
	}
	for old := range s.books { // any of them: what is read most is soon there again
		if len(s.books) < maxShelf && s.size+len(raw) <= maxShelfB {
			break
		}
		s.removeLocked(old)
	}
	s.books[k] = b
	s.size += len(raw)
}

func (s *shelf) removeLocked(k bookKey) {
	s.size -= len(s.books[k].raw)
	delete(s.books, k)
}

// want notes resources that are to be subscribed to.
func (s *shelf) want(uris ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	known := make(map[string]bool, len(s.wanted))
	for _, uri := range s.wanted {
		known[uri] = true
	}
	for _, uri := range uris {
		if !known[uri] && len(s.wanted) < maxWatched {
			known[uri] = true
			s.wanted = append(s.wanted, uri)
			select {
			case s.wake <- struct{}{}:
			default:
			}
		}
	}
}

// wants is what is to be subscribed to, from the n-th on.
func (s *shelf) wants(n int) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.wanted[n:len(s.wanted):len(s.wanted)]
}

// watch notes that the server has confirmed subscriptions.
func (s *shelf) watch(uris ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, uri := range uris {
		s.watched[uri] = true
	}
}

// hear notes whether what the server says about its resources reaches us. What it says
// meanwhile is lost, so what was kept for that is no longer good.
func (s *shelf) hear(on bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hearing = on
	s.turn++
	now := time.Now()
	for k, b := range s.books {
		if !now.Before(b.until) {
			s.removeLocked(k)
		}
	}
}

// noticed is a notification of the server.
func (s *shelf) noticed(method string, params json.RawMessage) {
	switch method {
	case "notifications/resources/updated":
		var p struct {
			URI string `json:"uri"`
		}
		if json.Unmarshal(params, &p) == nil {
			s.forget(p.URI)
		}
	case "notifications/resources/list_changed":
		s.forget("")
	case methodAcknowledged:
		var p struct {
			Notifications struct {
				URIs []string `json:"resourceSubscriptions"`
			} `json:"notifications"`
		}
		if json.Unmarshal(params, &p) == nil {
			s.watch(p.Notifications.URIs...)
		}
	}
}

// forget drops what was read of a resource that has changed. The update of a part of it
// bears the URI of the part (2025-11-25 server/resources); "" is all of them.
func (s *shelf) forget(uri string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.turn++
	for k := range s.books {
		if strings.HasPrefix(uri, k.uri) || strings.HasPrefix(k.uri, uri) {
			s.removeLocked(k)
		}
	}
}
