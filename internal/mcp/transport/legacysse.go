package transport

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"answerd/internal/sse"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
)

// LegacySSEConfig configures a server over HTTP+SSE, the transport of 2024-11-05.
type LegacySSEConfig struct {
	URL *url.URL
	// RoundTripper sends the requests. It may change them, and must not follow redirects.
	RoundTripper http.RoundTripper
	Logger       *slog.Logger
}

// NewLegacySSE returns the endpoint of a server over HTTP+SSE (2024-11-05 basic/transports): a GET
// opens the stream of a session, whose first event names the URL to which messages are sent, and on
// which all messages of the server arrive. It sends nothing.
func NewLegacySSE(cfg LegacySSEConfig) Endpoint {
	var work sync.WaitGroup
	open := func(ctx context.Context) (MessageConn, error) { return openLegacySSE(ctx, cfg, &work) }
	return NewStream(open, work.Wait, cfg.Logger)
}

const (
	// maxPosts is how many POSTs of one connection may be in flight: some servers answer the POST of
	// a call only when the call has ended.
	maxPosts = 1000
	// maxEndpoint bounds the URL in the endpoint event, in bytes.
	maxEndpoint = 8 << 10
)

// legacySSE is a session over HTTP+SSE as a MessageConn. A message is sent by a POST of its own,
// which Write does not wait for if it is a request: servers may answer it only after the call, and
// need the next message for that, such as the answer to an elicitation. So Read reports a POST that
// failed.
type legacySSE struct {
	cfg      LegacySSEConfig
	ctx      context.Context // has the RoundTrip of the handshake's session, and ends with Close
	end      context.CancelCauseFunc
	body     io.ReadCloser
	events   eventReader
	endpoint string
	work     *sync.WaitGroup // POSTs, and the reader; the endpoint waits for them
	posts    chan struct{}   // of capacity maxPosts
	in       chan legacyRead
}

// legacyRead is what one Read returns.
type legacyRead struct {
	data []byte
	err  error
}

// openLegacySSE opens a session. ctx bounds the time until the endpoint event, and nothing after it.
func openLegacySSE(ctx context.Context, cfg LegacySSEConfig, work *sync.WaitGroup) (*legacySSE, error) {
	session := RoundTripOf(ctx).Session
	// A RoundTrip of its own, because each request may renew a token once.
	life := context.WithValue(context.WithoutCancel(ctx), roundTripKey{}, &RoundTrip{Session: session})
	life, end := context.WithCancelCause(life)
	late := context.AfterFunc(ctx, func() { end(context.Cause(ctx)) })
	c := &legacySSE{cfg: cfg, ctx: life, end: end, work: work, posts: make(chan struct{}, maxPosts), in: make(chan legacyRead)}
	err := c.openStream()
	if !late() && err == nil {
		err = noReply(context.Cause(ctx), false)
	}
	if err != nil {
		end(err)
		if c.body != nil {
			_ = c.body.Close()
		}
		return nil, err
	}
	work.Go(c.readLoop)
	return c, nil
}

// openStream makes the GET and reads the endpoint event.
func (c *legacySSE) openStream() error {
	r, err := http.NewRequestWithContext(c.ctx, http.MethodGet, c.cfg.URL.String(), nil)
	if err != nil {
		return fmt.Errorf("make a GET: %w", err)
	}
	r.Header["Accept"] = streamOnly
	resp, err := c.cfg.RoundTripper.RoundTrip(r)
	if err != nil {
		return noReply(err, false)
	}
	switch {
	case resp.StatusCode != http.StatusOK:
		drainBody(resp, maxRefusal)
		return refusal(resp)
	case mediaType(resp) != "text/event-stream":
		drainBody(resp, maxRefusal)
		return BadReply(fmt.Sprintf("content type %.60q", resp.Header.Get("Content-Type")), nil)
	}
	c.body, c.events = resp.Body, newEventReader(resp.Body, MaxMessage)
	for {
		e, err := c.events.events.Next()
		if err != nil {
			return BadReply("its stream has no endpoint event", err)
		}
		if e.Event == "endpoint" {
			return c.setEndpoint(string(e.Data))
		}
	}
}

// setEndpoint checks the URL for messages. It must be of the origin that was configured: headers and
// tokens are sent to it.
func (c *legacySSE) setEndpoint(text string) error {
	u, err := c.cfg.URL.Parse(text)
	switch {
	case err != nil || len(text) > maxEndpoint:
		return BadReply("its endpoint event has no URL", nil)
	case originOf(u) != originOf(c.cfg.URL) || u.User != nil:
		return BadReply("its endpoint event names another origin", nil)
	}
	u.Scheme, u.Host = c.cfg.URL.Scheme, c.cfg.URL.Host
	u.Fragment, u.RawFragment = "", ""
	c.endpoint = u.String()
	return nil
}

// originOf returns the origin of a URL in its normal form (RFC 6454 section 4): in lower case and
// with a port.
func originOf(u *url.URL) string {
	port := u.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443"}[u.Scheme]
	}
	return u.Scheme + "://" + strings.ToLower(u.Hostname()) + ":" + port
}

