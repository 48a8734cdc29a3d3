package session

import (
	"context"
	"encoding/json"
	"slices"
	"sync/atomic"
	"time"

	"answerd/internal/mcp/content"
	"answerd/internal/mcp/transport"
	"answerd/internal/mcp/wire"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
)

// Request is one of our requests in a session, with the server's notifications and requests during it. It sends several
// messages if its results are input_required. A handshake and each of its messages has a Request, too.
type Request struct {
	transport.RoundTrip
	// InputRequired is set if the request ended because a person has to answer first (Handlers.Suspend).
	InputRequired  *content.InputRequired
	session        *Session
	notifications  *notificationQueue // nil if the caller reads neither progress nor log messages
	wantsLog       bool               // the caller reads log messages
	serverRequests *serverRequests    // answers the server's requests; nil declines them
	serverAsked    atomic.Bool        // a request of the server was attributed to this request

	// The following fields are used by a handshake only.

	discoverTimeout time.Duration // for the answer to server/discover
	discoverBusy    bool          // the server was too busy for server/discover
}

// NewRequest returns a request in s. Its context has the values of ctx and ends with ctx, with life, and at deadline. s
// may be nil for CallTool and ReadResource, which set their session. The caller must call Finish.
func NewRequest(ctx, life context.Context, deadline time.Time, s *Session) *Request {
	request := &Request{}
	request.Owner = request
	request.useSession(s)
	request.Start(ctx, life, deadline)
	return request
}

// useSession sets the session in which the request is sent. A nil s changes nothing.
func (request *Request) useSession(s *Session) {
	if s != nil {
		request.session, request.Session = s, &s.conn
	}
}

// requestOf returns the Request that ctx carries; nil if there is none. Every context that the SDK gets carries one.
func requestOf(ctx context.Context) *Request {
	return requestOfRoundTrip(transport.RoundTripOf(ctx))
}

// requestOfRoundTrip returns the Request that owns r; nil if there is none. r may be nil.
func requestOfRoundTrip(r *transport.RoundTrip) *Request {
	if r == nil {
		return nil
	}
	request, _ := r.Owner.(*Request)
	return request
}

// Finish removes the server's requests that were not handled, and finishes the RoundTrip.
func (request *Request) Finish() {
	if request.serverAsked.Load() {
		request.session.requests.removeRequestsOf(&request.RoundTrip)
	}
	request.RoundTrip.Finish()
}

// connectionHandlers returns the functions that the connection of the session calls for messages of the server.
func connectionHandlers(session *Session) transport.Handlers {
	return transport.Handlers{
		Protocol: session.protocolIfReady,
		Request: func(m *jsonrpc.Request, r *transport.RoundTrip) *jsonrpc.Request {
			return session.tagRequest(m, requestOfRoundTrip(r), nil)
		},
		Notification: session.handleNotification,
		Progress:     func(r *transport.RoundTrip, message json.RawMessage) { requestOfRoundTrip(r).queueProgress(message) },
		Log:          func(r *transport.RoundTrip, message json.RawMessage) { requestOfRoundTrip(r).queueLog(message) },
		Listening:    session.setListening,
		Forgotten:    session.markForgotten,
	}
}

// tagRequest returns m, a request of the server during request, with a tag for our handlers (requestRegistry). request
// is nil if m cannot be attributed to one of our requests. resumeAnswer is the person's answer of Handlers.Resume; nil
// if there is none.
func (s *Session) tagRequest(m *jsonrpc.Request, request *Request, resumeAnswer *ElicitationResult) *jsonrpc.Request {
	if request == nil {
		return s.requests.tag(m, serverRequest{})
	}
	request.serverAsked.Store(true)
	return s.requests.tag(m, serverRequest{
		call: &request.RoundTrip, requests: request.serverRequests, resumeAnswer: resumeAnswer,
	})
}

// queueProgress queues a progress notification if the caller reads progress. message is the text of the notification.
// It does not wait.
func (request *Request) queueProgress(message json.RawMessage) {
	if request.notifications != nil && request.ProgressToken != "" {
		request.notifications.enqueueProgress(message)
	}
}

// decodeProgress decodes the text of a progress notification. ok is false if message does not decode, or has the token
// of another request.
func (request *Request) decodeProgress(message json.RawMessage) (_ Progress, ok bool) {
	var m struct {
		Params struct {
			Token    any     `json:"progressToken"`
			Progress float64 `json:"progress"`
			Total    float64 `json:"total"`
			Message  string  `json:"message"`
		} `json:"params"`
	}
	if json.Unmarshal(message, &m) != nil || m.Params.Token != request.ProgressToken {
		return Progress{}, false
	}
	text := wire.Truncate(m.Params.Message, maxProgressText)
	return Progress{Progress: m.Params.Progress, Total: m.Params.Total, Message: text}, true
}

// queueLog queues a log message if the caller reads log messages. message is the text of the notification. It does not
// wait.
func (request *Request) queueLog(message json.RawMessage) {
	if request.notifications != nil && request.wantsLog {
		request.notifications.enqueueLog(func() *LogMessage { return decodeLog(message) })
	}
}

// decodeLog decodes the text of a log message; nil if it does not decode. Level, Logger and Data are brought within
// their bounds.
func decodeLog(message json.RawMessage) *LogMessage {
	var m struct {
		Params *struct {
			Level  string          `json:"level"`
			Logger string          `json:"logger"`
			Data   json.RawMessage `json:"data"`
		} `json:"params"`
	}
	if json.Unmarshal(message, &m) != nil || m.Params == nil {
		return nil
	}
	if !slices.Contains(logLevels, m.Params.Level) {
		m.Params.Level = unknownLevel
	}
	return &LogMessage{Level: m.Params.Level, Logger: wire.Printable(m.Params.Logger, maxLogger), Data: boundLogData(m.Params.Data)}
}
