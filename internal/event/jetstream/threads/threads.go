// Package threads implements event.Threads on two streams of NATS JetStream.
//
// The stream of heads has one message for each thread: its properties. A change of a thread replaces the
// message, and expects the one that it was computed from (compare and set), so of two processes that begin
// a turn one wins. The stream of turns has one message for each turn, on a subject with the turn's number.
// A turn is stored before its head counts it. If the process ends in between, the next process that ends a
// turn finds that number taken and completes it first.
//
// Each process has an index of all heads in memory (index.go): it lists threads without asking the server,
// and begins a turn with one request. It adds its own changes at once and reads those of other processes
// twice a second.
//
// Subjects contain digests of owners and ids, and a random incarnation for each thread that is created. So
// a turn of a deleted thread cannot appear in a later thread of the same id.
package threads

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"

	"github.com/nats-io/nats.go"
	js "github.com/nats-io/nats.go/jetstream"

	"answerd/internal/event"
)

// BeginTurn implements event.Threads.
func (s *Store) BeginTurn(ctx context.Context, owner event.Owner, id, run, agent, title string) (event.Thread, error) {
	if !event.ValidThreadID(id) || !event.ValidID(run) {
		return event.Thread{}, event.ErrNotFound
	}
	return s.updateHead(ctx, owner, id, func(h *head) (bool, error) {
		switch {
		case h.Active == run:
			return false, nil
		case h.Active != "":
			return false, &event.BusyError{Run: h.Active}
		}
		h.beginRun(run, agent, title, s.server.Now())
		return true, nil
	})
}

// FirstTurn returns the head of a new thread whose active run is run, as a message. The caller publishes the message to
// the stream of heads, under the condition that its subject is empty, and then calls addToIndex with the message's pos.
// If the server does not store the message, the caller calls BeginTurn instead.
func (s *Store) FirstTurn(ctx context.Context, run event.Run, title string) (m *nats.Msg, addToIndex func(pos uint64), err error) {
	h := newHead(run.Owner, run.ThreadID)
	h.beginRun(run.ID, run.Agent, title, s.server.Now())
	if m, err = h.toMsg(); err != nil {
		return nil, nil, err
	}
	s.countAdded(ctx, HeadsStream, len(m.Data)+messageOverhead)
	return m, func(pos uint64) {
		h.pos = pos
		s.putOwn(h)
	}, nil
}

// RenameThread implements event.Threads.
func (s *Store) RenameThread(ctx context.Context, owner event.Owner, id, title string) (event.Thread, error) {
	return s.updateHead(ctx, owner, id, func(h *head) (bool, error) {
		if !h.exists() {
			return false, event.ErrNotFound
		}
		h.Title = event.CutTitle(title)
		return true, nil
	})
}

// updateHead replaces the head of a thread by what edit makes of it, and repeats that when another process
// was faster. edit gets a copy, of a new thread if there is none, and reports whether it changed it. Most
// threads that the index does not have are new, so the head is read only when that turns out to be wrong.
func (s *Store) updateHead(ctx context.Context, owner event.Owner, id string, edit func(*head) (bool, error)) (event.Thread, error) {
	before, found := s.cachedHead(owner, id)
	if !found {
		before = head{}
	}
	for cached := true; ; cached = false {
		if !cached {
			var err error
			if before, err = s.readHead(ctx, owner, id); err != nil {
				return event.Thread{}, err
			}
		}
		after := before
		if !before.exists() {
			after = newHead(owner, id)
		}
		changed, err := edit(&after)
		if err != nil || !changed {
			if cached { // the index may be behind
				continue
			}
			return after.thread(), err
		}
		replaced, err := s.replaceHead(ctx, before, &after)
		if err != nil {
			return event.Thread{}, err
		}
		if replaced {
			return after.thread(), nil
		}
	}
}

// replaceHead publishes a head, and adds it to the index. It reports false if before is not the thread's
// head any more.
func (s *Store) replaceHead(ctx context.Context, before head, after *head) (bool, error) {
	m, err := after.toMsg()
	if err != nil {
		return false, err
	}
	if before.pos == 0 {
		s.countAdded(ctx, HeadsStream, len(m.Data)+messageOverhead)
	}
	for tries := 0; ; tries++ {
		after.pos, err = s.server.Publish(ctx, HeadsStream, m, before.pos)
		if !s.server.IsFull(err) {
			break
		}
		freed, spaceErr := s.makeSpace(ctx, true)
		isUseless := !freed && tries > 0 // at first, another caller may have made the space
		if spaceErr != nil || isUseless {
			return false, err
		}
	}
	switch {
	case errors.Is(err, event.ErrFenced), errors.Is(err, event.ErrGone):
		return false, nil
	case err != nil:
		return false, err
	}
	s.putOwn(*after)
	if before.pos > 0 && before.Incarnation != after.Incarnation { // a thread that has expired or was deleted
		_ = s.removeTurns(ctx, after.key(), before.Incarnation) // Expire repeats it
	}
	return true, nil
}

