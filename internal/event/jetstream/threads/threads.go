// Package threads implements event.Threads on two streams of NATS JetStream.
//
// The stream of heads has one message per thread, which holds the thread's properties. A change to a thread replaces
// this message, on the condition that it is still the one from which the change was computed (compare and set). So if
// two processes begin a turn, only one of them succeeds. The stream of turns has one message per turn, on a subject
// with the turn's number. A turn is stored before the head counts it. If the process dies in between, the next process
// that ends a turn finds a turn with that number and counts it first.
//
// Each process keeps an index of all heads in memory (index.go). With it, the process lists threads without asking the
// server, and begins a turn with one request. It adds its own changes at once, and reads those of other processes twice
// a second.
//
// Subjects contain digests of owners and ids, and a random incarnation for each thread. So the turns of a deleted
// thread cannot appear in a later thread with the same id.
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

// BeginTurn implements event.Threads. It changes nothing if run is already active, and returns a *event.BusyError if
// another run is.
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

// FirstTurn returns a message with the head of a new thread whose active run is run. It may wait for space
// (countAdded). The caller publishes the message to the stream of heads, on the condition that its subject is empty,
// and then calls addToIndex with the message's position. If the server does not store the message, the caller calls
// BeginTurn instead.
func (s *Store) FirstTurn(ctx context.Context, run event.Run, title string) (m *nats.Msg, addToIndex func(pos uint64), err error) {
	h := newHead(run.Owner, run.ThreadID)
	h.beginRun(run.ID, run.Agent, title, s.server.Now())
	if m, err = h.toMsg(); err != nil {
		return nil, nil, err
	}
	s.countAdded(ctx, HeadsStream, len(m.Data)+messageOverhead)
	return m, func(pos uint64) {
		h.setPos(pos)
		s.addOwnHead(h)
	}, nil
}

// RenameThread implements event.Threads. It does not count as an update, so the thread keeps its place in the list.
func (s *Store) RenameThread(ctx context.Context, owner event.Owner, id, title string) (event.Thread, error) {
	return s.updateHead(ctx, owner, id, func(h *head) (bool, error) {
		if !h.exists() {
			return false, event.ErrNotFound
		}
		h.Title = event.CutTitle(title)
		return true, nil
	})
}

// updateHead changes a thread's head and returns the changed thread. It calls edit with a copy of the head, or with a
// new head if the thread does not exist. edit reports whether it has changed the copy, and if so, updateHead publishes
// the copy. If another process has replaced the head since, updateHead calls edit again with the newest head.
//
// The first attempt takes the head from the index, which needs no request. The index may be out of date. So if edit
// makes no change or returns an error, updateHead calls it once more with the newest head.
func (s *Store) updateHead(ctx context.Context, owner event.Owner, id string, edit func(*head) (bool, error)) (event.Thread, error) {
	before, _ := s.cachedHead(owner, id)
	isFromIndex := true
	for {
		after := before
		if !before.exists() {
			after = newHead(owner, id)
		}
		changed, editErr := edit(&after)
		if changed && editErr == nil {
			replaced, err := s.replaceHead(ctx, before, after)
			if replaced || err != nil {
				return after.thread(), err
			}
		} else if !isFromIndex {
			return after.thread(), editErr
		}
		var err error
		if before, err = s.readHead(ctx, owner, id); err != nil {
			return event.Thread{}, err
		}
		isFromIndex = false
	}
}

// replaceHead publishes after in place of the head before, and adds after to the index. It returns false if before is
// no longer the thread's head. It makes space if the stream is full (publishHead).
func (s *Store) replaceHead(ctx context.Context, before, after head) (replaced bool, _ error) {
	m, err := after.toMsg()
	if err != nil {
		return false, err
	}
	if before.pos == 0 {
		s.countAdded(ctx, HeadsStream, len(m.Data)+messageOverhead)
	}
	pos, err := s.publishHead(ctx, m, before.pos)
	switch {
	case errors.Is(err, event.ErrFenced), errors.Is(err, event.ErrGone):
		return false, nil
	case err != nil:
		return false, err
	}
	after.setPos(pos)
	s.addOwnHead(after)
	if before.pos > 0 && before.Incarnation != after.Incarnation { // before is the head of an expired or deleted thread
		_ = s.removeTurns(ctx, after.key(), before.Incarnation) // after an error, Expire repeats it
	}
	return true, nil
}

