// Package transport connects to MCP servers: over Streamable HTTP, over HTTP+SSE, to a child process
// over its standard input and output, and over a WebSocket. It implements the interfaces Transport and
// Connection of the go-sdk, and keeps one session usable for all callers where the SDK's own
// transports cannot be bounded (docs/internals/mcp-transport.md says which of their limits it
// is for).
//
// What it promises: each request has its own outcome, so a bad reply, a timeout or a refused token
// fails that request and no other. Every message and every wait is bounded. A failure says whether
// the server may have carried the request out. Messages of one connection arrive in the server's
// order, and progress and log messages of a call arrive before its answer. All types may be used
// from several goroutines.
//
// An Endpoint belongs to one server, a Transport to one session, a RoundTrip to one request. The
// request's context, which the SDK hands down, carries the RoundTrip.
//
//	e := transport.NewHTTP(transport.HTTPConfig{URL: url, RoundTripper: out, Logger: log})
//	s := &transport.Session{Handlers: handlers}
//	trip := &transport.RoundTrip{Session: s, Handshake: true}
//	trip.Start(ctx, life, time.Now().Add(10*time.Second))
//	t := e.NewTransport()
//	cs, err := client.Connect(trip.Context(), t, nil) // of the go-sdk
//	trip.Finish()
//	if err != nil {
//		return t.Explain(err)
//	}
//	// For each request: a RoundTrip, then trip.Failure(err) if it has no result.
package transport

import (
	"errors"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// An Endpoint makes the transports of one server. There is one implementation for Streamable HTTP
// and one for connections that carry whole messages.
type Endpoint interface {
	// NewTransport returns the transport of one session. The SDK calls its Connect once.
	NewTransport() Transport
	// Close ends the child process, if the endpoint has one, and waits for all goroutines and
	// processes of its sessions. Call it after the last session was closed.
	Close()
}

// A Transport connects one session. The context that the SDK connects with must carry a RoundTrip
// whose Session is set.
type Transport interface {
	sdk.Transport
	// Explain returns err, the error of a handshake that failed, with the reason why the connection
	// ended added: the SDK says only that the connection is closed. ErrHungUp is in the chain of the
	// result if the handshake sent server/discover and the server then ended the connection.
	Explain(err error) error
}

// ErrHungUp says that the server ended the connection after server/discover. Some servers of
// versions before 2026-07-28 do that on every request that comes before initialize.
var ErrHungUp = errors.New("the server hung up at " + methodDiscover)

// errConnClosed is the reason for the end of a connection that answerd closed.
var errConnClosed = errors.New("the connection was closed by us")

// MethodPrefix before the name of an MCP method makes the SDK treat the method as a custom one, whose
// result the SDK returns as received. Connections remove the prefix before they send the request.
const MethodPrefix = "answerd/"

// StatelessVersion is the first protocol version without sessions: each request is independent of the others.
const StatelessVersion = "2026-07-28"

// Methods and notifications that transports treat specially.
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
	// MaxMessage is how many bytes a message of a server may have, uncompressed: JSON, or one event.
	MaxMessage = 4 << 20
	// maxRefusal is how many bytes are read of a body without a result, such as the body of an error status.
	maxRefusal = 64 << 10
	// maxServerRequests is how many unanswered requests a server may have on a connection that all calls
	// share. Over HTTP it is how many requests a server may send in one stream, plus one for each second
	// that the stream lasts.
	maxServerRequests = 100
	// maxReceivedMessages and maxReceivedBytes bound what a server sends before the answer to one
	// request: progress, log messages and requests of its own.
	maxReceivedMessages = 100_000
	maxReceivedBytes    = 64 << 20
)
