package mcp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"answerd/internal/mcp/transport"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
)

const discover = "server/discover"

// outFrame is a message on its way to the writer.
type outFrame struct {
	data []byte
	id   jsonrpc.ID // of a question, or of the server's that it answers; else invalid
	ours bool       // a question
	done chan error // of capacity 1
}

// Write sends msg. It returns when the message is written or ctx has ended; a message
// that the writer has by then is still written whole. Other errors are the end of the
// connection.
func (l *link) Write(ctx context.Context, msg jsonrpc.Message) (err error) {
	defer transport.Recover(l.log, func(f *transport.Failure) { // see streamable.Write
		l.end(f)
		err = f
	})
	x := exchangeOf(ctx)
	id := jsonrpc.ID{}
	switch m := msg.(type) {
	case *jsonrpc.Response:
		id = m.ID
	case *jsonrpc.Request:
		if m.IsCall() {
			return l.ask(ctx, x, standardName(m))
		}
		if m.Method == cancelled {
			if !l.cancel(m.Params) || x != nil && x.handshake {
				// The server never heard of it, or has answered. And initialize must not be
				// cancelled (2025-11-25 basic/lifecycle).
				return nil
			}
			return l.recall(ctx, m)
		}
	}
	return l.send(ctx, id, false, msg)
}

// ask sends a request that has an answer.
func (l *link) ask(ctx context.Context, x *exchange, m *jsonrpc.Request) error {
	q := &question{id: m.ID, x: x, method: m.Method}
	if x != nil {
		x.begin()
		if len(x.query) > 0 {
			l.once.Do(func() { l.log.Warn("query parameters go to this MCP server in _meta only") }) // S0.1
		}
	}
	l.mu.Lock()
	if l.err != nil {
		defer l.mu.Unlock()
		l.tellLocked(q, false)
		return l.err
	}
	l.asked[m.ID] = q
	if x != nil && x.token != "" {
		l.tokens[x.token] = x
	}
	l.mu.Unlock()
	if err := l.send(ctx, m.ID, true, m); err != nil {
		if ctx.Err() == nil { // else the SDK cancels it, which needs to know whether it was sent
			l.take(m.ID)
		}
		return err
	}
	return nil
}

// send hands msg to the writer and waits until it is written, under ctx.
func (l *link) send(ctx context.Context, id jsonrpc.ID, ours bool, msg jsonrpc.Message) error {
	data, err := jsonrpc.EncodeMessage(msg)
	if err != nil {
		return fmt.Errorf("encode a message: %w", err)
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	f := &outFrame{data: data, id: id, ours: ours, done: make(chan error, 1)}
	select {
	case l.out <- f:
	case <-ctx.Done():
		return ctx.Err()
	case <-l.ended:
		return io.ErrClosedPipe
	}
	select {
	case err := <-f.done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// recall leaves m, which cancels a call, to the writer, and waits until it is written,
// under ctx. The SDK gives it 5 s; m is written after that too, when the server reads
// again, or the call would run to its end (F13). As many may wait as calls were sent.
func (l *link) recall(ctx context.Context, m *jsonrpc.Request) error {
	data, err := jsonrpc.EncodeMessage(m)
	if err != nil {
		return fmt.Errorf("encode a message: %w", err)
	}
	f := &outFrame{data: data, done: make(chan error, 1)}
	l.mu.Lock()
	l.recalls = append(l.recalls, f)
	l.mu.Unlock()
	select {
	case l.recalled <- struct{}{}:
	default: // said already
	}
	select {
	case err := <-f.done:
		return err
	case <-l.ended:
		return io.ErrClosedPipe
	case <-ctx.Done():
		return ctx.Err()
	}
}

// write is the writer: the one goroutine that writes to the connection.
func (l *link) write() {
	defer close(l.gone)
	for {
		select {
		case f := <-l.out:
			l.pass(f)
		case <-l.recalled:
			l.mu.Lock()
			recalls := l.recalls
			l.recalls = nil
			l.mu.Unlock()
			for _, f := range recalls {
				l.pass(f)
			}
		case <-l.ended:
			return
		}
	}
}

// pass writes f, if the server is still to have it.
func (l *link) pass(f *outFrame) {
	q, open := l.sending(f)
	if !open {
		f.done <- nil // given up while it waited: the server need not know
		return
	}
	err := l.hand(f.data)
	l.written(q, err)
	if err != nil {
		l.end(err)
	}
	f.done <- err
}

// hand writes one message. A panic is an error of the connection's, which ends for
// everybody who waits.
func (l *link) hand(data []byte) (err error) {
	defer transport.Recover(l.log, func(f *transport.Failure) { err = f })
	return l.conn.write(data)
}

// sending notes that f is being sent. It returns the question in it, if it is one, and
// whether that is still open.
func (l *link) sending(f *outFrame) (*question, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !f.ours {
		delete(l.theirs, f.id) // not sooner: answers that wait here are what is bounded
		return nil, true
	}
	q := l.asked[f.id]
	if q == nil {
		return nil, false
	}
	q.sent, q.writing = true, true
	if q.x != nil {
		q.x.sent.Store(true)
	}
	return q, true
}

// written notes what came of it. An error may prove that nothing was sent after all;
// and if the connection ended meanwhile, end has left it to the writer to tell.
func (l *link) written(q *question, err error) {
	if q == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	q.writing = false
	if f, ok := errors.AsType[*transport.Failure](err); ok && f.NotRun {
		q.sent = false
		if q.x != nil {
			q.x.sent.Store(false)
		}
	}
	if l.err != nil {
		l.tellLocked(q, false)
	}
}

// cancel closes the question that notifications/cancelled names, and reports whether
// the server knows it. A late answer is then one that nobody asked for.
func (l *link) cancel(params json.RawMessage) bool {
	var p struct {
		ID any `json:"requestId"`
	}
	if json.Unmarshal(params, &p) != nil {
		return false
	}
	id, err := jsonrpc.MakeID(p.ID)
	if err != nil {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	q := l.takeLocked(id) // or the writer could still send what was found not to be sent
	if q == nil || !q.sent {
		return false
	}
	l.leaveLocked(q)
	return true
}
