package transport

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
)

// outMessage is a message on its way to the writer.
type outMessage struct {
	data    []byte
	id      jsonrpc.ID // of our request, or of the server's that it answers; else invalid
	request bool       // it is one of our requests
	done    chan error // of capacity 1
}

// Write sends msg. It returns when the message is written or ctx has ended; a message that the
// writer has by then is still written whole. Other errors end the connection.
func (c *streamConn) Write(ctx context.Context, msg jsonrpc.Message) (err error) {
	// Here, and not only where the call began: see httpConn.Write.
	defer Recover(c.log, func(f *Failure) {
		c.endConnection(f)
		err = f
	})
	trip := RoundTripOf(ctx)
	id := jsonrpc.ID{}
	switch m := msg.(type) {
	case *jsonrpc.Response:
		id = m.ID
	case *jsonrpc.Request:
		if m.IsCall() {
			return c.sendRequest(ctx, trip, standardName(m))
		}
		if m.Method == notificationCancelled {
			if !c.closePending(m.Params) {
				return nil // the server never got the request, or has answered it
			}
			if trip != nil && trip.Handshake {
				return nil // initialize must not be cancelled (2025-11-25 basic/lifecycle)
			}
			return c.sendCancel(ctx, m)
		}
	}
	return c.send(ctx, id, false, msg)
}

// sendRequest sends one of our requests, and registers it before, because its answer can arrive at once. trip is nil for a
// request that the SDK sends by itself. After an error the request has no answer, except if ctx has ended: it may have
// been sent then, and the SDK cancels it.
func (c *streamConn) sendRequest(ctx context.Context, trip *RoundTrip, msg *jsonrpc.Request) error {
	pending := &pendingRequest{id: msg.ID, trip: trip, method: msg.Method}
	if trip != nil {
		trip.prepareMessage()
		if len(trip.Query) > 0 {
			c.endpoint.warnQuery.Do(func() { c.log.Warn("query parameters are sent to this MCP server in _meta only") })
		}
	}
	c.mu.Lock()
	if c.err != nil {
		defer c.mu.Unlock()
		c.failPendingLocked(pending, false)
		return c.err
	}
	c.pending[msg.ID] = pending
	c.discovers = c.discovers || msg.Method == methodDiscover
	if trip != nil {
		c.setReadLimitLocked(trip)
		if trip.ProgressToken != "" {
			c.tokens[trip.ProgressToken] = trip
		}
	}
	c.mu.Unlock()
	if err := c.send(ctx, msg.ID, true, msg); err != nil {
		if ctx.Err() == nil { // else the SDK cancels it, which needs to know whether it was sent
			c.removePending(msg.ID)
		}
		return err
	}
	return nil
}

// send hands msg to the writer and waits under ctx until it is written.
func (c *streamConn) send(ctx context.Context, id jsonrpc.ID, request bool, msg jsonrpc.Message) error {
	data, err := jsonrpc.EncodeMessage(msg)
	if err != nil {
		return fmt.Errorf("encode a message: %w", err)
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	m := &outMessage{data: data, id: id, request: request, done: make(chan error, 1)}
	select {
	case c.out <- m:
	case <-ctx.Done():
		return ctx.Err()
	case <-c.ended:
		return io.ErrClosedPipe
	}
	select {
	case err := <-m.done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// sendCancel queues the cancellation of a call, and waits under ctx until it is written. The SDK
// gives it 5 s; it is written after that too, when the server reads again, or the call would run
// to its end. The queue holds at most one message for each call that was sent.
func (c *streamConn) sendCancel(ctx context.Context, cancellation *jsonrpc.Request) error {
	data, err := jsonrpc.EncodeMessage(cancellation)
	if err != nil {
		return fmt.Errorf("encode a message: %w", err)
	}
	m := &outMessage{data: data, done: make(chan error, 1)}
	c.mu.Lock()
	c.cancels = append(c.cancels, m)
	c.mu.Unlock()
	select {
	case c.cancelQueued <- struct{}{}:
	default: // the writer has not looked since the last one
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

// writeLoop writes the queued messages. No other goroutine writes to the connection.
func (c *streamConn) writeLoop() {
	defer close(c.written)
	for {
		select {
		case m := <-c.out:
			c.writeQueued(m)
		case <-c.cancelQueued:
			c.mu.Lock()
			cancels := c.cancels
			c.cancels = nil
			c.mu.Unlock()
			for _, m := range cancels {
				c.writeQueued(m)
			}
		case <-c.ended:
			return
		}
	}
}

// writeQueued writes a message, unless it is a request that was given up meanwhile.
func (c *streamConn) writeQueued(m *outMessage) {
	q, wanted := c.startWriting(m)
	if !wanted {
		m.done <- nil // the server need not know of it
		return
	}
	err := c.writeData(m.data)
	c.finishWriting(q, err)
	if err != nil {
		c.endConnection(err)
	}
	m.done <- err
}

// writeData writes one message. A panic is an error of the connection, which then ends for
// everyone who waits.
func (c *streamConn) writeData(data []byte) (err error) {
	defer Recover(c.log, func(f *Failure) { err = f })
	return c.conn.Write(data)
}

// startWriting notes that a message is being sent. It returns the request in it, if it is one, and whether
// the message is still wanted.
func (c *streamConn) startWriting(m *outMessage) (_ *pendingRequest, wanted bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !m.request {
		delete(c.incoming, m.id) // not earlier, because the bound on incoming counts the answers that wait to be sent
		return nil, true
	}
	pending := c.pending[m.id]
	if pending == nil {
		return nil, false
	}
	pending.sent, pending.writing = true, true
	if pending.trip != nil {
		pending.trip.sent.Store(true)
	}
	return pending, true
}

// finishWriting notes the result of writing pending, which may be nil. An error may prove that nothing
// was sent after all. If the connection ended meanwhile, end has left it to the writer to fail pending.
func (c *streamConn) finishWriting(pending *pendingRequest, err error) {
	if pending == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	pending.writing = false
	if f, ok := errors.AsType[*Failure](err); ok && f.NotRun {
		pending.sent = false
		if pending.trip != nil {
			pending.trip.sent.Store(false)
		}
	}
	if c.err != nil {
		c.failPendingLocked(pending, false)
	}
}

// closePending closes the request that notifications/cancelled names, and reports whether the
// server knows it. A late answer then answers no open request.
func (c *streamConn) closePending(params json.RawMessage) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	q := c.removePendingLocked(cancelledID(params)) // or the writer could still send what was found not to be sent
	if q == nil || !q.sent {
		return false
	}
	c.giveUpLocked(q)
	return true
}

// cancelledID returns the id of the request that the params of notifications/cancelled name; an invalid id if
// they name none.
func cancelledID(params json.RawMessage) jsonrpc.ID {
	var p struct {
		ID any `json:"requestId"`
	}
	_ = json.Unmarshal(params, &p) // then the id is nil
	id, _ := jsonrpc.MakeID(p.ID)
	return id
}
