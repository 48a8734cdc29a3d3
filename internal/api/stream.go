package api

import (
	"context"
	"errors"
	"maps"
	"net/http"
	"sync"
	"time"

	"answerd/internal/api/native"
	"answerd/internal/event"
	"answerd/internal/sse"
)

// buffers holds the write buffers of streams, so that a stream has one only while it writes. A
// buffer per stream cost 5 kB for each of thousands of waiting streams. Buffers that grew for a
// large event are not put back. Measured for a streamed answer of 1,000 tokens that arrive at
// once: without the pool it took 25 % more CPU time, and with a buffer of 16 kB per stream 13 %
// more.
var buffers = sync.Pool{New: func() any { return new([]byte) }}

// stream is one reader of a run: a position in the run, and the connection to write to.
type stream struct {
	h   *Handler
	w   http.ResponseWriter
	rc  *http.ResponseController
	run string
	pos int64      // the sequence number of the event that was encoded last
	at  event.Body // that event, if this stream has read it
	buf []byte     // encoded and not yet written

	format streamFormat
}

// streamFormat says how a stream encodes the events of a run for one reader. append is called once for
// each event, in order, by the goroutine of the request.
type streamFormat struct {
	header http.Header // added to the header of every stream
	// append appends what an event adds to the stream, which may be nothing, and returns the longer buffer.
	append func(buf []byte, e event.Event) []byte
	// expired returns the frames that end the stream because the caller's token has expired. The
	// run continues, and a caller with another token can resume at pos.
	expired func(run string, pos int64) []sse.Frame
	// ended reports whether the format's stream has ended. It is nil if the stream ends with the
	// run or with the run's suspension.
	ended func() bool
}

// nativeFormat is the only format without state: its streams can begin anywhere in a run.
var nativeFormat = streamFormat{
	append:  func(buf []byte, e event.Event) []byte { return native.AppendFrame(buf, e) },
	expired: func(run string, pos int64) []sse.Frame { return []sse.Frame{native.TokenExpired(run, pos)} },
}

// encoder encodes the events of one stream in one API format, and keeps the state of that stream.
type encoder interface {
	Encode(event.Event) []sse.Frame
	// TokenExpired returns the frames that end the stream because the caller's token has expired.
	TokenExpired() []sse.Frame
}

// formatOf returns the format of an encoder. Its stream must begin with the run's first event.
func formatOf(enc encoder) streamFormat {
	return streamFormat{
		append:  func(buf []byte, e event.Event) []byte { return appendFrames(buf, enc.Encode(e)) },
		expired: func(string, int64) []sse.Frame { return enc.TokenExpired() },
	}
}

// appendFrames appends frames to buf as they are sent.
func appendFrames(buf []byte, frames []sse.Frame) []byte {
	for _, f := range frames {
		buf = f.AppendTo(buf)
	}
	return buf
}

// closedChannel is always ready, so that a select continues at once.
var closedChannel = func() <-chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()

