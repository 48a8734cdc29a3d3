package jetstream

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"time"

	"answerd/internal/event"
	"answerd/internal/event/jetstream/batch"
)

// errLagging says that a server of the cluster lacks messages that the run has.
var errLagging = errors.New("a server lacks messages of the run")

// readHistory reads a page of events after seq from the stream. It is used for events that are older than the tail. It
// returns event.ErrGone if the event after seq is no longer kept.
//
// A server of a cluster that lags behind, or has just become the leader, may lack messages that the run has. So in a
// cluster, events count as gone only if the run was deleted or the stream may have dropped events. Otherwise
// readHistory tries again for up to readRetryFor, and then returns event.ErrUnavailable.
func (r *run) readHistory(ctx context.Context, seq int64) (event.Page, error) {
	until := time.Now().Add(readRetryFor)
	for {
		page, err := r.readPage(ctx, seq)
		if !errors.Is(err, event.ErrGone) || !r.log.clustered {
			return page, err
		}
		mayBeGone, err := r.mayBeGone(ctx)
		switch {
		case err != nil:
			return page, err
		case mayBeGone:
			return page, event.ErrGone
		}
		if !r.log.pause(ctx, lagInterval) || time.Now().After(until) {
			return page, unavailableError("read the log", errLagging)
		}
	}
}

// mayBeGone reports whether the run was deleted, or the stream may have dropped some of its events. It reads the run's
// record again.
func (r *run) mayBeGone(ctx context.Context) (bool, error) {
	r.mu.Lock()
	r.stale = true
	r.mu.Unlock()
	if err := r.refreshCache(ctx); err != nil {
		return false, err
	}
	r.mu.Lock()
	rec, isGone := r.record, r.isGoneLocked()
	r.mu.Unlock()
	if isGone {
		return true, nil
	}
	return r.log.mayHaveDropped(ctx, rec)
}

// readPage makes one attempt to read the page for readHistory. The page has at least one event. readPage returns
// event.ErrGone if the event after seq is missing, or if there is a gap between the events that it finds.
func (r *run) readPage(ctx context.Context, seq int64) (event.Page, error) {
	pos, err := r.findPos(ctx, seq)
	if err != nil {
		return event.Page{}, err
	}
	var page event.Page
	for len(page.Events) == 0 {
		found, more, err := r.log.readNext(ctx, runsName, runSubject(r.id, eventToken), pos+1, maxBatch)
		if err != nil {
			return event.Page{}, err
		}
		for _, m := range found {
			pos = m.Pos
			events, info, err := r.log.readEvents(ctx, m)
			if err == nil && !info.isControl() {
				page.Events, err = appendAfter(page.Events, seq, events)
			}
			if err != nil {
				return event.Page{}, err
			}
		}
		if !more && len(page.Events) == 0 {
			return event.Page{}, event.ErrGone // the stream has dropped the events during the read
		}
	}
	last := page.Events[len(page.Events)-1]
	page.Ended = last.Terminal()
	r.mu.Lock()
	r.addPositionLocked(last.Seq, pos)
	r.mu.Unlock()
	return page, nil
}

// appendAfter appends the events of following whose number is above seq to events, which start right after seq. It
// returns event.ErrGone if that would leave a gap.
func appendAfter(events []event.Event, seq int64, following []event.Event) ([]event.Event, error) {
	for _, e := range following {
		next := seq + int64(len(events)) + 1
		switch {
		case e.Seq == next:
			events = append(events, e)
		case e.Seq > seq: // findPos returns a pos that may be before seq, so earlier events are skipped
			return nil, event.ErrGone
		}
	}
	return events, nil
}

// findPos returns the stream position of event number seq, or of an event shortly before it, usually fewer than
// maxBatch/2 events earlier. It returns 0 if the run's oldest message has events after seq, and event.ErrGone if the
// stream no longer has the event after seq.
//
// The number of an event does not determine its stream position, because all runs share the stream. But the messages of
// one run are spread roughly evenly, so an interpolation search between two known positions needs few reads.
func (r *run) findPos(ctx context.Context, seq int64) (uint64, error) {
	low, high := r.positionsAround(seq)
	if low.pos == 0 {
		oldest, first, err := r.firstMessageFrom(ctx, 1)
		switch {
		case err != nil:
			return 0, err
		case first > seq+1:
			return 0, event.ErrGone
		case oldest.seq > seq:
			return 0, nil
		}
		low = oldest
	}
	for step := 0; seq-low.seq > maxBatch/2 && high.pos-low.pos > 1; step++ {
		fraction := 0.5 // every second step bisects, which bounds the number of steps for any distribution
		if step%2 == 0 {
			// Aim 5 % too low: a guess shortly before the event ends the search, while a guess after it does not.
			fraction = 0.95 * float64(seq-low.seq) / float64(high.seq-low.seq+1)
		}
		guess := low.pos + uint64(float64(high.pos-low.pos)*fraction)
		guess = min(max(guess, low.pos+1), high.pos-1)
		found, _, err := r.firstMessageFrom(ctx, guess)
		if err != nil {
			return 0, err
		}
		if found.seq <= seq {
			low = found
		} else {
			high = position{seq: found.seq, pos: guess}
		}
	}
	return low.pos, nil
}

