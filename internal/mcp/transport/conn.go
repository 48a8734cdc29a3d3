package transport

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// MessageConn is a connection that carries whole JSON-RPC messages: the pipes of a child process, a WebSocket, or
// HTTP+SSE. Read and Write are each called by one goroutine at a time. SetReadLimit and Close may be called concurrently
// with them, and Close more than once. If Read returns a *requestError, one request has failed. Any other error of
// Read or Write ends the connection; if it is a *Failure, its Public text may be shown to users.
type MessageConn interface {
	// Read returns the next message. The slice belongs to the caller of Read. If a message has more bytes than the
	// limit (MaxMessage, or the value of the latest SetReadLimit), Read returns the failure AnswerTooLarge. After
	// Close, Read returns an error at once.
	Read() ([]byte, error)
	// SetReadLimit sets the maximum size of messages that begin after the call.
	SetReadLimit(bytes int)
	// Write sends one whole message. It may wait for the peer, but not after Close. Write has no context, because a
	// sender that gives up must not leave half a message on the connection. A *Failure with NotRun promises that the
	// peer received no part of the message. Write may append to data within its capacity.
	Write(data []byte) error
	// Close ends the connection without waiting, and makes pending calls of Read and Write return.
	Close() error
}

// streamEndpoint is a server whose connections carry whole messages. Each session has its own connection.
type streamEndpoint struct {
	open      func(context.Context) (MessageConn, error)
	close     func()
	log       *slog.Logger
	warnQuery sync.Once // logs once that query parameters cannot be sent
}

// NewStream returns the endpoint of a server, to which open opens a connection per session. open gets the context of
// the handshake, which must bound open but must not end the connection later. If open returns a *Failure, its Public
// text may be shown to users. Endpoint.Close calls closeAll.
func NewStream(open func(context.Context) (MessageConn, error), closeAll func(), log *slog.Logger) Endpoint {
	return &streamEndpoint{open: open, close: closeAll, log: log}
}

// NewTransport implements Endpoint.
func (e *streamEndpoint) NewTransport() Transport { return newStreamConn(e) }

// Close implements Endpoint.
func (e *streamEndpoint) Close() { e.close() }

// streamConn is the sdk.Transport and the sdk.Connection of one session over a MessageConn. All messages in both
// directions pass through it:
//   - It records for each RoundTrip whether its request was sent.
//   - It passes progress to the RoundTrip that has the progress token. It passes the server's log messages and
//     requests to a RoundTrip only if they cannot be about another one (callOf).
//   - It limits the server's requests, and drops messages that would make the SDK end the session.
//   - When the connection ends, it fails every request in flight with the reason, before the SDK fails them without
//     one. A request that was sent may have run; a request that was not sent can be sent in the next session.
type streamConn struct {
	endpoint *streamEndpoint
	log      *slog.Logger
	session  *Session
	conn     MessageConn
	batch    batch          // of the last message; used by Read only
	turn     chan struct{}  // of capacity 1; has an element while a message is being written
	ended    chan struct{}  // closed when the connection has ended
	writes   sync.WaitGroup // counts the goroutines of send; grows only while mu is held and err is nil

	mu  sync.Mutex // protects the fields below
	err error      // why the connection ended; nil while it is open
	// oversized is the request whose answer was too large to read, which ended the connection; invalid if unknown.
	oversized jsonrpc.ID
	opened    time.Time // when the connection was opened
	pending   map[jsonrpc.ID]*pendingRequest
	byToken   map[string]*RoundTrip   // pending round trips by progress token
	incoming  map[jsonrpc.ID]struct{} // the server's requests whose answers are not written yet
	// triedDiscover is true once server/discover was registered to be sent.
	triedDiscover bool
	// abandoned has the calls that were sent and then cancelled, until the server answers them.
	abandoned map[jsonrpc.ID]struct{}
	// abandonedOverflow is true if a call could not be added to abandoned, because it had maxAbandoned calls.
	abandonedOverflow bool
	// declinedQuestion is true if a request of the server was declined only because of abandoned calls.
	declinedQuestion bool
	dropped          int // how many messages were dropped
	unmatched        int // how many messages could be about no call, or about several
}

// pendingRequest is a request to the server that has no answer yet.
type pendingRequest struct {
	id        jsonrpc.ID
	roundTrip *RoundTrip // nil for a request that the SDK itself sends
	method    string
	sent      bool // writing has begun, and has not failed with NotRun
	writing   bool // it is being written; finishWriting fails it if the connection ends
}

// maxDropLog is how many dropped messages are logged per connection.
const maxDropLog = 5

// newStreamConn returns the streamConn of a new session, which Connect connects.
func newStreamConn(e *streamEndpoint) *streamConn {
	return &streamConn{
		endpoint: e, log: e.log,
		turn: make(chan struct{}, 1), ended: make(chan struct{}),
		pending: map[jsonrpc.ID]*pendingRequest{}, byToken: map[string]*RoundTrip{},
		incoming: map[jsonrpc.ID]struct{}{}, abandoned: map[jsonrpc.ID]struct{}{},
	}
}

// Connect implements sdk.Transport. It opens the connection. ctx must carry a RoundTrip with a Session.
func (c *streamConn) Connect(ctx context.Context) (sdk.Connection, error) {
	conn, err := c.endpoint.open(ctx)
	if err != nil {
		return nil, err
	}
	c.session, c.conn, c.opened = RoundTripOf(ctx).Session, conn, time.Now()
	return c, nil
}