// streamRun writes the events of a run after pos as Server-Sent Events until the run ends or is
// suspended, the caller's token expires, or the caller leaves. The run must exist. If the log no longer has
// pos, for example because a repeated request attaches to a long run, streamRun answers 410. It is the only
// stream loop, for all formats; its one select has every way in which a stream ends.
//
// The loop reads the log and then waits for page.More, which that read returned. It is closed when
// there is more to read, so an event that is appended between reading and waiting is not missed.
//
// streamRun reports whether the stream is complete. A stream that cannot continue is cut and not
// ended, so a reader that saw no terminal event knows that there is more.
//
// A reader that is slower than the run costs nothing but its position: the loop reads the next page only
// when the connection has taken the last one, and what is not read yet stays in the log. A reader that
// takes nothing at all is cut by the deadline of the write (deadlineWriter).
//
// While runs are handed over to other processes, the loop reads once more after the signal, because the
// run may have ended just before it. Then it cuts the stream, and the client resumes at another process
// with Last-Event-ID. A stream that ends cleanly could look complete (recoverPanic), and an EventSource
// reconnects in either case.
func (h *Handler) streamRun(w http.ResponseWriter, r *http.Request, run string, pos int64, format streamFormat) (complete bool) {
	// Report dropped events now: after the header, a stream can only be cut.
	if _, err := h.Log.After(r.Context(), run, pos); errors.Is(err, event.ErrGone) {
		h.writeProblem(w, r, err)
		return false
	}
	release, refused := h.limiter.acquireReader(run)
	if refused != nil {
		h.writeProblem(w, r, refused)
		return false
	}
	defer release()
	reader := h.Agent.OpenReader(run)
	defer reader.Close()
	s := &stream{h: h, w: w, rc: http.NewResponseController(w), run: run, pos: pos, format: format}
	if !s.writeStreamHeader() {
		return false
	}
	expiry, stopExpiry := tokenExpiry(r)
	defer stopExpiry()
	heartbeat := time.NewTicker(h.Heartbeat)
	defer heartbeat.Stop()

	handingOver, handedOver := h.Agent.HandingOver(), false // this process no longer executes runs
	for {
		from := s.pos
		page, ok := s.writeNewEvents(r.Context())
		if !ok {
			return false
		}
		if page.Ended || s.hasEnded(r.Context(), from) {
			// The last write may have gone to a connection that is already cut.
			return r.Context().Err() == nil
		}
		if s.pos > from {
			heartbeat.Reset(h.Heartbeat)
		}
		more := page.More
		switch {
		case len(page.Events) > 0:
			more = closedChannel // read again, and let the other cases of the select run between
		case handedOver:
			panic(http.ErrAbortHandler) // cut the stream: another process continues the run
		}
		select {
		case <-more:
		case <-heartbeat.C:
			s.buf = sse.AppendComment(s.buf, "ping")
			if !s.flushBuffer() {
				return false
			}
		case <-expiry:
			s.buf = appendFrames(s.buf, format.expired(run, s.pos))
			s.flushBuffer()
			return false
		case <-handingOver:
			handingOver, handedOver = nil, true // read once more and send what the log has by now
		case <-r.Context().Done():
			return false
		}
	}
}

// writeStreamHeader sends the header of the response at once, so that the client knows that its
// stream is open. It returns false if the caller has left.
func (s *stream) writeStreamHeader() bool {
	header := s.w.Header()
	header.Set("Content-Type", "text/event-stream")
	header.Set("Cache-Control", "no-store, no-transform")
	header.Set("X-Accel-Buffering", "no") // nginx would buffer the events
	maps.Copy(header, s.format.header)
	s.w.WriteHeader(http.StatusOK)
	return s.rc.Flush() == nil
}

// writeNewEvents writes the events after the position, and returns the page that it read last. It
// collects pages into one write until that has maxWrite bytes. ok is false if the caller has left.
func (s *stream) writeNewEvents(ctx context.Context) (page event.Page, ok bool) {
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
			// The header was sent, so the only way to report an error is to cut the stream.
			panic(http.ErrAbortHandler)
		}
		for _, e := range page.Events {
			s.buf = s.format.append(s.buf, e)
			s.pos, s.at = e.Seq, e.Body
			if len(s.buf) >= maxWrite {
				if !s.flushBuffer() {
					return page, false
				}
				written = true
			}
		}
		if !page.HasNext || written {
			return page, len(s.buf) == 0 || s.flushBuffer()
		}
	}
}

// hasEnded reports whether the stream ends before the run does, because of the events that were
// written after the position from.
func (s *stream) hasEnded(ctx context.Context, from int64) bool {
	if s.format.ended != nil {
		return s.format.ended()
	}
	return s.pos > from && s.atSuspension(ctx)
}

// atSuspension reports whether the run is suspended at the position. A suspension that is over
// does not end the stream, and a reader that resumes exactly at the suspension stays connected.
func (s *stream) atSuspension(ctx context.Context) bool {
	if _, ok := s.at.(event.Suspended); !ok {
		return false
	}
	run, err := s.h.Log.Run(ctx, s.run) // a page need not have all events
	return err == nil && run.Last.Seq == s.pos
}

// flushBuffer writes the buffer to the connection. It returns false if the caller has left or has
// not accepted the bytes before the write deadline; they can resume at the position.
func (s *stream) flushBuffer() bool {
	if _, err := s.w.Write(s.buf); err != nil {
		return false
	}
	s.buf = s.buf[:0]
	return s.rc.Flush() == nil
}

// tokenExpiry returns a channel that receives when the caller's token expires, and a function that
// releases its timer. The channel is nil for a token that does not expire.
func tokenExpiry(r *http.Request) (<-chan time.Time, func()) {
	end := identity(r).Until()
	if end.IsZero() {
		return nil, func() {}
	}
	t := time.NewTimer(time.Until(end))
	return t.C, func() { t.Stop() }
}
