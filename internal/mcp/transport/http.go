package transport

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

const (
	// NotifyTimeout bounds requests that no caller waits for: most notifications, and the DELETE that
	// ends a session. The SDK sends them with contexts that are never cancelled.
	NotifyTimeout = 2 * time.Second
	// answerTimeout bounds sending an answer to a server's request. If an answer is lost, the
	// server waits for it, and so does the call.
	answerTimeout = 20 * time.Second
	// maxQueued is how many messages wait for the SDK before reading stops.
	maxQueued = 10

	sessionHeader = "Mcp-Session-Id"
)

// HTTPConfig configures a server over Streamable HTTP.
type HTTPConfig struct {
	URL string
	// RoundTripper sends the requests. It may change them, and must not follow redirects.
	RoundTripper http.RoundTripper
	// StandaloneStream says whether each session opens the standalone stream (GET). If it is nil, a session
	// opens the stream if it has Session.WatchTools and the server announces changes of its tools, or if
	// WatchResources is set and the server offers subscriptions to resources.
	StandaloneStream *bool
	WatchResources   bool
	Logger           *slog.Logger
}

// httpEndpoint is a server over HTTP, shared by all of its sessions.
type httpEndpoint struct {
	HTTPConfig
	// background counts the goroutines that outlast their request: they read a stream to its end, or send a
	// cancellation again.
	background sync.WaitGroup
	idle       idleConns
}

// maxConnWait bounds how long a request waits for a TCP connection whose last stream is ending.
const maxConnWait = 100 * time.Millisecond

// idleConns makes requests reuse TCP connections: servers end the stream of an answer some milliseconds after
// the answer, and a request waits for that instead of opening a connection, which takes longer over TLS. The
// counts are estimates, since http.Transport does not report its connections. A wrong count costs a new
// connection or a wait of maxConnWait. The zero value works.
type idleConns struct {
	mu      sync.Mutex    // protects what follows
	idle    int           // connections that no request uses
	ending  int           // streams that have delivered their answer and are being read to their end
	waiting int           // requests that wait for the end of a stream
	changed chan struct{} // closed when a stream has ended; nil if no request waits
	// skipWait says that requests do not wait: the server keeps streams open for longer than maxConnWait after
	// the answer, or all requests share one connection (HTTP/2).
	skipWait bool
}

// takeConn counts a connection as used, before a request is sent. If no connection is idle, it first waits under
// ctx for a stream that is ending, unless other requests already wait for all of these streams.
func (p *idleConns) takeConn(ctx context.Context) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.idle == 0 && p.waiting < p.ending && !p.skipWait {
		p.waiting++
		p.waitLocked(ctx)
		p.waiting--
	}
	if p.idle > 0 {
		p.idle--
	}
}

// waitLocked waits until a connection is idle, until no stream is ending, for maxConnWait, or until ctx ends. A
// wait of maxConnWait sets p.skipWait, so that later requests do not wait. The caller holds p.mu, which is
// released during the wait.
func (p *idleConns) waitLocked(ctx context.Context) {
	timeout := time.NewTimer(maxConnWait)
	defer timeout.Stop()
	for p.idle == 0 && p.ending > 0 {
		if p.changed == nil {
			p.changed = make(chan struct{})
		}
		changed := p.changed
		p.mu.Unlock()
		streamEnded := false
		select {
		case <-changed:
			streamEnded = true
		case <-timeout.C:
		case <-ctx.Done():
		}
		p.mu.Lock()
		if !streamEnded {
			p.skipWait = p.skipWait || ctx.Err() == nil
			return
		}
	}
}

// putConn counts the connection of resp, whose body was read to its end, as idle.
func (p *idleConns) putConn(resp *http.Response) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.putLocked(resp)
}

// putLocked counts the connection of resp as idle, or sets skipWait if resp came over HTTP/2. The caller holds p.mu.
func (p *idleConns) putLocked(resp *http.Response) {
	if resp.ProtoMajor >= 2 { // all requests share one connection
		p.skipWait = true
		return
	}
	p.idle++
}

