package threads

import (
	"context"
	"time"

	"answerd/internal/event/threadindex"
)

// pollInterval is the time between two reads of the heads that other processes have written.
const pollInterval = 500 * time.Millisecond

// maxPause is the longest time without a successful poll. After a longer pause, Follow reads all heads again, because
// the server may have removed a tombstone that this process has not read, and the index would keep the deleted thread.
const maxPause = tombstoneTTL / 2

// Load empties the index and reads all heads into it. Until Load has succeeded, ListThreads uses the previous index
// (s.beforeLoad), so that threads do not disappear from the list while the server does not answer.
func (s *Store) Load(ctx context.Context) error {
	s.mu.Lock()
	if s.beforeLoad == nil { // otherwise an earlier Load has failed, and beforeLoad has the last complete index
		s.beforeLoad = new(s.index)
	}
	s.index = threadindex.Index{}
	s.heads = make(map[string]head)
	s.knownPos = 0
	clear(s.ownWrites) // the index has lost these heads too, so poll must read them
	s.mu.Unlock()
	if _, _, err := s.measureExcess(ctx); err != nil {
		return err
	}
	if err := s.poll(ctx); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.beforeLoad = nil
	return nil
}

// Follow adds changes by other processes to the index every pollInterval. It calls Expire every tenth of the retention
// (between 1 s and 1 min), and when countAdded finds little space. It blocks until ctx ends.
func (s *Store) Follow(ctx context.Context) {
	poll := time.NewTicker(pollInterval)
	defer poll.Stop()
	expire := time.NewTicker(min(max(s.retention/10, time.Second), time.Minute))
	defer expire.Stop()
	polled := time.Now() // the last successful poll
	for {
		select {
		case <-poll.C:
			update := s.poll
			if time.Since(polled) > maxPause {
				update = s.Load
			}
			if update(ctx) == nil {
				polled = time.Now()
			}
		case <-expire.C:
			s.expireUnlessDiskFull(ctx)
		case <-s.spaceNow:
			s.expireUnlessDiskFull(ctx)
		case <-ctx.Done():
			return
		}
	}
}

// expireUnlessDiskFull calls Expire and logs its error. It does nothing while the disk is full, because the log calls
// Expire itself while it recovers.
func (s *Store) expireUnlessDiskFull(ctx context.Context) {
	if s.server.DiskFull() {
		return
	}
	if err := s.Expire(ctx); err != nil && ctx.Err() == nil {
		s.logger.Warn("expired threads could not be deleted from the event log", "error", err)
	}
}
