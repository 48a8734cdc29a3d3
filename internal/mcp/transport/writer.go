package transport

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
)

// outMessage is a message that is to be written.
type outMessage struct {
	data      []byte
	id        jsonrpc.ID // id of the request, or of the server's request that the message answers; else invalid
	isRequest bool       // the message is a request
	// isCancellation says that the message is the cancellation of a call. It is written even if the sender gives up, so
	// that it stops the call when the server reads again. A call that was sent has at most one.
	isCancellation bool
}

// Write implements sdk.Connection. It returns when msg is written, or dropped because the server need not get it. It
// also returns when ctx ends; if the message is already being written, the rest of it is still written.
func (c *streamConn) Write(ctx context.Context, msg jsonrpc.Message) (err error) {
	// A panic must not reach the SDK: see httpConn.Write.
	defer Recover(c.log, func(f *Failure) {
		c.endConnection(f)
		err = f
	})
	roundTrip := RoundTripOf(ctx)
	switch m := msg.(type) {
	case *jsonrpc.Response:
		return c.send(ctx, msg, outMessage{id: m.ID})
	case *jsonrpc.Request:
		if m.IsCall() {
			return c.sendRequest(ctx, roundTrip, standardName(m))
		}
		if m.Method == notificationCancelled {
			return c.cancelRequest(ctx, roundTrip, m)
		}
	}
	return c.send(ctx, msg, outMessage{})
}

// cancelRequest removes the pending request that cancellation refers to, whose RoundTrip is roundTrip, and sends
// cancellation if the server needs it. roundTrip may be nil.
func (c *streamConn) cancelRequest(ctx context.Context, roundTrip *RoundTrip, cancellation *jsonrpc.Request) error {
	isUnanswered := c.abandonPending(cancellation.Params)
	isHandshake := roundTrip != nil && roundTrip.Handshake
	if !isUnanswered || isHandshake { // initialize must not be cancelled (2025-11-25 basic/lifecycle)
		return nil
	}
	return c.send(ctx, cancellation, outMessage{isCancellation: true})
}

// sendRequest sends the request msg. It first registers msg as pending, since the answer can arrive at once. roundTrip
// is nil for a request that the SDK itself sends. After an error the request is no longer pending, unless ctx has
// ended: the server may then have received the request, and the SDK calls Write with its cancellation.
func (c *streamConn) sendRequest(ctx context.Context, roundTrip *RoundTrip, msg *jsonrpc.Request) error {
	pending := &pendingRequest{id: msg.ID, roundTrip: roundTrip, method: msg.Method}
	if roundTrip != nil {
		roundTrip.prepareMessage()
		if len(roundTrip.Query) > 0 {
			c.endpoint.warnQuery.Do(func() { c.log.Warn("query parameters are sent to this MCP server in _meta only") })
		}
	}
	if err := c.addPending(pending); err != nil {
		return err
	}
	err := c.send(ctx, msg, outMessage{id: msg.ID, isRequest: true})
	if err != nil && ctx.Err() == nil { // if ctx has ended, abandonPending needs to know whether the request was sent
		c.removePending(msg.ID)
	}
	return err
}

// addPending registers pending, which is about to be sent. If the connection has ended, addPending fails pending and
// returns the reason for that end.
func (c *streamConn) addPending(pending *pendingRequest) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		c.failPendingLocked(pending)
		return c.err
	}
	c.pending[pending.id] = pending
	if pending.method == methodDiscover {
		c.triedDiscover = true
	}
	if pending.roundTrip != nil {
		c.setReadLimitLocked(pending.roundTrip)
		if token := pending.roundTrip.ProgressToken; token != "" {
			c.byToken[token] = pending.roundTrip
		}
	}
	return nil
}

