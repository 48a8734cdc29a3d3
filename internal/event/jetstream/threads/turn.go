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
	// firstTurns is how many turns Turns reads at first, and maxTurns how many at once when they are small.
	firstTurns = 8
	maxTurns   = 64
	// maxHole bounds the turns that are skipped because they are missing between others, as after a damage
	// of the disk. Where more are missing, a full stream has dropped all before them.
	maxHole = 4
	// maxParts bounds the parts of a turn.
	maxParts = 1 << 12
)

// EndTurn implements event.Threads. Other processes may change the head at the same time, so it repeats with the newest
// head until it has replaced the head that it read.
func (s *Store) EndTurn(ctx context.Context, owner event.Owner, id, run string, data []byte) error {
	if len(data) > event.MaxTurn {
		return event.ErrTooLarge
	}
	stored := "" // the incarnation that has the turn
	h, cached := s.cachedHead(owner, id)
	for ; ; cached = false { // the cached head is tried first, and never again
		if !cached {
			var err error
			if h, err = s.readHead(ctx, owner, id); err != nil {
				return err
			}
		}
		unfinished := slices.Contains(h.Unfinished, run)
		changesHead := data != nil || h.Active == run
		wasDeleted := stored != "" && (!h.exists() || h.Incarnation != stored)
		switch {
		case !cached && wasDeleted:
			_ = s.removeTurns(ctx, keyOf(owner, id), stored) // Expire repeats it
			return event.ErrNotFound
		case h.exists() && slices.Contains(h.Ended, run):
			return nil
		case h.exists() && unfinished && changesHead:
		case cached: // it may be behind
			continue
		case h.exists() && unfinished:
			return nil
		default:
			return event.ErrNotFound
		}
		after, err := s.storeAndCountTurn(ctx, h, run, data)
		if err != nil {
			return err
		}
		if data != nil {
			stored = h.Incarnation
		}
		replaced, err := s.replaceHead(ctx, h, &after)
		if err != nil {
			return err
		}
		isCounted := data == nil || after.LastRun == run
		if replaced && isCounted {
			return nil
		}
	}
}

// storeAndCountTurn stores a turn with the next number and returns the head that counts it. If another run has that
// number, because its process ended before it was counted, it returns the head that counts that one.
func (s *Store) storeAndCountTurn(ctx context.Context, h head, run string, data []byte) (after head, err error) {
	after = h
	after.Updated, after.Order = s.server.Now(), 0
	if data == nil {
		after.Active = ""
		return after, nil
	}
	s.countAdded(ctx, TurnsStream, len(data))
	by, size, err := s.storeTurn(ctx, h, run, data)
	if err != nil {
		return after, err
	}
	after.countTurn(by, size)
	return after, nil
}

// storeTurn publishes the turn of a run with the number after those of h. If the log already has a turn with that
// number, it does not store another. It returns the run and the size of the turn that has the number now.
func (s *Store) storeTurn(ctx context.Context, h head, run string, data []byte) (by string, size int, err error) {
	for {
		msg := nats.NewMsg(h.turnSubject(h.Turns + 1))
		msg.Header.Set(runHeader, run)
		msg.Header.Set(writerHeader, rand.Text())
		parts, err := s.setData(ctx, h, msg, data)
		refused := err != nil // after Publish, the turn may be stored although there is an error
		if err == nil {
			_, err = s.server.Publish(ctx, TurnsStream, msg, 0)
			refused = errors.Is(err, event.ErrFenced) || s.server.IsFull(err)
		}
		if err == nil {
			return run, len(data), nil
		}
		if parts != "" && refused {
			_ = s.server.Purge(ctx, TurnsStream, parts) // otherwise they are deleted with the thread
		}
		if !errors.Is(err, event.ErrFenced) {
			return "", 0, err
		}
		found, err := s.server.ReadLast(ctx, TurnsStream, msg.Subject)
		if err != nil {
			return "", 0, err
		}
		if found != nil {
			return found.Header.Get(runHeader), len(found.Data), nil
		}
	}
}

// setData puts the data of a turn into msg. Data above the server's limit is published in parts, whose
// subjects it returns.
func (s *Store) setData(ctx context.Context, h head, msg *nats.Msg, data []byte) (subjects string, err error) {
	if len(data) <= s.server.MaxPart {
		msg.Data = data
		return "", nil
	}
	nonce, count := strings.ToLower(rand.Text()[:10]), 0
	subjects = turnSubject(h.key(), h.Incarnation, partToken+"."+nonce+".*")
	for part := range slices.Chunk(data, s.server.MaxPart) {
		pm := nats.NewMsg(partSubject(&h, nonce, count))
		pm.Data = part
		pm.Header.Set(writerHeader, rand.Text())
		if _, err := s.server.Publish(ctx, TurnsStream, pm, 0); err != nil {
			return subjects, err
		}
		count++
	}
	msg.Header.Set(partsHeader, nonce+" "+strconv.Itoa(count))
	return subjects, nil
}