// readHead returns the head of a thread from the leader. Its exists method reports false if there is no
// such thread.
func (s *Store) readHead(ctx context.Context, owner event.Owner, id string) (head, error) {
	if !event.ValidThreadID(id) {
		return head{}, event.ErrNotFound
	}
	key := keyOf(owner, id)
	s.mu.Lock()
	known := s.heads[key].pos
	s.mu.Unlock()
	m, err := s.server.ReadLast(ctx, HeadsStream, headPrefix+key)
	if err != nil {
		return head{}, err
	}
	if m == nil {
		s.removeFromIndex(key, known)
		return head{}, nil
	}
	h, err := s.accept(*m)
	if err != nil {
		return head{}, err
	}
	if h.exists() && h.thread().Expired(s.server.Now(), s.retention) {
		h.Deleted = true
	}
	return h, nil
}

// findThread returns the head of a thread from the leader, or ErrNotFound.
func (s *Store) findThread(ctx context.Context, owner event.Owner, id string) (head, error) {
	h, err := s.readHead(ctx, owner, id)
	if err == nil && !h.exists() {
		err = event.ErrNotFound
	}
	return h, err
}

// Thread implements event.Threads.
func (s *Store) Thread(ctx context.Context, owner event.Owner, id string) (event.Thread, error) {
	h, err := s.findThread(ctx, owner, id)
	if err != nil {
		return event.Thread{}, err
	}
	return h.thread(), nil
}

// DeleteThread implements event.Threads. It does not stop when ctx ends between the head and the turns, because nothing
// finds the turns without the head.
func (s *Store) DeleteThread(ctx context.Context, owner event.Owner, id string) error {
	for {
		h, err := s.findThread(ctx, owner, id)
		if err != nil {
			return err
		}
		deleted, err := s.deleteHead(context.WithoutCancel(ctx), h)
		if err != nil || deleted {
			return err
		}
	}
}

// deleteHead replaces a head by a tombstone and removes the turns. It reports false if h is not the
// thread's head any more. Other processes learn of the deletion by the tombstone, and finish it if this one is killed. Where
// there are none, the tombstone is for the next process only, and is removed after the turns: it needs space, of which there
// may be none.
func (s *Store) deleteHead(ctx context.Context, h head) (bool, error) {
	body, err := json.Marshal(head{Incarnation: h.Incarnation, Deleted: true})
	if err != nil {
		return false, fmt.Errorf("encode a thread: %w", err)
	}
	key, ttl := h.key(), tombstoneTTL
	if s.server.Alone {
		ttl = killedTTL
	}
	msg := nats.NewMsg(headPrefix + key)
	msg.Data = body
	msg.Header.Set(js.MsgTTLHeader, strconv.Itoa(int(ttl.Seconds()))+"s")
	tombstone, err := s.server.PublishRemoval(ctx, HeadsStream, msg, h.pos)
	deleted := s.server.IsFull(err) // an account accepts not even smaller messages
	if deleted {
		err = s.server.Delete(ctx, HeadsStream, h.pos)
	}

	switch {
	case errors.Is(err, event.ErrFenced), errors.Is(err, event.ErrGone):
		return false, nil
	case err != nil:
		return false, err
	}

	if len(h.Unfinished) > 0 { // a run may be adding a turn at this moment
		s.removeTurnsLater(key, h.Incarnation)
	}
	s.removeFromIndex(key, h.pos)
	if s.server.Alone && !deleted {
		s.markWritten(tombstone)
	}
	if err := s.removeTurns(ctx, key, h.Incarnation); err != nil {
		return true, err
	}
	switch {
	case s.server.Alone && !deleted:
		_ = s.server.Delete(ctx, HeadsStream, tombstone) // its end at the latest
	case !s.server.Alone && deleted: // now there is space for the tombstone
		_, _ = s.server.PublishRemoval(ctx, HeadsStream, msg, 0)
	}
	return true, nil
}

// removeTurns removes all turns of an incarnation. If that fails, Expire repeats it.
func (s *Store) removeTurns(ctx context.Context, key, incarnation string) error {
	err := s.server.Purge(ctx, TurnsStream, turnSubject(key, incarnation, ">"))
	if err != nil {
		s.removeTurnsLater(key, incarnation)
	}
	return err
}

// removeTurnsLater makes the next Expire remove all turns of an incarnation.
func (s *Store) removeTurnsLater(key, incarnation string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tombstones[key] = incarnation
}
