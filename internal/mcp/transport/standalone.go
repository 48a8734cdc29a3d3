package transport

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net/http"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
)

// standaloneStream is the standalone stream of a session over HTTP: a GET (2025-11-25 basic/transports, "Listening for
// Messages from the Server"). On it arrive announcements of changes and, from some servers, requests that do not say
// which call they are about.
//
// When a stream has ended, the next GET follows with backoff, until the session ends or the server says that it has no
// such stream. The SDK gets only the server's requests, which it answers with POSTs, and their cancellations. Only one
// goroutine at a time uses a standaloneStream.
type standaloneStream struct {
	conn *httpConn

	resp     *http.Response     // the open stream; nil if there is none
	events   eventReader        // reads resp
	cancel   context.CancelFunc // ends resp
	requests int                // how many requests the server has sent in resp
	opened   time.Time          // when the latest stream was opened; zero before the first

	unavailable bool          // no more GETs: the server has no stream, or has lost the session
	failures    int           // GETs in a row that failed, or whose stream ended within minStreamTime
	lastID      string        // id of the event after which the server is asked to continue; "" for none
	retry       time.Duration // the server's reconnection time; 0 if it set none
	busyFor     time.Duration // the last reply's Retry-After
}

// minStreamTime is how long a stream must last to count as a success, which resets the backoff.
const minStreamTime = 10 * time.Second

// changesWait is how long a handshake waits for a standalone stream that is only for announcements of changes. It is
// short, because the session's owner asks for what it missed when the stream opens later.
const changesWait = 500 * time.Millisecond

// noTimeout is a headerTimeout of openStream that does not limit the wait.
const noTimeout = 0

// openStandaloneStream opens a new session's standalone stream, and starts the goroutine that reads it until the
// session ends. It waits a short time for the stream, because most servers drop messages that they send while no
// stream is open. It does not wait longer, because some servers send the reply's headers only with the first event.
func (c *httpConn) openStandaloneStream() {
	carriesRequests := c.StandaloneStream != nil || c.Sampling
	c.session.asksOnStandalone.Store(carriesRequests)
	s := &standaloneStream{conn: c}
	headerTimeout := changesWait
	if carriesRequests { // they are not repeated
		headerTimeout = NotifyTimeout
	}
	s.advance(headerTimeout)
	if s.resp == nil {
		c.session.Listening(false)
	}
	c.work.Go(s.readUntilClosed)
}

// wantsStandaloneStream reports whether the session should have a standalone stream, as HTTPConfig.StandaloneStream
// says. Call it after initialize.
func (c *httpConn) wantsStandaloneStream() bool {
	initialized := c.initialized.Load()
	switch {
	case c.StandaloneStream != nil:
		return *c.StandaloneStream
	case initialized == nil:
		return false
	}
	forResources := c.WatchResources && initialized.Capabilities.Resources.Subscribe
	forTools := c.session.WatchTools && initialized.Capabilities.Tools.ListChanged
	return forResources || forTools || c.Sampling
}

// readUntilClosed reads the stream and opens it again whenever it has ended, until the session ends or the stream is
// unavailable.
func (s *standaloneStream) readUntilClosed() {
	defer s.endStream()
	for s.resp != nil || s.waitToReopen() {
		s.advance(noTimeout)
	}
}

// advance reads one message of the open stream, or calls openStream if none is open. A panic ends the stream and counts
// as a failure.
func (s *standaloneStream) advance(headerTimeout time.Duration) {
	defer Recover(s.conn.Logger, func(*Failure) {
		s.endStream()
		s.failures++
	})
	if s.resp == nil {
		s.openStream(headerTimeout)
		return
	}
	s.readMessage()
}

// waitToReopen waits before the next GET and returns true. It returns false if none may follow or the session ends.
func (s *standaloneStream) waitToReopen() bool {
	wait := s.retry
	if wait == 0 || s.failures > 1 { // after one failure, the server's reconnection time is enough
		wait = max(wait, Backoff(s.failures))
	}
	return !s.unavailable && Pause(s.conn.ctx, max(wait, s.busyFor))
}

