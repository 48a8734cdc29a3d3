package mcpserver

import (
	"net/http"
	"sync"
	"time"
)

// stream is the response to one request. The SDK writes whole events to it, each from
// the goroutine that has something to say, and comments come in between. How long a host
// may take nothing is the matter of whoever gave the ResponseWriter.
type stream struct {
	http.ResponseWriter
	rc        *http.ResponseController
	heartbeat time.Duration

	mu    sync.Mutex // protects what follows, and the ResponseWriter once the stream is open
	timer *time.Timer
	over  bool
}

func newStream(w http.ResponseWriter, heartbeat time.Duration) *stream {
	return &stream{ResponseWriter: w, rc: http.NewResponseController(w), heartbeat: heartbeat}
}

// open sends the header, so that the host knows that its call goes on, and sees to it that
// the stream is never silent for longer than a heartbeat: proxies cut what is. The SDK must
// have set the header, and must not mean to change it.
func (s *stream) open() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over || s.timer != nil {
		return
	}
	s.Header().Set("X-Accel-Buffering", "no") // nginx would collect the events
	s.ResponseWriter.WriteHeader(http.StatusOK)
	s.timer = time.AfterFunc(s.heartbeat, s.ping)
	_, _ = s.writeLocked(nil)
}

func (s *stream) ping() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.over {
		_, _ = s.writeLocked([]byte(": ping\n")) // whoever is gone is noticed by the request's context
	}
}

// Write implements http.ResponseWriter.
func (s *stream) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over {
		return 0, http.ErrHandlerTimeout
	}
	return s.writeLocked(b)
}

// writeLocked takes as long as the host does. That is no silence: no ping waits meanwhile.
func (s *stream) writeLocked(b []byte) (n int, err error) {
	if s.timer != nil {
		s.timer.Stop()
	}
	if len(b) > 0 {
		n, err = s.ResponseWriter.Write(b)
	}
	if s.timer == nil {
		return n, err // the response may be no stream
	}
	s.timer.Reset(s.heartbeat)
	if ferr := s.rc.Flush(); err == nil {
		err = ferr
	}
	return n, err
}

// FlushError implements what http.ResponseController looks for.
func (s *stream) FlushError() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over {
		return http.ErrHandlerTimeout
	}
	return s.rc.Flush()
}

// end is the handler's last act: from now on nobody writes.
func (s *stream) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.over = true
	if s.timer != nil {
		s.timer.Stop()
	}
}