// beginEnd records that the stream resp has delivered its answer and is now read to its end. The caller must call
// ended afterwards; wholeBody says that the body was read to its end, so that the connection can be used again.
// ended also decides from the duration whether later requests wait.
func (p *idleConns) beginEnd(resp *http.Response) (ended func(wholeBody bool)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ending++
	began := time.Now()
	return func(wholeBody bool) {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.ending--
		p.skipWait = time.Since(began) > maxConnWait
		if wholeBody {
			p.putLocked(resp)
		}
		if p.changed != nil {
			close(p.changed)
			p.changed = nil
		}
	}
}

// NewHTTP returns the endpoint of a server over Streamable HTTP. It sends nothing.
func NewHTTP(cfg HTTPConfig) Endpoint { return &httpEndpoint{HTTPConfig: cfg} }

// NewTransport implements Endpoint.
func (e *httpEndpoint) NewTransport() Transport { return newHTTPConn(e) }

// Close implements Endpoint.
func (e *httpEndpoint) Close() { e.background.Wait() }

// httpConn is the sdk.Transport and the sdk.Connection of one session over Streamable HTTP: each of our messages
// is a POST, and the reply to a request has its answer (2025-11-25 and 2026-07-28 basic/transports). httpConn
// records for each RoundTrip whether the request was sent, hands it the messages that the server sends before the
// answer, and bounds what is read. An invalid reply fails only its own request (RoundTrip.fail), because all runs
// share the session. The id of a session that the server has lost is never sent again.
type httpConn struct {
	*httpEndpoint
	session   *Session
	ctx       context.Context      // has the values of the handshake's context, and ends with Close
	cancel    context.CancelFunc   // ends ctx
	incoming  chan jsonrpc.Message // messages for the SDK, from deliver to Read
	work      sync.WaitGroup       // the goroutine of the standalone stream
	closeOnce sync.Once
	closeErr  error // the result of Close; set within closeOnce

	mu      sync.Mutex // protects what follows
	id      string     // of the session; "" before initialize, and if the server gave none
	version string     // protocol version that initialize has negotiated; "" before
	// canSubscribe and announcesTools are capabilities of the server according to initialize: subscriptions to
	// resources, and notifications about changes of its tools.
	canSubscribe, announcesTools bool
}

func newHTTPConn(e *httpEndpoint) *httpConn {
	return &httpConn{httpEndpoint: e, incoming: make(chan jsonrpc.Message, maxQueued)}
}

// Connect implements sdk.Transport. It sends nothing. ctx must carry a RoundTrip with a Session.
func (c *httpConn) Connect(ctx context.Context) (sdk.Connection, error) {
	c.session = RoundTripOf(ctx).Session
	c.ctx, c.cancel = context.WithCancel(context.WithoutCancel(ctx))
	return c, nil
}

// Explain implements Transport. It returns err, because each request over HTTP fails with its own reason.
func (c *httpConn) Explain(err error) error { return err }

// SessionID implements sdk.Connection. It returns the server's id for the session; "" before initialize, and
// if the server gave none.
func (c *httpConn) SessionID() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.id
}

