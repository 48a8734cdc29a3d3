package jetstream

import (
	"context"
	"encoding/base64"
	"fmt"

	"github.com/nats-io/nats.go"

	"answerd/internal/event"
)

// AddNote implements event.Journal. A note is a message among the run's events, so that it
// has its place among them and expects what an event expects.
func (l *Log) AddNote(ctx context.Context, run string, note []byte) error {
	if len(note) > event.MaxNote {
		return event.ErrTooLarge
	}
	w, err := l.writing(ctx, run)
	if err != nil {
		return err
	}
	return w.note(ctx, note)
}

func (w *writer) note(ctx context.Context, note []byte) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.openLocked(); err != nil {
		return err
	}
	if err := w.flushLocked(ctx); err != nil {
		return err
	}
	return w.silentLocked(ctx, noted, nats.Header{noteHeader: {base64.StdEncoding.EncodeToString(note)}})
}

// Notes implements event.Journal.
func (l *Log) Notes(ctx context.Context, id string) (notes []event.Note, err error) {
	r, err := l.run(id)
	if err != nil {
		return nil, err
	}
	if _, err := l.Run(ctx, id); err != nil {
		return nil, err
	}
	for from := uint64(1); ; {
		found, more, err := l.batch(ctx, runsName, query{Next: r.subject(evKind), From: from})
		if err != nil {
			return nil, err
		}
		for _, m := range found {
			from = m.at + 1
			by, err := parseWriter(m.header.Get(writerHeader))
			if err != nil {
				return nil, err
			}
			if by.kind != noted {
				continue
			}
			data, err := base64.StdEncoding.DecodeString(m.header.Get(noteHeader))
			if err != nil {
				return nil, fmt.Errorf("decode a note: %w", err)
			}
			notes = append(notes, event.Note{After: by.seq, Data: data})
		}
		if !more || len(found) == 0 {
			return notes, nil
		}
	}
}
