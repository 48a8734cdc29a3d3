package api

import (
	"context"
	"net/http"

	"answerd/internal/event"
	"answerd/internal/sse"
)

// listener is one reader of a telling. Whoever comes late, or is too slow, encodes for
// itself until it stands with the others. Each event goes through an encoder of its own at
// most once: also a reader that is left behind again and again costs no more than one that
// shares nothing.
type listener struct {
	*telling
	log event.Log
	ctx context.Context
	run string

	own  encoder // nil until it is needed
	seen int64   // the newest event that went through own
}

func (l *listener) append(buf []byte, e event.Event) []byte {
	if told, ok := l.tell(buf, e); ok {
		return told
	}
	enc := l.at(e.Seq - 1)
	l.seen = e.Seq
	return appendFrames(buf, enc.Encode(e))
}

func (l *listener) expired(_ string, pos int64) []sse.Frame {
	if told, ok := l.telling.expired(pos); ok {
		return told
	}
	return l.at(pos).TokenExpired()
}

// at is the reader's own encoder after event pos. What it has not seen on the way there is
// read again; where that is no longer kept, the stream is cut as any that cannot go on.
func (l *listener) at(pos int64) encoder {
	if l.own == nil {
		l.own = l.begin()
	}
	for l.seen < pos {
		page, err := l.log.After(l.ctx, l.run, l.seen)
		if err != nil || len(page.Events) == 0 {
			panic(http.ErrAbortHandler)
		}
		for _, e := range page.Events[:min(int64(len(page.Events)), pos-l.seen)] {
			l.own.Encode(e)
			l.seen = e.Seq
		}
	}
	return l.own
}

// shared is the format of a face's encoder for whoever reads the run from its first event
// on. leave must be called when the stream has ended.
func shared[H any, E encoder](h *Handler, r *http.Request, run string, header H, begin func(H) E) (f format, leave func()) {
	t, leave := h.tellings.join(header, func() encoder { return begin(header) })
	l := &listener{telling: t, log: h.Log, ctx: r.Context(), run: run}
	return format{append: l.append, expired: l.expired}, leave
}
