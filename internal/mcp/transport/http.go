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
	"sync/atomic"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

const (
	// NotifyTimeout limits the time of requests that no goroutine of a call waits for: most notifications, and the
	// DELETE that ends a session. The SDK sends them with contexts that are never cancelled.
	NotifyTimeout = 2 * time.Second
	// answerTimeout limits the time to send an answer to a server's request. If the answer is lost, the server keeps
	// waiting for it, and so does the call.
	answerTimeout = 20 * time.Second
	// maxQueued is how many messages may wait for the SDK before reading stops.
	maxQueued = 10

	sessionHeader = "Mcp-Session-Id"
)

// HTTPConfig configures a server over Streamable HTTP.
type HTTPConfig struct {
	URL string
	// RoundTripper sends the requests. It may change them, and must not follow redirects.
	RoundTripper http.RoundTripper
	// StandaloneStream says whether each session opens the standalone stream (GET). If it is nil, a session opens the
	// stream in three cases: Session.WatchTools is set and the server announces changes of its tools, WatchResources
	// is set and the server offers subscriptions to resources, or Sampling is set.
	StandaloneStream *bool
	WatchResources   bool
	Sampling         bool // the server may send sampling requests, which servers with the Python SDK 1 send only there
	Logger           *slog.Logger
}

// httpEndpoint is a server over HTTP. All of its sessions share it.
type httpEndpoint struct {
	HTTPConfig
	// background counts the goroutines that outlive a request, which read a stream to its end or repeat a cancellation.
	background sync.WaitGroup
	idle       idleConns
}

// maxConnWait limits how long a request waits for a TCP connection whose current stream is about to end.
const maxConnWait = 100 * time.Millisecond

// idleConns makes requests reuse TCP connections. Servers end an answer's stream some milliseconds after the answer. A
// request that follows at once waits for that, because opening a connection takes longer over TLS. The counts are
// estimates, since http.Transport does not report its connections. A wrong count costs a new connection or a wait of
// maxConnWait. The zero value is ready to use.
type idleConns struct {
	mu          sync.Mutex    // protects the fields below
	idle        int           // connections that are not in use
	ending      int           // streams that are being read to their end after their answer
	waiting     int           // requests that wait for a stream to end
	streamEnded chan struct{} // closed when a stream has ended; nil if no request waits
	// skipWait is true if requests do not wait, because the server keeps streams open for longer than maxConnWait
	// after the answer, or because all requests share one connection (HTTP/2).
	skipWait bool
}

// waitAndTake counts a connection as used, before a request is sent. If no connection is idle but more streams are
// ending than requests are waiting, waitAndTake first waits for a stream to end. The end of ctx ends the wait. If the
// request gets no reply, its connection is closed, and is not to be counted as idle again.
func (p *idleConns) waitAndTake(ctx context.Context) {
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

// waitLocked waits until a connection is idle, no stream is ending, maxConnWait has passed, or ctx ends. After
// maxConnWait it sets p.skipWait, so later requests do not wait. p.mu must be held; it is released in the wait.
func (p *idleConns) waitLocked(ctx context.Context) {
	timeout := time.NewTimer(maxConnWait)
	defer timeout.Stop()
	for p.idle == 0 && p.ending > 0 {
		if p.streamEnded == nil {
			p.streamEnded = make(chan struct{})
		}
		streamEnded := p.streamEnded
		p.mu.Unlock()
		mustStop := true
		select {
		case <-streamEnded:
			mustStop = false
		case <-timeout.C:
		case <-ctx.Done():
		}
		p.mu.Lock()
		if mustStop {
			isTimeout := ctx.Err() == nil
			p.skipWait = p.skipWait || isTimeout
			return
		}
	}
}

// put counts resp's connection as idle. The body of resp must have been read to its end.
func (p *idleConns) put(resp *http.Response) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.putLocked(resp)
}

// putLocked counts resp's connection as idle, or sets p.skipWait if resp came over HTTP/2. p.mu must be held.
func (p *idleConns) putLocked(resp *http.Response) {
	if resp.ProtoMajor >= 2 { // all requests share one connection
		p.skipWait = true
		return
	}
	p.idle++
}

// noteAnswered records that the stream resp has delivered its answer and is now read to its end. When that is over,
// ended must be called; wholeBody says that the body was read to its end, so that the connection can be used again.
// ended also decides, from the time that reading to the end took, whether later requests wait.
func (p *idleConns) noteAnswered(resp *http.Response) (ended func(wholeBody bool)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ending++
	answered := time.Now()
	return func(wholeBody bool) {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.ending--
		p.skipWait = time.Since(answered) > maxConnWait
		if wholeBody {
			p.putLocked(resp)
		}
		if p.streamEnded != nil {
			close(p.streamEnded)
			p.streamEnded = nil
		}
	}
}

// NewHTTP returns the endpoint of a server over Streamable HTTP. It sends nothing.
func NewHTTP(cfg HTTPConfig) Endpoint { return &httpEndpoint{HTTPConfig: cfg} }

// NewTransport implements Endpoint.
func (e *httpEndpoint) NewTransport() Transport { return newHTTPConn(e) }

// Close implements Endpoint.
func (e *httpEndpoint) Close() { e.background.Wait() }