// position relates a run's events to the stream: the events with numbers up to seq are at pos or earlier.
type position struct {
	seq int64
	pos uint64
}

// addPositionLocked adds a position to r.positions, which findPos uses. If r.positions already has maxPositions
// entries, it drops the oldest. The caller holds r.mu.
func (r *run) addPositionLocked(seq int64, pos uint64) {
	if len(r.positions) == maxPositions {
		r.positions = append(r.positions[:0], r.positions[1:]...)
	}
	r.positions = append(r.positions, position{seq: seq, pos: pos})
}

// positionsAround returns the closest known positions around event number seq: low at or before the event, and high
// after it. low is zero if no earlier position is known.
func (r *run) positionsAround(seq int64) (low, high position) {
	r.mu.Lock()
	defer r.mu.Unlock()
	high = position{seq: r.last.Seq, pos: r.lastPos}
	if len(r.tail) > 0 {
		high = position{seq: r.tail[0].Seq, pos: r.tailPos[0]}
	}
	for _, p := range r.positions {
		if p.seq <= seq && p.seq > low.seq {
			low = p
		} else if p.seq > seq && p.seq < high.seq {
			high = p
		}
	}
	return low, high
}

// firstMessageFrom finds the run's first message at pos or later. at is the position of the last event in that message,
// and first is the number of the first event in it. It returns event.ErrGone if no such message exists.
func (r *run) firstMessageFrom(ctx context.Context, pos uint64) (at position, first int64, err error) {
	found, _, err := r.log.readNext(ctx, runsName, runSubject(r.id, eventToken), pos, 1)
	if err != nil {
		return position{}, 0, err
	}
	if len(found) == 0 {
		return position{}, 0, event.ErrGone
	}
	info, err := parseMessageInfo(found[0].Header)
	if err != nil {
		return position{}, 0, err
	}
	return position{seq: info.seq, pos: found[0].Pos}, info.first, nil
}

// Notes implements event.Journal. It reads until it has the last message of the run that this instance knows of, even
// if the answering server lags behind. If a process that takes the run over missed the note about a call, it would
// repeat the call.
func (l *Log) Notes(ctx context.Context, id string) (notes []event.Note, err error) {
	if _, err := l.Run(ctx, id); err != nil {
		return nil, err
	}
	r, err := l.getOrAddRun(id)
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	lastPos := r.lastPos
	r.mu.Unlock()
	for from := uint64(1); ; {
		found, more, err := l.readNext(ctx, runsName, runSubject(id, eventToken), from, maxBatch)
		if err != nil {
			return nil, err
		}
		for _, m := range found {
			from = m.Pos + 1
			added, err := l.readNotes(ctx, m)
			if err != nil {
				return nil, err
			}
			notes = append(notes, added...)
		}
		hasAll := !more && from > lastPos
		if hasAll || len(found) == 0 {
			return notes, nil
		}
	}
}

// readNotes returns the notes in a message, or nil if it has none.
func (l *Log) readNotes(ctx context.Context, msg message) ([]event.Note, error) {
	info, err := parseMessageInfo(msg.Header)
	switch {
	case err != nil:
		return nil, err
	case info.inBatch:
		payload, err := l.readPayload(ctx, msg)
		if err != nil {
			return nil, err
		}
		_, notes, err := batch.Split(payload, info.seq)
		return notes, err
	case info.kind != kindNote:
		return nil, nil
	}
	data, err := base64.StdEncoding.DecodeString(msg.Header.Get(noteHeader))
	if err != nil {
		return nil, fmt.Errorf("decode a note: %w", err)
	}
	return []event.Note{{After: info.seq, Data: data}}, nil
}
