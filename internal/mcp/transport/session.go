package transport

import (
	"encoding/json"
	"net/http"
	"sync"
	"sync/atomic"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
)

// Session is what the connection of one session and the owner of that session share. The owner
// makes one for each handshake, with all functions of Handlers set, and puts it into every
// RoundTrip of the session.
type Session struct {
	Handlers
	// Tokens sends requests that do not have tokens of their own; nil: with the server's.
	Tokens Sender
	// WatchTools opens the standalone stream where the server announces changes of its tools on it.
	WatchTools bool
	// Lost says that the server forgot the session: the session's id is never sent again.
	Lost atomic.Bool

	hasID atomic.Bool // the server gave the session an id, over HTTP
	// standalone says that the session has a stream that belongs to no request; then inflight has
	// the calls that messages on it may be about.
	standalone atomic.Bool
	inflight   inflightCalls
	// attributes says that the configuration asks for that stream, because the server sends requests
	// about calls on it.
	attributes atomic.Bool
}

// Ambiguous reports whether messages of the server can no longer be attributed to one call in this
// session, because a call was given up that the server may continue. A new session can. Where the
// standalone stream is open for changes only, that is not worth a new session.
func (s *Session) Ambiguous() bool { return s.attributes.Load() && s.inflight.ambiguous() }

// Sender sends requests with someone's bearer token by next. It may change r. Its error is a
// *Failure if there is no token.
type Sender interface {
	Send(next http.RoundTripper, r *http.Request) (*http.Response, error)
}

// Handlers are what a connection calls for messages that are not answers. They are called where
// messages are read, in order, and must not wait.
type Handlers struct {
	// Protocol returns the negotiated protocol version; "" until the handshake is over.
	Protocol func() string
	// Request is called with each request of the server, and the RoundTrip of the call that it is
	// about, or nil where that is not known. It returns the request that the SDK is given.
	Request func(m *jsonrpc.Request, x *RoundTrip) *jsonrpc.Request
	// Notification is called with each notification that is not about one request.
	Notification func(method string, params json.RawMessage)
	// Progress and Log are called with the text of each notification about a call, which is valid
	// until they return and may not even be JSON. Progress may have the token of another call.
	Progress, Log func(x *RoundTrip, message json.RawMessage)
	// Listening is called with true when a standalone stream was opened, and with false when it
	// ended: what the server sends in between is missed.
	Listening func(bool)
	// Forgotten is called when the standalone stream finds out that the server forgot the session.
	Forgotten func()
}

// inflightCalls are the calls in flight in one session over HTTP. A message on the standalone
// stream does not say which call it is about. So, as on a connection that all calls share, it is
// attributed to the only call in flight, or to none. The zero value works.
type inflightCalls struct {
	mu        sync.Mutex // protects what follows
	calls     map[*RoundTrip]struct{}
	abandoned bool // a call was given up, and the server may continue it
}

// add notes that trip has sent a request during which the server may ask something.
func (c *inflightCalls) add(trip *RoundTrip) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.calls == nil {
		c.calls = map[*RoundTrip]struct{}{}
	}
	c.calls[trip] = struct{}{}
}

// remove notes the end of trip, for which add may have been called or not. Over HTTP nothing ever
// says that the server is done with a call that was given up.
func (c *inflightCalls) remove(trip *RoundTrip, abandoned bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, added := c.calls[trip]
	delete(c.calls, trip)
	if added && abandoned {
		c.abandoned = true
	}
}

// ambiguous reports whether no message can be attributed to a call any more.
func (c *inflightCalls) ambiguous() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.abandoned
}

// onlyCall returns the one call that the server can be working on, else nil, and notes that the server
// was heard from.
func (c *inflightCalls) onlyCall() *RoundTrip {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.abandoned || len(c.calls) != 1 {
		return nil
	}
	for trip := range c.calls {
		trip.timer.noteActivity()
		return trip
	}
	return nil
}

// progress hands a progress notification to all calls; the call that its token names takes it.
func (c *inflightCalls) progress(message json.RawMessage) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for trip := range c.calls {
		if trip.hasToken(message) {
			trip.countOrAbort(len(message))
			trip.Session.Progress(trip, message)
		}
	}
}

// serverMayAsk reports whether the server may ask something while it works on a request of that
// method (2026-07-28 basic/utilities/mrtr).
func serverMayAsk(method string) bool {
	return method == methodCall || method == methodRead || method == methodPrompt
}
