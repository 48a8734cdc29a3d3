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

// buffers holds the write buffers of streams, so that a stream has a buffer only while it writes. A buffer per stream
// cost 5 kB for each of thousands of waiting streams. Buffers that grew for a large event are not put back. Measured
// for a streamed answer of 1,000 tokens that arrive at once: without the pool the answer took 25 % more CPU time, and
// with a buffer of 16 kB per stream 13 % more.
var buffers = sync.Pool{New: func() any { return new([]byte) }}

// stream is one reader of a run: a position in the run, and the connection to write to.
type stream struct {
	h     *Handler
	w     http.ResponseWriter
	rc    *http.ResponseController
	run   string     // its id
	pos   int64      // the sequence number of the event that was encoded last
	atPos event.Body // the event at pos; nil until the stream has read an event
	buf   []byte     // frames that are encoded and not yet written

	format streamFormat
}

// streamFormat says how a stream encodes the events of a run for one reader. append is called once for
// each event, in order, by the goroutine of the request.
type streamFormat struct {
	header http.Header // added to the header of every stream
	// append appends the frames for an event, which may be none, to buf and returns the result.
	append func(buf []byte, e event.Event) []byte
	// expired returns the frames that end the stream because the caller's token has expired. The
	// run continues, and a caller with another token can resume at pos.
	expired func(run string, pos int64) []sse.Frame
	// ended reports whether the stream ends at the event that was encoded last, although the run may continue. It is
	// nil if the stream ends only with the run or its suspension.
	ended func() bool
}

// nativeFormat encodes each event by itself, so its streams can begin anywhere in a run.
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

// formatOf returns the stream format of an encoder, for one stream. The stream must begin with the run's first event.
func formatOf(enc encoder) streamFormat {
	return streamFormat{
		append:  func(buf []byte, e event.Event) []byte { return appendFrames(buf, enc.Encode(e)) },
		expired: func(string, int64) []sse.Frame { return enc.TokenExpired() },
	}
}

// appendFrames appends frames to buf in the form in which they are sent.
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

// streamRun writes the events of a run after pos as Server-Sent Events until the run ends or is suspended, the caller's
// token expires, or the caller leaves. It is the only stream loop, for all formats. The run must exist. If the log no
// longer has the events after pos, for example because a repeated request attaches to a long run, streamRun answers
// 410; if the log cannot be read at the start, 503.
//
// complete reports that the stream has reached its end and the caller was still connected. A stream that cannot
// continue is cut with a panic (http.ErrAbortHandler) and not ended, so that a reader without the terminal event knows
// that there is more.
//
// The loop reads a page of the log and then waits for page.More. This channel is closed when there is more to read, so
// an event that is appended between reading and waiting is not missed.
//
// A reader that is slower than the run costs nothing but its position: the loop reads the next page only when the
// connection has taken the last page, and the rest stays in the log. The stream of a reader that takes nothing at all
// is cut by the deadline of the write (deadlineWriter).
//
// When this process hands its runs over to other processes (Agent.HandingOver), the loop reads once more, because the
// run may have ended just before. Then it cuts the stream, and the client resumes at another process with
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

	handingOver := h.Agent.HandingOver() // nil once it was received
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
		switch {
		case len(page.Events) > 0:
			more = closedChannel // read again at once, unless another case of the select is ready
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
			handingOver = nil
			handedOver = true // read once more and send what the log has by now
		case <-r.Context().Done():
			return false
		}
	}
}

// admitReader counts a reader of a run who needs the events after pos. If the log cannot be read or has dropped some
// events, or the run has too many readers, it answers with a problem, and ok is false. Otherwise release must be called
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

// writeStreamHeader sends the header of the response at once, so that the client knows that its stream is open before
// the first event. It returns false if the caller has left.
func (s *stream) writeStreamHeader() bool {
	header := s.w.Header()
	header.Set("Content-Type", "text/event-stream")
	header.Set("Cache-Control", "no-store, no-transform")
	header.Set("X-Accel-Buffering", "no") // nginx would buffer the events
	maps.Copy(header, s.format.header)
	s.w.WriteHeader(http.StatusOK)
	return s.rc.Flush() == nil
}

// writeNewEvents writes events after s.pos, moves s.pos, and returns the page that it read last. It collects the pages
// that the log has into one write, and returns after the page in which the write reaches maxWrite bytes. ok is false if
// the caller has left. If the log cannot be read, it cuts the stream with a panic.
func (s *stream) writeNewEvents(ctx context.Context) (page event.Page, ok bool) {
	returnBuffer := s.borrowBuffer()
	defer returnBuffer()
	for written := false; ; {
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
			written = true
		}
		if !page.HasNext || written {
			return page, len(s.buf) == 0 || s.flushBuffer()
		}
	}
}

// borrowBuffer sets s.buf to an empty buffer of the pool. returnBuffer puts it back into the pool, unless it has
// grown large.
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

// hasEnded reports whether the stream ends although the run has not ended. If the format does not decide that, a
// suspension ends the stream, but only after the position from: a reader that resumes at the suspension stays
// connected.
func (s *stream) hasEnded(ctx context.Context, from int64) bool {
	if s.format.ended != nil {
		return s.format.ended()
	}
	return s.pos > from && s.atSuspension(ctx)
}

// atSuspension reports whether the run is suspended by the event at s.pos, which is the run's newest event. It is false
// for a suspension that is over.
func (s *stream) atSuspension(ctx context.Context) bool {
	if _, ok := s.atPos.(event.Suspended); !ok {
		return false
	}
	run, err := s.h.Log.Run(ctx, s.run) // the log may have events after the page that was read last
	return err == nil && run.Last.Seq == s.pos
}

// flushBuffer writes the buffer to the connection and empties it. It returns false if the caller has left or has not
// accepted the bytes before the write deadline.
func (s *stream) flushBuffer() bool {
	if _, err := s.w.Write(s.buf); err != nil {
		return false
	}
	s.buf = s.buf[:0]
	return s.rc.Flush() == nil
}

// tokenExpiry returns a channel that receives when the caller's token expires, and a function that stops its timer. The
// channel is nil if the token does not expire or there is none.
func tokenExpiry(r *http.Request) (<-chan time.Time, func()) {
	expiresAt := identity(r).Until()
	if expiresAt.IsZero() {
		return nil, func() {}
	}
	timer := time.NewTimer(time.Until(expiresAt))
	return timer.C, func() { timer.Stop() }
}
