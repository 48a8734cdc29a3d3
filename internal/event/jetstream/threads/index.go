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

// ListThreads implements event.Threads. It lists the threads in the index, without asking the server.
func (s *Store) ListThreads(_ context.Context, filter event.ThreadFilter) (event.ThreadPage, error) {
	now := s.server.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	index := &s.index
	if s.beforeLoad != nil {
		index = s.beforeLoad
	}
	return index.Page(filter, func(t event.Thread) bool { return !t.Expired(now, s.retention) })
}

// poll reads the heads after s.knownPos into the index. It logs and skips messages that cannot be decoded.
func (s *Store) poll(ctx context.Context) error {
	for {
		s.mu.Lock()
		from := s.knownPos + 1
		s.mu.Unlock()
		found, more, err := s.server.ReadFrom(ctx, HeadsStream, headPrefix+"*", from)
		if err != nil {
			return err
		}
		for _, m := range found {
			if _, err := s.applyMessage(m); err != nil {
				s.logger.Error("a thread of the log could not be read", "error", err)
			}
			s.mu.Lock()
			s.knownPos = max(s.knownPos, m.Pos)
			s.mu.Unlock()
		}
		s.mu.Lock()
		maps.DeleteFunc(s.ownWrites, func(pos uint64, _ bool) bool { return pos <= s.knownPos })
		s.mu.Unlock()
		if !more || len(found) == 0 {
			return nil
		}
	}
}

// applyMessage decodes and returns the head in a message of the stream of heads. It also updates the index with the
// head, unless the index has a newer one. A tombstone removes its thread from the index, and the next Expire removes
// the thread's turns.
func (s *Store) applyMessage(message Message) (head, error) {
	var h head
	if err := json.Unmarshal(message.Data, &h); err != nil {
		return h, fmt.Errorf("decode a thread: %w", err)
	}
	h.setPos(message.Pos)
	key := strings.TrimPrefix(message.Subject, headPrefix)
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

// addOwnHead adds a head to the index that this process has written, and marks its message as known (markWritten). So
// poll has nothing to read while no other process writes.
func (s *Store) addOwnHead(h head) {
	s.addToIndex(h)
	s.markWritten(h.pos)
}

// markWritten records that this process has written the message at pos in the stream of heads, so that poll need not
// read it. It advances knownPos only over consecutive messages of this process. A gap may contain a message from
// another process, which poll must still read.
func (s *Store) markWritten(pos uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if pos > s.knownPos {
		s.ownWrites[pos] = true
	}
	for s.ownWrites[s.knownPos+1] {
		s.knownPos++
		delete(s.ownWrites, s.knownPos)
	}
}

// addToIndex adds a head to the index, unless the index has the same or a newer head of that thread.
func (s *Store) addToIndex(h head) {
	s.mu.Lock()
	defer s.mu.Unlock()
	key := h.key()
	if s.heads[key].pos >= h.pos {
		return
	}
	s.heads[key] = h
	s.index.Put(threadindex.Entry{Thread: h.thread(), Order: h.Order})
}

// removeFromIndex removes a thread from the index, unless the index has a head that is newer than pos. This process may
// have created the thread again after pos, and poll would not read that head.
func (s *Store) removeFromIndex(key string, pos uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.heads[key].pos <= pos {
		s.forgetLocked(key)
	}
}

// forgetLocked removes a thread's head from the index. The caller holds s.mu.
func (s *Store) forgetLocked(key string) {
	if h, ok := s.heads[key]; ok {
		s.index.Remove(h.owner(), h.ID)
		delete(s.heads, key)
	}
}

// cachedHead returns a thread's head from the index. known is false if the index has no head for the thread, or if the
// thread has expired. The head may be up to pollInterval older than the leader's.
func (s *Store) cachedHead(owner event.Owner, id string) (h head, known bool) {
	s.mu.Lock()
	h, ok := s.heads[keyOf(owner, id)]
	s.mu.Unlock()
	if !ok || h.thread().Expired(s.server.Now(), s.retention) {
		return head{}, false
	}
	return h, true
}
