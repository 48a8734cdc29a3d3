package threads

import (
	"context"
	"time"

	"answerd/internal/event/threadindex"
)

// pollInterval separates two reads of what other processes changed.
const pollInterval = 500 * time.Millisecond

// maxPause bounds the time without a successful read, after which all heads are read again: tombstones
// may have been removed meanwhile.
const maxPause = tombstoneTTL / 2

// Load reads all heads into the index. Until it has succeeded, ListThreads lists what the index had before: a server that
// does not answer must not make threads disappear.
func (s *Store) Load(ctx context.Context) error {
	s.mu.Lock()
	if s.listed == nil { // else an earlier Load has failed
		s.listed = new(s.index)
	}
	s.index = threadindex.Index{}
	s.heads = make(map[string]head)
	s.read = 0
	clear(s.written) // poll reads these heads again
	s.mu.Unlock()
	if _, _, err := s.readExcess(ctx); err != nil {
		return err
	}
	if err := s.poll(ctx); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.listed = nil
	return nil
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
