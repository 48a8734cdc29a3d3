package transport

import (
	"encoding/json"
	"net/http"
	"sync"
	"sync/atomic"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
)

// Session is what the connection of one session and the owner of that session share. The owner
// makes a Session for each handshake, sets all functions of Handlers, and puts the Session into every
// RoundTrip of the session.
type Session struct {
	Handlers
	// Tokens sends requests whose RoundTrip has no Tokens. If it is nil, HeaderTransport.Tokens does.
	Tokens Sender
	// WatchTools opens the standalone stream if the server announces changes of its tools on it.
	WatchTools bool
	// Lost says that the server forgot the session: the session's id is never sent again.
	Lost atomic.Bool

	hasID atomic.Bool // the server gave the session an id, over HTTP
	// standalone says that the session has a standalone stream. Only then is inflight used.
	standalone atomic.Bool
	// inflight has the calls that messages on the standalone stream may be about.
	inflight inflightCalls
	// asksOnStandalone says that the configuration demands the standalone stream, because the server
	// sends requests about calls on it.
	asksOnStandalone atomic.Bool
}

// Ambiguous reports whether the session should be replaced, because messages on its standalone stream cannot
// be attributed to a call any more: the server may still work on an abandoned call. It returns false if the
// stream is open only for announcements of changes, which are not about calls.
func (s *Session) Ambiguous() bool { return s.asksOnStandalone.Load() && s.inflight.hasAbandoned() }

// Sender sends requests by next with a bearer token, such as that of one user. Send may change r. The error is
// a *Failure if there is no token.
type Sender interface {
	Send(next http.RoundTripper, r *http.Request) (*http.Response, error)
}

// Handlers are the functions that a connection calls for messages that are not answers. The goroutine that
// reads the messages of a stream calls them in the order of the messages. They must not wait.
type Handlers struct {
	// Protocol returns the negotiated protocol version; "" until the handshake is over.
	Protocol func() string
	// Request is called with a request of the server and the RoundTrip of the call that it is about; nil if
	// that is not known. It returns the request that the SDK gets. On connections that all calls share, it is
	// called for elicitation and sampling only.
	Request func(m *jsonrpc.Request, trip *RoundTrip) *jsonrpc.Request
	// Notification is called with notifications other than progress and log messages.
	Notification func(method string, params json.RawMessage)
	// Progress and Log are called with the text of each notification about a call. The text is valid until they
	// return. It may be invalid JSON, or have the progress token of another call.
	Progress, Log func(trip *RoundTrip, message json.RawMessage)
	// Listening is called with true when a standalone stream was opened, and with false when the stream was not
	// opened at first or has ended. Until the next true, messages of the server are missed.
	Listening func(bool)
	// Forgotten is called when the standalone stream finds out that the server forgot the session.
	Forgotten func()
}

// inflightCalls are the calls in flight in one session over HTTP. A log message or request on the standalone
// stream does not say which call it is about. It is attributed to a call only if no other call is possible. The
// zero value works.
type inflightCalls struct {
	mu        sync.Mutex // protects what follows
	calls     map[*RoundTrip]struct{}
	abandoned bool // a call ended without an answer after it was sent, so the server may still work on it
}

// add records that trip sends a request during which the server may ask something.
func (c *inflightCalls) add(trip *RoundTrip) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.calls == nil {
		c.calls = map[*RoundTrip]struct{}{}
	}
	c.calls[trip] = struct{}{}
}

// remove removes trip, which has ended; trip need not have been added. abandoned says that trip was sent and has no
// answer. Then no message of the session can be attributed to a call any more, since over HTTP nothing shows when
// the server is done with an abandoned call.
func (c *inflightCalls) remove(trip *RoundTrip, abandoned bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, added := c.calls[trip]
	delete(c.calls, trip)
	if added && abandoned {
		c.abandoned = true
	}
}

// hasAbandoned reports whether the server may still work on an abandoned call.
func (c *inflightCalls) hasAbandoned() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.abandoned
}

// onlyCall returns the only call that the server can be working on, and restarts its idle timeout. It returns nil if
// there is no such call, or if another call is possible.
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

// progress hands a progress notification to every call whose token seems to be in the text of the notification
// (RoundTrip.hasToken). The receiver of the progress decodes the text and compares the token.
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
