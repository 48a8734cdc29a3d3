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

// buffers holds write buffers for streams. A stream has a buffer only while it writes, because one buffer per stream
// cost 5 kB for each of thousands of waiting streams. Buffers that grew for a large event are not put back. Measured
// for a streamed answer of 1,000 tokens that arrive at once: without the pool the answer took 25 % more CPU time, and
// with a buffer of 16 kB per stream 13 % more.
var buffers = sync.Pool{New: func() any { return new([]byte) }}

// stream is one client's stream of a run: a position in the run, and the connection to write to.
type stream struct {
	h     *Handler
	w     http.ResponseWriter
	rc    *http.ResponseController
	run   string     // the run's id
	pos   int64      // the sequence number of the event that was encoded last
	atPos event.Body // the event at pos; nil until the stream has read an event
	buf   []byte     // frames that are encoded but not yet written

	format streamFormat
}

// streamFormat says how one stream encodes the events of its run. The request's goroutine calls append once for each
// event, in order.
type streamFormat struct {
	header http.Header // added to the header of every stream
	// append appends the event's frames to buf and returns the result. An event may have no frames.
	append func(buf []byte, e event.Event) []byte
	// expired returns the frames that end the stream because the caller's token has expired. The run continues, and a
	// client with a new token can resume at pos.
	expired func(run string, pos int64) []sse.Frame
	// ended reports whether the stream ends at the event that was encoded last, although the run may continue. If ended
	// is nil, the stream ends only when the run ends or is suspended.
	ended func() bool
}

// nativeFormat encodes each event by itself, so its streams can begin anywhere in a run.
var nativeFormat = streamFormat{
	append:  native.AppendFrame,
	expired: func(run string, pos int64) []sse.Frame { return []sse.Frame{native.TokenExpired(run, pos)} },
}

// encoder encodes the events of one stream in one API format. It keeps state between events, so each stream needs its
// own.
type encoder interface {
	Encode(event.Event) []sse.Frame
	// TokenExpired returns the frames that end the stream because the caller's token has expired.
	TokenExpired() []sse.Frame
}

// formatOf returns the stream format that encodes events with enc. It is for one stream, which must begin with the
// run's first event.
func formatOf(enc encoder) streamFormat {
	return streamFormat{
		append:  func(buf []byte, e event.Event) []byte { return appendFrames(buf, enc.Encode(e)) },
		expired: func(string, int64) []sse.Frame { return enc.TokenExpired() },
	}
}

// appendFrames appends frames to buf in their SSE encoding.
func appendFrames(buf []byte, frames []sse.Frame) []byte {
	for _, f := range frames {
		buf = f.AppendTo(buf)
	}
	return buf
}

// closedChannel is closed, so a select that waits for it continues at once.
var closedChannel = func() <-chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()

// streamRun writes the run's events after pos as Server-Sent Events until the run ends or is suspended, the caller's
// token expires, or the client disconnects. All formats use this loop. The run must exist. If the log no longer has the
// events after pos, for example because a repeated request attaches to a long run, streamRun answers 410. If the log
// cannot be read at the start, it answers 503.
//
// complete reports that the stream reached its end while the client was still connected. If a stream cannot continue,
// streamRun aborts it with panic(http.ErrAbortHandler) instead of ending it, so that a client without the terminal
// event knows that there is more.
//
// The loop reads a page of the log and then waits for page.More, which is closed when there is more to read. So it does
// not miss an event that is appended between reading and waiting.
//
// A client that is slower than the run costs nothing but its position: the loop reads the next page only when the
// connection has taken the last one, and the rest stays in the log. If a client takes nothing at all, the write
// deadline ends its stream (deadlineWriter).
//
// When this process hands its runs over to other processes (Agent.HandingOver), the loop reads once more, because the
// run may have ended just before. Then it aborts the stream, and the client resumes at another process with
// Last-Event-ID.
func (h *Handler) streamRun(w http.ResponseWriter, r *http.Request, run string, pos int64, format streamFormat) (complete bool) {
	release, ok := h.admitReader(w, r, run, pos)
	if !ok {
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

	handingOver := h.Agent.HandingOver() // set to nil when it is closed, so that it is handled once
	handedOver := false                  // this process no longer executes runs
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
		if len(page.Events) > 0 {
			more = closedChannel // read again at once, unless another case of the select is ready
		} else if handedOver {
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
			handingOver = nil
			handedOver = true // read once more and send what the log has by now
		case <-r.Context().Done():
			return false
		}
	}
}

