// Package threads implements event.Threads on two streams of NATS JetStream.
//
// The stream of heads has one message for each thread: its properties. A change of a thread replaces the message, on
// condition that it is still the message that the change was computed from (compare and set). So only one of two
// processes that begin a turn succeeds. The stream of turns has one message for each turn, on a subject with the turn's
// number. A turn is stored before its head counts it. If the process ends in between, the next process that ends a turn
// finds a turn with that number and counts it first.
//
// Each process has an index of all heads in memory (index.go): it lists threads without asking the server, and begins a
// turn with one request. It adds its own changes at once and reads those of other processes twice a second.
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

// FirstTurn returns a message with the head of a new thread whose active run is run; it may wait for space
// (countAdded). The caller publishes the message to the stream of heads, on condition that its subject is empty, and
// then calls addToIndex with the message's pos. If the server does not store the message, the caller calls BeginTurn
// instead.
func (s *Store) FirstTurn(ctx context.Context, run event.Run, title string) (m *nats.Msg, addToIndex func(pos uint64), err error) {
	h := newHead(run.Owner, run.ThreadID)
	h.beginRun(run.ID, run.Agent, title, s.server.Now())
	if m, err = h.toMsg(); err != nil {
		return nil, nil, err
	}
	s.countAdded(ctx, HeadsStream, len(m.Data)+messageOverhead)
	return m, func(pos uint64) {
		h.pos = pos
		s.addOwnHead(h)
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

// updateHead changes the head of a thread and returns the thread after the change. edit gets a copy of the head, or a
// new head if the thread does not exist, and reports whether it has changed the copy, which updateHead then publishes.
// If another process has replaced the head since, updateHead calls edit again with the newest head.
//
// The first attempt takes the head from the index, without a request. The index may be out of date, so if edit makes no
// change or fails, updateHead repeats it with the newest head.
func (s *Store) updateHead(ctx context.Context, owner event.Owner, id string, edit func(*head) (bool, error)) (event.Thread, error) {
	before, _ := s.cachedHead(owner, id)
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
			if cached {
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

// replaceHead publishes after in place of the head before, sets after.pos, and adds after to the index. It reports
// false if before is no longer the head of the thread. If the stream is full, it deletes other threads first, and
// returns the error of the stream if there is still no space.
func (s *Store) replaceHead(ctx context.Context, before head, after *head) (replaced bool, _ error) {
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
		stillFull := !freed && tries > 0 // after the first try, another caller may have made the space
		if spaceErr != nil || stillFull {
			return false, err
		}
	}
	switch {
	case errors.Is(err, event.ErrFenced), errors.Is(err, event.ErrGone):
		return false, nil
	case err != nil:
		return false, err
	}
	s.addOwnHead(*after)
	if before.pos > 0 && before.Incarnation != after.Incarnation { // before is the head of an expired or deleted thread
		_ = s.removeTurns(ctx, after.key(), before.Incarnation) // after an error, Expire repeats it
	}
	return true, nil
}

// readHead returns the head of a thread from the stream's leader, and updates the index with it. If the thread does not
// exist, was deleted or has expired, the exists method of the result reports false; its pos is still that of the last
// message, which replaceHead expects. readHead returns event.ErrNotFound for an id that no thread can have.
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
	if m == nil { // a head that was added to the index since known was read stays
		s.removeFromIndex(key, known)
		return head{}, nil
	}
	h, err := s.applyMessage(*m)
	if err != nil {
		return head{}, err
	}
	if h.exists() && h.thread().Expired(s.server.Now(), s.retention) {
		h.Deleted = true
	}
	return h, nil
}

// findThread returns the head of a thread from the stream's leader, or event.ErrNotFound if the thread does not exist.
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

// DeleteThread implements event.Threads. Once the head is found, the deletion continues even if ctx ends: without the
// head, the turns could not be found any more.
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

// deleteHead deletes the thread of h: it replaces the head by a tombstone and removes the turns. It reports false if h
// is no longer the head of the thread, and true with an error if the turns are left to Expire.
//
// From the tombstone, other processes learn of the deletion, and complete it if this process is killed. A process that
// is alone removes it after the turns, because a full disk has no space to keep it. An account that is full refuses
// even a tombstone. Then deleteHead removes the head first, and writes the tombstone last.
func (s *Store) deleteHead(ctx context.Context, h head) (deleted bool, _ error) {
	tombstone, err := s.newTombstone(h)
	if err != nil {
		return false, err
	}
	tombstonePos, err := s.server.PublishRemoval(ctx, HeadsStream, tombstone, h.pos)
	hasTombstone := !s.server.IsFull(err)
	if !hasTombstone {
		err = s.server.Delete(ctx, HeadsStream, h.pos)
	}
	switch {
	case errors.Is(err, event.ErrFenced), errors.Is(err, event.ErrGone):
		return false, nil
	case err != nil:
		return false, err
	}

	key := h.key()
	if len(h.Unfinished) > 0 { // a run may be adding a turn at this moment
		s.removeTurnsLater(key, h.Incarnation)
	}
	s.removeFromIndex(key, h.pos)
	if s.server.Alone && hasTombstone {
		s.markWritten(tombstonePos)
	}
	if err := s.removeTurns(ctx, key, h.Incarnation); err != nil {
		return true, err
	}
	switch {
	case s.server.Alone && hasTombstone:
		_ = s.server.Delete(ctx, HeadsStream, tombstonePos) // after an error, the server removes it after its TTL
	case !s.server.Alone && !hasTombstone: // the turns have left space for it
		_, _ = s.server.PublishRemoval(ctx, HeadsStream, tombstone, 0)
	}
	return true, nil
}

// newTombstone returns the message that replaces the head h of a deleted thread. The server removes it after its TTL.
func (s *Store) newTombstone(h head) (*nats.Msg, error) {
	body, err := json.Marshal(head{Incarnation: h.Incarnation, Deleted: true})
	if err != nil {
		return nil, fmt.Errorf("encode a thread: %w", err)
	}
	ttl := tombstoneTTL
	if s.server.Alone {
		ttl = soleTombstoneTTL
	}
	msg := nats.NewMsg(headPrefix + h.key())
	msg.Data = body
	msg.Header.Set(js.MsgTTLHeader, strconv.Itoa(int(ttl.Seconds()))+"s")
	return msg, nil
}

// removeTurns removes all turns of an incarnation of a thread. After an error, the next Expire repeats it.
func (s *Store) removeTurns(ctx context.Context, key, incarnation string) error {
	err := s.server.Purge(ctx, TurnsStream, turnSubject(key, incarnation, ">"))
	if err != nil {
		s.removeTurnsLater(key, incarnation)
	}
	return err
}

// removeTurnsLater makes the next Expire remove all turns of an incarnation of a thread.
func (s *Store) removeTurnsLater(key, incarnation string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tombstones[key] = incarnation
}