// send writes msg in its turn, and waits until it is written or ctx ends. out says what msg is; send sets out.data. If
// the connection has ended, the error is io.ErrClosedPipe.
func (c *streamConn) send(ctx context.Context, msg jsonrpc.Message, out outMessage) error {
	var err error
	if out.data, err = encodeMessage(msg); err != nil {
		return fmt.Errorf("encode a message: %w", err)
	}
	if ctx.Err() != nil && !out.isCancellation {
		return ctx.Err()
	}
	// In a goroutine of its own, because a sender that gives up must not leave half a message on the connection.
	written := make(chan error, 1)
	if !c.startWrite(func() { written <- c.writeInTurn(ctx, &out) }) {
		return io.ErrClosedPipe
	}
	select {
	case err := <-written:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// startWrite runs write in a goroutine that Close waits for. If the connection has ended, it returns false instead.
func (c *streamConn) startWrite(write func()) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return false
	}
	c.writes.Go(write)
	return true
}

// writeInTurn waits until no other message is being written, and writes m. It skips a request that was cancelled before
// its turn. It stops waiting if the connection ends or, unless m is a cancellation, ctx ends. An error of writing ends
// the connection.
func (c *streamConn) writeInTurn(ctx context.Context, m *outMessage) error {
	if m.isCancellation {
		ctx = context.WithoutCancel(ctx)
	}
	select {
	case c.turn <- struct{}{}:
		defer func() { <-c.turn }()
	case <-ctx.Done():
		return ctx.Err()
	case <-c.ended:
		return io.ErrClosedPipe
	}
	pending, isCancelled := c.startWriting(m)
	if isCancelled {
		return nil
	}
	err := c.writeData(m.data)
	c.finishWriting(pending, err)
	if err != nil {
		c.endConnection(err)
	}
	return err
}

// writeData writes one message. A panic becomes an error, so that the sender does not wait forever.
func (c *streamConn) writeData(data []byte) (err error) {
	defer Recover(c.log, func(f *Failure) { err = f })
	return c.conn.Write(data)
}

// startWriting records that m is being written. If m is a request, startWriting marks it as sent and returns its
// pendingRequest. If the request is no longer pending, isCancelled is true and m must not be written. For other
// messages, pending is nil and isCancelled false.
func (c *streamConn) startWriting(m *outMessage) (pending *pendingRequest, isCancelled bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !m.isRequest {
		// Not earlier, because the bound on incoming must include answers that wait to be written.
		delete(c.incoming, m.id)
		return nil, false
	}
	pending = c.pending[m.id]
	if pending == nil {
		return nil, true
	}
	pending.sent, pending.writing = true, true
	if pending.roundTrip != nil {
		pending.roundTrip.sent.Store(true)
	}
	return pending, false
}

// finishWriting records err, the result of writing pending; either may be nil. If err is a *Failure with NotRun, nothing
// was sent. If the connection has ended during the write, finishWriting fails pending, because endConnection
// has left that to it.
func (c *streamConn) finishWriting(pending *pendingRequest, err error) {
	if pending == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	pending.writing = false
	if failure, ok := errors.AsType[*Failure](err); ok && failure.NotRun {
		pending.sent = false
		if pending.roundTrip != nil {
			pending.roundTrip.sent.Store(false)
		}
	}
	if c.err != nil {
		c.failPendingLocked(pending)
	}
}

// abandonPending removes the pending request that our notifications/cancelled with these params refers to. It returns
// true if the request was sent and not answered; the server may then still work on it, which abandonPending records. A
// request that was not sent yet will not be sent, because startWriting no longer finds it.
func (c *streamConn) abandonPending(params json.RawMessage) (isUnanswered bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	pending := c.removePendingLocked(cancelledID(params))
	if pending == nil || !pending.sent {
		return false
	}
	c.addAbandonedLocked(pending)
	return true
}

// cancelledID returns the id of the request that a notifications/cancelled with these params refers to. It returns an
// invalid id if the params have none.
func cancelledID(params json.RawMessage) jsonrpc.ID {
	var p struct {
		ID any `json:"requestId"`
	}
	_ = json.Unmarshal(params, &p) // after an error, p.ID is nil
	id, _ := jsonrpc.MakeID(p.ID)  // nil makes an invalid id
	return id
}
