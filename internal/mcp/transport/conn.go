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
// a WebSocket, or HTTP+SSE. One goroutine calls Read, another one calls Write; SetReadLimit and Close
// may be called concurrently, and Close more than once. A *requestError of Read fails one request. Every
// other error of Read or Write ends the connection; if the error is a *Failure, callers get its Public text.
type MessageConn interface {
	// Read returns the next message in a slice that the caller owns. A message of more bytes than
	// the limit, which is MaxMessage or the latest SetReadLimit, is the failure AnswerTooLarge.
	// After Close, Read fails at once.
	Read() ([]byte, error)
	// SetReadLimit sets how many bytes a message may have, for messages that begin after the call.
	SetReadLimit(bytes int)
	// Write sends one whole message. It may wait for the peer, but only until Close. Write has no
	// context of a caller, because a caller who gives up must not leave half a message on the
	// connection. A *Failure with NotRun promises that the peer got nothing of the message. Write may
	// append to data within its capacity.
	Write(data []byte) error
	// Close ends the connection without waiting, and makes Read and Write return.
	Close() error
}

// streamEndpoint is a server over connections that carry whole messages. Each session has its own connection.
type streamEndpoint struct {
	open      func(context.Context) (MessageConn, error)
	close     func()
	log       *slog.Logger
	warnQuery sync.Once // logs once that query parameters cannot be sent
}

// NewStream returns the endpoint of a server over the connections that open makes. The context of open is
// that of the handshake: it must bound open, and must not end the connection later. If the error of open is
// a *Failure, callers get its Public text. Endpoint.Close calls closeAll.
func NewStream(open func(context.Context) (MessageConn, error), closeAll func(), log *slog.Logger) Endpoint {
	return &streamEndpoint{open: open, close: closeAll, log: log}
}

// NewTransport implements Endpoint.
func (e *streamEndpoint) NewTransport() Transport { return newStreamConn(e) }

// Close implements Endpoint.
func (e *streamEndpoint) Close() { e.close() }

// streamConn is the sdk.Transport and the sdk.Connection of one session over a MessageConn. It sees all
// messages in both directions:
//   - It records for each RoundTrip whether its request was sent.
//   - It hands progress to the RoundTrip that has the progress token. Log messages and requests of the server
//     go to a RoundTrip only if they cannot be about another one (onlyCall).
//   - It bounds the server's requests, and drops messages at which the SDK would end the session.
//   - When the connection ends, it fails every request in flight with the reason before the SDK does: a request
//     that was sent may have run, and a request that was not sent can be sent in the next session.
type streamConn struct {
	endpoint *streamEndpoint
	log      *slog.Logger
	session  *Session
	conn     MessageConn
	batch    []json.RawMessage // messages of the last batch that are not processed yet; used by Read only
	outgoing chan *outMessage  // from send to writeLoop
	ended    chan struct{}     // closed when the connection has ended
	written  chan struct{}     // closed when writeLoop has ended
	// cancelQueued, of capacity 1, wakes writeLoop when cancellations is not empty.
	cancelQueued chan struct{}

	mu       sync.Mutex // protects what follows
	err      error      // why the connection ended; nil before
	opened   time.Time  // when the connection was opened
	pending  map[jsonrpc.ID]*pendingRequest
	byToken  map[string]*RoundTrip   // pending round trips by progress token
	incoming map[jsonrpc.ID]struct{} // requests of the server whose answer is not written yet
	// cancellations has the cancellations that writeLoop has not taken yet.
	cancellations []*outMessage
	// triedDiscover says that server/discover was registered to be sent.
	triedDiscover bool
	// abandoned has the calls that were cancelled after they were sent, until the server answers them: the
	// server may still work on them.
	abandoned map[jsonrpc.ID]struct{}
	// abandonedOverflow says that a call was not added to abandoned, because maxAbandoned calls were in it.
	abandonedOverflow bool
	// declinedQuestion says that a request of the server was declined only because of abandoned calls.
	declinedQuestion bool
	dropped          int // messages that were dropped
	unmatched        int // messages that could be about no call, or about several
}

// pendingRequest is one of our requests that does not have an answer yet.
type pendingRequest struct {
	id      jsonrpc.ID
	trip    *RoundTrip // nil for a request that the SDK sends by itself
	method  string
	sent    bool // writing has begun, and has not failed with NotRun
	writing bool // the writer is writing it; the writer then fails it if the connection ends
}

// maxDropLog bounds how many dropped messages of one connection are logged.
const maxDropLog = 5

func newStreamConn(e *streamEndpoint) *streamConn {
	return &streamConn{
		endpoint: e, log: e.log,
		outgoing: make(chan *outMessage), ended: make(chan struct{}), written: make(chan struct{}),
		cancelQueued: make(chan struct{}, 1),
		pending:      map[jsonrpc.ID]*pendingRequest{}, byToken: map[string]*RoundTrip{},
		incoming: map[jsonrpc.ID]struct{}{}, abandoned: map[jsonrpc.ID]struct{}{},
	}
}

