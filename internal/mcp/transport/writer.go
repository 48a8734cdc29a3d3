package transport

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
)

// outMessage is a message that writeLoop is to write.
type outMessage struct {
	data      []byte
	id        jsonrpc.ID // id of the request, or of the server's request that the message answers; else invalid
	isRequest bool       // the message is a request
	done      chan error // of capacity 1; gets the result of writing
}

// Write implements sdk.Connection. It returns when msg is written, or dropped because the server need not get it. It
// also returns when ctx ends; if writeLoop has already taken the message, it still writes the whole message.
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
	return c.sendCancel(ctx, cancellation)
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

// send passes msg to writeLoop and waits until it is written or ctx ends. out has msg's id and isRequest; send sets
// its other fields. If the connection has ended, the error is io.ErrClosedPipe.
func (c *streamConn) send(ctx context.Context, msg jsonrpc.Message, out outMessage) error {
	data, err := encodeMessage(msg)
	if err != nil {
		return fmt.Errorf("encode a message: %w", err)
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	out.data, out.done = data, make(chan error, 1)
	select {
	case c.outgoing <- &out:
	case <-ctx.Done():
		return ctx.Err()
	case <-c.ended:
		return io.ErrClosedPipe
	}
	select {
	case err := <-out.done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// sendCancel queues the cancellation of a call, and waits until it is written or ctx ends. The SDK's context ends
// after 5 s, but the cancellation stays in the queue, so that it stops the call when the server reads again. The queue
// has at most one message for each call that was sent.
func (c *streamConn) sendCancel(ctx context.Context, cancellation *jsonrpc.Request) error {
	data, err := jsonrpc.EncodeMessage(cancellation)
	if err != nil {
		return fmt.Errorf("encode a message: %w", err)
	}
	m := &outMessage{data: data, done: make(chan error, 1)}
	c.mu.Lock()
	c.cancellations = append(c.cancellations, m)
	c.mu.Unlock()
	select {
	case c.cancelQueued <- struct{}{}:
	default: // writeLoop has not received the previous signal yet, and will find m too
	}
	select {
	case err := <-m.done:
		return err
	case <-c.ended:
		return io.ErrClosedPipe
	case <-ctx.Done():
		return ctx.Err()
	}
}

// writeLoop writes the messages of send and sendCancel until the connection ends. No other goroutine writes to it.
func (c *streamConn) writeLoop() {
	defer close(c.written)
	for {
		select {
		case m := <-c.outgoing:
			c.writeQueued(m)
		case <-c.cancelQueued:
			c.mu.Lock()
			cancellations := c.cancellations
			c.cancellations = nil
			c.mu.Unlock()
			for _, m := range cancellations {
				c.writeQueued(m)
			}
		case <-c.ended:
			return
		}
	}
}

// writeQueued writes m and sends the result to m.done. It skips a request that was cancelled while it was queued. An
// error ends the connection.
func (c *streamConn) writeQueued(m *outMessage) {
	pending, isCancelled := c.startWriting(m)
	if isCancelled {
		m.done <- nil
		return
	}
	err := c.writeData(m.data)
	c.finishWriting(pending, err)
	if err != nil {
		c.endConnection(err)
	}
	m.done <- err
}

// writeData writes one message. A panic becomes an error, so that writeLoop does not end while senders wait for it.
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