// readLoop reads the stream until the session ends.
func (c *legacySSE) readLoop() {
	defer func() { _ = c.body.Close() }()
	defer Recover(c.cfg.Logger, func(f *Failure) { c.end(f) })
	unhook := context.AfterFunc(c.ctx, func() { _ = c.body.Close() })
	defer unhook()
	for {
		data, err := c.nextData()
		if err != nil {
			c.end(err) // every later Read returns it, too
			return
		}
		if !c.deliver(legacyRead{data: data}) {
			return
		}
	}
}

// nextData returns the data of the next event with a message.
func (c *legacySSE) nextData() ([]byte, error) {
	for {
		e, err := c.events.events.Next()
		if errors.Is(err, sse.ErrTooLarge) {
			return nil, AnswerTooLarge(MaxMessage)
		}
		if err != nil {
			return nil, noReply(err, true)
		}
		isMessage := e.Event == "" || e.Event == "message"
		if !isMessage || len(e.Data) == 0 || c.events.events.Cut() {
			continue
		}
		c.events.body.read = 0
		return bytes.Clone(e.Data), nil
	}
}

// deliver hands m to Read. It returns false if the session has ended.
func (c *legacySSE) deliver(m legacyRead) bool {
	select {
	case c.in <- m:
		return true
	case <-c.ctx.Done():
		return false
	}
}

// SetReadLimit implements MessageConn. It does nothing: the events of all answers come in one stream,
// whose limit is set when it is opened.
func (c *legacySSE) SetReadLimit(int) {}

// Read implements MessageConn.
func (c *legacySSE) Read() ([]byte, error) {
	select {
	case m := <-c.in:
		return m.data, m.err
	case <-c.ctx.Done():
		return nil, context.Cause(c.ctx)
	}
}

// Write implements MessageConn. It waits for the POST of a notification, because others depend on
// notifications/initialized.
func (c *legacySSE) Write(data []byte) error {
	if c.ctx.Err() != nil {
		return LostSession(context.Cause(c.ctx))
	}
	select {
	case c.posts <- struct{}{}:
	default:
		return &Failure{Kind: UnknownOutcome, Public: "it does not answer"}
	}
	var head struct {
		ID     json.RawMessage `json:"id"`
		Method string          `json:"method"`
	}
	_ = json.Unmarshal(data, &head) // the SDK has written it
	data = bytes.Clone(data)
	done := make(chan struct{})
	c.work.Go(func() {
		defer close(done)
		defer func() { <-c.posts }()
		defer Recover(c.cfg.Logger, func(f *Failure) { c.end(f) })
		if head.Method == "" {
			c.reportFailure(nil, repeatAnswer(c.ctx, c.ctx, func(ctx context.Context) *Failure { return c.post(ctx, data) }))
		} else {
			c.reportFailure(head.ID, c.post(c.ctx, data))
		}
	})
	if head.Method != "" && head.ID == nil {
		late := time.NewTimer(NotifyTimeout)
		defer late.Stop()
		select {
		case <-done:
		case <-late.C:
		case <-c.ctx.Done():
		}
	}
	return nil
}

// post sends one message.
func (c *legacySSE) post(ctx context.Context, data []byte) *Failure {
	trip := &RoundTrip{Session: RoundTripOf(c.ctx).Session}
	ctx = context.WithValue(ctx, roundTripKey{}, trip)

	r, err := http.NewRequestWithContext(trip.traceConn(ctx), http.MethodPost, c.endpoint, bytes.NewReader(data))
	if err != nil {
		return noReply(err, false)
	}
	r.Header["Content-Type"] = jsonOnly
	resp, err := c.cfg.RoundTripper.RoundTrip(r)
	if err != nil {
		return noReply(err, trip.sent.Load())
	}
	body := drainBody(resp, maxRefusal)
	switch {
	case resp.StatusCode >= 200 && resp.StatusCode < 300:
		return nil
	case saysSessionLost(resp.StatusCode, body) || resp.StatusCode == http.StatusGone:
		return LostSession(refusal(resp))
	}
	return refusal(resp)
}

// reportFailure reports to Read that a message could not be sent: the request with that id fails, unless rawID is nil,
// and a session that the server forgot ends.
func (c *legacySSE) reportFailure(rawID json.RawMessage, failure *Failure) {
	if failure == nil || c.ctx.Err() != nil {
		return
	}
	if id, err := decodeID(rawID); err == nil && rawID != nil {
		c.deliver(legacyRead{err: &requestError{id: id, failure: failure}})
	}
	if failure.Lost {
		c.end(failure)
	}
}

// Close implements MessageConn.
func (c *legacySSE) Close() error {
	c.end(io.EOF)
	return nil
}

// requestError is an error of MessageConn.Read that fails one request and not the connection.
type requestError struct {
	id      jsonrpc.ID
	failure *Failure
}

func (e *requestError) Error() string { return e.failure.Error() }

// Unwrap returns the failure.
func (e *requestError) Unwrap() error { return e.failure }

// failRequest fails the request that err is about, and reports whether err is about one.
func (c *streamConn) failRequest(err error) bool {
	e, ok := errors.AsType[*requestError](err)
	if !ok {
		return false
	}
	if q := c.removePending(e.id); q != nil && q.trip != nil {
		if e.failure.NotRun {
			q.trip.sent.Store(false)
		}
		q.trip.fail(e.failure)
	}
	return true
}
