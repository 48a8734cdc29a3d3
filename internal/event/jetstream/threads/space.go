package threads

import (
	"cmp"
	"context"
	"slices"

	"answerd/internal/event"
)

// Expire deletes the threads whose retention has passed, removes turns that a deletion left, and makes
// space. Every process does so; deleting a thread twice is harmless.
func (s *Store) Expire(ctx context.Context) error {
	now := s.server.Now()
	var expired []head
	s.mu.Lock()
	for _, h := range s.heads {
		if h.thread().Expired(now, s.retention) {
			expired = append(expired, h)
		}
	}
	deleted := s.tombstones
	s.tombstones = make(map[string]string)
	s.mu.Unlock()
	for key, incarnation := range deleted {
		s.removeTurns(ctx, key, incarnation)
	}
	for _, h := range expired {
		if _, err := s.deleteHead(ctx, h); err != nil {
			return err
		}
	}
	_, err := s.makeSpace(ctx)
	return err
}

// countAdded counts n bytes that are about to be added to the turns. It requests makeSpace when the
// stream is filled to 80 %, as far as this process knows, and calls it at 90 %: a full stream would drop
// its oldest turns, of whichever thread.
func (s *Store) countAdded(ctx context.Context, n int) {
	s.mu.Lock()
	s.turnsBytes += int64(n)
	used, limit := s.turnsBytes, s.turnsLimit
	s.mu.Unlock()
	switch {
	case used > limit/10*9:
		_, _ = s.makeSpace(ctx) // if it fails, the stream drops its oldest turns
	case used > limit/10*8:
		select {
		case s.spaceNow <- struct{}{}:
		default: // a request is pending
		}
	}
}

// makeSpace deletes threads while one of the streams is filled to 80 %, and reports whether it deleted
// some.
func (s *Store) makeSpace(ctx context.Context) (deleted bool, err error) {
	for {
		batch, dropped := s.dropOrder(max(minDropBatch, s.count()/100)), false
		for _, h := range batch {
			if short, err := s.isSpaceShort(ctx); err != nil || !short {
				return deleted || dropped, err
			}
			done, err := s.drop(ctx, h)
			if err != nil {
				return deleted, err
			}
			dropped = dropped || done
		}
		deleted = deleted || dropped
		if len(batch) == 0 {
			return deleted, nil
		}
	}
}

// minDropBatch is how many threads are deleted before their order is determined again, or one of a hundred
// if that is more: the order changes little meanwhile, and costs time for each thread.
const minDropBatch = 32

// count returns how many threads there are.
func (s *Store) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.heads)
}

// isSpaceShort reports whether one of the streams is filled to 80 %.
func (s *Store) isSpaceShort(ctx context.Context) (bool, error) {
	for _, stream := range []string{HeadsStream, TurnsStream} {
		has, limit, err := s.usage(ctx, stream)
		if err != nil || has > limit/10*8 {
			return err == nil, err
		}
	}
	return false, nil
}

// usage returns the bytes that a stream has and may have, and remembers those of the turns.
func (s *Store) usage(ctx context.Context, stream string) (has, limit int64, err error) {
	has, limit, err = s.server.Usage(ctx, stream)
	if err == nil && stream == TurnsStream {
		s.mu.Lock()
		s.turnsBytes, s.turnsLimit = has, limit
		s.mu.Unlock()
	}
	return has, limit, err
}

// drop deletes a thread to make space. If h is not its head any more, drop reads the newest one.
func (s *Store) drop(ctx context.Context, h head) (bool, error) {
	dropped, err := s.deleteHead(ctx, h)
	if err != nil || dropped {
		return dropped, err
	}
	_, err = s.readHead(ctx, h.owner(), h.ID)
	return false, err
}

// dropOrder returns up to n threads to drop next, those first that were updated longest ago: threads
// without an active run of owners above an equal share, or else others without one, or else all others.
func (s *Store) dropOrder(n int) []head {
	s.mu.Lock()
	defer s.mu.Unlock()
	usage, total := make(map[event.Owner]int64), int64(0)
	all := make([]head, 0, len(s.heads))
	for _, h := range s.heads {
		usage[h.owner()] += h.size()
		total += h.size()
		all = append(all, h)
	}
	share := total / int64(max(len(usage), 1))
	rank := func(h head) int {
		switch {
		case h.Active != "":
			return 3
		case usage[h.owner()] > share:
			return 1
		}
		return 2
	}
	slices.SortFunc(all, func(a, b head) int { return cmp.Or(cmp.Compare(rank(a), rank(b)), cmp.Compare(a.Order, b.Order)) })
	for i, h := range all {
		if rank(h) > rank(all[0]) { // threads that are added meanwhile come before it
			return slices.Clone(all[:min(n, i)])
		}
	}
	return slices.Clone(all[:min(n, len(all))]) // so that the others need not stay in memory
}

// headOverhead estimates the bytes of a head in its stream.
const headOverhead = 1 << 10

func (h *head) size() int64 { return h.Bytes + headOverhead }

// GiveWay deletes a third of the threads, but none with an active run, those first that were not updated
// for longest. A log calls it when its disk or account stays full although runs have
// expired. It deletes nothing while the threads have at most a quarter of what they and others, which
// have other bytes, use. It reports whether it deleted some.
func (s *Store) GiveWay(ctx context.Context, other int64) (deleted bool, err error) {
	used := int64(0)
	for _, stream := range []string{HeadsStream, TurnsStream} {
		has, _, err := s.server.Usage(ctx, stream)
		if err != nil {
			return false, err
		}
		used += has
	}
	if used <= other/3 {
		return false, nil
	}
	s.mu.Lock()
	n := len(s.heads)
	s.mu.Unlock()
	for _, h := range s.dropOrder((n + 2) / 3) {
		if h.Active != "" {
			break
		}
		dropped, err := s.drop(ctx, h)
		if err != nil {
			return deleted, err
		}
		deleted = deleted || dropped
	}
	return deleted, nil
}
