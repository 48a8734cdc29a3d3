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
	// firstTurns is how many turns Turns reads at first, and maxTurns how many turns, or parts of a turn, it reads at
	// once.
	firstTurns = 8
	maxTurns   = 64
	// maxHole bounds how many missing turns in a row are skipped, as after a damage of the disk. If more are missing,
	// the stream was full and has dropped them and all before them.
	maxHole = 4
	// maxParts bounds the parts of a turn.
	maxParts = 1 << 12
)

// EndTurn implements event.Threads. Other processes may change the head at the same time, so EndTurn starts again with
// the newest head until it has replaced the head from which it started. The first attempt takes the head from the
// index.
func (s *Store) EndTurn(ctx context.Context, owner event.Owner, id, run string, data []byte) error {
	if len(data) > event.MaxTurn {
		return event.ErrTooLarge
	}
	storedIn := "" // the incarnation in which an earlier attempt has stored the turn; "" if there was none
	h, cached := s.cachedHead(owner, id)
	for ; ; cached = false {
		if !cached {
			var err error
			if h, err = s.readHead(ctx, owner, id); err != nil {
				return err
			}
		}
		if storedIn != "" && (!h.exists() || h.Incarnation != storedIn) {
			// The thread was deleted, and the turn may have been stored after its turns were removed.
			_ = s.removeTurns(ctx, keyOf(owner, id), storedIn) // after an error, Expire repeats it
			return event.ErrNotFound
		}
		isUnfinished := h.exists() && slices.Contains(h.Unfinished, run)
		changesHead := isUnfinished && (data != nil || h.Active == run)
		switch {
		case h.exists() && slices.Contains(h.Ended, run): // this is a second call
			return nil
		case changesHead: // store the turn, or end the run, below
		case cached: // decide with the newest head: the index may be out of date
			continue
		case isUnfinished: // there is no turn to add, and the run is not the active one
			return nil
		default:
			return event.ErrNotFound
		}
		after, err := s.storeAndCountTurn(ctx, h, run, data)
		if err != nil {
			return err
		}
		if data != nil {
			storedIn = h.Incarnation
		}
		replaced, err := s.replaceHead(ctx, h, &after)
		if err != nil {
			return err
		}
		isCounted := data == nil || after.LastRun == run // otherwise after counts the turn of another run
		if replaced && isCounted {
			return nil
		}
	}
}

// storeAndCountTurn stores the turn of run with the number after the last turn of h. It returns the head that counts
// the turn, which the caller publishes. If the stream already has a turn with that number, because a process stored the
// turn of another run and ended before it counted it, the head that is returned counts that turn, and LastRun is the
// other run. If data is nil, it stores nothing and returns a head without an active run.
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

// storeTurn publishes the turn of run with the number after the last turn of h. If the stream has a turn with that
// number already, that turn stays. storeTurn returns the run and the size of the turn that has the number now.
func (s *Store) storeTurn(ctx context.Context, h head, run string, data []byte) (storedRun string, size int, err error) {
	for {
		msg := nats.NewMsg(h.turnSubject(h.Turns + 1))
		msg.Header.Set(runHeader, run)
		msg.Header.Set(writerHeader, rand.Text())
		parts, err := s.setData(ctx, h, msg, data)
		notStored := err != nil // it is certain that msg is not stored, so nothing refers to its parts
		if err == nil {
			_, err = s.server.Publish(ctx, TurnsStream, msg, 0)
			notStored = errors.Is(err, event.ErrFenced) || s.server.IsFull(err)
		}
		if err == nil {
			return run, len(data), nil
		}
		if parts != "" && notStored {
			_ = s.server.Purge(ctx, TurnsStream, parts) // parts that remain are deleted with the thread
		}
		if !errors.Is(err, event.ErrFenced) {
			return "", 0, err
		}
		found, err := s.server.ReadLast(ctx, TurnsStream, msg.Subject)
		if err != nil {
			return "", 0, err
		}
		if found != nil { // otherwise it was removed since, so try again
			stored, err := s.readData(ctx, &h, *found)
			if errors.Is(err, event.ErrUnavailable) {
				return "", 0, err
			}
			return found.Header.Get(runHeader), len(stored), nil // parts that cannot be read use no space
		}
	}
}

