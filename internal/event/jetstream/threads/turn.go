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
// the newest head until it has replaced the head that it started from. The first attempt takes the head from the index.
func (s *Store) EndTurn(ctx context.Context, owner event.Owner, id, run string, data []byte) error {
	if len(data) > event.MaxTurn {
		return event.ErrTooLarge
	}
	storedIn := "" // the incarnation in which an earlier attempt stored the turn; "" if none did
	h, cached := s.cachedHead(owner, id)
	for ; ; cached = false {
		if !cached {
			var err error
			if h, err = s.readHead(ctx, owner, id); err != nil {
				return err
			}
		}
		if storedIn != "" && (!h.exists() || h.Incarnation != storedIn) {
			// The thread was deleted, and the turn may have been stored after the thread's turns were removed.
			_ = s.removeTurns(ctx, keyOf(owner, id), storedIn) // after an error, Expire repeats it
			return event.ErrNotFound
		}
		isUnfinished := h.exists() && slices.Contains(h.Unfinished, run)
		changesHead := isUnfinished && (data != nil || h.Active == run)
		switch {
		case h.exists() && slices.Contains(h.Ended, run): // this is a second call
			return nil
		case changesHead: // store the turn, or end the run, below
		case cached: // decide with the newest head, because the index may be out of date
			continue
		case isUnfinished: // data is nil, and the run is no longer active
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
// number, storeTurn keeps that turn. It returns the run and the size of the turn that now has the number.
func (s *Store) storeTurn(ctx context.Context, h head, run string, data []byte) (storedRun string, size int, err error) {
	for {
		msg := nats.NewMsg(h.turnSubject(h.Turns + 1))
		msg.Header.Set(runHeader, run)
		msg.Header.Set(writerHeader, rand.Text())
		parts, err := s.setData(ctx, h, msg, data)
		notStored := err != nil // msg is certainly not stored, so nothing refers to its parts
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
		// The stream has a turn with that number, unless it was removed since then. If it was, try again.
		existing, readErr := s.server.ReadLast(ctx, TurnsStream, msg.Subject)
		if readErr != nil {
			return "", 0, readErr
		}
		if existing == nil {
			continue
		}
		stored, readErr := s.readData(ctx, &h, *existing)
		if errors.Is(readErr, event.ErrUnavailable) {
			return "", 0, readErr
		}
		return existing.Header.Get(runHeader), len(stored), nil // the size is 0 if the turn's parts are missing
	}
}

// setData stores a turn's data in msg. If the data is too large for one message, setData publishes it in parts and
// makes msg refer to them. It returns a subject with a wildcard that matches the parts, or "" if the data is in msg. It
// returns the subject even with an error, because some of the parts may be stored.
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

// partSubject returns the subject of part n of a turn. nonce is from the turn's partsHeader.
func partSubject(h *head, nonce string, n int) string {
	return turnSubject(h.key(), h.Incarnation, partToken+"."+nonce+"."+strconv.Itoa(n))
}

// Turns implements event.Threads. It reads the newest turns first, several at a time, until the page is full or older
// turns are no longer kept.
func (s *Store) Turns(ctx context.Context, owner event.Owner, id string, before int64, limit, maxBytes int) (page event.TurnPage, err error) {
	h, err := s.findThread(ctx, owner, id)
	if err != nil {
		return page, err
	}
	next := h.Turns // the newest turn that was not read yet
	if before > 0 {
		next = int(min(int64(next), before-1))
	}

	var turns []event.Turn // newest first
	size, step := 0, firstTurns
	limit = max(limit, 1)
	for next > 0 && len(turns) <= limit {
		// Read one turn more than limit, to find out whether older turns exist.
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
		// Read as many turns of average size as the rest of maxBytes can hold.
		average := size/max(len(turns), 1) + 1
		step = min(max((maxBytes-size)/average+1, firstTurns), maxTurns)
	}

	slices.Reverse(turns)
	page.Turns = turns
	return page, nil
}

// readTurns returns the turns from number low to number high that are still kept, oldest first. It starts at high, and
// stops if more than maxHole consecutive turns are missing, because a full stream has then dropped all earlier turns
// too.
func (s *Store) readTurns(ctx context.Context, h *head, low, high int) ([]event.Turn, error) {
	var subjects []string
	for n := low; n <= high; n++ {
		subjects = append(subjects, h.turnSubject(n))
	}

	found, err := s.server.ReadEach(ctx, TurnsStream, subjects)
	if err != nil {
		return nil, err
	}

	var turns []event.Turn // newest first
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

// readTurn returns the turn on a subject, with its Number unset. It takes the message from found, the result of
// ReadEach. In a cluster it asks the leader if the message is missing there. It returns event.ErrGone if the turn, or a
// part of it, is no longer kept.
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
