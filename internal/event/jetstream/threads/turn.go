package threads

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/nats-io/nats.go"

	"answerd/internal/event"
)

const (
	// firstTurns is how many turns Turns reads first. maxTurns is how many turns, or parts of a turn, it reads at once.
	firstTurns = 8
	maxTurns   = 64
	// maxHole is how many consecutive missing turns are skipped, for example after a disk was damaged. If more are
	// missing, the stream was full and has dropped them and all turns before them.
	maxHole = 4
	// maxParts is the largest number of parts of a turn.
	maxParts = 1 << 12
)

// EndTurn implements event.Threads. Other processes may change the head at the same time. So EndTurn starts again with
// the newest head until it has replaced the head that it started from. The first attempt takes the head from the index,
// unless that head shows neither that run's turn has ended nor that it must end, because the index may be out of date.
func (s *Store) EndTurn(ctx context.Context, owner event.Owner, id, run string, data []byte) error {
	if len(data) > event.MaxTurn {
		return event.ErrTooLarge
	}
	h, known := s.cachedHead(owner, id)
	canUse := known && (h.hasEnded(run) || h.mustEnd(run, data))
	if !canUse {
		var err error
		if h, err = s.readHead(ctx, owner, id); err != nil {
			return err
		}
	}
	for {
		switch {
		case h.hasEnded(run): // EndTurn was called before
			return nil
		case !h.isUnfinished(run):
			return event.ErrNotFound
		case !h.mustEnd(run, data): // data is nil, and the run is no longer active
			return nil
		}
		done, err := s.tryEndTurn(ctx, h, run, data)
		if done || err != nil {
			return err
		}
		newest, err := s.readHead(ctx, owner, id)
		if err != nil {
			return err
		}
		isSameThread := newest.exists() && newest.Incarnation == h.Incarnation
		if data != nil && !isSameThread {
			// The thread was deleted, and the turn may have been stored after the thread's turns were removed.
			_ = s.removeTurns(ctx, h.key(), h.Incarnation) // after an error, Expire repeats it
			return event.ErrNotFound
		}
		h = newest
	}
}

// isUnfinished reports whether the thread exists, and run has begun a turn but has not added it.
func (h *head) isUnfinished(run string) bool { return h.exists() && slices.Contains(h.Unfinished, run) }

// hasEnded reports whether the thread exists, and run is one of the last runs that have added a turn.
func (h *head) hasEnded(run string) bool { return h.exists() && slices.Contains(h.Ended, run) }

// mustEnd reports whether EndTurn must change the head, to add a turn with data or to make run inactive.
func (h *head) mustEnd(run string, data []byte) bool {
	return h.isUnfinished(run) && (data != nil || h.Active == run)
}

// tryEndTurn makes one attempt to store run's turn and to replace h with a head that counts the turn. It returns false
// if another process has replaced h, or if the new head counts the turn of another run (storeAndCountTurn).
func (s *Store) tryEndTurn(ctx context.Context, h head, run string, data []byte) (done bool, _ error) {
	after, err := s.storeAndCountTurn(ctx, h, run, data)
	if err != nil {
		return false, err
	}
	replaced, err := s.replaceHead(ctx, h, after)
	countsRun := data == nil || after.LastRun == run
	return replaced && countsRun, err
}

// storeAndCountTurn stores run's turn under the number after h's last turn. It returns the head that counts the turn,
// which the caller must publish. The stream may already have a turn with that number, from a process that stored
// another run's turn but died before it counted the turn. The returned head then counts that turn, and its LastRun is
// the other run. If data is nil, storeAndCountTurn stores nothing and returns a head without an active run.
func (s *Store) storeAndCountTurn(ctx context.Context, h head, run string, data []byte) (after head, err error) {
	after = h
	after.setUpdated(s.server.Now())
	if data == nil {
		after.Active = ""
		return after, nil
	}
	s.countAdded(ctx, TurnsStream, len(data))
	storedRun, size, err := s.storeTurn(ctx, h, run, data)
	if err != nil {
		return after, err
	}
	after.countTurn(storedRun, size)
	return after, nil
}

