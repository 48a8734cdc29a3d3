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
	// StandaloneStream says whether each session has the standalone stream (GET), if the server has
	// one. nil: sessions with Session.WatchTools have it where the server announces changes of its
	// tools, and all sessions where WatchResources is set and resources can be subscribed to.
	StandaloneStream *bool
	WatchResources   bool
	Logger           *slog.Logger
}

// httpEndpoint is a server over HTTP, shared by all of its sessions.
type httpEndpoint struct {
	HTTPConfig
	// background counts what no request waits for: streams that are read to their end, and
	// repeated cancellations.
	background sync.WaitGroup
	idle       idleConns
}

// maxConnWait bounds how long a request waits for a TCP connection whose last stream is ending.
const maxConnWait = 100 * time.Millisecond

// idleConns lets a request wait for a connection that is about to become idle instead of opening
// another one, which takes longer over TLS: servers end the stream of an answer some milliseconds
// after the answer. Its counts are an estimate, since the http.Transport does not say what it holds:
// an error costs a new connection or a wait of maxConnWait. The zero value works.
type idleConns struct {
	mu        sync.Mutex    // protects what follows
	idle      int           // connections that no request uses
	ending    int           // streams that have had their answer and are read to their end
	waiting   int           // requests that wait for one of them
	changed   chan struct{} // closed when a stream has ended; nil if no request waits
	unbounded bool          // the server keeps streams open for longer than maxConnWait, or has HTTP/2
}

// takeConn counts a connection as used. It waits for one under ctx if none is idle and one soon will be.
func (p *idleConns) takeConn(ctx context.Context) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.idle == 0 && p.waiting < p.ending && !p.unbounded {
		p.waiting++
		p.waitLocked(ctx)
		p.waiting--
	}
	if p.idle > 0 {
		p.idle--
	}
}

