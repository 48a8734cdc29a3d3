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
	"strings"
	"time"

	"answerd/internal/sse"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
)

// maxEventID bounds the ids of events, in bytes: they come back as a header.
const maxEventID = 1 << 10

// In one throttleInterval at most throttleMessages messages and about throttleBytes bytes are read of
// a stream before its answer. No server that reports progress to people comes near that.
const (
	throttleInterval = 100 * time.Millisecond
	throttleMessages = 500
	throttleBytes    = 1 << 20
)

// eventStream is the event stream that answers one request, checked and bounded. Progress and log
// messages are handed to their call as they are read: so they are there before the answer, and a
// flood of them never reaches the SDK's unbounded queue. At most one answer is passed on, to the
// request that the stream belongs to; after it the body is only read to its end.
type eventStream struct {
	trip *RoundTrip
	id   jsonrpc.ID
	body io.ReadCloser
	log  *slog.Logger
	eventReader
	opened   time.Time
	requests int  // the server's own requests so far
	listens  bool // the stream is a subscription, which has no end and no answer

	// since is when the running throttleInterval began; messages and bytes were read in it.
	since           time.Time
	messages, bytes int
}

// newEventStream returns the stream in body, for which trip.streamOpened was called.
func newEventStream(trip *RoundTrip, id jsonrpc.ID, body io.ReadCloser, log *slog.Logger) *eventStream {
	return &eventStream{trip: trip, id: id, body: body, log: log, opened: time.Now(), eventReader: newEventReader(body, trip.answerLimit())}
}

// eventReader reads the messages of an event stream.
type eventReader struct {
	in      *sse.Reader
	ignored *ignoredLimit
	batch   []json.RawMessage // the messages of the last event that were not returned yet
}

// ignoredLimit counts what is read of a stream since the last message. Comments and events without a
// message are bounded together like one message.
type ignoredLimit struct {
	in    io.Reader
	n     int
	limit int
}

// Read implements io.Reader.
func (r *ignoredLimit) Read(p []byte) (int, error) {
	if r.n > r.limit {
		return 0, AnswerTooLarge(r.limit)
	}
	n, err := r.in.Read(p)
	r.n += n
	return n, err
}

// newEventReader returns a reader of messages of at most limit bytes.
func newEventReader(body io.Reader, limit int) eventReader {
	n := &ignoredLimit{in: body, limit: limit}
	return eventReader{in: sse.NewReader(n, limit), ignored: n}
}

// nextMessage returns the next message, its text, and how many bytes were read of the stream since
// the one before. Both are valid until the following call.
func (r *eventReader) nextMessage() (_ jsonrpc.Message, data []byte, read int, _ error) {
	data, err := r.nextData()
	if err != nil {
		return nil, nil, 0, err
	}
	msg, err := decodeStreamed(data)
	_, isAnswer := msg.(*jsonrpc.Response)
	isWhole := isAnswer && err == nil
	if r.in.Cut() && !isWhole {
		return nil, nil, 0, io.ErrUnexpectedEOF // a stream that is resumed brings it again
	}
	if err != nil {
		return nil, nil, 0, BadReply("an event does not decode", err)
	}
	read, r.ignored.n = r.ignored.n, 0
	return msg, data, read, nil
}

// nextData returns the text of the next message. Servers of 2025-03-26 may send several messages in one
// event (basic/transports, "Sending Messages to the Server"). A batch that does not decode is returned
// as it is.
func (r *eventReader) nextData() ([]byte, error) {
	for len(r.batch) == 0 {
		e, err := r.in.Next()
		switch {
		case errors.Is(err, sse.ErrTooLarge):
			return nil, AnswerTooLarge(r.ignored.limit)
		case err != nil:
			return nil, err
		case len(e.Data) == 0 || e.Event != "" && e.Event != "message":
			// MCP only has events of the type "message"; others are ignored.
		case e.Data[0] != '[' || json.Unmarshal(e.Data, &r.batch) != nil:
			return e.Data, nil
		}
	}
	data := r.batch[0]
	r.batch = r.batch[1:]
	return data, nil
}

// lastID returns the id of the last event, after which the stream can be resumed; "" where there is
// none, or one that a header cannot have.
func (r *eventReader) lastID() string {
	id := r.in.LastEventID()
	isControl := func(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f }
	if len(id) > maxEventID || strings.ContainsFunc(id, isControl) {
		return ""
	}
	return id
}

// retry returns how long to wait before the stream is resumed, as the server asked; 0: it did not
// say.
func (r *eventReader) retry() time.Duration {
	if d := r.in.Retry(); d > 0 {
		return min(max(d, minBackoff/10), maxRetryAfter)
	}
	return 0
}

// next returns the next message that concerns the SDK, or the answer, which is the last. The error is
// a *Failure unless the stream broke.
func (s *eventStream) nextForSDK() (msg jsonrpc.Message, err error) {
	defer Recover(s.log, func(f *Failure) { msg, err = nil, f })
	for {
		msg, data, read, err := s.nextMessage()
		if err != nil {
			return nil, err
		}
		if _, answer := msg.(*jsonrpc.Response); !answer && !s.listens {
			if f := s.trip.countReceived(read); f != nil {
				return nil, f
			}
			s.throttle(read)
		}
		if msg, f := s.processMessage(msg, data); f != nil {
			return nil, f
		} else if msg != nil {
			return msg, nil
		}
	}
}

// throttle counts a message of n bytes, and waits after too many in a throttleInterval until that is
// over. Meanwhile TCP holds a flooding server back, which would else keep a core busy.
func (s *eventStream) throttle(n int) {
	now := time.Now()
	if now.Sub(s.since) >= throttleInterval {
		s.since = now
		s.messages = 0
		s.bytes = 0
	}
	s.messages++
	s.bytes += n
	if s.messages >= throttleMessages || s.bytes >= throttleBytes {
		Pause(s.trip.ctx, throttleInterval-now.Sub(s.since))
	}
}

