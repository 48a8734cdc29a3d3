package transport

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net/http"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
)

// standaloneStream is the standalone stream of a session over HTTP: a GET (2025-11-25 basic/transports, "Listening
// for Messages from the Server"). Announcements of changes arrive on it, and from some servers requests that do not
// say which call they are about.
//
// When a GET has ended, the next one follows with backoff, until the session ends or the server says that it does not
// have the stream. The SDK gets only the server's requests, which it answers with POSTs, and their cancellations. One
// goroutine at a time uses a standaloneStream.
type standaloneStream struct {
	conn *httpConn

	resp     *http.Response     // the open stream; nil if there is none
	events   eventReader        // of resp
	cancel   context.CancelFunc // ends resp
	requests int                // requests of the server in resp
	opened   time.Time          // when the last stream was opened; zero if there was none

	unavailable bool          // no GET follows: the server does not have the stream, or has lost the session
	failures    int           // GETs in a row that were refused, or whose stream ended within minStreamTime
	lastID      string        // id after which the server is asked to continue; "" for none
	retry       time.Duration // reconnection time that the server has set; 0 if it set none
	busyFor     time.Duration // Retry-After of the last reply
}

// minStreamTime is how long a stream must have lasted to count as a success, which resets the backoff.
const minStreamTime = 10 * time.Second

// changesWait is how long a handshake waits for a standalone stream that is only for announcements of changes. It is
// short because what was missed is asked for again when the stream opens later.
const changesWait = 500 * time.Millisecond

// openStandaloneStream opens the standalone stream of a new session, and starts the goroutine that reads it until the
// session ends. It waits a short time for the stream, because most servers drop messages that they send while no
// stream is open. It does not wait longer, because some servers send the headers of the reply with the first event.
func (c *httpConn) openStandaloneStream() {
	c.session.standalone.Store(true)
	c.session.asksOnStandalone.Store(c.StandaloneStream != nil)
	s := &standaloneStream{conn: c}
	wait := changesWait
	if c.StandaloneStream != nil { // the stream has requests of the server, too, which are not repeated
		wait = NotifyTimeout
	}
	s.advance(wait)
	if s.resp == nil {
		c.session.Listening(false)
	}
	c.work.Go(s.readUntilClosed)
}

// wantsStandaloneStream reports whether the session is to have a standalone stream (HTTPConfig.StandaloneStream). It
// is called after initialize.
func (c *httpConn) wantsStandaloneStream() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.StandaloneStream != nil {
		return *c.StandaloneStream
	}
	forResources := c.WatchResources && c.canSubscribe
	forTools := c.session.WatchTools && c.announcesTools
	return forResources || forTools
}

// readUntilClosed reads the stream, and opens it again when it has ended, until the session ends or the stream is
// unavailable.
func (s *standaloneStream) readUntilClosed() {
	defer s.endStream()
	for s.resp != nil || s.waitToReopen() {
		s.advance(0)
	}
}

// advance reads one message of the open stream. If no stream is open, it opens one with timeout (openStream). A panic
// ends the stream and counts as a failure.
func (s *standaloneStream) advance(timeout time.Duration) {
	defer Recover(s.conn.Logger, func(*Failure) {
		s.endStream()
		s.failures++
	})
	if s.resp == nil {
		s.openStream(timeout)
		return
	}
	s.readMessage()
}

// waitToReopen waits before the next GET. It returns false if the stream is unavailable or the session has ended.
func (s *standaloneStream) waitToReopen() bool {
	wait := s.retry
	if wait == 0 || s.failures > 1 { // after one failure, the server's reconnection time is enough
		wait = max(wait, Backoff(s.failures))
	}
	return !s.unavailable && Pause(s.conn.ctx, max(wait, s.busyFor))
}

