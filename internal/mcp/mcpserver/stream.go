package mcpserver

import (
	"cmp"
	"net/http"
	"sync"
	"time"
)

// stream is the http.ResponseWriter for one request. The SDK writes whole events to it, from several goroutines. Once
// openStream has been called, stream flushes each write, and writes a comment whenever no event was written for the
// duration heartbeat. The wrapped ResponseWriter must set the write deadlines.
type stream struct {
	http.ResponseWriter
	rc        *http.ResponseController
	heartbeat time.Duration

	mu       sync.Mutex  // protects the following fields, and the ResponseWriter once the stream is open
	timer    *time.Timer // fires at the next heartbeat; nil until openStream
	finished bool        // the handler is about to return, so nothing may be written any more
}

// newStream returns a stream that writes to w. Callers must call finish.
func newStream(w http.ResponseWriter, heartbeat time.Duration) *stream {
	return &stream{ResponseWriter: w, rc: http.NewResponseController(w), heartbeat: heartbeat}
}

// openStream sends the header, so that the client knows that its call executes. It also starts the heartbeats, because
// proxies close silent connections. The SDK must have set the header fields before. Only the first call has an effect.
func (s *stream) openStream() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.finished || s.timer != nil {
		return
	}
	s.Header().Set("X-Accel-Buffering", "no") // nginx would buffer the events
	s.ResponseWriter.WriteHeader(http.StatusOK)
	ping := func() { _, _ = s.Write([]byte(": ping\n")) } // ignore errors: the context ends if the client is gone
	s.timer = time.AfterFunc(s.heartbeat, ping)
	_, _ = s.writeLocked(nil)
}

// Write implements http.ResponseWriter. It returns http.ErrHandlerTimeout after finish.
func (s *stream) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.finished {
		return 0, http.ErrHandlerTimeout
	}
	return s.writeLocked(b)
}

// writeLocked writes b, which may be empty. If the stream is open, it also flushes and restarts the time to the next
// heartbeat. The heartbeat timer is stopped during the write, which may have to wait for the client. s.mu must be held.
func (s *stream) writeLocked(b []byte) (n int, err error) {
	if s.timer != nil {
		s.timer.Stop()
	}
	if len(b) > 0 {
		n, err = s.ResponseWriter.Write(b)
	}
	if s.timer == nil {
		return n, err // openStream was not called: the response is not a stream
	}
	s.timer.Reset(s.heartbeat)
	return n, cmp.Or(err, s.rc.Flush())
}

// FlushError lets http.ResponseController flush the stream. It returns http.ErrHandlerTimeout after finish.
func (s *stream) FlushError() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.finished {
		return http.ErrHandlerTimeout
	}
	return s.rc.Flush()
}

// finish stops the heartbeats and makes later writes fail. The handler must call it before it returns, because the
// ResponseWriter must not be used after that, and the SDK's goroutines may still write.
func (s *stream) finish() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.finished = true
	if s.timer != nil {
		s.timer.Stop()
	}
}
