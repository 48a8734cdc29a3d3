package threads

import (
	"cmp"
	"context"
	"slices"

	"answerd/internal/event"
)

// Expire deletes the threads whose retention has passed, removes turns that earlier deletions have left, and deletes
// more threads if space is short. It stops at the first thread that it cannot delete, and returns the error. All
// processes call it. Deleting a thread twice is harmless.
func (s *Store) Expire(ctx context.Context) error {
	now := s.server.Now()
	var expired []head
	s.mu.Lock()
	for _, h := range s.heads {
		if h.thread().Expired(now, s.retention) {
			expired = append(expired, h)
		}
	}
	leftTurns := s.tombstones
	s.tombstones = make(map[string]string)
	s.mu.Unlock()
	for key, incarnation := range leftTurns {
		_ = s.removeTurns(ctx, key, incarnation) // after an error, the next call repeats it
	}
	for _, h := range expired {
		if _, err := s.deleteHead(ctx, h); err != nil {
			return err
		}
	}
	_, err := s.makeSpace(ctx, withoutActiveRun)
	return err
}

// messageOverhead estimates how many bytes a message needs in a stream besides its data.
const messageOverhead = 128

// countAdded counts bytes that the caller is about to add to a stream. If the stream is more than 80 % full, it makes
// Follow call Expire. If the stream is more than 90 % full, it calls makeSpace itself, and the caller waits. A full
// stream of turns would drop its oldest turns, no matter which thread they belong to, and a full stream of heads would
// refuse new threads. The count is an estimate: what other processes add is included only when makeSpace asks the
// server.
func (s *Store) countAdded(ctx context.Context, stream string, bytes int) {
	s.mu.Lock()
	used := s.used[stream]
	used.bytes += int64(bytes)
	s.used[stream] = used
	s.mu.Unlock()
	switch {
	case used.limit == 0: // Load has not asked the server yet
	case used.bytes > used.limit/10*9:
		_, _ = s.makeSpace(ctx, withoutActiveRun) // if this fails, the caller's append may find the stream full
	case used.bytes > used.limit/10*8:
		select {
		case s.spaceNow <- struct{}{}:
		default: // a request is pending
		}
	}
}

// droppable says which threads makeSpace may delete.
type droppable int

const (
	withoutActiveRun droppable = iota
	anyThread
)

// makeSpace deletes threads in dropOrder until both streams are at most 80 % full. It reports whether it deleted any.
// Calls run one after the other, so a call that had to wait usually finds the space that the previous call has made.
func (s *Store) makeSpace(ctx context.Context, which droppable) (deleted bool, err error) {
	s.makingSpace.Lock()
	defer s.makingSpace.Unlock()
	for {
		excessHeads, excessTurns, err := s.measureExcess(ctx)
		isEnough := excessHeads <= 0 && excessTurns <= 0
		if err != nil || isEnough {
			return deleted, err
		}
		batch := s.dropOrder(max(minDropBatch, s.count()/100))
		if len(batch) == 0 {
			return deleted, nil
		}
		haveActiveRuns := batch[0].Active != "" // all threads of a batch have an active run, or none has
		if haveActiveRuns && which == withoutActiveRun {
			return deleted, nil
		}
		dropped, err := s.dropThreads(ctx, batch, excessHeads, excessTurns)
		deleted = deleted || dropped
		if err != nil {
			return deleted, err
		}
	}
}

// dropThreads deletes the threads of batch, in order. It stops once their estimated sizes are as large as the excess in
// both streams. It reports whether it deleted any.
func (s *Store) dropThreads(ctx context.Context, batch []head, excessHeads, excessTurns int64) (deleted bool, err error) {
	for _, h := range batch {
		dropped, err := s.dropThread(ctx, h)
		if err != nil {
			return deleted, err
		}
		deleted = deleted || dropped
		excessHeads -= headOverhead
		excessTurns -= h.Bytes
		if excessHeads <= 0 && excessTurns <= 0 {
			break
		}
	}
	return deleted, nil
}