// Read implements sdk.Connection. It returns the next message for the SDK, and io.EOF after Close.
func (c *httpConn) Read(ctx context.Context) (jsonrpc.Message, error) {
	select {
	case m := <-c.incoming:
		return m, nil
	case <-c.ctx.Done():
		return nil, io.EOF
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// deliver queues a message for the SDK. While maxQueued messages are in the queue it waits, until ctx or the
// connection ends. So a slow SDK slows the server down, and the queue is bounded.
func (c *httpConn) deliver(ctx context.Context, m jsonrpc.Message) error {
	select {
	case c.incoming <- m:
		return nil
	case <-c.ctx.Done():
		return errConnClosed
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Close implements sdk.Connection. It sends DELETE if the session has an id and is not lost, ends the connection
// and waits for the goroutine of the standalone stream. The SDK calls Close when no request is in flight. The
// error is that of DELETE; later calls return it again.
func (c *httpConn) Close() error {
	c.closeOnce.Do(func() {
		defer c.work.Wait()
		defer c.cancel()
		defer Recover(c.Logger, func(f *Failure) { c.closeErr = f })
		if c.SessionID() != "" {
			c.closeErr = c.notify(c.ctx, NotifyTimeout, http.MethodDelete, nil)
		}
	})
	return c.closeErr
}

// sessionLost reports whether a request would carry the id of a session that the server forgot.
func (c *httpConn) sessionLost() bool { return c.SessionID() != "" && c.session.Lost.Load() }

// readJSON reads the body of resp and closes it. A body of more than limit bytes is the failure AnswerTooLarge;
// its TCP connection cannot be used again.
func readJSON(resp *http.Response, limit int) ([]byte, *Failure) {
	defer resp.Body.Close()
	var body bytes.Buffer
	// No large buffer before the bytes arrive: Content-Length is only a claim of the server.
	body.Grow(int(min(max(resp.ContentLength, 0), maxRefusal)) + bytes.MinRead)
	if _, err := body.ReadFrom(io.LimitReader(resp.Body, int64(limit)+1)); err != nil {
		return nil, noReply(err, true)
	}
	if body.Len() > limit {
		return nil, AnswerTooLarge(limit)
	}
	return body.Bytes(), nil
}

// decodeAnswer decodes data, the body of a reply, as the answer to the request id. Some servers of 2025-03-26
// send the answer in a batch; the other messages of the batch are ignored.
func decodeAnswer(id jsonrpc.ID, data []byte) (*jsonrpc.Response, *Failure) {
	data = bytes.TrimPrefix(data, byteOrderMark)
	var batch []json.RawMessage
	if bytes.HasPrefix(data, []byte("[")) && json.Unmarshal(data, &batch) == nil {
		for _, element := range batch {
			msg, err := decodeMessage(element)
			if answer := answerTo(id, msg); err == nil && answer != nil {
				return answer, nil
			}
		}
	}
	msg, err := decodeMessage(data)
	if err != nil {
		return nil, BadReply("it does not decode", err)
	}
	answer := answerTo(id, msg)
	if answer == nil {
		return nil, BadReply("it answers another request", nil)
	}
	return answer, nil
}

// decodeReply decodes the body of a reply with a 2xx status as decodeAnswer does. It also accepts an error without
// an id, which can only be about the request that the reply belongs to.
func decodeReply(id jsonrpc.ID, data []byte) (*jsonrpc.Response, *Failure) {
	answer, failure := decodeAnswer(id, data)
	if failure == nil {
		return answer, nil
	}
	msg, err := decodeMessage(data)
	if err != nil {
		return nil, failure
	}
	withoutID := answerTo(jsonrpc.ID{}, msg)
	if withoutID == nil {
		return nil, failure
	}
	return &jsonrpc.Response{ID: id, Error: withoutID.Error}, nil
}

// answerTo returns msg if it is a response with that id, else nil.
func answerTo(id jsonrpc.ID, msg jsonrpc.Message) *jsonrpc.Response {
	answer, ok := msg.(*jsonrpc.Response)
	if !ok || answer.ID != id {
		return nil
	}
	return answer
}

// saysSessionLost reports whether the status and body of a reply say that the session is lost. The request must
// have had a session id. 404 means that whatever the body says (2025-11-25 basic/transports). Servers of the
// TypeScript SDK answer 400 with a text about the session.
func saysSessionLost(status int, body []byte) bool {
	return status == http.StatusNotFound ||
		status == http.StatusBadRequest && bytes.Contains(bytes.ToLower(body), []byte("session"))
}

// mediaType returns the content type without parameters, in lower case; "" if there is none. It does not parse
// the parameters: the official SDKs accept a reply whose parameters are malformed, too.
func mediaType(resp *http.Response) string {
	value, _, _ := strings.Cut(resp.Header.Get("Content-Type"), ";")
	return strings.ToLower(strings.TrimSpace(value))
}

// drainBody reads at most maxRefusal bytes of the body and closes it. If the body ends before that, its TCP
// connection can be used again. It returns what was read; read errors are ignored.
func drainBody(resp *http.Response) []byte {
	defer resp.Body.Close()
	body, _ := io.ReadAll(io.LimitReader(resp.Body, maxRefusal))
	return body
}
