package mcp

import (
	"context"
	"encoding/json"
	"sync/atomic"
	"time"

	"answerd/internal/mcp/transport"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// session is one handshake with a server, and the session that it led to.
type session struct {
	pool        *pool
	ready       chan struct{}      // closed when the handshake is over; then the next three are set
	cs          *sdk.ClientSession // nil if the handshake failed
	failed      *transport.Failure
	connectedAt time.Time
	handshake   atomic.Pointer[exchange]
	conn        transport.Session // shared with the connection
	asked       requestRegistry   // the server's requests that the SDK is handing to us
	// handleRequest has the SDK answer a request of the server. The handshake sets it.
	handleRequest sdk.MethodHandler
	// subscribed says that notifications outside of requests have reached us once.
	subscribed atomic.Bool
	resources  *resourceCache // nil if no resources of the server are configured
	// stopSubscribing ends the subscriptions when the session is no longer the current one.
	stopSubscribing context.CancelFunc
	progressTokens  atomic.Int64 // given out so far
}

// protocol returns the negotiated version.
func (s *session) protocol() string { return negotiatedVersion(s.cs) }

// protocolIfReady returns the negotiated version; "" until the handshake is over.
func (s *session) protocolIfReady() string {
	if !isClosed(s.ready) || s.cs == nil {
		return ""
	}
	return s.protocol()
}

// capabilities returns what the server declared in the handshake.
func (s *session) capabilities() sdk.ServerCapabilities {
	if r := s.cs.InitializeResult(); r != nil && r.Capabilities != nil {
		return *r.Capabilities
	}
	return sdk.ServerCapabilities{}
}

// forgotten is called when the server turns out to have forgotten the session and no call
// was there to notice. It does not wait.
func (s *session) forgotten() {
	s.conn.Lost.Store(true) // so that the next call notices
	if isClosed(s.ready) {
		s.pool.handleLoss(s, transport.LostSession(nil))
	}
}

// changed handles a notification that does not belong to one of our requests. It does not
// wait: it runs where messages are read.
func (s *session) changed(method string, params json.RawMessage) {
	if s.resources != nil {
		s.resources.handleNotification(method, params)
	}
	if method == methodAcknowledged {
		s.hears(true)
	}
	s.pool.onNotification(method)
}

// hears notes whether notifications outside of requests reach us. When they do so
// again, one may have been missed, so the tools are listed again.
func (s *session) hears(on bool) {
	if s.resources != nil {
		s.resources.setListening(on)
	}
	if on && s.subscribed.Swap(true) {
		s.pool.onNotification("notifications/tools/list_changed")
	}
}