// storeTurn publishes run's turn under the number after h's last turn. If the stream already has a turn with that
// number, storeTurn keeps that turn. It returns the run and the size of the turn that now has the number. The size is 0
// if parts of that turn are missing.
func (s *Store) storeTurn(ctx context.Context, h head, run string, data []byte) (storedRun string, size int, err error) {
	subject := h.turnSubject(h.Turns + 1)
	for {
		err := s.publishTurn(ctx, &h, subject, run, data)
		if err == nil {
			return run, len(data), nil
		}
		if !errors.Is(err, event.ErrFenced) {
			return "", 0, err
		}
		existing, err := s.server.ReadLast(ctx, TurnsStream, subject)
		if err != nil {
			return "", 0, err
		}
		if existing == nil { // that turn was removed since publishTurn, so try again
			continue
		}
		existingData, err := s.readData(ctx, &h, *existing)
		if errors.Is(err, event.ErrUnavailable) {
			return "", 0, err
		}
		return existing.Header.Get(runHeader), len(existingData), nil
	}
}

// publishTurn publishes run's turn on subject. It returns event.ErrFenced if the subject already has a turn. Unless the
// turn may have been stored, publishTurn removes its parts after an error.
func (s *Store) publishTurn(ctx context.Context, h *head, subject, run string, data []byte) error {
	msg := nats.NewMsg(subject)
	msg.Header.Set(runHeader, run)
	msg.Header.Set(writerHeader, rand.Text())
	const noMessage = 0 // the subject must have no message yet
	parts, err := s.setData(ctx, h, msg, data)
	mayBeStored := false
	if err == nil {
		_, err = s.server.Publish(ctx, TurnsStream, msg, noMessage)
		wasRefused := errors.Is(err, event.ErrFenced) || s.server.IsFull(err)
		mayBeStored = !wasRefused
	}
	if parts != "" && !mayBeStored {
		_ = s.server.Purge(ctx, TurnsStream, parts) // parts that remain are deleted with the thread
	}
	return err
}

// setData stores a turn's data in msg. If the data is too large for one message, setData publishes it in parts and
// makes msg refer to them. It returns a subject with a wildcard that matches the parts, or "" if the data is in msg. It
// returns the subject even with an error, because some of the parts may be stored.
func (s *Store) setData(ctx context.Context, h *head, msg *nats.Msg, data []byte) (subjects string, err error) {
	if len(data) <= s.server.MaxPart {
		msg.Data = data
		return "", nil
	}
	nonce := strings.ToLower(rand.Text()[:10])
	count := 0
	subjects = turnSubject(h.key(), h.Incarnation, partToken+"."+nonce+".*")
	for part := range slices.Chunk(data, s.server.MaxPart) {
		partMessage := nats.NewMsg(partSubject(h, nonce, count))
		partMessage.Data = part
		partMessage.Header.Set(writerHeader, rand.Text())
		if _, err := s.server.Publish(ctx, TurnsStream, partMessage, 0); err != nil {
			return subjects, err
		}
		count++
	}
	msg.Header.Set(partsHeader, nonce+" "+strconv.Itoa(count))
	return subjects, nil
}

// partSubject returns the subject of part n of a turn. nonce is from the turn's partsHeader.
func partSubject(h *head, nonce string, n int) string {
	return turnSubject(h.key(), h.Incarnation, partToken+"."+nonce+"."+strconv.Itoa(n))
}

// Turns implements event.Threads.
func (s *Store) Turns(ctx context.Context, owner event.Owner, id string, before int64, limit, maxBytes int) (page event.TurnPage, err error) {
	h, err := s.findThread(ctx, owner, id)
	if err != nil {
		return page, err
	}
	newest := h.Turns
	if before > 0 {
		newest = int(min(int64(newest), before-1))
	}
	turns, hasOlder, err := s.readPage(ctx, &h, newest, max(limit, 1), maxBytes)
	if err != nil {
		return page, err
	}
	if hasOlder {
		page.Before = turns[len(turns)-1].Number
	}
	slices.Reverse(turns)
	page.Turns = turns
	return page, nil
}

