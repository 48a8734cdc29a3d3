// Package transport connects to MCP servers: over Streamable HTTP, over HTTP+SSE, over a WebSocket, and to a child
// process over its standard input and output. It implements the go-sdk's interfaces Transport and Connection. The SDK's
// own implementations are not used: with them, one bad reply ends the session that all calls share, and not everything
// that they read is bounded (docs/internals/mcp-transport.md has the details).
//
// The package promises the following. Each request has its own outcome: a bad reply, a timeout or a refused token fails
// that request and no other. Every message and every wait is bounded. A failure says whether the server may have
// executed the request. Messages of one connection arrive in the server's order, and a call's progress and log messages
// arrive before its answer. All types may be used from several goroutines.
//
// An Endpoint belongs to one server, a Transport to one session, and a RoundTrip to one request. The request's context,
// which the SDK passes on to the connection, carries the RoundTrip.
//
//	e := transport.NewHTTP(transport.HTTPConfig{URL: url, RoundTripper: out, Logger: log})
//	s := &transport.Session{Handlers: handlers}
//	roundTrip := &transport.RoundTrip{Session: s, Handshake: true}
//	roundTrip.Start(ctx, life, time.Now().Add(10*time.Second))
//	t := e.NewTransport()
//	cs, err := client.Connect(roundTrip.Context(), t, nil) // client is the go-sdk's
//	roundTrip.Finish()
//	if err != nil {
//		return t.Explain(err)
//	}
//	// Then, for each request: a new RoundTrip, and roundTrip.Failure(err) if the request has no result.
package transport

import (
	"errors"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// An Endpoint creates the transports of one server. One implementation is for Streamable HTTP, the other one for
// connections that carry whole messages.
type Endpoint interface {
	// NewTransport returns the transport of a new session. The SDK calls its Connect once.
	NewTransport() Transport
	// Close ends the child process, if the endpoint has one, and waits for all goroutines and processes of its
	// sessions. Call it after the last session was closed.
	Close()
}

// A Transport connects one session. The context passed to Connect must carry a RoundTrip whose Session is set.
type Transport interface {
	sdk.Transport
	// Explain adds the reason why the connection ended to err, the error of a failed handshake, because the SDK says
	// only that the connection is closed. The result wraps ErrHungUp if the handshake sent server/discover and the
	// server then ended the connection.
	Explain(err error) error
}

// ErrHungUp says that the server ended the connection after server/discover. Some servers that are older than
// 2026-07-28 do that on every request before initialize.
var ErrHungUp = errors.New("the server hung up at " + methodDiscover)

// errConnClosed is the reason for the end of a connection that answerd closed.
var errConnClosed = errors.New("the connection was closed by us")

// MethodPrefix is put before the name of an MCP method, so that the SDK treats it as a custom method and returns the
// result as received. Connections remove the prefix before they send the request.
const MethodPrefix = "answerd/"

// StatelessVersion is the first protocol version without sessions: each request is independent of the others.
const StatelessVersion = "2026-07-28"

// Methods and notifications that the transports handle specially.
const (
	methodDiscover   = "server/discover"
	methodInitialize = "initialize"
	methodCall       = "tools/call"
	methodPrompt     = "prompts/get"
	methodRead       = "resources/read"
	methodListen     = "subscriptions/listen"
	methodElicit     = "elicitation/create"
	methodSample     = "sampling/createMessage"

	notificationInitialized = "notifications/initialized"
	notificationCancelled   = "notifications/cancelled"
	notificationProgress    = "notifications/progress"
	notificationMessage     = "notifications/message"
)

const (
	// MaxMessage is the maximum size of a server's message in bytes, uncompressed: JSON, or one event.
	MaxMessage = 4 << 20
	// maxRefusal is how many bytes are read of a body that has no result, such as the body of an error status.
	maxRefusal = 64 << 10
	// maxServerRequests is how many unanswered requests a server may have on a connection that all calls share. Over
	// HTTP it is how many requests a server may send in one stream, plus one for each second that the stream lasts.
	maxServerRequests = 100
	// maxReceivedMessages and maxReceivedBytes limit what a server may send before the answer to one request:
	// progress, log messages and its own requests.
	maxReceivedMessages = 100_000
	maxReceivedBytes    = 64 << 20
)
