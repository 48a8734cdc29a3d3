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

// Request is one request of a session: its round trip, its notifications and the server's requests
// during it. It sends several messages if the server asks for input.
type Request struct {
	transport.RoundTrip
	// InputRequired is set where the request ended because a person has to answer first
	// (Handlers.Suspend).
	InputRequired   *content.InputRequired
	session         *Session
	discoverTimeout time.Duration      // of a handshake: for the answer to server/discover
	discoverBusy    bool               // of a handshake: the server was too busy for server/discover
	notifications   *notificationQueue // of the call; nil if the caller does not read them
	wantsLog        bool               // its reader takes log messages
	serverRequests  *serverRequests    // answers the server's own requests; nil declines them
	tagged          atomic.Bool        // the server asked something
}

// NewRequest returns a request in s under ctx. It ends at deadline, or when life does. s may be
// nil for a request that CallTool or ReadResource sends.
func NewRequest(ctx, life context.Context, deadline time.Time, s *Session) *Request {
	request := &Request{}
	request.Owner = request
	request.useSession(s)
	request.Start(ctx, life, deadline)
	return request
}

// useSession sets the session that the request is sent in.
func (request *Request) useSession(s *Session) {
	if s != nil {
		request.session, request.Session = s, &s.conn
	}
}

// requestOf returns the Request that ctx belongs to; nil if there is none. Every context that the
// SDK is given has one.
func requestOf(ctx context.Context) *Request {
	if r := transport.RoundTripOf(ctx); r != nil {
		return requestOfRoundTrip(r)
	}
	return nil
}

// requestOfRoundTrip returns the Request that a round trip is part of; nil if there is none.
func requestOfRoundTrip(r *transport.RoundTrip) *Request {
	if r == nil {
		return nil
	}
	request, _ := r.Owner.(*Request)
	return request
}

// Finish frees what the request holds.
func (request *Request) Finish() {
	if request.tagged.Load() {
		request.session.requests.removeRequestsOf(&request.RoundTrip)
	}
	request.RoundTrip.Finish()
}

// connectionHandlers returns the functions that the connection of the session calls.
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

// tagRequest tags a request of the server, which belongs to request, for our handlers; request may be nil.
// given is the person's answer to it; nil if there is none yet.
func (s *Session) tagRequest(m *jsonrpc.Request, request *Request, given *ElicitationResult) *jsonrpc.Request {
	if request == nil {
		return s.requests.tag(m, serverRequest{})
	}
	request.tagged.Store(true)
	return s.requests.tag(m, serverRequest{call: &request.RoundTrip, answers: request.serverRequests, given: given})
}

// queueProgress queues a progress notification if the caller of the request asked for it. message
// is its text.
func (request *Request) queueProgress(message json.RawMessage) {
	if request.notifications != nil && request.ProgressToken != "" {
		request.notifications.enqueueProgress(message)
	}
}

// decodeProgress returns the progress in the text of a notification; ok is false if that is not one
// or has another token.
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
	return Progress{Progress: m.Params.Progress, Total: m.Params.Total, Message: wire.Truncate(m.Params.Message, maxProgressText)}, true
}

// queueLog queues a log message if the caller of the request reads them. message is the text of
// the notification. It never waits: it runs where messages are read.
func (request *Request) queueLog(message json.RawMessage) {
	if request.notifications != nil && request.wantsLog {
		request.notifications.enqueueLog(func() *LogMessage { return decodeLog(message) })
	}
}

// decodeLog returns the log message in the text of a notification; nil if that is not one.
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
