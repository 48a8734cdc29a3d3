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

// Request is one request to the server in a session, with the notifications and requests that the server sends during
// it. It sends several messages if its results are input_required. A handshake has a Request too, and so does each of
// its messages.
type Request struct {
	transport.RoundTrip
	// InputRequired is set if the request ended because the user has to answer first (Handlers.Suspend).
	InputRequired *content.InputRequired
	session       *Session
	notifications *notificationQueue // nil if neither progress nor log messages are handled
	wantsLog      bool               // log messages are handled
	answerer      *requestAnswerer   // answers the server's requests; nil declines them
	serverAsked   atomic.Bool        // a request of the server was attributed to this request

	// Only a handshake uses the following fields.

	discoverTimeout time.Duration // time limit for the answer to server/discover
	discoverBusy    bool          // the server was too busy for server/discover
}

// NewRequest returns a Request in s. Its context has the values of ctx, and ends with ctx, with life, and at deadline.
// s may be nil for CallTool and ReadResource, which set the session. Finish must be called.
func NewRequest(ctx, life context.Context, deadline time.Time, s *Session) *Request {
	request := &Request{}
	request.Owner = request
	request.useSession(s)
	request.Start(ctx, life, deadline)
	return request
}

// useSession sets the session in which the request is sent. It does nothing if s is nil.
func (request *Request) useSession(s *Session) {
	if s != nil {
		request.session, request.Session = s, &s.conn
	}
}

// requestOf returns the Request in ctx, or nil if ctx has none. Every context that the SDK gets must have one.
func requestOf(ctx context.Context) *Request {
	return requestOfRoundTrip(transport.RoundTripOf(ctx))
}

// requestOfRoundTrip returns the Request that owns r, or nil if r is nil or has no such owner.
func requestOfRoundTrip(r *transport.RoundTrip) *Request {
	if r == nil {
		return nil
	}
	request, _ := r.Owner.(*Request)
	return request
}

// Finish removes the server's requests that were not handled from the session's registry, and finishes the RoundTrip.
func (request *Request) Finish() {
	if request.serverAsked.Load() {
		request.session.requests.removeRequestsOf(&request.RoundTrip)
	}
	request.RoundTrip.Finish()
}

// connectionHandlers returns the functions that session's connection calls for messages of the server.
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

// tagRequest returns m, a request that the server sent during request, with a tag for answerd's handlers
// (requestRegistry). request is nil if m cannot be attributed to a request. resumeAnswer is the user's answer from
// Handlers.Resume, or nil.
func (s *Session) tagRequest(m *jsonrpc.Request, request *Request, resumeAnswer *ElicitationResult) *jsonrpc.Request {
	if request == nil {
		return s.requests.registerAndTag(m, serverRequest{})
	}
	request.serverAsked.Store(true)
	return s.requests.registerAndTag(m, serverRequest{
		call: &request.RoundTrip, answerer: request.answerer, resumeAnswer: resumeAnswer,
	})
}

// queueProgress queues message, the text of a progress notification, if progress is handled. It does not block.
func (request *Request) queueProgress(message json.RawMessage) {
	if request.notifications != nil && request.ProgressToken != "" {
		request.notifications.enqueueProgress(message)
	}
}

// decodeProgress decodes message, the text of a progress notification. ok is false if message does not decode, or has
// another request's token.
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

// queueLog queues message, the text of a log notification, if log messages are handled. It does not block.
func (request *Request) queueLog(message json.RawMessage) {
	if request.notifications != nil && request.wantsLog {
		request.notifications.enqueueLog(func() *LogMessage { return decodeLog(message) })
	}
}

// decodeLog decodes message, the text of a log notification. It returns nil if message does not decode. It replaces an
// unknown Level, and cuts Logger and Data that are too long.
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