func partSubject(h *head, nonce string, n int) string {
	return turnSubject(h.key(), h.Incarnation, partToken+"."+nonce+"."+strconv.Itoa(n))
}

// Turns implements event.Threads.
func (s *Store) Turns(ctx context.Context, owner event.Owner, id string, before int64, limit, maxBytes int) (page event.TurnPage, err error) {
	h, err := s.findThread(ctx, owner, id)
	if err != nil {
		return page, err
	}
	next := h.Turns // the newest turn that is still to be read
	if before > 0 {
		next = int(min(int64(next), before-1))
	}

	var turns []event.Turn // the newest first
	size, step, missing := 0, firstTurns, 0
	for next > 0 && len(turns) <= max(limit, 1) {
		// One turn more than asked for tells whether there are older ones.
		n := min(step, next, max(limit, 1)+1-len(turns))
		found, err := s.readTurns(ctx, &h, next-n+1, next)
		if err != nil {
			return page, err
		}
		for _, t := range slices.Backward(found) {
			isTooLarge := len(turns) > 0 && size+len(t.Data) > maxBytes
			if isTooLarge || len(turns) == max(limit, 1) {
				page.Before = turns[len(turns)-1].Number
				slices.Reverse(turns)
				page.Turns = turns
				return page, nil
			}
			turns, size = append(turns, t), size+len(t.Data)
		}
		missing = n - len(found)
		if missing > maxHole { // the older ones were dropped
			break
		}
		next -= n
		step = min(max((maxBytes-size)/(size/max(len(turns), 1)+1)+1, firstTurns), maxTurns)
	}

	slices.Reverse(turns)
	page.Turns = turns
	return page, nil
}

// readTurns returns the turns from number low to high that are kept. A full stream drops the oldest ones, so
// it stops where more than maxHole are missing.
func (s *Store) readTurns(ctx context.Context, h *head, low, high int) ([]event.Turn, error) {
	var subjects []string
	for n := low; n <= high; n++ {
		subjects = append(subjects, h.turnSubject(n))
	}

	found, err := s.server.ReadEach(ctx, TurnsStream, subjects)
	if err != nil {
		return nil, err
	}

	var turns []event.Turn // the newest first
	missing := 0
	for n, subject := range slices.Backward(subjects) {
		if missing > maxHole {
			break
		}
		message, ok := found[subject]
		if !ok && s.server.Clustered { // the server that answered may lack the newest messages
			last, err := s.server.ReadLast(ctx, TurnsStream, subject)
			if err != nil {
				return nil, err
			}
			ok = last != nil
			if ok {
				message = *last
			}
		}
		var data []byte
		err = event.ErrGone // unless the message is there
		if ok {
			data, err = s.readData(ctx, h, message)
		}
		if errors.Is(err, event.ErrGone) {
			missing++
			continue
		}
		if err != nil {
			return nil, err
		}
		missing = 0
		turns = append(turns, event.Turn{Run: message.Header.Get(runHeader), Number: int64(low + n), Time: message.Time, Data: data})
	}

	slices.Reverse(turns)
	return turns, nil
}

// readData returns the data of a turn, from its parts if it has some. It returns ErrGone if a part is no
// longer kept.
func (s *Store) readData(ctx context.Context, h *head, m Message) ([]byte, error) {
	parts := m.Header.Get(partsHeader)
	if parts == "" {
		return m.Data, nil
	}
	nonce, countText, _ := strings.Cut(parts, " ")
	count, err := strconv.Atoi(countText)
	if err != nil || !event.ValidID(nonce) || count < 1 || count > maxParts {
		return nil, fmt.Errorf("a turn of the log has malformed parts")
	}

	var data []byte
	for first := 0; first < count; first += maxTurns {
		var subjects []string
		for n := first; n < min(first+maxTurns, count); n++ {
			subjects = append(subjects, partSubject(h, nonce, n))
		}
		found, err := s.server.ReadEach(ctx, TurnsStream, subjects)
		if err != nil {
			return nil, err
		}
		for _, subject := range subjects {
			part, ok := found[subject]
			if !ok {
				last, err := s.server.ReadLast(ctx, TurnsStream, subject)
				if err != nil {
					return nil, err
				}
				if last == nil {
					return nil, event.ErrGone
				}
				part = *last
			}
			data = append(data, part.Data...)
		}
	}
	return data, nil
}
