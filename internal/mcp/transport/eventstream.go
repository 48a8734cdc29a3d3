package transport

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"time"

	"answerd/internal/sse"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
)

// maxEventID is the maximum size of an event's id, which is sent back in the header Last-Event-ID.
const maxEventID = 1 << 10

// In each throttleInterval before the answer, at most throttleMessages messages and about throttleBytes bytes of a
// stream are read. That is far more than a server needs to report progress to people.
const (
	throttleInterval = 100 * time.Millisecond
	throttleMessages = 500
	throttleBytes    = 1 << 20
)

// eventStream is the event stream in the reply to one request. It passes progress and log messages to the call as soon
// as it reads them, so the call gets them before its answer, and a flood of them does not fill the SDK's queue, which
// has no bound. It returns at most one answer; after that, readToEnd discards the rest of the body.
type eventStream struct {
	roundTrip *RoundTrip
	id        jsonrpc.ID // of the request
	body      io.ReadCloser
	log       *slog.Logger
	eventReader
	opened   time.Time
	requests int // how many requests the server has sent in the stream
	// isSubscription says that the stream answers subscriptions/listen. Its messages are neither counted nor throttled.
	isSubscription bool

	// messages and bytes count what was read since intervalStart, the beginning of the current throttleInterval.
	intervalStart   time.Time
	messages, bytes int
}

// newEventStream returns the stream in body, which answers the request id of roundTrip. The caller must call close or
// readToEnd.
func newEventStream(roundTrip *RoundTrip, id jsonrpc.ID, body io.ReadCloser, log *slog.Logger) *eventStream {
	roundTrip.streamOpened()
	return &eventStream{
		roundTrip: roundTrip, id: id, body: body, log: log,
		opened: time.Now(), eventReader: newEventReader(body, roundTrip.answerLimit()),
	}
}

// eventReader reads the messages of an event stream.
type eventReader struct {
	events *sse.Reader
	limit  *messageLimit // events reads from it
	batch  batch         // of the last event
}

// messageLimit is an io.Reader that fails with AnswerTooLarge if too many bytes come between two messages: more than
// limit bytes, plus commentRate bytes per second. So comments and events without a message are bounded, but the few
// that keep a connection open do not end a stream that has no message for weeks. The sse.Reader limits each event.
type messageLimit struct {
	in          io.Reader
	bytes       int       // bytes since the last message
	lastMessage time.Time // when the last message was read, or the stream was opened
	limit       int
}

// commentRate is how many bytes per second a stream may have in comments and in events without a message.
const commentRate = 1 << 10

// Read implements io.Reader.
func (r *messageLimit) Read(p []byte) (int, error) {
	if r.bytes > r.limit+commentRate*int(time.Since(r.lastMessage)/time.Second) {
		return 0, AnswerTooLarge(r.limit)
	}
	n, err := r.in.Read(p)
	r.bytes += n
	return n, err
}

// restart starts to count again after a message.
func (r *messageLimit) restart() {
	r.bytes = 0
	r.lastMessage = time.Now()
}

// newEventReader returns a reader for the messages in body, of at most limit bytes each.
func newEventReader(body io.Reader, limit int) eventReader {
	limited := &messageLimit{in: body, limit: limit, lastMessage: time.Now()}
	return eventReader{events: sse.NewReader(limited, limit), limit: limited}
}

// nextMessage returns the next message, its text data, and size, the number of bytes read from the stream since the
// previous message. The message and data are valid until the next call. It skips events that are no messages, such as
// heartbeats. If a message is too large or does not decode, the error is a *Failure. Any other error means that the
// stream has ended.
func (r *eventReader) nextMessage() (_ jsonrpc.Message, data []byte, size int, _ error) {
	for {
		data, err := r.nextData()
		if err != nil {
			return nil, nil, 0, err
		}
		msg, err := decodeStreamed(data)
		_, isAnswer := msg.(*jsonrpc.Response)
		// The stream ended within the event. A whole answer is accepted. Resuming the stream repeats anything else.
		if r.events.Cut() && !isAnswer {
			return nil, nil, 0, io.ErrUnexpectedEOF
		}
		if err != nil && !resemblesMessage(data) {
			continue // counts towards r.limit, as a comment does
		}
		if err != nil {
			return nil, nil, 0, BadReply("an event does not decode", err)
		}
		size = r.limit.bytes
		r.limit.restart()
		return msg, data, size, nil
	}
}

// resemblesMessage reports whether data, an event that does not decode, may be a JSON-RPC message all the same: damaged
// JSON, or JSON with one of the members of a message.
func resemblesMessage(data []byte) bool {
	isContainer := bytes.HasPrefix(data, []byte("{")) || bytes.HasPrefix(data, []byte("["))
	hasMember := func(name string) bool { return bytes.Contains(data, []byte(name)) }
	members := []string{`"jsonrpc"`, `"result"`, `"error"`}
	return isContainer && (!json.Valid(data) || slices.ContainsFunc(members, hasMember))
}

// nextData returns the text of the next message.
func (r *eventReader) nextData() ([]byte, error) { return r.batch.next(r.nextEvent) }