// SessionID implements sdk.Connection. It returns "", because the session has no id apart from its connection.
func (c *streamConn) SessionID() string { return "" }

// Close implements sdk.Connection. It ends the connection and waits until nothing writes to it. The SDK calls Close
// when no request is in flight, or after Read has failed.
func (c *streamConn) Close() error {
	c.endConnection(errConnClosed)
	c.writes.Wait()
	return nil
}

// removePending removes and returns the pending request with this id, or returns nil if none has it.
func (c *streamConn) removePending(id jsonrpc.ID) *pendingRequest {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.removePendingLocked(id)
}

// removePendingLocked removes and returns the pending request with this id, or returns nil if none has it. It also
// removes the request's progress token, and lowers the read limit if only this request needed it. c.mu must be held.
func (c *streamConn) removePendingLocked(id jsonrpc.ID) *pendingRequest {
	pending := c.pending[id]
	if pending == nil {
		return nil
	}
	delete(c.pending, id)
	if pending.roundTrip != nil {
		delete(c.byToken, pending.roundTrip.ProgressToken)
		c.setReadLimitLocked(pending.roundTrip)
	}
	return pending
}

// setReadLimitLocked sets the connection's read limit to the largest limit of all pending requests. Call it after
// roundTrip was added to or removed from c.pending. c.mu must be held.
func (c *streamConn) setReadLimitLocked(roundTrip *RoundTrip) {
	if roundTrip.MaxAnswer <= MaxMessage {
		return // roundTrip does not raise the limit
	}
	limit := MaxMessage
	for _, pending := range c.pending {
		if pending.roundTrip != nil {
			limit = max(limit, pending.roundTrip.answerLimit())
		}
	}
	c.conn.SetReadLimit(limit)
}

// endConnection does what endConnectionLocked does. c.mu must not be held.
func (c *streamConn) endConnection(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.endConnectionLocked(err)
}

// endConnectionLocked fails all requests in flight because of err, and closes the MessageConn. Only the request that is
// being written is left for finishWriting to fail. After the first call it does nothing. c.mu must be held.
func (c *streamConn) endConnectionLocked(err error) {
	if c.err != nil {
		return
	}
	c.err = err
	if failure, ok := errors.AsType[*Failure](err); ok && failure.Kind == TooLarge {
		c.oversized = c.findOversizedLocked(err)
	}
	for id, pending := range c.pending {
		delete(c.pending, id)
		if !pending.writing { // finishWriting fails the others, because it knows whether the server got them
			c.failPendingLocked(pending)
		}
	}
	clear(c.byToken)
	// Close the connection only now: Read then returns, and the SDK fails all remaining requests without a reason.
	close(c.ended)
	_ = c.conn.Close() // does not wait
	if c.dropped > 0 {
		c.log.Debug("MCP messages were dropped", "messages", c.dropped)
	}
	if c.unmatched > 0 {
		c.log.Debug("MCP messages could not be attributed to a call", "messages", c.unmatched)
	}
}

// findOversizedLocked returns the id of the request whose answer was too large to read. err is the error of that
// answer. If err does not have the id, the answer is that of the only request that waits for a result. The id is
// invalid if several requests do. c.mu must be held.
func (c *streamConn) findOversizedLocked(err error) jsonrpc.ID {
	if oversize, ok := errors.AsType[*oversizeError](err); ok && oversize.answers.IsValid() {
		return oversize.answers
	}
	var waiting []*pendingRequest
	for _, pending := range c.pending {
		if pending.method != methodListen { // the answer to a subscription only ends it, and is never large
			waiting = append(waiting, pending)
		}
	}
	if len(waiting) != 1 || waiting[0].writing {
		return jsonrpc.ID{}
	}
	return waiting[0].id
}

// failPendingLocked fails pending because the connection ended with c.err. If the request was not sent, the failure is
// LostSession, so that it can be sent again. If its answer was too large to read, the failure is c.err. Any other
// request may have run, and has an unknown outcome. c.mu must be held.
func (c *streamConn) failPendingLocked(pending *pendingRequest) {
	if pending.roundTrip == nil {
		return
	}
	failure, isFailure := errors.AsType[*Failure](c.err)
	switch {
	case !pending.sent:
		failure = LostSession(c.err)
	case !isFailure || pending.id != c.oversized:
		failure = connectionEnded(c.err)
	}
	pending.roundTrip.fail(failure)
}

// Explain implements Transport.
func (c *streamConn) Explain(err error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err == nil {
		return err
	}
	failure, _ := errors.AsType[*Failure](err)
	switch {
	case errors.Is(err, c.err): // err has the reason
	case failure != nil && failure.Lost:
		err = LostSession(c.err)
	default:
		err = fmt.Errorf("%w: %w", err, c.err)
	}
	isClosedByUs := errors.Is(c.err, errConnClosed)
	if c.triedDiscover && !isClosedByUs {
		return fmt.Errorf("%w: %w", ErrHungUp, err)
	}
	return err
}

// connectionEnded returns the failure of a request that was sent and not answered before the connection ended with
// err. If err is a *Failure, the result has the same Public text.
func connectionEnded(err error) *Failure {
	public := "the connection ended before its answer"
	if f, ok := errors.AsType[*Failure](err); ok {
		public = f.Public
	}
	return &Failure{Kind: UnknownOutcome, Public: public, Err: err}
}