// waitLocked waits until a connection is idle or no stream is ending. It unlocks p meanwhile.
func (p *idleConns) waitLocked(ctx context.Context) {
	late := time.NewTimer(maxConnWait)
	defer late.Stop()
	for p.idle == 0 && p.ending > 0 {
		if p.changed == nil {
			p.changed = make(chan struct{})
		}
		changed := p.changed
		p.mu.Unlock()
		timely := false
		select {
		case <-changed:
			timely = true
		case <-late.C:
		case <-ctx.Done():
		}
		p.mu.Lock()
		if !timely {
			p.unbounded = p.unbounded || ctx.Err() == nil
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

// putLocked counts the connection of a response as idle.
func (p *idleConns) putLocked(resp *http.Response) {
	if resp.ProtoMajor >= 2 { // all requests share one connection
		p.unbounded = true
		return
	}
	p.idle++
}

// beginEnd notes that the stream resp has had its answer. ended must be called when it was read to its
// end, or was cut.
func (p *idleConns) beginEnd(resp *http.Response) (ended func(whole bool)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ending++
	began := time.Now()
	return func(whole bool) {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.ending--
		p.unbounded = time.Since(began) > maxConnWait
		if whole {
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

// httpConn is the connection of one session over Streamable HTTP: each of our messages is a POST
// whose reply has the answer (2025-11-25 and 2026-07-28 basic/transports). It notes for each
// RoundTrip whether the request was sent, hands what the server sends in the answer's stream to the
// RoundTrip that it belongs to, and bounds what is read. An invalid reply ends only its own request
// (RoundTrip.fail), because all runs share the session. The id of a session that the server has
// lost is never sent again.
//
// It is the sdk.Transport and the sdk.Connection of one session.
type httpConn struct {
	*httpEndpoint
	session *Session
	ctx     context.Context      // has the values of the handshake's, and ends with Close
	end     context.CancelFunc   // of ctx
	in      chan jsonrpc.Message // to the SDK
	work    sync.WaitGroup       // the standalone stream
	closing sync.Once
	err     error // of Close; closing protects it

	mu             sync.Mutex // protects what follows
	id             string     // of the session; "" before initialize, and where there is none
	version        string     // that initialize has negotiated; "" before
	canSubscribe   bool       // the server's resources can be subscribed to, as initialize said
	announcesTools bool       // the server announces changes of its tools, as initialize said
}

func newHTTPConn(e *httpEndpoint) *httpConn {
	return &httpConn{httpEndpoint: e, in: make(chan jsonrpc.Message, maxQueued)}
}

// Connect implements sdk.Transport. It sends nothing.
func (c *httpConn) Connect(ctx context.Context) (sdk.Connection, error) {
	c.session = RoundTripOf(ctx).Session
	c.ctx, c.end = context.WithCancel(context.WithoutCancel(ctx))
	return c, nil
}

// Explain implements Transport. Requests over HTTP fail with their own reasons.
func (c *httpConn) Explain(err error) error { return err }

// SessionID returns the server's id for the session; "" before there is one, and for servers
// without sessions.
func (c *httpConn) SessionID() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.id
}

// Read returns the next message that concerns the SDK.
func (c *httpConn) Read(ctx context.Context) (jsonrpc.Message, error) {
	select {
	case m := <-c.in:
		return m, nil
	case <-c.ctx.Done():
		return nil, io.EOF
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// deliver hands a message to the SDK, and waits for that under ctx: a slow SDK slows the server down, and
// nothing is queued without bound.
func (c *httpConn) deliver(ctx context.Context, m jsonrpc.Message) error {
	select {
	case c.in <- m:
		return nil
	case <-c.ctx.Done():
		return errConnClosed
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Close tells the server that the session is over, if it had one and has not forgotten it, and
// returns when everything that the connection started has ended. The SDK calls it when no request
// is in flight.
func (c *httpConn) Close() error {
	c.closing.Do(func() {
		defer c.work.Wait()
		defer c.end()
		defer Recover(c.Logger, func(f *Failure) { c.err = f })
		if c.SessionID() != "" {
			c.err = c.notify(c.ctx, NotifyTimeout, http.MethodDelete, nil)
		}
	})
	return c.err
}

// stale reports whether requests would carry the id of a session that the server forgot.
func (c *httpConn) sessionLost() bool { return c.SessionID() != "" && c.session.Lost.Load() }

// readJSON reads a JSON body of at most limit bytes to its end. Past that the connection is given up.
func readJSON(resp *http.Response, limit int) ([]byte, *Failure) {
	defer resp.Body.Close()
	var body bytes.Buffer
	body.Grow(int(min(max(resp.ContentLength, 0), maxRefusal)) + bytes.MinRead) // not all of a large length: the server may only claim it
	if _, err := body.ReadFrom(io.LimitReader(resp.Body, int64(limit)+1)); err != nil {
		return nil, noReply(err, true)
	}
	if body.Len() > limit {
		return nil, AnswerTooLarge(limit)
	}
	return body.Bytes(), nil
}

// decodeAnswer returns the answer to the request id from data. Some servers of 2025-03-26 send it in a
// batch, of which nothing else is used.
func decodeAnswer(id jsonrpc.ID, data []byte) (*jsonrpc.Response, *Failure) {
	data = bytes.TrimPrefix(data, byteOrderMark)
	var batch []json.RawMessage
	if bytes.HasPrefix(data, []byte("[")) && json.Unmarshal(data, &batch) == nil {
		for _, element := range batch {
			if msg, err := decodeMessage(element); err == nil && isAnswer(msg, id) {
				return msg.(*jsonrpc.Response), nil
			}
		}
	}
	msg, err := decodeMessage(data)
	if err != nil {
		return nil, BadReply("it does not decode", err)
	}
	if !isAnswer(msg, id) {
		return nil, BadReply("it answers another request", nil)
	}
	return msg.(*jsonrpc.Response), nil
}

// decodeReply is decodeAnswer for the body of a reply with a 2xx status. An error without an id can only be
// about the request that the reply belongs to.
func decodeReply(id jsonrpc.ID, data []byte) (*jsonrpc.Response, *Failure) {
	answer, failure := decodeAnswer(id, data)
	if failure == nil {
		return answer, nil
	}
	if msg, err := decodeMessage(data); err == nil && isAnswer(msg, jsonrpc.ID{}) {
		return &jsonrpc.Response{ID: id, Error: msg.(*jsonrpc.Response).Error}, nil
	}
	return nil, failure
}

// isAnswer reports whether msg answers the request id.
func isAnswer(msg jsonrpc.Message, id jsonrpc.ID) bool {
	answer, ok := msg.(*jsonrpc.Response)
	return ok && answer.ID == id
}

// saysSessionLost reports whether a refusal of a request with a session id says that the session
// is gone: 404 does, whatever the body says (2025-11-25 basic/transports); servers of the
// TypeScript SDK answer 400.
func saysSessionLost(status int, body []byte) bool {
	return status == http.StatusNotFound ||
		status == http.StatusBadRequest && bytes.Contains(bytes.ToLower(body), []byte("session"))
}

// mediaType returns the content type without parameters; "" where there is none. The parameters are not
// parsed, because a bad one must not cost the answer: the official SDKs look at the beginning alone.
func mediaType(resp *http.Response) string {
	value, _, _ := strings.Cut(resp.Header.Get("Content-Type"), ";")
	return strings.ToLower(strings.TrimSpace(value))
}

// drainBody reads at most limit bytes of the body and closes it. A body that ends within the limit
// leaves its connection for the next request.
func drainBody(resp *http.Response, limit int64) []byte {
	defer resp.Body.Close()
	body, _ := io.ReadAll(io.LimitReader(resp.Body, limit))
	return body
}
