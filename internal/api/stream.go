package api

import (
	"context"
	"maps"
	"net/http"
	"sync"
	"time"

	"answerd/internal/api/native"
	"answerd/internal/event"
	"answerd/internal/sse"
)

// buffers are what streams gather in. One that waits holds none: that was 5 kB of each of
// thousands. Those that a large event has made larger than usual are not kept. Without the
// pool a streamed answer of 1,000 tokens that come at once took 25 % more CPU time, and with
// a buffer of 16 kB that each stream keeps 13 % more.
var buffers = sync.Pool{New: func() any { return new([]byte) }}

// stream is one reader of a run: a position, and the connection that it feeds.
type stream struct {
	h   *Handler
	w   http.ResponseWriter
	rc  *http.ResponseController
	run string
	pos int64
	buf []byte
	at  event.Body // what the event at pos says, if it was read here

	format format
}

// format is how the events of a run are told to one reader.
type format struct {
	header http.Header // besides that of every stream
	append func(buf []byte, e event.Event) []byte
	// expired tells that the caller's token has ended, and the stream with it: the run
	// goes on, and whoever comes with another token can go on at pos.
	expired func(run string, pos int64) []sse.Frame
	// ended reports whether the format has come to its own end. It is nil for one that
	// ends with the run, or where that comes to wait for a person.
	ended func() bool
}

// nativeFormat is the only one without a state: it can begin anywhere in a run.
var nativeFormat = format{
	append:  func(buf []byte, e event.Event) []byte { return native.AppendFrame(buf, e) },
	expired: func(run string, pos int64) []sse.Frame { return []sse.Frame{native.TokenExpired(run, pos)} },
}

// encoder writes the events of one stream in one API format, and keeps the state of that stream.
type encoder interface {
	Encode(event.Event) []sse.Frame
	// TokenExpired tells that the stream ends here because the caller's token does.
	TokenExpired() []sse.Frame
}

// framesOf returns the format of an encoder, whose stream must begin with the run.
func framesOf(enc encoder) format {
	return format{
		append:  func(buf []byte, e event.Event) []byte { return appendFrames(buf, enc.Encode(e)) },
		expired: func(string, int64) []sse.Frame { return enc.TokenExpired() },
	}
}

func appendFrames(buf []byte, frames []sse.Frame) []byte {
	for _, f := range frames {
		buf = f.AppendTo(buf)
	}
	return buf
}

// atOnce is what a reader waits for who need not wait.
var atOnce = func() <-chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()

// follow writes the events of a run after pos as Server-Sent Events until the run
// ends, comes to wait for a person, or the reader leaves. It is the only stream loop
// there is: every end of a stream stands in its one select. The run is known to exist and
// pos to be kept.
//
// A stream that cannot go on is cut, never ended: a reader that saw no terminal
// event knows that there is more. whole says that this one was not. One whose caller's
// token has ended says that, in the words of its format.
func (h *Handler) follow(w http.ResponseWriter, r *http.Request, run string, pos int64, f format) (whole bool) {
	leave, full := h.crowd.read(run)
	if full != nil {
		h.writeProblem(w, r, full)
		return false
	}
	defer leave()
	watch := h.Agent.OpenReader(run)
	defer watch.Close()
	s := &stream{h: h, w: w, rc: http.NewResponseController(w), run: run, pos: pos, format: f}
	header := w.Header()
	header.Set("Content-Type", "text/event-stream")
	header.Set("Cache-Control", "no-store, no-transform")
	header.Set("X-Accel-Buffering", "no") // nginx would collect the events
	maps.Copy(header, f.header)
	w.WriteHeader(http.StatusOK)
	if s.rc.Flush() != nil {
		return false
	}
	expiry, stop := tokenEnd(r)
	defer stop()
	heartbeat := time.NewTicker(h.Heartbeat)
	defer heartbeat.Stop()
	leaving, left := h.Agent.HandingOver(), false
	for {
		from := s.pos
		page, there := s.pass(r.Context())
		if !there {
			return false
		}
		if page.Ended || s.over(r.Context(), from) {
			// What was written last may have gone to a connection that was cut.
			return r.Context().Err() == nil
		}
		if s.pos > from {
			heartbeat.Reset(h.Heartbeat)
		}
		more := page.More
		switch {
		case len(page.Events) > 0:
			more = atOnce // a run that never stops talking must not keep the other ends away
		case left:
			panic(http.ErrAbortHandler) // the run goes on elsewhere
		}
		select {
		case <-more:
		case <-heartbeat.C:
			s.buf = sse.AppendComment(s.buf, "ping")
			if !s.flush() {
				return false
			}
		case <-expiry:
			s.buf = appendFrames(s.buf, f.expired(run, s.pos))
			s.flush()
			return false
		case <-leaving:
			leaving, left = nil, true // what came until now is still sent
		case <-r.Context().Done():
			return false
		}
	}
}

// pass passes on what there is after the position, all of it in one write as long as it is
// not too much, and returns the page that was read last. false means that the reader is gone.
func (s *stream) pass(ctx context.Context) (page event.Page, there bool) {
	buffer := buffers.Get().(*[]byte)
	s.buf = (*buffer)[:0]
	defer func() {
		if cap(s.buf) <= 2*maxWrite {
			*buffer = s.buf
			buffers.Put(buffer)
		}
		s.buf = nil
	}()
	for written := false; ; {
		page, err := s.h.Log.After(ctx, s.run, s.pos)
		if err != nil {
			panic(http.ErrAbortHandler)
		}
		for _, e := range page.Events {
			s.buf = s.format.append(s.buf, e)
			s.pos, s.at = e.Seq, e.Body
			if len(s.buf) >= maxWrite {
				if !s.flush() {
					return page, false
				}
				written = true
			}
		}
		if !page.HasNext || written {
			return page, len(s.buf) == 0 || s.flush()
		}
	}
}

// over reports whether the stream ends with what was just read, from that position on,
// before the run does.
func (s *stream) over(ctx context.Context, from int64) bool {
	if s.format.ended != nil {
		return s.format.ended()
	}
	return s.pos > from && s.atSuspension(ctx)
}

// atSuspension reports whether the reader was brought to the newest event of the run
// and that says that the run waits for a person. Who comes back to that very position
// stays; a suspension that is past stops nobody.
func (s *stream) atSuspension(ctx context.Context) bool {
	if _, ok := s.at.(event.Suspended); !ok {
		return false
	}
	run, err := s.h.Log.Run(ctx, s.run) // a page need not be all that there is
	return err == nil && run.Last.Seq == s.pos
}

// flush writes what was gathered. false means that the reader is gone: one that takes
// nothing for too long is let go, and can come back to its position.
func (s *stream) flush() bool {
	if _, err := s.w.Write(s.buf); err != nil {
		return false
	}
	s.buf = s.buf[:0]
	return s.rc.Flush() == nil
}

// tokenEnd fires when the caller's token ends, which is when it would no longer be taken:
// what it allowed, it allows no longer.
func tokenEnd(r *http.Request) (<-chan time.Time, func()) {
	end := identity(r).Until()
	if end.IsZero() {
		return nil, func() {}
	}
	t := time.NewTimer(time.Until(end))
	return t.C, func() { t.Stop() }
}
