package transport

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// MessageConn is a connection that carries whole JSON-RPC messages: the pipes of a child process,
// a WebSocket, or HTTP+SSE. Read is called by one goroutine and Write by one other; Close may be
// called from anywhere and more than once. Every error of Read or Write ends the connection, except
// for a *requestError of Read; if it is a *Failure, callers are given its public text.
type MessageConn interface {
	// Read returns the next message, in a slice of its own and of at most MaxMessage bytes, or what
	// SetReadLimit set; a longer one is the failure AnswerTooLarge. After Close it fails at once.
	Read() ([]byte, error)
	// SetReadLimit sets how many bytes the messages may have that begin from now on. It may be called
	// from anywhere.
	SetReadLimit(bytes int)
	// Write sends one message whole. It may wait for the peer, but only until Close. It does not
	// have the context of a caller: one who gives up must not leave half a message behind. A
	// *Failure with NotRun promises that the peer got nothing of the message. data may be appended
	// to, within its capacity.
	Write(data []byte) error
	// Close ends the connection without waiting, and makes Read and Write return.
	Close() error
}

// streamEndpoint is a server over connections of messages. Each session has one of its own.
type streamEndpoint struct {
	open      func(context.Context) (MessageConn, error)
	close     func()
	log       *slog.Logger
	warnQuery sync.Once // that query parameters cannot be sent
}

// NewStream returns the endpoint of a server over the connections that open makes. open makes a
// connection under the handshake's context, but must not bind the connection's life to it; a
// *Failure of open is what callers are given. closeAll is called after the last session.
func NewStream(open func(context.Context) (MessageConn, error), closeAll func(), log *slog.Logger) Endpoint {
	return newStreamEndpoint(open, closeAll, log)
}

func newStreamEndpoint(open func(context.Context) (MessageConn, error), closeAll func(), log *slog.Logger) *streamEndpoint {
	return &streamEndpoint{open: open, close: closeAll, log: log}
}

// NewTransport implements Endpoint.
func (e *streamEndpoint) NewTransport() Transport { return newStreamConn(e) }

// Close implements Endpoint.
func (e *streamEndpoint) Close() { e.close() }

// streamConn is the connection of one session over a MessageConn, as httpConn is over HTTP. It
// sees every message both ways. It notes for each RoundTrip whether its request was sent, hands
// progress to the RoundTrip that asked for it, and log messages and the server's own requests to
// the one call that they can be about, and bounds what the server may ask. A message that would
// end the session at the SDK is dropped. The end of the connection ends every request in
// flight, before the SDK learns of it: a request that was sent may have run, and one that was not
// is sent in the next session.
//
// It is the sdk.Transport and the sdk.Connection of one session.
type streamConn struct {
	endpoint *streamEndpoint
	log      *slog.Logger
	session  *Session
	conn     MessageConn
	batch    []json.RawMessage // read but not processed yet; only Read touches it
	out      chan *outMessage  // to the writer
	ended    chan struct{}     // closed when the connection has ended
	written  chan struct{}     // closed when the writer has ended
	// cancelQueued, of capacity 1, says that cancels is not empty.
	cancelQueued chan struct{}

	mu         sync.Mutex // protects what follows
	err        error      // why the connection ended; nil before
	pending    map[jsonrpc.ID]*pendingRequest
	tokens     map[string]*RoundTrip   // by progress token
	incoming   map[jsonrpc.ID]struct{} // the server's requests that we have not answered yet
	discovers  bool                    // server/discover was to be sent
	givenUp    map[jsonrpc.ID]struct{} // calls that we gave up, and the server perhaps did not
	overflowed bool                    // more calls were given up than are kept
	opened     time.Time               // when the connection was opened
	ambiguous  bool                    // a question could be about a call that was given up
	cancels    []*outMessage           // cancellations that the writer does not have yet
	dropped    int                     // messages
	unmatched  int                     // messages that could be about no call, or about several
}

// pendingRequest is one of our requests that does not have an answer yet.
type pendingRequest struct {
	id      jsonrpc.ID
	trip    *RoundTrip // nil for a request that the SDK sends by itself
	method  string
	sent    bool // or is being sent
	writing bool // the writer has it
}

// maxDropLog bounds how many dropped messages of one connection are logged.
const maxDropLog = 5

func newStreamConn(e *streamEndpoint) *streamConn {
	return &streamConn{
		endpoint: e, log: e.log,
		out: make(chan *outMessage), ended: make(chan struct{}), written: make(chan struct{}),
		cancelQueued: make(chan struct{}, 1),
		pending:      map[jsonrpc.ID]*pendingRequest{}, tokens: map[string]*RoundTrip{}, incoming: map[jsonrpc.ID]struct{}{},
		givenUp: map[jsonrpc.ID]struct{}{},
	}
}