// openStream makes a GET. If the reply is a stream, it sets s.resp and calls Listening. Otherwise processRefusal
// decides whether another GET follows. timeout bounds the wait for the headers of the reply; 0 means no bound.
func (s *standaloneStream) openStream(timeout time.Duration) {
	// A RoundTrip of its own, because each GET may renew a token once.
	ctx, cancel := context.WithCancel(context.WithValue(s.conn.ctx, roundTripKey{}, &RoundTrip{Session: s.conn.session}))
	s.failures++ // endStream resets it after a stream that has lasted
	s.busyFor = 0
	request, err := s.conn.newRequest(ctx, http.MethodGet, nil)
	if err != nil {
		cancel()
		return
	}
	if s.lastID != "" {
		request.Header.Set("Last-Event-ID", s.lastID)
	}
	if timeout > 0 {
		headerTimer := time.AfterFunc(timeout, cancel)
		defer headerTimer.Stop()
	}
	resp, err := s.conn.RoundTripper.RoundTrip(request)
	switch {
	case err != nil:
		cancel()
	case resp.StatusCode == http.StatusOK && mediaType(resp) == "text/event-stream":
		s.conn.session.Listening(true)
		s.resp = resp
		s.cancel = cancel
		s.opened = time.Now()
		s.requests = 0
		s.events = newEventReader(resp.Body, MaxMessage)
	default:
		s.processRefusal(resp)
		cancel()
	}
}

// processRefusal processes resp, a reply to a GET that is not a stream. It sets s.unavailable if no GET is to follow:
// the session is lost, or no stream was ever open and the status means that the server does not have one. Besides 405
// and 501, servers say that with 2xx, 400, 404 and 406 (python-sdk#3102, go-sdk#393). After a stream was open, these
// may come from a proxy or another replica, so GETs follow.
func (s *standaloneStream) processRefusal(resp *http.Response) {
	body := drainBody(resp)
	s.busyFor = retryAfter(resp.Header)
	status := resp.StatusCode
	if !s.opened.IsZero() {
		switch {
		case s.conn.SessionID() != "" && saysSessionLost(status, body):
			s.unavailable = true
			s.conn.session.Forgotten()
		case status == http.StatusBadRequest, status == http.StatusNotFound:
			s.lastID = "" // the server may not have that event any more
		}
		return
	}
	isAbsent := status < 300
	switch status {
	case http.StatusBadRequest, http.StatusNotFound, http.StatusMethodNotAllowed, http.StatusNotAcceptable,
		http.StatusNotImplemented:
		isAbsent = true
	}
	if !isAbsent {
		return
	}
	s.unavailable = true
	level := slog.LevelDebug // the specification does not demand the stream
	if s.conn.StandaloneStream != nil {
		level = slog.LevelWarn // the configuration does
	}
	s.conn.Logger.Log(s.conn.ctx, level, "MCP server has no standalone stream", "status", status)
}

// endStream ends the open stream, if there is one, and calls Listening. A stream of more than minStreamTime resets the
// backoff.
func (s *standaloneStream) endStream() {
	if s.resp == nil {
		return
	}
	if time.Since(s.opened) > minStreamTime {
		s.failures = 0
	}
	s.cancel()
	_ = s.resp.Body.Close()
	s.resp = nil
	s.conn.session.Listening(false)
}

// readMessage reads and processes one message of the open stream. An error ends the stream.
func (s *standaloneStream) readMessage() {
	msg, data, _, err := s.events.nextMessage()
	if id := s.events.lastID(); id != "" {
		s.lastID = id
	}
	if d := s.events.retry(); d > 0 {
		s.retry = d
	}
	if err != nil {
		if f, ok := errors.AsType[*Failure](err); ok && f.Kind == TooLarge {
			s.lastID = "" // so that the server does not send the same event again
		}
		s.endStream()
		return
	}
	// A response is ignored: answers come in the replies to POSTs.
	if m, ok := msg.(*jsonrpc.Request); ok {
		s.processMessage(m, data)
	}
}

// processMessage processes msg, whose text is data: it hands progress and log messages to their calls, delivers
// requests and their cancellations to the SDK, and calls Notification for the rest. Too many requests end the stream.
func (s *standaloneStream) processMessage(msg *jsonrpc.Request, data []byte) {
	session := s.conn.session
	switch {
	case msg.Method == notificationProgress:
		session.inflight.progress(data)
	case msg.Method == notificationMessage:
		if trip := session.inflight.onlyCall(); trip != nil {
			trip.countOrAbort(len(data))
			session.Log(trip, data)
		}
	case msg.IsCall(), msg.Method == notificationCancelled:
		msg.Params = bytes.Clone(msg.Params) // a part of data, which is valid until the next message only
		s.requests++                         // each costs a POST with the answer
		if tooManyRequests(s.requests, s.opened) {
			s.endStream()
			return
		}
		if msg.IsCall() {
			msg = session.Request(msg, session.inflight.onlyCall())
		}
		_ = s.conn.deliver(s.conn.ctx, msg) // the error is the end of the session
	default:
		session.Notification(msg.Method, bytes.Clone(msg.Params))
	}
}
