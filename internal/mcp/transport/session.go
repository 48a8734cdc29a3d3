package transport

import (
	"context"
	"encoding/json"
	"net/http"
	"sync"
	"sync/atomic"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
)

// Session is the state that a session's connection and the session's owner (package session) share. The owner creates a
// Session for each handshake, sets all functions of Handlers, and puts it into every RoundTrip of the session.
type Session struct {
	Handlers
	// Tokens adds tokens to requests whose RoundTrip has no Tokens. If it is nil, HeaderTransport.Tokens does.
	Tokens Sender
	// WatchTools makes the session open the standalone stream if the server announces changes of its tools.
	WatchTools bool
	// Lost says that the server no longer knows the session. The session's id is then never sent again.
	Lost atomic.Bool

	hasID atomic.Bool // over HTTP: the server gave the session an id
	// inflight has the calls over HTTP that messages on the standalone stream, if there is one, may be about.
	inflight inflightCalls
	// asksOnStandalone says that the configuration expects the server to send requests about calls on the standalone
	// stream.
	asksOnStandalone atomic.Bool
}

// Ambiguous reports whether the session should be replaced: messages on its standalone stream cannot be attributed to
// a call any more, because the server may still work on an abandoned call. It returns false if the stream is open only
// for announcements of changes, which are not about calls.
func (s *Session) Ambiguous() bool { return s.asksOnStandalone.Load() && s.inflight.hasAbandoned() }

// WaitForCalls waits until no call over HTTP is in flight in the session, or until ctx ends.
func (s *Session) WaitForCalls(ctx context.Context) { s.inflight.wait(ctx) }

// Sender adds a bearer token to r, for example one user's, and sends r with next. Send may change r. If no token is
// available, the error is a *Failure.
type Sender interface {
	Send(next http.RoundTripper, r *http.Request) (*http.Response, error)
}

// Handlers are the functions that a connection calls for messages other than answers. For each stream, the goroutine
// that reads it calls them in the order of the messages. They must not block.
type Handlers struct {
	// Protocol returns the negotiated protocol version; "" until the handshake is complete.
	Protocol func() string
	// Request is called with a request of the server and the RoundTrip of the call that the request is about; roundTrip
	// is nil if that call is unknown. It returns the request to pass to the SDK. On connections that all calls share,
	// it is called only for elicitation and sampling.
	Request func(m *jsonrpc.Request, roundTrip *RoundTrip) *jsonrpc.Request
	// Notification is called with notifications other than progress and log messages.
	Notification func(method string, params json.RawMessage)
	// Progress and Log are called with the text of each notification about a call. The text is valid until they
	// return. It may be invalid JSON, or have another call's progress token.
	Progress, Log func(roundTrip *RoundTrip, message json.RawMessage)
	// Listening is called with true when a standalone stream was opened. It is called with false when the first attempt
	// to open one has failed, and when a stream has ended. Messages before the next true are lost.
	Listening func(bool)
	// Forgotten is called when the standalone stream shows that the server no longer knows the session.
	Forgotten func()
}

// inflightCalls has the calls in flight in one session over HTTP. A log message or request on the standalone stream
// does not say which call it is about. It is attributed to a call only if no other call is possible. The zero value is
// ready to use.
type inflightCalls struct {
	mu        sync.Mutex // protects the fields below
	calls     map[*RoundTrip]struct{}
	abandoned bool          // a sent call ended without an answer, so the server may still work on it
	empty     chan struct{} // closed when calls becomes empty; nil if nothing waits for that
}

// add adds call, whose request is about to be sent. The server may ask something during the call.
func (c *inflightCalls) add(call *RoundTrip) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.calls == nil {
		c.calls = map[*RoundTrip]struct{}{}
	}
	c.calls[call] = struct{}{}
}

// remove removes call, which has ended, if it was added. isAbandoned says that the call was sent and not answered.
// After that, no message of the session can be attributed to a call any more, because over HTTP nothing shows when the
// server has finished an abandoned call.
func (c *inflightCalls) remove(call *RoundTrip, isAbandoned bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, wasAdded := c.calls[call]
	delete(c.calls, call)
	if wasAdded && isAbandoned {
		c.abandoned = true
	}
	if len(c.calls) == 0 && c.empty != nil {
		close(c.empty)
		c.empty = nil
	}
}

// wait waits until no call is in flight, or until ctx ends.
func (c *inflightCalls) wait(ctx context.Context) {
	c.mu.Lock()
	if len(c.calls) == 0 {
		c.mu.Unlock()
		return
	}
	if c.empty == nil {
		c.empty = make(chan struct{})
	}
	empty := c.empty
	c.mu.Unlock()
	select {
	case <-empty:
	case <-ctx.Done():
	}
}

// hasAbandoned reports whether the server may still work on an abandoned call.
func (c *inflightCalls) hasAbandoned() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.abandoned
}

// onlyCall returns the call that the server must be working on, and restarts its idle timeout. It returns nil if no
// call or more than one is possible.
func (c *inflightCalls) onlyCall() *RoundTrip {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.abandoned || len(c.calls) != 1 {
		return nil
	}
	for call := range c.calls {
		call.noteActivity()
		return call
	}
	return nil
}

// passProgress passes a progress notification to every call whose token seems to be in the message
// (RoundTrip.hasToken), and restarts that call's idle timeout. The Session's Progress handler decodes the message and
// compares the token.
func (c *inflightCalls) passProgress(message json.RawMessage) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for call := range c.calls {
		if call.hasToken(message) {
			call.noteActivity()
			call.countOrCancel(len(message))
			call.Session.Progress(call, message)
		}
	}
}

// serverMayAsk reports whether the server may ask for input, such as an elicitation, while it works on a request with
// this method (2026-07-28 basic/utilities/mrtr).
func serverMayAsk(method string) bool {
	return method == methodCall || method == methodRead || method == methodPrompt
}
