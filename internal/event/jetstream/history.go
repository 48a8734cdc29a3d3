package jetstream

import (
	"context"
	"fmt"

	"answerd/internal/event"
)

// mark is an event's place in the stream: those up to seq are at at, or before it.
type mark struct {
	seq int64
	at  uint64
}

// maxMarks bounds the marks of a run.
const maxMarks = 64

func (r *run) markLocked(seq int64, at uint64) {
	if len(r.marks) == maxMarks {
		r.marks = append(r.marks[:0], r.marks[1:]...)
	}
	r.marks = append(r.marks, mark{seq, at})
}

// history reads events that are older than the tail.
func (r *run) history(ctx context.Context, seq int64) (event.Page, error) {
	from, err := r.locate(ctx, seq)
	if err != nil {
		return event.Page{}, err
	}
	var page event.Page
	for len(page.Events) == 0 {
		found, more, err := r.log.batch(ctx, runsName, query{Next: r.subject(evKind), From: from + 1})
		if err != nil {
			return page, err
		}
		for _, m := range found {
			from = m.at
			e, by, err := r.log.event(ctx, m)
			switch {
			case err != nil:
				return page, err
			case by.silent() || e.Seq <= seq:
			case e.Seq != seq+int64(len(page.Events))+1:
				return event.Page{}, event.ErrGone
			default:
				page.Events = append(page.Events, e)
			}
		}
		if !more && len(page.Events) == 0 {
			return event.Page{}, event.ErrGone // dropped while we read
		}
	}
	last := page.Events[len(page.Events)-1]
	page.Ended = last.Terminal()
	r.mu.Lock()
	r.markLocked(last.Seq, from)
	r.mu.Unlock()
	return page, nil
}

// locate finds a place in the stream that is not after the event that follows seq, and
// not far before it. Where that is isn't known from its number: the messages of all
// runs share one numbering. But a run's are spread about evenly.
func (r *run) locate(ctx context.Context, seq int64) (uint64, error) {
	r.mu.Lock()
	low, high := mark{0, 0}, mark{r.last.Seq, r.at}
	if len(r.tail) > 0 {
		high = mark{r.tail[0].Seq, r.tailAt[0]}
	}
	for _, m := range r.marks {
		if m.seq <= seq && m.seq > low.seq {
			low = m
		} else if m.seq > seq && m.seq < high.seq {
			high = m
		}
	}
	r.mu.Unlock()
	if low.at == 0 {
		first, err := r.probe(ctx, 1)
		if err != nil || first.seq > seq {
			if err == nil && first.seq > seq+1 {
				err = event.ErrGone
			}
			return 0, err
		}
		low = first
	}
	for step := 0; seq-low.seq > maxBatch/2 && high.at-low.at > 1; step++ {
		guess := low.at + (high.at-low.at)/2
		if step%2 == 0 { // by proportion; halving in between bounds the steps
			guess = low.at + uint64(float64(high.at-low.at)*float64(seq-low.seq)/float64(high.seq-low.seq+1)*0.95)
		}
		guess = min(max(guess, low.at+1), high.at-1)
		found, err := r.probe(ctx, guess)
		if err != nil {
			return 0, err
		}
		if found.seq <= seq {
			low = found
		} else {
			high = mark{found.seq, guess}
		}
	}
	return low.at, nil
}

// probe is the first message of the run that is at a place of the stream or after it.
func (r *run) probe(ctx context.Context, at uint64) (mark, error) {
	found, _, err := r.log.batch(ctx, runsName, query{Next: r.subject(evKind), From: at, Batch: 1})
	if err != nil {
		return mark{}, err
	}
	if len(found) == 0 {
		return mark{}, event.ErrGone
	}
	by, err := parseWriter(found[0].header.Get(writerHeader))
	if err != nil {
		return mark{}, fmt.Errorf("read the log: %w", err)
	}
	return mark{by.seq, found[0].at}, nil
}
