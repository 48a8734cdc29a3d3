package transport

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"sync"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
)

// LegacySSEConfig configures a server over HTTP+SSE, the transport of 2024-11-05.
type LegacySSEConfig struct {
	URL *url.URL
	// RoundTripper sends the requests. It may change them, and must not follow redirects.
	RoundTripper http.RoundTripper
	Logger       *slog.Logger
}

// NewLegacySSE returns the endpoint of a server over HTTP+SSE (2024-11-05 basic/transports). A GET opens a session's
// stream, on which all messages of the server arrive. The stream's first event has the URL for messages to the server.
// NewLegacySSE sends nothing.
func NewLegacySSE(cfg LegacySSEConfig) Endpoint {
	var work sync.WaitGroup
	open := func(ctx context.Context) (MessageConn, error) { return openLegacySSE(ctx, cfg, &work) }
	return NewStream(open, work.Wait, cfg.Logger)
}

const (
	// maxPosts is how many POSTs of one connection may be in flight. It is large because some servers reply to a
	// call's POST only when the call has ended.
	maxPosts = 1000
	// maxEndpoint is the maximum size of the endpoint event's URL, in bytes.
	maxEndpoint = 8 << 10
)

// legacySSE is a session over HTTP+SSE as a MessageConn. Each message is a POST. Write does not wait for the POST of a
// request: a server may reply to it only after the call, and may need another message during the call, such as the
// answer to an elicitation. So Read reports the failure of a POST.
type legacySSE struct {
	cfg      LegacySSEConfig
	ctx      context.Context         // carries a RoundTrip with the Session; ends with the connection
	end      context.CancelCauseFunc // ends ctx; Read returns the first cause
	body     io.ReadCloser           // the stream
	stream   eventReader             // reads body
	endpoint string                  // the URL for messages to the server
	work     *sync.WaitGroup         // counts readLoop and the POSTs; Endpoint.Close waits for it
	posts    chan struct{}           // has one element per POST in flight
	results  chan readResult         // passes results from deliver to Read
}

// readResult is what Read returns once.
type readResult struct {
	data []byte
	err  error
}

// openLegacySSE opens a session and starts its readLoop, which work counts. ctx must carry a RoundTrip. It limits the
// time until the endpoint event; after that, the end of ctx does not end the connection.
func openLegacySSE(ctx context.Context, cfg LegacySSEConfig, work *sync.WaitGroup) (*legacySSE, error) {
	connCtx := withRoundTrip(context.WithoutCancel(ctx), RoundTripOf(ctx).Session)
	connCtx, end := context.WithCancelCause(connCtx)
	detach := context.AfterFunc(ctx, func() { end(context.Cause(ctx)) })
	c := &legacySSE{
		cfg: cfg, ctx: connCtx, end: end, work: work,
		posts: make(chan struct{}, maxPosts), results: make(chan readResult),
	}
	err := c.openStream()
	if hasEnded := !detach(); hasEnded && err == nil { // ctx ended right after the endpoint event
		err = unsentFailure(context.Cause(ctx))
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

// openStream sends the GET and reads the stream up to the endpoint event. It sets c.body, c.stream and c.endpoint. If
// it fails after it has set c.body, the caller must close c.body.
func (c *legacySSE) openStream() error {
	r, err := http.NewRequestWithContext(c.ctx, http.MethodGet, c.cfg.URL.String(), nil)
	if err != nil {
		return fmt.Errorf("make a GET: %w", err)
	}
	r.Header["Accept"] = streamOnly
	resp, err := c.cfg.RoundTripper.RoundTrip(r)
	if err != nil {
		return unsentFailure(err)
	}
	switch {
	case resp.StatusCode != http.StatusOK:
		drainBody(resp)
		return replyFailure(resp)
	case mediaType(resp) != "text/event-stream":
		drainBody(resp)
		return BadReply(fmt.Sprintf("content type %.60q", resp.Header.Get("Content-Type")), nil)
	}
	c.body, c.stream = resp.Body, newEventReader(resp.Body, MaxMessage)
	for {
		e, err := c.stream.events.Next()
		if err != nil {
			return BadReply("its stream has no endpoint event", err)
		}
		if e.Event == "endpoint" {
			return c.setEndpoint(string(e.Data))
		}
	}
}

// setEndpoint sets c.endpoint from the text of the endpoint event, which may be a relative URL. Because headers and
// tokens are sent to that URL, it must have the configured origin.
func (c *legacySSE) setEndpoint(text string) error {
	u, err := c.cfg.URL.Parse(text)
	switch {
	case err != nil || len(text) > maxEndpoint:
		return BadReply("its endpoint event has no URL", nil)
	case originOf(u) != originOf(c.cfg.URL) || u.User != nil:
		return BadReply("its endpoint event names another origin", nil)
	}
	u.Scheme, u.Host = c.cfg.URL.Scheme, c.cfg.URL.Host // as configured, because HeaderTransport compares the texts
	u.Fragment, u.RawFragment = "", ""
	c.endpoint = u.String()
	return nil
}

// originOf returns the origin of u as text (RFC 6454 section 4). Equal origins have equal texts, because the host is
// in lower case and the port is always present.
func originOf(u *url.URL) string {
	port := u.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443"}[u.Scheme]
	}
	return u.Scheme + "://" + strings.ToLower(u.Hostname()) + ":" + port
}

// readLoop reads the stream and delivers its messages to Read until the connection ends. An error of the stream ends
// the connection.
func (c *legacySSE) readLoop() {
	defer func() { _ = c.body.Close() }()
	defer Recover(c.cfg.Logger, func(f *Failure) { c.end(f) })
	defer context.AfterFunc(c.ctx, func() { _ = c.body.Close() })()
	for {
		data, err := c.nextData()
		if err != nil {
			c.end(err)
			return
		}
		if !c.deliver(readResult{data: data}) {
			return
		}
	}
}

// nextData returns the text of the next message in the stream. It ignores a message in which the stream ended.
func (c *legacySSE) nextData() ([]byte, error) {
	for {
		data, err := c.stream.nextData()
		if err != nil {
			return nil, unansweredFailure(err)
		}
		if isIncomplete := c.stream.events.Cut(); !isIncomplete {
			c.stream.limit.restart()
			return bytes.Clone(data), nil
		}
	}
}

// deliver waits until Read takes result and returns true. It returns false if the connection ends first.
func (c *legacySSE) deliver(result readResult) bool {
	select {
	case c.results <- result:
		return true
	case <-c.ctx.Done():
		return false
	}
}

// SetReadLimit implements MessageConn. It does nothing, because the limit of the stream, in which all answers come, is
// fixed when the stream is opened.
func (c *legacySSE) SetReadLimit(int) {}

// Read implements MessageConn. After the connection has ended, it returns the cause.
func (c *legacySSE) Read() ([]byte, error) {
	select {
	case result := <-c.results:
		return result.data, result.err
	case <-c.ctx.Done():
		return nil, context.Cause(c.ctx)
	}
}

// Write implements MessageConn. It starts a POST, whose failure Read reports. For a notification it waits for the
// POST, up to NotifyTimeout, because later requests must not overtake notifications/initialized. If maxPosts are in
// flight, Write assumes that the server is dead; its error then ends the connection.
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
	_ = json.Unmarshal(data, &head) // cannot fail: the SDK has written data
	data = bytes.Clone(data)
	posted := make(chan struct{})
	c.work.Go(func() {
		defer close(posted)
		defer func() { <-c.posts }()
		defer Recover(c.cfg.Logger, func(f *Failure) { c.end(f) })
		if isAnswer := head.Method == ""; isAnswer {
			c.postAnswer(data)
		} else {
			c.reportFailure(head.ID, c.post(c.ctx, data))
		}
	})
	isNotification := head.Method != "" && head.ID == nil
	if isNotification {
		waitCtx, stop := context.WithTimeout(c.ctx, NotifyTimeout)
		defer stop()
		select {
		case <-posted:
		case <-waitCtx.Done():
		}
	}
	return nil
}