// minDropBatch is the smallest number of threads that makeSpace takes from one call of dropOrder. It takes a hundredth
// of all threads if that is more. Sorting the threads is expensive, and their order changes little during a batch.
const minDropBatch = 32

// count returns the number of threads in the index.
func (s *Store) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.heads)
}

// measureExcess asks the server how full the streams are, and stores the answer in s.used. It returns how many bytes
// the heads and the turns are above 80 % of the limits of their streams. A negative result is the space left up to that
// point.
func (s *Store) measureExcess(ctx context.Context) (heads, turns int64, err error) {
	if heads, err = s.measureStream(ctx, HeadsStream); err == nil {
		turns, err = s.measureStream(ctx, TurnsStream)
	}
	return heads, turns, err
}

// measureStream is measureExcess for one stream.
func (s *Store) measureStream(ctx context.Context, stream string) (excess int64, err error) {
	bytes, limit, err := s.server.Usage(ctx, stream)
	if err != nil {
		return 0, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.used[stream] = usage{bytes, limit}
	return bytes - limit/10*8, nil
}

// dropThread deletes a thread and reports whether it did. If h is no longer the thread's head, dropThread keeps the
// thread and reads its current head into the index, for the next dropOrder.
func (s *Store) dropThread(ctx context.Context, h head) (dropped bool, _ error) {
	dropped, err := s.deleteHead(ctx, h)
	if err != nil || dropped {
		return dropped, err
	}
	_, err = s.readHead(ctx, h.owner(), h.ID)
	return false, err
}

// dropOrder returns up to limit threads to delete next, least recently updated first. All of them belong to the first
// of these groups that is not empty:
//  1. threads without an active run, of owners who use more than an equal share of the space,
//  2. threads without an active run, of the remaining owners,
//  3. threads with an active run.
func (s *Store) dropOrder(limit int) []head {
	s.mu.Lock()
	defer s.mu.Unlock()
	bytesOf := make(map[event.Owner]int64)
	total := int64(0)
	all := make([]head, 0, len(s.heads))
	for _, h := range s.heads {
		bytesOf[h.owner()] += h.size()
		total += h.size()
		all = append(all, h)
	}
	share := total / int64(max(len(bytesOf), 1))
	group := func(h head) int {
		switch {
		case h.Active != "":
			return 3
		case bytesOf[h.owner()] > share:
			return 1
		}
		return 2
	}
	slices.SortFunc(all, func(a, b head) int {
		return cmp.Or(cmp.Compare(group(a), group(b)), cmp.Compare(a.Order, b.Order))
	})
	for i, h := range all {
		if group(h) > group(all[0]) { // the next call decides about the other groups, which may have changed by then
			limit = min(limit, i)
			break
		}
	}
	return slices.Clone(all[:min(limit, len(all))]) // cloned, so that the rest of all can be freed
}

// headOverhead estimates the size of a head in its stream, in bytes.
const headOverhead = 1 << 10

// size estimates the size of the thread in both streams, in bytes.
func (h *head) size() int64 { return h.Bytes + headOverhead }

// DeleteOldestThird deletes up to a third of the threads, in dropOrder, but none with an active run. It reports whether
// it deleted any. A log calls it when its disk or account stays full although runs have expired. runBytes is the size
// of the log's runs. If threads use at most a quarter of the space of runs and threads together, DeleteOldestThird
// deletes nothing.
func (s *Store) DeleteOldestThird(ctx context.Context, runBytes int64) (deleted bool, err error) {
	used := int64(0)
	for _, stream := range []string{HeadsStream, TurnsStream} {
		bytes, _, err := s.server.Usage(ctx, stream)
		if err != nil {
			return false, err
		}
		used += bytes
	}
	if used <= runBytes/3 { // at most a quarter of used and runBytes together
		return false, nil
	}
	third := (s.count() + 2) / 3 // rounded up
	for _, h := range s.dropOrder(third) {
		if h.Active != "" {
			break
		}
		dropped, err := s.dropThread(ctx, h)
		if err != nil {
			return deleted, err
		}
		deleted = deleted || dropped
	}
	return deleted, nil
}