// Connect implements sdk.Transport. It opens the connection and starts writeLoop, which Close ends. ctx must
// carry a RoundTrip with a Session.
func (c *streamConn) Connect(ctx context.Context) (sdk.Connection, error) {
	conn, err := c.endpoint.open(ctx)
	if err != nil {
		return nil, err
	}
	c.session, c.conn, c.opened = RoundTripOf(ctx).Session, conn, time.Now()
	go c.writeLoop()
	return c, nil
}

// SessionID implements sdk.Connection. It returns "": the session has no id, because it is this connection.
func (c *streamConn) SessionID() string { return "" }

// Close ends the connection and returns when writeLoop has ended. The SDK calls Close when no request is in
// flight, or after Read has failed.
func (c *streamConn) Close() error {
	c.endConnection(errConnClosed)
	<-c.written
	return nil
}

// removePending removes and returns the pending request with that id. It returns nil if there is none.
func (c *streamConn) removePending(id jsonrpc.ID) *pendingRequest {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.removePendingLocked(id)
}

// removePendingLocked removes and returns the pending request with that id, with its progress token and its part in the
// read limit. It returns nil if there is none. The caller holds c.mu.
func (c *streamConn) removePendingLocked(id jsonrpc.ID) *pendingRequest {
	pending := c.pending[id]
	if pending == nil {
		return nil
	}
	delete(c.pending, id)
	if pending.trip != nil {
		delete(c.byToken, pending.trip.ProgressToken)
		c.setReadLimitLocked(pending.trip)
	}
	return pending
}

// setReadLimitLocked sets the read limit of the connection to the largest limit of all pending requests. Call
// it after trip was added to or removed from c.pending.
func (c *streamConn) setReadLimitLocked(trip *RoundTrip) {
	if trip.MaxAnswer <= MaxMessage {
		return // trip does not raise the limit
	}
	limit := MaxMessage
	for _, pending := range c.pending {
		if pending.trip != nil {
			limit = max(limit, pending.trip.answerLimit())
		}
	}
	c.conn.SetReadLimit(limit)
}

// endConnection ends the connection because of err, and fails all requests in flight (endConnectionLocked).
func (c *streamConn) endConnection(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.endConnectionLocked(err)
}

// endConnectionLocked ends the connection because of err: it fails all requests in flight and closes the MessageConn.
// writeLoop fails the request that it is writing. It does nothing if the connection has ended before. The caller holds
// c.mu.
func (c *streamConn) endConnectionLocked(err error) {
	if c.err != nil {
		return
	}
	c.err = err
	expectingResult := 0
	for _, pending := range c.pending {
		if pending.method != methodListen { // the answer to a subscription is only its end, and never large
			expectingResult++
		}
	}
	for id, pending := range c.pending {
		delete(c.pending, id)
		if !pending.writing { // else finishWriting fails it, which knows whether the server got the request
			c.failPendingLocked(pending, expectingResult == 1)
		}
	}
	clear(c.byToken)
	// Only now, because the SDK fails all requests without a reason when Read returns.
	close(c.ended)
	_ = c.conn.Close() // does not wait
	if c.dropped > 0 {
		c.log.Debug("MCP messages were dropped", "messages", c.dropped)
	}
	if c.unmatched > 0 {
		c.log.Debug("MCP messages could not be attributed to a call", "messages", c.unmatched)
	}
}

// failPendingLocked fails pending with the reason c.err of the ended connection. A request that was not sent
// gets LostSession. A request whose answer was too large to read gets that failure: the message named the
// request, or it named none and isOnly says that no other request expected a result. Any other request may
// have run.
func (c *streamConn) failPendingLocked(pending *pendingRequest, isOnly bool) {
	if pending.trip == nil {
		return
	}
	failure, _ := errors.AsType[*Failure](c.err)
	isAnswer := isOnly
	if oversize, ok := errors.AsType[*oversizeError](c.err); ok && oversize.answers.IsValid() {
		isAnswer = oversize.answers == pending.id
	}
	switch {
	case !pending.sent:
		pending.trip.fail(LostSession(c.err))
	case isAnswer && failure != nil && failure.Kind == TooLarge:
		pending.trip.fail(failure)
	default:
		pending.trip.fail(connectionEnded(c.err))
	}
}

// Explain implements Transport.
func (c *streamConn) Explain(err error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil && !errors.Is(err, c.err) { // err does not say why the connection ended
		if f, ok := errors.AsType[*Failure](err); ok && f.Lost {
			err = LostSession(c.err)
		} else {
			err = fmt.Errorf("%w: %w", err, c.err)
		}
	}
	if c.triedDiscover && c.err != nil && !errors.Is(c.err, errConnClosed) {
		return fmt.Errorf("%w: %w", ErrHungUp, err)
	}
	return err
}

// connectionEnded returns the failure of a request that was sent over a connection that ended with err before
// the answer. It has the public text of err if err is a *Failure.
func connectionEnded(err error) *Failure {
	public := "the connection ended before its answer"
	if f, ok := errors.AsType[*Failure](err); ok {
		public = f.Public
	}
	return &Failure{Kind: UnknownOutcome, Public: public, Err: err}
}