// postAnswer posts data, an answer to a server's request, with repeatAnswer. A failure does not fail a request of ours,
// which may have the same id as the server's request.
func (c *legacySSE) postAnswer(data []byte) {
	post := func(ctx context.Context) *Failure { return c.post(ctx, data) }
	c.reportFailure(nil, repeatAnswer(c.ctx, c.ctx, post))
}

// post sends data as one message and waits for the reply, whose body it ignores. It returns nil for a 2xx status.
func (c *legacySSE) post(ctx context.Context, data []byte) *Failure {
	ctx = withRoundTrip(ctx, RoundTripOf(c.ctx).Session)
	roundTrip := RoundTripOf(ctx)
	r, err := http.NewRequestWithContext(roundTrip.traceConn(ctx), http.MethodPost, c.endpoint, bytes.NewReader(data))
	if err != nil {
		return unsentFailure(err)
	}
	r.Header["Content-Type"] = jsonOnly
	resp, err := c.cfg.RoundTripper.RoundTrip(r)
	if err != nil {
		return roundTrip.failureWithoutReply(err)
	}
	body := drainBody(resp)
	switch {
	case isSuccess(resp):
		return nil
	case saysSessionLost(resp.StatusCode, body):
		return LostSession(replyFailure(resp))
	}
	return replyFailure(resp)
}

// reportFailure reports a POST's failure to Read; nil means success. If rawID, the id of the request that was sent, is
// not nil, Read returns a *requestError for that request. If the session is lost, reportFailure ends the connection.
func (c *legacySSE) reportFailure(rawID json.RawMessage, failure *Failure) {
	if failure == nil || c.ctx.Err() != nil {
		return
	}
	if id, err := decodeID(rawID); err == nil && rawID != nil {
		c.deliver(readResult{err: &requestError{id: id, failure: failure}})
	}
	if failure.Lost {
		c.end(failure)
	}
}

// Close implements MessageConn. It also cancels the POSTs in flight.
func (c *legacySSE) Close() error {
	c.end(io.EOF)
	return nil
}

// requestError is an error of MessageConn.Read that fails one request but does not end the connection.
type requestError struct {
	id      jsonrpc.ID
	failure *Failure
}

func (e *requestError) Error() string { return e.failure.Error() }

// Unwrap returns the failure.
func (e *requestError) Unwrap() error { return e.failure }

// failRequest fails the pending request that err is about. It does nothing if that request is no longer pending.
func (c *streamConn) failRequest(err *requestError) {
	pending := c.removePending(err.id)
	if pending == nil || pending.roundTrip == nil {
		return
	}
	if err.failure.NotRun {
		pending.roundTrip.sent.Store(false)
	}
	pending.roundTrip.fail(err.failure)
}