// nextEvent returns the data of the next event that may have a message.
func (r *eventReader) nextEvent() ([]byte, error) {
	for {
		e, err := r.events.Next()
		switch {
		case errors.Is(err, sse.ErrTooLarge):
			return nil, AnswerTooLarge(r.limit.limit)
		case err != nil:
			return nil, err
		}
		isMessage := e.Event == "" || e.Event == "message" // MCP uses no other events
		if isMessage && len(e.Data) > 0 {
			return e.Data, nil
		}
	}
}

// lastID returns the id of the last event, which is needed to resume the stream. It returns "" if no event had an id,
// or if the id cannot be sent in a header.
func (r *eventReader) lastID() string {
	id := r.events.LastEventID()
	isControl := func(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f }
	if len(id) > maxEventID || strings.ContainsFunc(id, isControl) {
		return ""
	}
	return id
}

// retry returns the reconnection time that the server has set in the stream, at least minBackoff/10 and at most
// maxRetryAfter. It returns 0 if the server set none.
func (r *eventReader) retry() time.Duration {
	if d := r.events.Retry(); d > 0 {
		return min(max(d, minBackoff/10), maxRetryAfter)
	}
	return 0
}

// nextForSDK returns the next message for the SDK, and processes the messages that the SDK must not get. The last
// message is the answer, a *jsonrpc.Response. The error is a *Failure if a message is refused or there was a panic. Any
// other error means that the stream broke.
func (s *eventStream) nextForSDK() (_ jsonrpc.Message, err error) {
	defer Recover(s.log, func(f *Failure) { err = f })
	for {
		msg, data, size, err := s.nextMessage()
		if err != nil {
			return nil, err
		}
		_, isAnswer := msg.(*jsonrpc.Response)
		if !isAnswer && !s.isSubscription {
			if failure := s.roundTrip.countReceived(size); failure != nil {
				return nil, failure
			}
			s.throttle(size)
		}
		forSDK, failure := s.processMessage(msg, data)
		switch {
		case failure != nil:
			return nil, failure
		case forSDK != nil:
			return forSDK, nil
		}
	}
}

// throttle counts a message of n bytes. If the bounds of the current throttleInterval are reached, it waits until the
// interval is over or the request ends. TCP then slows down the server, whose flood would keep a CPU core busy.
func (s *eventStream) throttle(n int) {
	now := time.Now()
	if now.Sub(s.intervalStart) >= throttleInterval {
		s.intervalStart = now
		s.messages = 0
		s.bytes = 0
	}
	s.messages++
	s.bytes += n
	if s.messages >= throttleMessages || s.bytes >= throttleBytes {
		Pause(s.roundTrip.ctx, throttleInterval-now.Sub(s.intervalStart))
	}
}

// tooManyRequests reports whether requests, the number of a server's requests in a stream, is more than
// maxServerRequests plus one for each second since opened. So a server may send pings in a long stream.
func tooManyRequests(requests int, opened time.Time) bool {
	return requests > maxServerRequests+int(time.Since(opened)/time.Second)
}

// readToEnd discards the rest of the stream after the answer, so that its TCP connection can be used again, and closes
// s. It returns false if the rest has maxRefusal bytes or more, or the stream broke. RoundTrip.Finish bounds the time.
func (s *eventStream) readToEnd() (whole bool) {
	withoutPanic(s.log, func() {
		_, err := io.CopyN(io.Discard, s.body, maxRefusal)
		whole = err == io.EOF
	})
	s.close()
	return whole
}

// close closes the body and calls streamClosed. It must be called exactly once, and s must not be used after that.
func (s *eventStream) close() {
	_ = s.body.Close()
	s.roundTrip.streamClosed()
}

// processMessage processes msg, whose text is data. It returns the message for the SDK, which may be the answer, or
// nil if the SDK must not get it. A failure ends the request.
func (s *eventStream) processMessage(msg jsonrpc.Message, data []byte) (jsonrpc.Message, *Failure) {
	// Each message restarts the idle timeout. The call's deadline and countReceived limit how often.
	s.roundTrip.noteActivity()
	switch m := msg.(type) {
	case *jsonrpc.Response:
		if !m.ID.IsValid() { // an error without an id can only be about the request that the stream belongs to
			m.ID = s.id
		}
		if m.ID != s.id {
			return nil, BadReply("it answers another request", nil)
		}
		return m, nil // not copied, because no other message is read into its memory
	case *jsonrpc.Request:
		if m.IsCall() {
			// Bounded, because the SDK answers each request with a POST of its own.
			s.requests++
			if tooManyRequests(s.requests, s.opened) {
				return nil, BadReply("too many requests in one stream", nil)
			}
			m.Params = bytes.Clone(m.Params) // copied, because data is valid only until the next message
			return s.roundTrip.Session.Request(m, s.roundTrip), nil
		}
		return s.processNotification(m, data), nil
	}
	return nil, nil
}