// readPage returns up to limit turns with at most maxBytes of data, but at least one turn if any exists. The first is
// the turn with number newest, or the newest one before it that is kept. The others follow from newer to older.
// hasOlder says whether an older turn exists.
func (s *Store) readPage(ctx context.Context, h *head, newest, limit, maxBytes int) (turns []event.Turn, hasOlder bool, err error) {
	size := 0
	step := firstTurns
	for next := newest; next > 0; {
		// Read one turn more than limit, to find out whether older turns exist.
		count := min(step, next, limit+1-len(turns))
		found, err := s.readTurns(ctx, h, next, count)
		if err != nil {
			return nil, false, err
		}
		for _, t := range found {
			isTooLarge := len(turns) > 0 && size+len(t.Data) > maxBytes
			if isTooLarge || len(turns) == limit {
				return turns, true, nil
			}
			turns = append(turns, t)
			size += len(t.Data)
		}
		if missing := count - len(found); missing > maxHole { // the stream has dropped the older turns
			break
		}
		next -= count
		// Read as many turns of average size as the rest of maxBytes can hold.
		average := size/max(len(turns), 1) + 1
		step = min(max((maxBytes-size)/average+1, firstTurns), maxTurns)
	}
	return turns, false, nil
}

// readTurns reads count turns, from the one with number newest to older ones, and returns those that are still kept,
// newest first. It stops if more than maxHole consecutive turns are missing, because a full stream has then dropped all
// earlier turns too.
func (s *Store) readTurns(ctx context.Context, h *head, newest, count int) (turns []event.Turn, err error) {
	subjects := make([]string, count)
	for i := range subjects {
		subjects[i] = h.turnSubject(newest - i)
	}
	found, err := s.server.ReadEach(ctx, TurnsStream, subjects)
	if err != nil {
		return nil, err
	}
	missing := 0
	for i, subject := range subjects {
		if missing > maxHole {
			break
		}
		turn, err := s.readTurn(ctx, h, found, subject)
		if errors.Is(err, event.ErrGone) {
			missing++
			continue
		}
		if err != nil {
			return nil, err
		}
		missing = 0
		turn.Number = int64(newest - i)
		turns = append(turns, turn)
	}
	return turns, nil
}

// readTurn returns the turn on a subject, with its Number unset. found is the result of ReadEach (findMessage). It
// returns event.ErrGone if the turn, or a part of it, is no longer kept.
func (s *Store) readTurn(ctx context.Context, h *head, found map[string]*Message, subject string) (event.Turn, error) {
	message, err := s.findMessage(ctx, found, subject)
	if err != nil {
		return event.Turn{}, err
	}
	data, err := s.readData(ctx, h, *message)
	return event.Turn{Run: message.Header.Get(runHeader), Time: message.Time, Data: data}, err
}

// findMessage returns the message on a subject of the stream of turns from found, the result of ReadEach. In a cluster
// the server that answered may lag behind, so findMessage asks the leader for a message that is missing in found. It
// returns event.ErrGone if the message is no longer kept.
func (s *Store) findMessage(ctx context.Context, found map[string]*Message, subject string) (*Message, error) {
	message := found[subject]
	if message == nil && s.server.Clustered {
		var err error
		if message, err = s.server.ReadLast(ctx, TurnsStream, subject); err != nil {
			return nil, err
		}
	}
	if message == nil {
		return nil, event.ErrGone
	}
	return message, nil
}

// readData returns a turn's data, and joins the parts if the message refers to parts. It returns event.ErrGone if a
// part is no longer kept.
func (s *Store) readData(ctx context.Context, h *head, message Message) ([]byte, error) {
	parts := message.Header.Get(partsHeader)
	if parts == "" {
		return message.Data, nil
	}
	nonce, countText, _ := strings.Cut(parts, " ")
	count, err := strconv.Atoi(countText)
	if err != nil || !event.ValidID(nonce) || count < 1 || count > maxParts {
		return nil, fmt.Errorf("a turn of the log has malformed parts")
	}
	subjects := make([]string, count)
	for n := range subjects {
		subjects[n] = partSubject(h, nonce, n)
	}
	var data []byte
	for batch := range slices.Chunk(subjects, maxTurns) {
		if data, err = s.appendParts(ctx, data, batch); err != nil {
			return nil, err
		}
	}
	return data, nil
}

// appendParts appends the parts of a turn that are stored on subjects to data, and returns the extended data. It
// returns event.ErrGone if a part is no longer kept.
func (s *Store) appendParts(ctx context.Context, data []byte, subjects []string) ([]byte, error) {
	found, err := s.server.ReadEach(ctx, TurnsStream, subjects)
	if err != nil {
		return nil, err
	}
	for _, subject := range subjects {
		part, err := s.findMessage(ctx, found, subject)
		if err != nil {
			return nil, err
		}
		data = append(data, part.Data...)
	}
	return data, nil
}
