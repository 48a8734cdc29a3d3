package threads

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"strings"

	"answerd/internal/event"
	"answerd/internal/event/threadindex"
)

// ListThreads implements event.Threads.
func (s *Store) ListThreads(_ context.Context, f event.ThreadFilter) (event.ThreadPage, error) {
	now := s.server.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	index := &s.index
	if s.listed != nil {
		index = s.listed
	}
	return index.Page(f, func(t event.Thread) bool { return !t.Expired(now, s.retention) })
}

// poll reads the heads that were written after the last one that was read.
func (s *Store) poll(ctx context.Context) error {
	for {
		s.mu.Lock()
		from := s.read + 1
		s.mu.Unlock()
		found, more, err := s.server.ReadFrom(ctx, HeadsStream, headPrefix+"*", from)
		if err != nil {
			return err
		}
		for _, m := range found {
			_, err := s.accept(m)
			if err != nil {
				s.logger.Error("a thread of the log could not be read", "error", err)
			}
			s.mu.Lock()
			s.read = max(s.read, m.Pos)
			s.mu.Unlock()
		}
		s.mu.Lock()
		maps.DeleteFunc(s.written, func(pos uint64, _ bool) bool { return pos <= s.read })
		s.mu.Unlock()
		if !more || len(found) == 0 {
			return nil
		}
	}
}

// accept returns the head in a message, and updates the index by it.
func (s *Store) accept(m Message) (head, error) {
	var h head
	if err := json.Unmarshal(m.Data, &h); err != nil {
		return h, fmt.Errorf("decode a thread: %w", err)
	}
	h.pos = m.Pos
	if h.Order == 0 {
		h.Order = h.pos
	}
	key := strings.TrimPrefix(m.Subject, headPrefix)
	if h.Deleted {
		s.mu.Lock()
		if s.heads[key].pos < h.pos {
			s.forgetLocked(key)
			s.tombstones[key] = h.Incarnation
		}
		s.mu.Unlock()
		return h, nil
	}
	if h.key() != key {
		return head{}, fmt.Errorf("decode a thread: it has the subject of another one")
	}
	s.addToIndex(h)
	return h, nil
}

// putOwn adds a head that this process has written. While no other process writes, poll then finds nothing to
// read: with a log on disk, it would read each head twice.
func (s *Store) putOwn(h head) {
	s.addToIndex(h)
	s.markWritten(h.pos)
}

// markWritten records that this process has written the message at a pos.
func (s *Store) markWritten(pos uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if pos > s.read {
		s.written[pos] = true
	}
	for s.written[s.read+1] {
		s.read++
		delete(s.written, s.read)
	}
}

// addToIndex adds a head to the index, unless that has a newer one.
func (s *Store) addToIndex(h head) {
	s.mu.Lock()
	defer s.mu.Unlock()
	key := h.key()
	if s.heads[key].pos >= h.pos {
		return
	}
	if h.Order == 0 {
		h.Order = h.pos
	}
	s.heads[key] = h
	s.index.Put(threadindex.Entry{Thread: h.thread(), Order: h.Order})
}

// removeFromIndex removes a thread from the index, unless that has a newer head than the one at pos: the thread may have begun
// again meanwhile, and poll does not read what this process has written.
func (s *Store) removeFromIndex(key string, pos uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.heads[key].pos <= pos {
		s.forgetLocked(key)
	}
}

// forgetLocked removes the head of a thread from the index.
func (s *Store) forgetLocked(key string) {
	if h, ok := s.heads[key]; ok {
		s.index.Remove(h.owner(), h.ID)
		delete(s.heads, key)
	}
}

// cachedHead returns the head of a thread in the index. It reports false if there is none, or if the thread
// has expired.
func (s *Store) cachedHead(owner event.Owner, id string) (head, bool) {
	s.mu.Lock()
	h, ok := s.heads[keyOf(owner, id)]
	s.mu.Unlock()
	return h, ok && !h.thread().Expired(s.server.Now(), s.retention)
}