// Connect opens the connection. It implements sdk.Transport.
func (c *streamConn) Connect(ctx context.Context) (sdk.Connection, error) {
	conn, err := c.endpoint.open(ctx)
	if err != nil {
		return nil, err
	}
	c.session, c.conn, c.opened = RoundTripOf(ctx).Session, conn, time.Now()
	go c.writeLoop()
	return c, nil
}

// SessionID returns "": the connection is the session.
func (c *streamConn) SessionID() string { return "" }

// Close ends the connection and returns when the writer has ended. The SDK calls it when no
// request is in flight, or after Read has failed.
func (c *streamConn) Close() error {
	c.endConnection(errConnClosed)
	<-c.written
	return nil
}

// removePending returns the pending request id and removes it; nil where there is none.
func (c *streamConn) removePending(id jsonrpc.ID) *pendingRequest {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.removePendingLocked(id)
}

// removePendingLocked returns the request in flight with that id, which no longer is; nil if there is none.
func (c *streamConn) removePendingLocked(id jsonrpc.ID) *pendingRequest {
	pending := c.pending[id]
	if pending == nil {
		return nil
	}
	delete(c.pending, id)
	if pending.trip != nil {
		delete(c.tokens, pending.trip.ProgressToken)
		c.setReadLimitLocked(pending.trip)
	}
	return pending
}

// setReadLimitLocked sets the limit that the pending requests need. trip was added or removed.
func (c *streamConn) setReadLimitLocked(trip *RoundTrip) {
	if trip.MaxAnswer <= MaxMessage {
		return
	}
	limit := MaxMessage
	for _, q := range c.pending {
		if q.trip != nil {
			limit = max(limit, q.trip.answerLimit())
		}
	}
	c.conn.SetReadLimit(limit)
}

// endConnection ends the connection because of err. Requests in flight fail with the reason before the SDK
// ends them.
func (c *streamConn) endConnection(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.endConnectionLocked(err)
}

func (c *streamConn) endConnectionLocked(err error) {
	if c.err != nil {
		return
	}
	c.err = err
	waiting := 0
	for _, q := range c.pending {
		if q.method != methodListen { // its answer is only the end of the subscription
			waiting++
		}
	}
	only := waiting == 1
	for id, q := range c.pending {
		delete(c.pending, id)
		if !q.writing {
			c.failPendingLocked(q, only)
		}
	}
	clear(c.tokens)
	close(c.ended)
	_ = c.conn.Close() // returns at once
	if c.dropped > 0 {
		c.log.Debug("MCP messages were dropped", "messages", c.dropped)
	}
	if c.unmatched > 0 {
		c.log.Debug("MCP messages could not be attributed to a call", "messages", c.unmatched)
	}
}

// failPendingLocked fails pending because the connection has ended: it was not sent, or may have run. A
// message that was too large to read is the answer to pending if it says so, or if pending was the only
// request in flight.
func (c *streamConn) failPendingLocked(pending *pendingRequest, only bool) {
	if pending.trip == nil {
		return
	}
	failure, _ := errors.AsType[*Failure](c.err)
	oversize, _ := errors.AsType[*oversizeError](c.err)
	isAnswer := only || oversize != nil && oversize.answers == pending.id
	switch {
	case !pending.sent:
		pending.trip.fail(LostSession(c.err))
	case oversize != nil && oversize.answers.IsValid() && oversize.answers != pending.id:
		pending.trip.fail(connectionEnded(c.err))
	case isAnswer && failure != nil && failure.Kind == TooLarge:
		pending.trip.fail(failure)
	default:
		pending.trip.fail(connectionEnded(c.err))
	}
}

// Explain implements Transport. The SDK says only that the connection is closed if its reader saw
// the end before its writer.
func (c *streamConn) Explain(err error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil && !errors.Is(err, c.err) {
		if f, ok := errors.AsType[*Failure](err); ok && f.Lost {
			err = LostSession(c.err)
		} else {
			err = fmt.Errorf("%w: %w", err, c.err)
		}
	}
	if c.discovers && c.err != nil && !errors.Is(c.err, errConnClosed) { // whether or not it refused server/discover first
		return fmt.Errorf("%w: %w", ErrHungUp, err)
	}
	return err
}

// connectionEnded returns the failure of a request that was sent over a connection that then
// ended.
func connectionEnded(err error) *Failure {
	public := "the connection ended before its answer"
	if f, ok := errors.AsType[*Failure](err); ok {
		public = f.Public
	}
	return &Failure{Kind: UnknownOutcome, Public: public, Err: err}
}