// setData puts the data of a turn into msg. Data that is too large for one message is published first, in parts, to
// which msg then refers. setData returns the subject of the parts, with a wildcard, or "" without parts. It returns the
// subject also with an error, because some parts may be stored.
func (s *Store) setData(ctx context.Context, h head, msg *nats.Msg, data []byte) (subjects string, err error) {
	if len(data) <= s.server.MaxPart {
		msg.Data = data
		return "", nil
	}
	nonce := strings.ToLower(rand.Text()[:10])
	count := 0
	subjects = turnSubject(h.key(), h.Incarnation, partToken+"."+nonce+".*")
	for part := range slices.Chunk(data, s.server.MaxPart) {
		partMessage := nats.NewMsg(partSubject(&h, nonce, count))
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

// partSubject returns the subject of part n of a turn whose partsHeader has nonce.
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
	size, step := 0, firstTurns
	limit = max(limit, 1)
	for next > 0 && len(turns) <= limit {
		// One turn more than asked for shows whether there are older ones.
		n := min(step, next, limit+1-len(turns))
		found, err := s.readTurns(ctx, &h, next-n+1, next)
		if err != nil {
			return page, err
		}
		for _, t := range slices.Backward(found) {
			isTooLarge := len(turns) > 0 && size+len(t.Data) > maxBytes
			if isTooLarge || len(turns) == limit {
				page.Before = turns[len(turns)-1].Number
				slices.Reverse(turns)
				page.Turns = turns
				return page, nil
			}
			turns = append(turns, t)
			size += len(t.Data)
		}
		if missing := n - len(found); missing > maxHole { // the stream has dropped the older turns
			break
		}
		next -= n
		// Read as many turns of the average size as the rest of maxBytes has space for.
		average := size/max(len(turns), 1) + 1
		step = min(max((maxBytes-size)/average+1, firstTurns), maxTurns)
	}

	slices.Reverse(turns)
	page.Turns = turns
	return page, nil
}

// readTurns returns the turns with the numbers low to high that are kept, the oldest first. It reads from high down,
// and stops where more than maxHole turns in a row are missing: a full stream has dropped those before them too.
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
		turn, err := s.readTurn(ctx, h, found, subject)
		if errors.Is(err, event.ErrGone) {
			missing++
			continue
		}
		if err != nil {
			return nil, err
		}
		missing = 0
		turn.Number = int64(low + n)
		turns = append(turns, turn)
	}

	slices.Reverse(turns)
	return turns, nil
}

// readTurn returns the turn on a subject, without its number, from its message in found, which ReadEach returned. It
// asks the leader of a cluster if the message is not there. It returns event.ErrGone if the turn, or a part of it, is
// not kept.
func (s *Store) readTurn(ctx context.Context, h *head, found map[string]Message, subject string) (event.Turn, error) {
	message, ok := found[subject]
	if !ok {
		if !s.server.Clustered {
			return event.Turn{}, event.ErrGone
		}
		last, err := s.server.ReadLast(ctx, TurnsStream, subject)
		if err != nil {
			return event.Turn{}, err
		}
		if last == nil {
			return event.Turn{}, event.ErrGone
		}
		message = *last
	}
	data, err := s.readData(ctx, h, message)
	return event.Turn{Run: message.Header.Get(runHeader), Time: message.Time, Data: data}, err
}

// readData returns the data of a turn, joined from its parts if the message refers to parts. It returns event.ErrGone
// if a part is no longer kept.
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
		part, ok := found[subject]
		if !ok { // the server that answered may lag behind
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
	return data, nil
}
