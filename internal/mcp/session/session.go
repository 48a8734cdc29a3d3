// Package session keeps one session with an MCP server usable: it makes the session, makes it again
// after a loss, sends requests in it, keeps it subscribed to changes, and answers what the server
// asks. The go-sdk speaks the protocol; package transport carries the messages.
//
// A Connector belongs to one server. A Pool holds the session that all calls share, or all calls of
// one principal; a Session is one handshake and what came of it; a Request is one of our requests.
//
//	endpoint := transport.NewHTTP(transport.HTTPConfig{URL: url, RoundTripper: out, Logger: log})
//	connector := session.NewConnector(session.ConnectorOptions{Endpoint: endpoint, ClientVersion: "1.0", Logger: log})
//	p := session.New(session.Options{Life: life, Logger: log, Connect: connector.Connect, HandshakeTimeout: session.HandshakeTimeout, …})
//	s, failure := p.GetSession(ctx) // connects if there is no session
//	request := session.NewRequest(ctx, life, time.Now().Add(time.Minute), s)
//	result, failure := s.CallTool(request, session.ToolCall{Name: "get_weather", Args: args, Meta: sdk.Meta{}})
//	request.Finish()
//	if failure != nil && failure.Lost {
//		p.DropSession(s) // the next GetSession makes another one
//	}
//	p.Close() // after life has ended
//
// All types may be used concurrently. GetSession waits for a handshake that no caller can cancel for
// others. A server's messages about a call arrive in its order and before the result of the call, and
// only at that call's Handlers. A panic over what a server sent costs one request or one session.
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

// Session is one handshake with a server, and the session that it led to.
type Session struct {
	pool  *Pool
	ready chan struct{} // closed when the handshake is over; the next four fields do not change afterwards

	cs          *sdk.ClientSession // nil if the handshake failed
	failure     *transport.Failure // why the handshake failed, else nil
	connectedAt time.Time
	// stopSubscribing ends subscribeChanges. It is nil if the handshake failed.
	stopSubscribing context.CancelFunc

	handshake      atomic.Pointer[Request] // the present request of the handshake, or the last one
	conn           transport.Session       // shared with the connection
	requests       requestRegistry
	handleRequest  sdk.MethodHandler // makes the SDK answer a request of the server; set by separateHandshake
	resources      *resourceCache    // nil if the pool does not cache resources
	progressTokens atomic.Int64      // how many progress tokens were assigned
	// mayHaveMissed says that notifications outside of requests may not have reached us. setListening resets it.
	mayHaveMissed atomic.Bool
}

// Protocol returns the negotiated protocol version. The handshake must have succeeded.
func (s *Session) Protocol() string { return negotiatedVersion(s.cs) }

// Instructions returns the instructions for the use of the server, as received in the handshake; "" if it sent none.
func (s *Session) Instructions() string {
	if r := s.cs.InitializeResult(); r != nil {
		return r.Instructions
	}
	return ""
}

// protocolIfReady returns the negotiated protocol version; "" until the handshake has succeeded.
func (s *Session) protocolIfReady() string {
	if !transport.IsClosed(s.ready) || s.cs == nil {
		return ""
	}
	return s.Protocol()
}

// capabilities returns the capabilities that the server declared in the handshake.
func (s *Session) capabilities() sdk.ServerCapabilities {
	if r := s.cs.InitializeResult(); r != nil && r.Capabilities != nil {
		return *r.Capabilities
	}
	return sdk.ServerCapabilities{}
}

// markForgotten marks the session as lost, because the standalone stream found out that the server forgot it. The pool
// then makes a new session without waiting for a call. It does not block.
func (s *Session) markForgotten() {
	s.conn.Lost.Store(true)
	if transport.IsClosed(s.ready) {
		s.pool.handleLoss(s, transport.LostSession(nil))
	}
}

// handleNotification handles a notification that does not belong to one of our requests: it updates the cache of
// resources and calls OnNotification. It does not wait, because the goroutine that reads messages runs it.
func (s *Session) handleNotification(method string, params json.RawMessage) {
	if s.resources != nil {
		s.resources.handleNotification(method, params)
	}
	if method == methodAcknowledged {
		s.setListening(true)
	}
	s.pool.OnNotification(method)
}

// setListening records whether notifications outside of requests reach us. If they do so again after an interruption,
// it reports a change of the tools to OnNotification, since that notification may have been missed.
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

// setLogLevel asks the server for log messages of logLevel, because some servers send none otherwise. It waits for the
// reply for at most NotifyTimeout. From protocol 2026-07-28 on it does nothing, because each request has a log level.
func (s *Session) setLogLevel() {
	if s.capabilities().Logging == nil || s.Protocol() >= transport.StatelessVersion {
		return
	}
	// An error is ignored, because no call depends on log messages.
	deadline := time.Now().Add(transport.NotifyTimeout)
	_, _ = s.Do(context.Background(), nil, deadline, func(request *Request) (json.RawMessage, *transport.Failure) {
		_ = s.cs.SetLoggingLevel(request.Context(), &sdk.SetLoggingLevelParams{Level: logLevel})
		return nil, nil
	})
}

// negotiatedVersion returns the protocol version of a session; "" if the SDK does not have it.
func negotiatedVersion(cs *sdk.ClientSession) string {
	if r := cs.InitializeResult(); r != nil {
		return r.ProtocolVersion
	}
	return ""
}
