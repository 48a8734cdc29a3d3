package mcp

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"answerd/internal/mcp/transport"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
)

// follow reads the stream of m, which the exchange must have counted as opened, to its
// answer, and hands the SDK what concerns it. A stream that breaks is resumed if an event
// had an id; else the answer is lost, and the tool may have run (F15).
func (c *streamable) follow(ctx context.Context, x *exchange, m *jsonrpc.Request, resp *http.Response) {
	for {
		s := newStream(x, m.ID, resp.Body, c.log)
		answer, err := c.pass(ctx, s)
		if err == nil {
			// Not waited for: the call has its answer, and exchange.finish bounds the rest.
			c.rests.Go(s.finish)
			c.hand(ctx, x, m, answer)
			return
		}
		s.close()
		f, refused := errors.AsType[*transport.Failure](err)
		if !refused && s.lastID() != "" {
			if resp, err = c.resume(ctx, s); err == nil {
				x.opened()
				continue
			}
			refused = ctx.Err() == nil
		}
		if f == nil {
			f = &transport.Failure{Kind: UnknownOutcome, Public: "the connection was cut before its answer", Err: err}
		}
		if refused { // the server may still be at it, and is told that nobody waits
			x.abort(f)
		} else {
			x.fail(f)
		}
		return
	}
}

// pass hands the SDK what concerns it of s, up to the answer, which it returns. The error
// is a *failure unless the stream broke.
func (c *streamable) pass(ctx context.Context, s *stream) (*jsonrpc.Response, error) {
	for {
		msg, err := s.next()
		if err != nil {
			return nil, err
		}
		if answer, ok := msg.(*jsonrpc.Response); ok {
			return answer, nil
		}
		if err := c.deliver(ctx, msg); err != nil {
			return nil, err
		}
	}
}

// resume is the reply to a GET that continues s after its last event with an id
// (2025-11-25 basic/transports, "Resumability and Redelivery"). It is under the call's own
// context, so a resumed call has no more time than another.
func (c *streamable) resume(ctx context.Context, s *stream) (*http.Response, error) {
	wait := s.retry() // as the server asked for
	for try := 1; try <= maxResumes; try++ {
		if wait == 0 {
			wait = transport.Backoff(try)
		}
		if !transport.Pause(ctx, wait) {
			return nil, ctx.Err()
		}
		wait = 0
		if c.stale() {
			return nil, transport.LostSession(nil)
		}
		r, err := c.request(ctx, http.MethodGet, nil)
		if err != nil {
			return nil, err
		}
		r.Header.Set("Last-Event-ID", s.lastID())
		resp, err := c.way.RoundTrip(r)
		switch {
		case err != nil:
			continue
		case resp.StatusCode == http.StatusOK && mediaType(resp) == "text/event-stream":
			return resp, nil
		}
		drain(resp, maxError)
		if resp.StatusCode >= 500 || resp.StatusCode == http.StatusTooManyRequests {
			continue
		}
		if resp.StatusCode == http.StatusNotFound && c.SessionID() != "" {
			c.of.lost.Store(true)
		}
		return nil, transport.BadStatus(resp.StatusCode)
	}
	return nil, fmt.Errorf("%d attempts to resume", maxResumes)
}
