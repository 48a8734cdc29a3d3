package threads

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"answerd/internal/event"
	"answerd/internal/event/threadindex"
)

// pollInterval separates two reads of what other processes changed.
const pollInterval = 500 * time.Millisecond

// maxPause bounds the time without a successful read, after which all heads are read again: tombstones
// may have been removed meanwhile.
const maxPause = tombstoneTTL / 2

// ListThreads implements event.Threads.
func (s *Store) ListThreads(_ context.Context, f event.ThreadFilter) (event.ThreadPage, error) {
	now := s.server.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.index.Page(f, func(t event.Thread) bool { return !t.Expired(now, s.retention) })
}

// Load reads all heads into the index.
func (s *Store) Load(ctx context.Context) error {
	s.mu.Lock()
	s.index, s.heads, s.read = threadindex.Index{}, make(map[string]head), 0
	s.mu.Unlock()
	if _, _, err := s.usage(ctx, TurnsStream); err != nil {
		return err
	}
	return s.poll(ctx)
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
	if h.pos = m.Pos; h.Order == 0 {
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
	s.put(h)
	return h, nil
}

// put adds a head to the index, unless that has a newer one.
func (s *Store) put(h head) {
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

// forget removes a thread from the index.
func (s *Store) forget(key string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.forgetLocked(key)
}

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

// Follow keeps the index up to date and removes threads that have expired, until ctx ends.
func (s *Store) Follow(ctx context.Context) {
	poll := time.NewTicker(pollInterval)
	defer poll.Stop()
	expire := time.NewTicker(min(max(s.retention/10, time.Second), time.Minute))
	defer expire.Stop()
	polled := time.Now()
	for {
		select {
		case <-poll.C:
			if time.Since(polled) > maxPause {
				if s.Load(ctx) == nil {
					polled = time.Now()
				}
			} else if s.poll(ctx) == nil {
				polled = time.Now()
			}
			continue
		case <-expire.C:
		case <-s.spaceNow:
		case <-ctx.Done():
			return
		}
		if s.server.DiskFull() {
			continue
		}
		if err := s.Expire(ctx); err != nil && ctx.Err() == nil {
			s.logger.Warn("expired threads could not be deleted from the event log", "error", err)
		}
	}
}
