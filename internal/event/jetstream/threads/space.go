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
		_ = s.removeTurns(ctx, key, incarnation) // the next call repeats it
	}
	for _, h := range expired {
		if _, err := s.deleteHead(ctx, h); err != nil {
			return err
		}
	}
	_, err := s.makeSpace(ctx, false)
	return err
}

// messageOverhead estimates the bytes that a message needs in a stream besides its data.
const messageOverhead = 128

// countAdded counts n bytes that are about to be added to a stream. It requests makeSpace when the stream
// is filled to 80 %, as far as this process knows, and calls it at 90 %: a full stream of turns would drop
// its oldest ones, of whichever thread, and a full one of heads would refuse new threads.
func (s *Store) countAdded(ctx context.Context, stream string, n int) {
	s.mu.Lock()
	used := s.used[stream]
	used.bytes += int64(n)
	s.used[stream] = used
	s.mu.Unlock()
	switch {
	case used.limit == 0: // it was not read yet
	case used.bytes > used.limit/10*9:
		_, _ = s.makeSpace(ctx, false) // if it fails, the append finds out
	case used.bytes > used.limit/10*8:
		select {
		case s.spaceNow <- struct{}{}:
		default: // a request is pending
		}
	}
}

// makeSpace deletes threads while one of the streams is filled to 80 %, and reports whether it deleted
// some. It deletes those with an active run only if a stream is full. Of several callers one works, and the
// others find that there is space.
func (s *Store) makeSpace(ctx context.Context, full bool) (deleted bool, err error) {
	s.makingSpace.Lock()
	defer s.makingSpace.Unlock()
	for {
		heads, turns, err := s.readExcess(ctx)
		isEnough := heads <= 0 && turns <= 0
		if err != nil || isEnough {
			return deleted, err
		}
		batch := s.dropOrder(max(minDropBatch, s.count()/100))
		if len(batch) == 0 {
			return deleted, nil
		}
		if onlyActive := batch[0].Active != ""; onlyActive && !full {
			return deleted, nil
		}
		// Until this should be enough; then the server is asked again.
		for _, h := range batch {
			done, err := s.drop(ctx, h)
			if err != nil {
				return deleted, err
			}
			deleted = deleted || done
			heads -= headOverhead
			turns -= h.Bytes
			if heads <= 0 && turns <= 0 {
				break
			}
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

// readExcess returns by how many bytes the heads and the turns exceed 80 % of the limits of their streams, and
// remembers how full the streams are.
func (s *Store) readExcess(ctx context.Context) (heads, turns int64, err error) {
	var excess [2]int64
	for i, stream := range []string{HeadsStream, TurnsStream} {
		bytes, limit, err := s.server.Usage(ctx, stream)
		if err != nil {
			return 0, 0, err
		}
		s.mu.Lock()
		s.used[stream] = usage{bytes, limit}
		s.mu.Unlock()
		excess[i] = bytes - limit/10*8
	}
	return excess[0], excess[1], nil
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