// admitReader counts a reader of the run who needs the events after pos. If the log cannot be read or has dropped some
// of these events, or the run has too many readers, it answers with a problem and returns false. Otherwise call release
// when the stream has ended.
func (h *Handler) admitReader(w http.ResponseWriter, r *http.Request, run string, pos int64) (release func(), ok bool) {
	// Report errors of the log now: after the header, a stream can only be cut.
	if _, err := h.Log.After(r.Context(), run, pos); err != nil {
		if r.Method == http.MethodPost {
			forbidSecondRun(w, r)
		}
		h.writeProblem(w, r, err)
		return nil, false
	}
	release, refused := h.limiter.acquireReader(run)
	if refused != nil {
		h.writeProblem(w, r, refused)
		return nil, false
	}
	return release, true
}

// writeStreamHeader sends the response header at once, so that the client knows before the first event that its stream
// is open. It returns false if the client has disconnected.
func (s *stream) writeStreamHeader() bool {
	header := s.w.Header()
	header.Set("Content-Type", "text/event-stream")
	header.Set("Cache-Control", "no-store, no-transform")
	header.Set("X-Accel-Buffering", "no") // nginx would buffer the events
	maps.Copy(header, s.format.header)
	s.w.WriteHeader(http.StatusOK)
	return s.rc.Flush() == nil
}

// writeNewEvents writes the events after s.pos, advances s.pos, and returns the last page that it read. It collects
// pages until the log has no more events. After a page in which it had to write, because the buffer reached maxWrite
// bytes, it returns too, so that the caller can check for other work. ok is false if the client has disconnected. If
// the log cannot be read, it aborts the stream with a panic.
func (s *stream) writeNewEvents(ctx context.Context) (page event.Page, ok bool) {
	returnBuffer := s.borrowBuffer()
	defer returnBuffer()
	hasWritten := false
	for {
		page, err := s.h.Log.After(ctx, s.run, s.pos)
		if err != nil {
			// The header was sent, so the only way to report an error is to cut the stream.
			panic(http.ErrAbortHandler)
		}
		for _, e := range page.Events {
			s.buf = s.format.append(s.buf, e)
			s.pos = e.Seq
			s.atPos = e.Body
			if len(s.buf) < maxWrite {
				continue
			}
			if !s.flushBuffer() {
				return page, false
			}
			hasWritten = true
		}
		if !page.HasNext || hasWritten {
			isConnected := len(s.buf) == 0 || s.flushBuffer()
			return page, isConnected
		}
	}
}

// borrowBuffer sets s.buf to an empty buffer from the pool. returnBuffer sets s.buf to nil and puts the buffer back,
// unless it has grown large.
func (s *stream) borrowBuffer() (returnBuffer func()) {
	buffer := buffers.Get().(*[]byte)
	s.buf = (*buffer)[:0]
	return func() {
		if cap(s.buf) <= 2*maxWrite {
			*buffer = s.buf
			buffers.Put(buffer)
		}
		s.buf = nil
	}
}

// hasEnded reports whether the stream ends although the run has not. The format's ended function decides, if it has
// one. Otherwise a suspension ends the stream if it was written after the position from: a client that resumes at a
// suspension stays connected, because it waits for the run to continue.
func (s *stream) hasEnded(ctx context.Context, from int64) bool {
	if s.format.ended != nil {
		return s.format.ended()
	}
	return s.pos > from && s.atSuspension(ctx)
}

// atSuspension reports whether the event at s.pos suspends the run and is still its newest event. It returns false if
// the run has continued since, or cannot be read.
func (s *stream) atSuspension(ctx context.Context) bool {
	if _, ok := s.atPos.(event.Suspended); !ok {
		return false
	}
	run, err := s.h.Log.Run(ctx, s.run) // the log may have events after the page that was read last
	return err == nil && run.Last.Seq == s.pos
}

// flushBuffer writes s.buf to the connection and empties it. It returns false if the client has disconnected, or has
// not accepted the bytes before the write deadline.
func (s *stream) flushBuffer() bool {
	if _, err := s.w.Write(s.buf); err != nil {
		return false
	}
	s.buf = s.buf[:0]
	return s.rc.Flush() == nil
}

// tokenExpiry returns a channel that receives a value when the caller's token expires, and a function that stops the
// channel's timer. The channel is nil if the token does not expire or the request has none.
func tokenExpiry(r *http.Request) (expired <-chan time.Time, stop func()) {
	expiresAt := identity(r).Until()
	if expiresAt.IsZero() {
		return nil, func() {}
	}
	timer := time.NewTimer(time.Until(expiresAt))
	return timer.C, func() { timer.Stop() }
}
