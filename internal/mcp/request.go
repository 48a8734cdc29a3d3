package mcp

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"answerd/internal/auth"
	"answerd/internal/mcp/transport"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
)

// inquiry sends one request to a server that is not a tool call.
type inquiry func(*exchange) (json.RawMessage, *transport.Failure)

// request asks the server on a session, and returns the result as received.
func (s *server) request(ctx context.Context, used *session, tokens sender, deadline time.Time, ask inquiry) (json.RawMessage, *transport.Failure) {
	x := newExchange(ctx, s.life, deadline)
	defer x.finish()
	x.session, x.tokens = used, tokens
	return ask(x)
}

// query asks the server on its current session, on behalf of who, once more if that
// turns out to be lost.
func (s *server) query(ctx context.Context, who auth.Identity, ask inquiry) (json.RawMessage, *transport.Failure) {
	if !s.live() {
		return nil, &transport.Failure{Kind: Unavailable, Public: "it is not in use", NotRun: true}
	}
	if f := s.breaker.refuse(); f != nil {
		return nil, f
	}
	if !s.departure.begin() { // or its session would end under it
		return nil, moved
	}
	defer s.departure.end()
	on, leave, f := s.way(who)
	if f != nil {
		return nil, f
	}
	defer leave()
	deadline := time.Now().Add(s.cfg.Timeout)
	for try := 0; ; try++ {
		gctx, stop := context.WithDeadlineCause(ctx, deadline, transport.ErrTimeout)
		used, f := on.pool.get(gctx)
		stop()
		if f != nil {
			return nil, f
		}
		raw, f := s.request(ctx, used, on.tokens, deadline, ask)
		if f == nil || !f.Lost {
			return raw, f
		}
		on.pool.drop(used)
		if try > 0 {
			return raw, f
		}
	}
}

// paged collects the elements of a list of the server's, page by page, at most limit of
// them. member is the name of the list in the result. A server without that list has
// none.
func paged(member string, limit int, page func(cursor string) (json.RawMessage, *transport.Failure)) ([]json.RawMessage, *transport.Failure) {
	var out []json.RawMessage
	seen := map[string]bool{"": true}
	cursor := ""
	for range maxPages {
		raw, f := page(cursor)
		if f != nil {
			if e, ok := errors.AsType[*jsonrpc.Error](f.Err); ok && e.Code == jsonrpc.CodeMethodNotFound {
				return nil, nil
			}
			return nil, f
		}
		var p map[string]json.RawMessage
		var list []json.RawMessage
		if json.Unmarshal(raw, &p) != nil || p[member] != nil && json.Unmarshal(p[member], &list) != nil {
			return nil, transport.BadReply("its list of "+member+" does not decode", nil)
		}
		out = append(out, list...)
		_ = json.Unmarshal(p["nextCursor"], &cursor)
		// As with tools: a cursor that was used before can only lead round again.
		if len(out) >= limit || p["nextCursor"] == nil || seen[cursor] {
			break
		}
		seen[cursor] = true
	}
	return out[:min(len(out), limit)], nil
}