// openStream sends a GET. If the reply is a stream, it sets s.resp and calls Listening. For any other reply,
// processRefusal decides whether another GET follows. headerTimeout limits the wait for the reply's headers; noTimeout
// means no limit.
func (s *standaloneStream) openStream(headerTimeout time.Duration) {
	ctx, cancel := context.WithCancel(withRoundTrip(s.conn.ctx, s.conn.session))
	s.failures++ // endStream resets it after a stream that has lasted long enough
	s.busyFor = 0
	request, err := s.conn.newRequest(ctx, http.MethodGet, nil)
	if err != nil {
		cancel()
		return
	}
	if s.lastID != "" {
		request.Header.Set("Last-Event-ID", s.lastID)
	}
	if headerTimeout != noTimeout {
		headerTimer := time.AfterFunc(headerTimeout, cancel)
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

// processRefusal processes resp, a reply to a GET that is not a stream. It sets s.unavailable if no GET should follow:
// the session is lost, or no stream was ever open and the status means that the server has none (meansNoStream). Once a
// stream was open, such a status may come from a proxy or another replica, so more GETs follow.
func (s *standaloneStream) processRefusal(resp *http.Response) {
	body := drainBody(resp)
	s.busyFor = retryAfter(resp.Header)
	status := resp.StatusCode
	wasOpen := !s.opened.IsZero()
	switch {
	case wasOpen && s.conn.SessionID() != "" && saysSessionLost(status, body):
		s.unavailable = true
		s.conn.session.Forgotten()
	case wasOpen && (status == http.StatusBadRequest || status == http.StatusNotFound):
		s.lastID = "" // the server may no longer have that event
	case !wasOpen && meansNoStream(status):
		s.unavailable = true
		s.conn.session.asksOnStandalone.Store(false)
		level := slog.LevelDebug // the specification does not require the stream
		if s.conn.StandaloneStream != nil {
			level = slog.LevelWarn // the configuration does
		}
		s.conn.Logger.Log(s.conn.ctx, level, "MCP server has no standalone stream", "status", status)
	}
}

// meansNoStream reports whether a server without a standalone stream may answer the first GET with this status. Besides
// 405 and 501, servers use 2xx, 400, 404 and 406 for that (python-sdk#3102, go-sdk#393).
func meansNoStream(status int) bool {
	switch status {
	case http.StatusBadRequest, http.StatusNotFound, http.StatusMethodNotAllowed, http.StatusNotAcceptable,
		http.StatusNotImplemented:
		return true
	}
	return status < 300
}

// endStream closes the open stream, if any, and calls Listening. A stream that lasted longer than minStreamTime resets
// the backoff.
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
	s.lastID = cmp.Or(s.events.lastID(), s.lastID)
	s.retry = cmp.Or(s.events.retry(), s.retry)
	if err != nil {
		if failure, ok := errors.AsType[*Failure](err); ok && failure.Kind == TooLarge {
			s.lastID = "" // so that the server does not send the same event again
		}
		s.endStream()
		return
	}
	// Responses are ignored: answers come in the replies to POSTs.
	if request, ok := msg.(*jsonrpc.Request); ok {
		s.processMessage(request, data)
	}
}

// processMessage processes msg, whose text is data. It passes progress to the call with the progress token, and a log
// message to the only call in flight, or drops it. It delivers requests and their cancellations to the SDK, and passes
// all other notifications to the session.
func (s *standaloneStream) processMessage(msg *jsonrpc.Request, data []byte) {
	session := s.conn.session
	switch {
	case msg.Method == notificationProgress:
		session.inflight.passProgress(data)
	case msg.Method == notificationMessage:
		if call := session.inflight.onlyCall(); call != nil {
			call.countOrCancel(len(data))
			session.Log(call, data)
		}
	case msg.IsCall(), msg.Method == notificationCancelled:
		s.deliverRequest(msg)
	default:
		session.Notification(msg.Method, bytes.Clone(msg.Params)) // copied as in deliverRequest
	}
}

// deliverRequest delivers msg, a request of the server or its cancellation, to the SDK. Too many of them end the
// stream, because each answer costs a POST.
func (s *standaloneStream) deliverRequest(msg *jsonrpc.Request) {
	s.requests++
	if tooManyRequests(s.requests, s.opened) {
		s.endStream()
		return
	}
	msg.Params = bytes.Clone(msg.Params) // copied, because they are valid only until the next message is read
	if msg.IsCall() {
		session := s.conn.session
		msg = session.Request(msg, session.inflight.onlyCall())
	}
	_ = s.conn.deliver(s.conn.ctx, msg) // fails only if the session has ended
}
