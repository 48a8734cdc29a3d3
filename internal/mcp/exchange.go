package mcp

import (
	"context"
	"encoding/json"
	"sync/atomic"
	"time"

	"answerd/internal/mcp/transport"
	"answerd/internal/mcp/wire"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
)

// exchange is one request of a session, with what the session does for it besides sending it.
type exchange struct {
	transport.RoundTrip
	session         *session
	discoverTimeout time.Duration      // of a handshake: for the answer to server/discover
	notes           *notificationQueue // of the call; nil where nobody reads notifications
	wantsLog        bool               // its reader takes log messages
	talk            *serverRequests    // who answers the server's own requests; nil: nobody
	tagged          atomic.Bool        // the server asked something
}

// newExchange returns an exchange of s, which may be nil until useSession, under ctx. It ends at
// deadline, or when life does.
func newExchange(ctx, life context.Context, deadline time.Time, s *session) *exchange {
	x := &exchange{}
	x.Owner = x
	x.useSession(s)
	x.Start(ctx, life, deadline)
	return x
}

// useSession sets the session that the request is sent in.
func (x *exchange) useSession(s *session) {
	if s != nil {
		x.session, x.Session = s, &s.conn
	}
}

// exchangeOf returns the exchange that a request belongs to; nil where there is none. Every context
// that the SDK is given has one.
func exchangeOf(ctx context.Context) *exchange {
	if r := transport.RoundTripOf(ctx); r != nil {
		return ownerOf(r)
	}
	return nil
}

// ownerOf returns the exchange that r is part of; nil where there is none.
func ownerOf(r *transport.RoundTrip) *exchange {
	if r == nil {
		return nil
	}
	x, _ := r.Owner.(*exchange)
	return x
}

// finish frees what the exchange holds.
func (x *exchange) finish() {
	if x.tagged.Load() {
		x.session.asked.forget(x)
	}
	x.Finish()
}

// handlersOf returns what the connection of s calls.
func handlersOf(s *session) transport.Handlers {
	return transport.Handlers{
		Protocol: s.protocolIfReady,
		Request: func(m *jsonrpc.Request, r *transport.RoundTrip) *jsonrpc.Request {
			return s.asked.tag(m, ownerOf(r))
		},
		Notification: s.changed,
		Progress:     func(r *transport.RoundTrip, params json.RawMessage) { ownerOf(r).report(params) },
		Log:          func(r *transport.RoundTrip, params json.RawMessage) { ownerOf(r).logged(params) },
		Listening:    s.hears,
		Forgotten:    s.forgotten,
	}
}

// report queues a progress notification if the caller of the exchange asked for it with its token.
func (x *exchange) report(params json.RawMessage) {
	var p struct {
		Token    any     `json:"progressToken"`
		Progress float64 `json:"progress"`
		Total    float64 `json:"total"`
		Message  string  `json:"message"`
	}
	if x.notes == nil || x.ProgressToken == "" || json.Unmarshal(params, &p) != nil || p.Token != x.ProgressToken {
		return
	}
	x.notes.enqueue(notification{progress: &Progress{Progress: p.Progress, Total: p.Total, Message: wire.Truncate(p.Message, maxProgressText)}})
}