// tooManyRequests reports whether a server has sent more requests in a stream than it may. It may ping all
// the time.
func tooManyRequests(requests int, opened time.Time) bool {
	return requests > maxServerRequests+int(time.Since(opened)/time.Second)
}

// readToEnd reads a stream that has had its answer to the end, so that the connection is kept, and
// reports whether it came to the end. RoundTrip.Finish bounds how long a server may keep it open.
func (s *eventStream) readToEnd() (whole bool) {
	withoutPanic(s.log, func() {
		_, err := io.CopyN(io.Discard, s.body, maxRefusal)
		whole = err == io.EOF
	})
	s.close()
	return whole
}

// close closes the body and calls streamClosed. It is the last call on s.
func (s *eventStream) close() {
	_ = s.body.Close() // its error changes nothing
	s.trip.streamClosed()
}

// processMessage processes one JSON-RPC message, whose text is data, and returns it if it concerns
// the SDK or is the answer.
func (s *eventStream) processMessage(msg jsonrpc.Message, data []byte) (jsonrpc.Message, *Failure) {
	// Each message shows that the server is alive. The call's deadline bounds how long it may send
	// them, and countReceived how many.
	s.trip.timer.noteActivity()
	switch m := msg.(type) {
	case *jsonrpc.Response:
		if m.ID != s.id {
			return nil, BadReply("it answers another request", nil)
		}
		return m, nil // nothing is read after it, so it keeps its memory
	case *jsonrpc.Request:
		if m.IsCall() {
			// The SDK answers each one with a POST of its own.
			s.requests++
			if tooManyRequests(s.requests, s.opened) {
				return nil, BadReply("too many requests in one stream", nil)
			}
			m.Params = bytes.Clone(m.Params)
			return s.trip.Session.Request(m, s.trip), nil
		}
		switch m.Method {
		case notificationProgress:
			if s.trip.hasToken(data) {
				s.trip.Session.Progress(s.trip, data)
			}
			return nil, nil
		case notificationMessage:
			s.trip.Session.Log(s.trip, data)
			return nil, nil
		}
		m.Params = bytes.Clone(m.Params)
		s.trip.Session.Notification(m.Method, m.Params)
		return m, nil
	}
	return nil, nil
}

// readStream reads the stream of msg, for which trip.streamOpened was called, to its answer, and hands the
// SDK what concerns it. A stream that breaks is resumed if an event had an id, before StatelessVersion; else
// the answer is lost, and the tool may have run.
func (c *httpConn) readStream(ctx context.Context, trip *RoundTrip, msg *jsonrpc.Request, resp *http.Response) {
	// Both hold until a later stream changes them: one may end before it has an event (WHATWG HTML,
	// "Server-sent events").
	lastID, retry := "", time.Duration(0)
	for {
		s := newEventStream(trip, msg.ID, resp.Body, c.Logger)
		s.listens = msg.Method == methodListen
		answer, err := c.readAnswer(ctx, s)
		if err == nil {
			// Not waited for: the call has its answer, and RoundTrip.Finish bounds the rest.
			ended := c.idle.beginEnd(resp)
			c.background.Go(func() { ended(s.readToEnd()) })
			c.deliverAnswer(ctx, trip, msg, answer)
			return
		}
		s.close()
		lastID, retry = cmp.Or(s.lastID(), lastID), cmp.Or(s.retry(), retry)
		failure, refused := errors.AsType[*Failure](err)
		if !refused && lastID != "" && c.session.Protocol() < StatelessVersion {
			if resp, err = c.resume(ctx, lastID, retry); err == nil {
				trip.streamOpened()
				continue
			}
			refused = ctx.Err() == nil
		}
		if failure == nil {
			failure = &Failure{Kind: UnknownOutcome, Public: "the connection was cut before its answer", Err: err}
		}
		if refused { // the server may continue it, and the SDK cancels it there
			trip.abort(failure)
		} else {
			trip.fail(failure)
		}
		return
	}
}

// readAnswer hands the SDK what concerns it of s, up to the answer, which it returns. The error is a
// *Failure unless the stream broke.
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

// maxResumes is how many GETs in a row may fail to continue a broken stream.
const maxResumes = 8

// resume returns the reply to a GET that continues a stream after the event lastID (2025-11-25
// basic/transports, "Resumability and Redelivery"). No GET is made before wait, as the server
// asked for; 0: it did not say. The GET has the call's own context, so a resumed call does not have
// more time than another.
func (c *httpConn) resume(ctx context.Context, lastID string, wait time.Duration) (*http.Response, error) {
	later := time.Duration(0) // how long the server asked not to be called
	for try := 1; try <= maxResumes; try++ {
		pause := max(wait, later)
		if try > 1 || wait == 0 {
			pause = max(pause, Backoff(try))
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
		switch {
		case err != nil:
			continue
		case resp.StatusCode == http.StatusOK && mediaType(resp) == "text/event-stream":
			return resp, nil
		}
		drainBody(resp, maxRefusal)
		later = retryAfter(resp.Header)
		if resp.StatusCode >= 500 || resp.StatusCode == http.StatusTooManyRequests || resp.StatusCode == http.StatusConflict {
			continue
		}
		if resp.StatusCode == http.StatusNotFound && c.SessionID() != "" {
			c.session.Lost.Store(true)
		}
		return nil, badStatus(resp.StatusCode)
	}
	return nil, fmt.Errorf("%d attempts to resume", maxResumes)
}
