// Package session keeps one session with an MCP server usable: it opens the session, opens a new one after a loss,
// sends requests in it, keeps it subscribed to changes, and answers the server's requests. The go-sdk implements the
// protocol, and package transport the connections.
//
// A Connector belongs to one server. A Pool holds the session that all calls share, or all calls of one user. A
// Session is one handshake and the session that results from it. A Request is one request to the server.
//
//	endpoint := transport.NewHTTP(transport.HTTPConfig{URL: url, RoundTripper: out, Logger: log})
//	connector := session.NewConnector(session.ConnectorOptions{Endpoint: endpoint, ClientVersion: "1.0", Logger: log})
//	p := session.New(session.Options{Life: life, Logger: log, Connect: connector.Connect, HandshakeTimeout: session.HandshakeTimeout, …})
//	s, failure := p.GetSession(ctx) // connects if the pool has no session
//	request := session.NewRequest(ctx, life, time.Now().Add(time.Minute), s)
//	result, failure := s.CallTool(request, session.ToolCall{Name: "get_weather", Args: args, Meta: sdk.Meta{}})
//	request.Finish()
//	if failure != nil && failure.Lost {
//		p.DropSession(s) // the next GetSession opens a new one
//	}
//	p.Close() // after life has ended
//
// All types may be used concurrently. GetSession waits for a handshake that no single call can cancel. The server's
// messages about a call arrive in the server's order and before the call's result, and only at that call's Handlers. A
// panic over what a server sent costs one request or one session.
package session

//lint:file-ignore SA1019 2026-07-28 deprecates logging (SEP-2577); servers still use it.

import (
	"context"
	"encoding/json"
	"sync/atomic"
	"time"

	"answerd/internal/mcp/transport"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// Session is one handshake with a server, and the session that results from it.
type Session struct {
	pool  *Pool
	ready chan struct{} // closed when the handshake is over; the next four fields do not change after that

	cs          *sdk.ClientSession // nil if the handshake failed
	failure     *transport.Failure // why the handshake failed; nil if it succeeded
	connectedAt time.Time
	// stopSubscribing ends subscribeChanges. It is nil if the handshake failed.
	stopSubscribing context.CancelFunc

	handshake      atomic.Pointer[Request] // the handshake's current request, or its last one
	conn           transport.Session       // shared with the connection
	requests       requestRegistry
	handleRequest  sdk.MethodHandler // passes a server's request to the SDK, which answers it; set by separateHandshake
	resources      *resourceCache    // nil if the pool does not cache resources
	progressTokens atomic.Int64      // number of progress tokens assigned so far
	// mayHaveMissed says that notifications outside of requests may have been missed. setListening resets it.
	mayHaveMissed atomic.Bool
}

// Protocol returns the negotiated protocol version. The handshake must have succeeded.
func (s *Session) Protocol() string { return initializeResult(s.cs).ProtocolVersion }

// Instructions returns the server's instructions for its use, as received in the handshake; "" if it sent none. The
// handshake must have succeeded.
func (s *Session) Instructions() string { return initializeResult(s.cs).Instructions }

// protocolIfReady returns the negotiated protocol version; "" until the handshake has succeeded.
func (s *Session) protocolIfReady() string {
	if !transport.IsClosed(s.ready) || s.cs == nil {
		return ""
	}
	return s.Protocol()
}

// capabilities returns the capabilities that the server declared in the handshake.
func (s *Session) capabilities() sdk.ServerCapabilities {
	if declared := initializeResult(s.cs).Capabilities; declared != nil {
		return *declared
	}
	return sdk.ServerCapabilities{}
}

// markForgotten marks the session as lost. It is called when the standalone stream shows that the server no longer
// knows the session. The pool then opens a new session without waiting for a call. markForgotten does not block.
func (s *Session) markForgotten() {
	s.conn.Lost.Store(true)
	if transport.IsClosed(s.ready) {
		s.pool.handleLoss(s, transport.LostSession(nil))
	}
}

// handleNotification handles a notification that does not belong to a request of ours: it updates the cache of
// resources and calls OnNotification. It does not block, because the goroutine that reads messages calls it.
func (s *Session) handleNotification(method string, params json.RawMessage) {
	if s.resources != nil {
		s.resources.handleNotification(method, params)
	}
	if method == methodAcknowledged {
		s.setListening(true)
	}
	s.pool.OnNotification(method)
}

// setListening records whether notifications outside of requests are received. If they are received again after an
// interruption, it reports a change of the tools to OnNotification, because a notification may have been missed.
func (s *Session) setListening(on bool) {
	if s.resources != nil {
		s.resources.setListening(on)
	}
	if !on {
		s.mayHaveMissed.Store(true)
	} else if s.mayHaveMissed.Swap(false) {
		s.pool.OnNotification("notifications/tools/list_changed")
	}
}

// setLogLevel asks the server for log messages of logLevel and above, because some servers send none otherwise. It
// waits for the reply, for at most NotifyTimeout. From protocol 2026-07-28 on it does nothing, because each request
// has a log level.
func (s *Session) setLogLevel() {
	if s.capabilities().Logging == nil || s.Protocol() >= transport.StatelessVersion {
		return
	}
	// The error is ignored, because no call depends on log messages.
	deadline := time.Now().Add(transport.NotifyTimeout)
	_, _ = s.Do(context.Background(), nil, deadline, func(request *Request) (json.RawMessage, *transport.Failure) {
		_ = s.cs.SetLoggingLevel(request.Context(), &sdk.SetLoggingLevelParams{Level: logLevel})
		return nil, nil
	})
}

// initializeResult returns the result of cs's handshake, which is empty if the SDK does not have it. Do not change it.
func initializeResult(cs *sdk.ClientSession) *sdk.InitializeResult {
	if result := cs.InitializeResult(); result != nil {
		return result
	}
	return &sdk.InitializeResult{}
}
