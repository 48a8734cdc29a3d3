package jetstream

import (
	"cmp"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"time"

	"answerd/internal/event"
	"answerd/internal/event/jetstream/batch"
)

// errLagging is the cause if a server of a cluster lacks messages of a run.
var errLagging = errors.New("a server lacks messages of the run")

// readHistory reads events after seq that are older than the tail. It returns ErrGone if
// they are no longer all kept.
//
// A server of a cluster that lags behind, or has just become the leader, may lack messages that the run
// has. So in a cluster events are gone only if the stream may have dropped them; otherwise readHistory reads
// again, and returns ErrUnavailable if they stay missing.
func (r *run) readHistory(ctx context.Context, seq int64) (event.Page, error) {
	until := time.Now().Add(readRetryFor)
	for {
		page, err := r.readPage(ctx, seq)
		if !errors.Is(err, event.ErrGone) || !r.log.clustered {
			return page, err
		}
		r.mu.Lock()
		r.stale = true // or the run was deleted meanwhile
		r.mu.Unlock()
		if err := r.refreshCache(ctx); err != nil {
			return page, err
		}
		r.mu.Lock()
		rec, gone := r.record, r.isGoneLocked()
		r.mu.Unlock()
		if gone {
			return page, event.ErrGone
		}
		if dropped, err := r.log.mayHaveDropped(ctx, rec); err != nil || dropped {
			return page, cmp.Or(err, event.ErrGone)
		}
		select {
		case <-time.After(lagInterval):
		case <-ctx.Done():
		}
		if ctx.Err() != nil || time.Now().After(until) {
			return page, unavailableError("read the log", errLagging)
		}
	}
}

// readPage acts like readHistory, but reads once.
func (r *run) readPage(ctx context.Context, seq int64) (event.Page, error) {
	from, err := r.findPos(ctx, seq)
	if err != nil {
		return event.Page{}, err
	}

	var page event.Page
	for len(page.Events) == 0 {
		found, more, err := r.log.readNext(ctx, runsName, runSubject(r.id, eventToken), from+1, maxBatch)
		if err != nil {
			return page, err
		}
		for _, m := range found {
			from = m.pos
			events, by, err := r.log.readEvents(ctx, m)
			if err != nil {
				return page, err
			}
			for _, e := range events {
				if by.isControl() || e.Seq <= seq {
					continue
				}
				if e.Seq != seq+int64(len(page.Events))+1 {
					return event.Page{}, event.ErrGone
				}
				page.Events = append(page.Events, e)
			}
		}
		if !more && len(page.Events) == 0 {
			return event.Page{}, event.ErrGone // the stream dropped them during the read
		}
	}

	last := page.Events[len(page.Events)-1]
	page.Ended = last.Terminal()
	r.mu.Lock()
	r.addPositionLocked(last.Seq, from)
	r.mu.Unlock()
	return page, nil
}

// findPos returns a pos at or shortly before the event with number seq. The number of an event
// does not give its pos, because all runs share the stream's numbers. The messages of one run
// are spread about evenly, so an interpolation search between two known positions needs few
// reads.
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
		// Every second step bisects, which bounds the number of steps for any spread.
		guess := low.pos + (high.pos-low.pos)/2
		if step%2 == 0 {
			fraction := float64(seq-low.seq) / float64(high.seq-low.seq+1)
			guess = low.pos + uint64(float64(high.pos-low.pos)*fraction*0.95)
		}
		guess = min(max(guess, low.pos+1), high.pos-1)
		found, _, err := r.firstMessageFrom(ctx, guess)
		if err != nil {
			return 0, err
		}
		if found.seq <= seq {
			low = found
		} else {
			high = position{found.seq, guess}
		}
	}
	return low.pos, nil
}

// positionsAround returns the closest known positions at or before seq, and after it. If no
// earlier position is known, low is zero.
func (r *run) positionsAround(seq int64) (low, high position) {
	r.mu.Lock()
	defer r.mu.Unlock()
	high = position{r.last.Seq, r.head}
	if len(r.tail) > 0 {
		high = position{r.tail[0].Seq, r.tailPos[0]}
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

// firstMessageFrom returns the position of the run's first message at pos or after it, and the number of the
// first event in that message.
func (r *run) firstMessageFrom(ctx context.Context, pos uint64) (at position, first int64, err error) {
	found, _, err := r.log.readNext(ctx, runsName, runSubject(r.id, eventToken), pos, 1)
	if err != nil {
		return position{}, 0, err
	}
	if len(found) == 0 {
		return position{}, 0, event.ErrGone
	}
	by, err := parseWriterID(found[0].header)
	if err != nil {
		return position{}, 0, err
	}
	return position{by.seq, found[0].pos}, by.first, nil
}

// Notes implements event.Journal. It reads up to the run's last message that is known here, even if
// it gets only a part of them from a server that lags behind. A process that takes the run over
// would repeat a call if it did not know the note about it.
func (l *Log) Notes(ctx context.Context, id string) (notes []event.Note, err error) {
	if _, err := l.Run(ctx, id); err != nil {
		return nil, err
	}
	r, err := l.getRun(id)
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	head := r.head
	r.mu.Unlock()
	for from := uint64(1); ; {
		found, more, err := l.readNext(ctx, runsName, runSubject(id, eventToken), from, maxBatch)
		if err != nil {
			return nil, err
		}
		for _, m := range found {
			from = m.pos + 1
			by, err := parseWriterID(m.header)
			if err != nil {
				return nil, err
			}
			of, err := l.readNotes(ctx, m, by)
			if err != nil {
				return nil, err
			}
			notes = append(notes, of...)
		}
		hasAll := !more && from > head
		if hasAll || len(found) == 0 {
			return notes, nil
		}
	}
}

// readNotes returns the notes in a message.
func (l *Log) readNotes(ctx context.Context, msg message, by writerID) ([]event.Note, error) {
	switch {
	case by.inBatch:
		payload, err := l.readPayload(ctx, msg)
		if err != nil {
			return nil, err
		}
		_, notes, err := batch.Split(payload, by.seq)
		return notes, err
	case by.kind != kindNote:
		return nil, nil
	}
	data, err := base64.StdEncoding.DecodeString(msg.header.Get(noteHeader))
	if err != nil {
		return nil, fmt.Errorf("decode a note: %w", err)
	}
	return []event.Note{{After: by.seq, Data: data}}, nil
}