// processNotification passes msg, a notification whose text is data, to the session's handlers. It returns msg if the
// SDK must get it too. It returns nil for progress and log messages, and drops progress without the request's token.
func (s *eventStream) processNotification(msg *jsonrpc.Request, data []byte) jsonrpc.Message {
	session := s.roundTrip.Session
	switch msg.Method {
	case notificationProgress:
		if s.roundTrip.hasToken(data) {
			session.Progress(s.roundTrip, data)
		}
		return nil
	case notificationMessage:
		session.Log(s.roundTrip, data)
		return nil
	}
	msg.Params = bytes.Clone(msg.Params) // copied, because data is valid only until the next message
	session.Notification(msg.Method, msg.Params)
	return msg
}

// readStream reads resp, the stream that answers msg, and delivers its messages and the answer to the SDK. If the stream
// breaks, readStream resumes it, provided that an event had an id and the protocol version is before StatelessVersion.
// Otherwise it fails roundTrip with an unknown outcome.
func (c *httpConn) readStream(ctx context.Context, roundTrip *RoundTrip, msg *jsonrpc.Request, resp *http.Response) {
	// Both are kept if a resumed stream ends without an event (WHATWG HTML, "Server-sent events").
	var lastID string
	var retry time.Duration
	for {
		s := newEventStream(roundTrip, msg.ID, resp.Body, c.Logger)
		s.isSubscription = msg.Method == methodListen
		answer, err := c.readAnswer(ctx, s)
		if err == nil {
			// In the background, so that the call does not wait for it. RoundTrip.Finish bounds the time.
			ended := c.idle.noteAnswered(resp)
			c.background.Go(func() { ended(s.readToEnd()) })
			c.deliverAnswer(ctx, roundTrip, msg, answer)
			return
		}
		s.close()
		if refusal, isRefused := errors.AsType[*Failure](err); isRefused {
			roundTrip.Cancel(refusal) // the server may continue the request
			return
		}
		lastID = cmp.Or(s.lastID(), lastID)
		retry = cmp.Or(s.retry(), retry)
		if lastID == "" || c.session.Protocol() >= StatelessVersion {
			roundTrip.fail(connectionCut(err))
			return
		}
		resp, err = c.resume(ctx, lastID, retry)
		if err != nil && ctx.Err() == nil {
			roundTrip.Cancel(connectionCut(err)) // the server may continue the request
			return
		}
		if err != nil {
			roundTrip.fail(connectionCut(err))
			return
		}
	}
}

// readAnswer delivers the messages of s to the SDK until the answer, which it returns instead of delivering it. The
// error is a *Failure if a message is refused. Any other error means that the stream, ctx or the connection ended.
func (c *httpConn) readAnswer(ctx context.Context, s *eventStream) (*jsonrpc.Response, error) {
	for {
		msg, err := s.nextForSDK()
		if err != nil {
			return nil, err
		}
		if answer, ok := msg.(*jsonrpc.Response); ok {
			return answer, nil
		}
		if err := c.deliver(ctx, msg); err != nil {
			return nil, err
		}
	}
}

// maxResumes is how many GETs in a row may fail before readStream gives up on a broken stream.
const maxResumes = 8

// resume continues a broken stream after the event lastID with a GET (2025-11-25 basic/transports, "Resumability and
// Redelivery"). It returns the reply, which is an event stream. It sends GETs until one succeeds, the server refuses
// to resume, or maxResumes have failed. retry is the reconnection time that the server has set, or 0. ctx is the call's
// context, so resuming a stream does not extend the call.
func (c *httpConn) resume(ctx context.Context, lastID string, retry time.Duration) (*http.Response, error) {
	var busyFor time.Duration // the last reply's Retry-After
	for attempt := 1; attempt <= maxResumes; attempt++ {
		pause := max(retry, busyFor)
		if attempt > 1 || retry == 0 { // the first GET waits exactly for the server's reconnection time, if set
			pause = max(pause, Backoff(attempt))
		}
		if !Pause(ctx, pause) {
			return nil, ctx.Err()
		}
		if c.sessionLost() {
			return nil, LostSession(nil)
		}
		r, err := c.newRequest(ctx, http.MethodGet, nil)
		if err != nil {
			return nil, err
		}
		r.Header.Set("Last-Event-ID", lastID)
		resp, err := c.RoundTripper.RoundTrip(r)
		if err != nil {
			continue
		}
		if resp.StatusCode == http.StatusOK && mediaType(resp) == "text/event-stream" {
			return resp, nil
		}
		body := drainBody(resp)
		busyFor = retryAfter(resp.Header)
		if mayResumeLater(resp.StatusCode) {
			continue
		}
		if c.SessionID() != "" && saysSessionLost(resp.StatusCode, body) {
			c.session.Lost.Store(true)
		}
		return nil, statusFailure(resp.StatusCode)
	}
	return nil, fmt.Errorf("%d attempts to resume", maxResumes)
}

// mayResumeLater reports whether another GET may succeed after a reply with this status. 409 Conflict means that the
// server has not yet noticed that the stream broke.
func mayResumeLater(status int) bool {
	return status >= 500 || status == http.StatusTooManyRequests || status == http.StatusConflict
}