// publishHead publishes the message of a head after the message at position last. If the stream is full, it deletes
// other threads and tries again. It returns the stream's error if that frees no space.
func (s *Store) publishHead(ctx context.Context, m *nats.Msg, last uint64) (uint64, error) {
	for attempt := 1; ; attempt++ {
		pos, err := s.server.Publish(ctx, HeadsStream, m, last)
		if !s.server.IsFull(err) {
			return pos, err
		}
		freed, spaceErr := s.makeSpace(ctx, anyThread)
		stillFull := !freed && attempt > 1 // after the first attempt, another caller may have made the space
		if spaceErr != nil || stillFull {
			return 0, err
		}
	}
}

// readHead returns a thread's head from the stream's leader, and updates the index with it. If the thread does not
// exist, was deleted or has expired, the returned head's exists method returns false, and its pos is still the position
// of the last message, which replaceHead needs. readHead returns event.ErrNotFound if id is not a valid thread id.
func (s *Store) readHead(ctx context.Context, owner event.Owner, id string) (head, error) {
	if !event.ValidThreadID(id) {
		return head{}, event.ErrNotFound
	}
	key := keyOf(owner, id)
	s.mu.Lock()
	knownPos := s.heads[key].pos
	s.mu.Unlock()
	m, err := s.server.ReadLast(ctx, HeadsStream, headPrefix+key)
	if err != nil {
		return head{}, err
	}
	if m == nil { // do not remove a head that was added to the index since knownPos was read
		s.removeFromIndex(key, knownPos)
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

// findThread returns a thread's head from the stream's leader, or event.ErrNotFound if the thread does not exist.
func (s *Store) findThread(ctx context.Context, owner event.Owner, id string) (head, error) {
	h, err := s.readHead(ctx, owner, id)
	if err == nil && !h.exists() {
		err = event.ErrNotFound
	}
	return h, err
}

// Thread implements event.Threads. It asks the stream's leader, because the index may be out of date.
func (s *Store) Thread(ctx context.Context, owner event.Owner, id string) (event.Thread, error) {
	h, err := s.findThread(ctx, owner, id)
	if err != nil {
		return event.Thread{}, err
	}
	return h.thread(), nil
}

// DeleteThread implements event.Threads. Once the head is found, the deletion continues even if ctx ends, because
// without the head the turns could no longer be found.
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

// deleteHead deletes the thread with the head h: it replaces the head with a tombstone and removes the turns. It
// returns false if h is no longer the thread's head. It returns true and an error if the turns could not be removed,
// which Expire will do.
//
// The tombstone makes other processes notice the deletion, and complete it if this process is killed. If no other
// process uses the streams, deleteHead removes the tombstone after the turns, because a full disk has no space to keep
// it. An account that is full refuses even a tombstone. In that case deleteHead removes the head first and writes the
// tombstone last.
func (s *Store) deleteHead(ctx context.Context, h head) (deleted bool, _ error) {
	tombstone, err := s.newTombstone(h)
	if err != nil {
		return false, err
	}
	tombstonePos, err := s.removeHead(ctx, h, tombstone)
	switch {
	case errors.Is(err, event.ErrFenced), errors.Is(err, event.ErrGone):
		return false, nil
	case err != nil:
		return false, err
	}
	hasTombstone := tombstonePos > 0
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
	case !s.server.Alone && !hasTombstone: // removing the turns has made space for it
		_, _ = s.server.PublishRemoval(ctx, HeadsStream, tombstone, 0)
	}
	return true, nil
}

// removeHead replaces the head h with tombstone, and returns the position of tombstone. If the account is so full that
// it refuses tombstone, removeHead only removes h, and returns 0. It returns event.ErrFenced or event.ErrGone if h is
// no longer the thread's head.
func (s *Store) removeHead(ctx context.Context, h head, tombstone *nats.Msg) (tombstonePos uint64, err error) {
	tombstonePos, err = s.server.PublishRemoval(ctx, HeadsStream, tombstone, h.pos)
	if s.server.IsFull(err) {
		return 0, s.server.Delete(ctx, HeadsStream, h.pos)
	}
	return tombstonePos, err
}

// newTombstone returns the message that replaces the head h of a deleted thread. The server removes the message after
// its TTL.
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

// removeTurns removes all turns of a thread's incarnation. If that fails, the next Expire tries again.
func (s *Store) removeTurns(ctx context.Context, key, incarnation string) error {
	err := s.server.Purge(ctx, TurnsStream, turnSubject(key, incarnation, ">"))
	if err != nil {
		s.removeTurnsLater(key, incarnation)
	}
	return err
}

// removeTurnsLater makes the next Expire remove all turns of a thread's incarnation.
func (s *Store) removeTurnsLater(key, incarnation string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tombstones[key] = incarnation
}
