package mcpserver

import (
	"net/http"
	"sync"
	"time"
)

// stream is the response to one request. The SDK writes whole events to it, from several
// goroutines, and stream writes heartbeat comments between them. The wrapped ResponseWriter sets
// the write deadlines.
type stream struct {
	http.ResponseWriter
	rc        *http.ResponseController
	heartbeat time.Duration

	mu       sync.Mutex // protects what follows, and the ResponseWriter once the stream is open
	timer    *time.Timer
	finished bool
}

func newStream(w http.ResponseWriter, heartbeat time.Duration) *stream {
	return &stream{ResponseWriter: w, rc: http.NewResponseController(w), heartbeat: heartbeat}
}

// openStream sends the header, so that the client knows that its call executes, and starts the
// heartbeats, because proxies cut silent connections. The SDK must have set the header before.
func (s *stream) openStream() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.finished || s.timer != nil {
		return
	}
	s.Header().Set("X-Accel-Buffering", "no") // nginx would buffer the events
	s.ResponseWriter.WriteHeader(http.StatusOK)
	s.timer = time.AfterFunc(s.heartbeat, s.sendPing)
	_, _ = s.writeLocked(nil)
}

// sendPing writes a heartbeat comment.
func (s *stream) sendPing() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.finished {
		_, _ = s.writeLocked([]byte(": ping\n")) // the request's context ends when the client is gone
	}
}

// Write implements http.ResponseWriter.
func (s *stream) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.finished {
		return 0, http.ErrHandlerTimeout
	}
	return s.writeLocked(b)
}

// writeLocked writes data and flushes the stream. It stops the heartbeat during the write, which
// lasts as long as the client takes to read.
func (s *stream) writeLocked(b []byte) (n int, err error) {
	if s.timer != nil {
		s.timer.Stop()
	}
	if len(b) > 0 {
		n, err = s.ResponseWriter.Write(b)
	}
	if s.timer == nil {
		return n, err // the response is not a stream
	}
	s.timer.Reset(s.heartbeat)
	if ferr := s.rc.Flush(); err == nil {
		err = ferr
	}
	return n, err
}

// FlushError lets http.ResponseController flush the stream.
func (s *stream) FlushError() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.finished {
		return http.ErrHandlerTimeout
	}
	return s.rc.Flush()
}

// finish makes later writes fail. The handler calls it last, because nobody may use a
// ResponseWriter after the handler has returned.
func (s *stream) finish() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.finished = true
	if s.timer != nil {
		s.timer.Stop()
	}
}
