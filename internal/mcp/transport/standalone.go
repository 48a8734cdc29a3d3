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

// standaloneStream is the stream of a session over HTTP that belongs to no request: the GET of the
// versions with sessions (2025-11-25 basic/transports, "Listening for Messages from the Server").
// Updates of resources arrive on it, and requests of servers that do not say which call they are
// about.
//
// The GETs are made one after the other, with backoff, until the session ends or the server says
// that it does not have the stream. The SDK is given only the server's requests, which it answers
// with POSTs, and their cancellations.
type standaloneStream struct {
	conn *httpConn

	unavailable bool           // the server does not have such a stream, or has lost the session
	resp        *http.Response // nil while there is no stream
	events      eventReader
	cancel      context.CancelFunc // ends resp
	requests    int                // of the server, on this stream
	opened      time.Time
	failures    int    // streams in a row that were refused or soon ended
	lastID      string // of the last event with an id, for the server to continue after
	retry       time.Duration
	later       time.Duration // how long the server asked not to be called, with the last refusal
}

// calmStream is how long a stream must have lasted for the next one not to wait longer than the
// one before.
const calmStream = 10 * time.Second

// changesWait is how long a session waits for a standalone stream that only reports changes: what is
// missed until it is open is asked for then.
const changesWait = 500 * time.Millisecond

// openStandaloneStream opens the standalone stream and reads it until the session ends. The first
// GET is made before the session is used, because most servers drop messages that they send while
// no stream is open. It does not wait for the reply for long: some servers send the reply's headers
// along with the first event.
func (c *httpConn) openStandaloneStream() {
	c.session.standalone.Store(true)
	c.session.asksOnStandalone.Store(c.StandaloneStream != nil)
	s := &standaloneStream{conn: c}
	wait := changesWait
	if c.StandaloneStream != nil {
		wait = NotifyTimeout
	}
	s.advance(wait)
	if s.resp == nil {
		c.session.Listening(false) // what the server sends before the stream is open is missed
	}
	c.work.Go(s.readUntilClosed)
}

// wantsStandaloneStream reports whether the session is to have a standalone stream.
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

// readUntilClosed reads the streams until the session ends.
func (s *standaloneStream) readUntilClosed() {
	defer s.endStream()
	for s.resp != nil || s.waitToReopen() {
		s.advance(0)
	}
}

// advance opens a stream, whose reply must begin within timeout (0: at any time), or reads one
// event of the open one. A panic ends that stream and counts as a failure.
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

// waitToReopen waits before the next GET. It returns false if there is to be none.
func (s *standaloneStream) waitToReopen() bool {
	d := s.retry // as the server asked for
	if d == 0 || s.failures > 1 {
		d = max(d, Backoff(s.failures))
	}
	return !s.unavailable && Pause(s.conn.ctx, max(d, s.later))
}

// openStream makes a GET. If the reply is a stream, s.resp and s.events are set; otherwise processRefusal decides whether
// there is to be another GET. timeout bounds the wait for the header of the reply; 0 means no bound.
func (s *standaloneStream) openStream(timeout time.Duration) {
	// A RoundTrip of its own, because each GET may renew a token once.
	ctx, cancel := context.WithCancel(context.WithValue(s.conn.ctx, roundTripKey{}, &RoundTrip{Session: s.conn.session}))
	s.failures++
	s.later = 0
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

// processRefusal decides after a reply without a stream whether there will be another GET. A
// server that says that it does not have the stream is not asked again. Where no stream was ever open, 400,
// 404 and 406 say that too (python-sdk#3102, go-sdk#393). Other replies may be different the next time, and so may
// these where a stream was open: a proxy or another replica may have answered.
func (s *standaloneStream) processRefusal(resp *http.Response) {
	body := drainBody(resp, maxRefusal)
	s.later = retryAfter(resp.Header)
	status := resp.StatusCode
	switch {
	case !s.opened.IsZero() && s.conn.SessionID() != "" && saysSessionLost(status, body):
		s.unavailable = true
		s.conn.session.Forgotten()
	case !s.opened.IsZero():
		if status == http.StatusBadRequest || status == http.StatusNotFound {
			s.lastID = "" // the server may not have that event any more, as the go-sdk's event store
		}
	case status < 300, status == http.StatusBadRequest, status == http.StatusNotFound, status == http.StatusMethodNotAllowed, status == http.StatusNotAcceptable,
		status == http.StatusNotImplemented:
		s.unavailable = true
		level := slog.LevelDebug // the specification does not demand it
		if s.conn.StandaloneStream != nil {
			level = slog.LevelWarn
		}
		s.conn.Logger.Log(s.conn.ctx, level, "MCP server has no standalone stream", "status", status)
	}
}

// endStream ends the open stream, if there is one. What the server sends from now on is missed.
func (s *standaloneStream) endStream() {
	if s.resp == nil {
		return
	}
	if time.Since(s.opened) > calmStream {
		s.failures = 0
	}
	s.cancel()
	_ = s.resp.Body.Close()
	s.resp = nil
	s.conn.session.Listening(false)
}

// readMessage reads one message.
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
			s.lastID = "" // or the server would send the same event again
		}
		s.endStream() // what follows on it cannot be read either
		return
	}
	// A Response here does not answer any request.
	if m, ok := msg.(*jsonrpc.Request); ok {
		s.processMessage(m, data)
	}
}

// processMessage processes one message of the server, whose text is data.
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
		msg.Params = bytes.Clone(msg.Params)
		// The SDK answers each one with a POST of its own.
		s.requests++
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