// httpConn is the sdk.Transport and the sdk.Connection of one session over Streamable HTTP. Each message to the server
// is a POST, and the reply to a request contains its answer (2025-11-25 and 2026-07-28 basic/transports). httpConn
// records for each RoundTrip whether the request was sent, passes it the messages that the server sends before the
// answer, and limits how much is read. An invalid reply fails only its own request (RoundTrip.fail), because all runs
// share the session. Once the server has lost the session, its id is never sent again.
type httpConn struct {
	*httpEndpoint
	session   *Session
	ctx       context.Context      // has the values of the handshake's context; ends with Close
	cancel    context.CancelFunc   // ends ctx
	incoming  chan jsonrpc.Message // passes messages for the SDK from deliver to Read
	work      sync.WaitGroup       // counts the goroutine of the standalone stream
	closeOnce sync.Once
	closeErr  error // the result of Close; set in closeOnce

	id          atomic.Value                     // string: the session's id; nil before initialize, "" if the server gave none
	initialized atomic.Pointer[initializeResult] // nil before initialize
}

// initializeResult has the members of initialize's result that httpConn uses.
type initializeResult struct {
	Version      string `json:"protocolVersion"`
	Capabilities struct {
		Resources struct {
			Subscribe bool `json:"subscribe"`
		} `json:"resources"`
		Tools struct {
			ListChanged bool `json:"listChanged"`
		} `json:"tools"`
	} `json:"capabilities"`
}

// newHTTPConn returns the httpConn of a new session, which Connect sets up.
func newHTTPConn(e *httpEndpoint) *httpConn {
	return &httpConn{httpEndpoint: e, incoming: make(chan jsonrpc.Message, maxQueued)}
}

// Connect implements sdk.Transport. It sends nothing. ctx must carry a RoundTrip with a Session.
func (c *httpConn) Connect(ctx context.Context) (sdk.Connection, error) {
	c.session = RoundTripOf(ctx).Session
	c.ctx, c.cancel = context.WithCancel(context.WithoutCancel(ctx))
	return c, nil
}

// Explain implements Transport. It returns err unchanged, because each request over HTTP fails with its own reason.
func (c *httpConn) Explain(err error) error { return err }

// SessionID implements sdk.Connection. It returns the session's id; "" before initialize, and if the server gave none.
func (c *httpConn) SessionID() string {
	id, _ := c.id.Load().(string)
	return id
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

// deliver queues m for the SDK. While the queue has maxQueued messages it waits, until ctx or the connection ends.
// This bounds the queue, and a slow SDK slows the server down.
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

// Close implements sdk.Connection. It sends DELETE if the session has an id and is not lost, ends the connection, and
// waits for the goroutine of the standalone stream. The SDK calls Close when no request is in flight. Close returns
// the error of DELETE, also when it is called again.
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

// sessionLost reports whether the session has an id that the server no longer knows, so that no request may be sent.
func (c *httpConn) sessionLost() bool { return c.SessionID() != "" && c.session.Lost.Load() }

// readJSON reads and closes the body of resp. If the body has more than limit bytes, readJSON returns the failure
// AnswerTooLarge, and the TCP connection is not used again.
func readJSON(resp *http.Response, limit int) ([]byte, *Failure) {
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, int64(limit)+1))
	if err != nil {
		return nil, unansweredFailure(err)
	}
	if len(body) > limit {
		return nil, AnswerTooLarge(limit)
	}
	return body, nil
}

// decodeAnswer decodes data, the body of a reply, as the answer to the request with this id. Some servers of
// 2025-03-26 send the answer in a batch; decodeAnswer ignores the other messages of the batch.
func decodeAnswer(id jsonrpc.ID, data []byte) (*jsonrpc.Response, *Failure) {
	data = bytes.TrimPrefix(data, byteOrderMark)
	var batch []json.RawMessage
	if bytes.HasPrefix(data, []byte("[")) && json.Unmarshal(data, &batch) == nil {
		for _, element := range batch {
			msg, _ := decodeMessage(element) // after an error, msg is nil
			if answer := answerTo(id, msg); answer != nil {
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

// decodeReply does what decodeAnswer does, for a reply with a 2xx status. It also accepts an error without an id,
// which can only be about the request that the reply belongs to.
func decodeReply(id jsonrpc.ID, data []byte) (*jsonrpc.Response, *Failure) {
	answer, failure := decodeAnswer(id, data)
	if failure != nil {
		msg, _ := decodeMessage(data) // after an error, msg is nil
		if withoutID := answerTo(jsonrpc.ID{}, msg); withoutID != nil {
			return &jsonrpc.Response{ID: id, Error: withoutID.Error}, nil
		}
	}
	return answer, failure
}

// answerTo returns msg if it is a response with this id, otherwise nil.
func answerTo(id jsonrpc.ID, msg jsonrpc.Message) *jsonrpc.Response {
	answer, ok := msg.(*jsonrpc.Response)
	if !ok || answer.ID != id {
		return nil
	}
	return answer
}

// saysSessionLost reports whether a reply with this status and body says that the session is lost. Use it only for
// requests that had a session id. 404 has that meaning with every body (2025-11-25 basic/transports), and so has 410,
// which some servers send (typescript-sdk#1402). Servers built with the TypeScript SDK answer 400 with a text about the
// session.
func saysSessionLost(status int, body []byte) bool {
	return status == http.StatusNotFound || status == http.StatusGone ||
		status == http.StatusBadRequest && bytes.Contains(bytes.ToLower(body), []byte("session"))
}

// mediaType returns resp's content type without parameters, in lower case; "" if it has none. It does not parse the
// parameters, because the official SDKs also accept replies whose parameters are malformed.
func mediaType(resp *http.Response) string {
	value, _, _ := strings.Cut(resp.Header.Get("Content-Type"), ";")
	return strings.ToLower(strings.TrimSpace(value))
}

// drainBody reads at most maxRefusal bytes of resp's body, closes it and returns what it read. It ignores read errors.
// If the body ends within maxRefusal bytes, the TCP connection can be used again.
func drainBody(resp *http.Response) []byte {
	defer resp.Body.Close()
	body, _ := io.ReadAll(io.LimitReader(resp.Body, maxRefusal))
	return body
}
