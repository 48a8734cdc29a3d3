package session

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"answerd/internal/mcp/transport"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// HandshakeTimeout bounds one handshake, which may consist of server/discover (2026-07-28) and then initialize.
const HandshakeTimeout = 10 * time.Second

// Options configure a Pool. Its functions, except for Connect, must not wait.
type Options struct {
	// Life ends all handshakes, requests and subscriptions when it ends.
	Life   context.Context
	Logger *slog.Logger
	// Connect makes a session, such as Connector.Connect. Its context carries the Request of the handshake.
	Connect func(context.Context) (*sdk.ClientSession, error)
	// HandshakeTimeout bounds one handshake.
	HandshakeTimeout time.Duration
	// Tokens sends requests with the token of the principal to whom the sessions belong. If it is nil, the token
	// of the server is used.
	Tokens transport.Sender
	// CacheResources gives each session a cache of the resources that were read in it.
	CacheResources bool
	// Subscribe keeps the session subscribed to changes of tools and resources.
	Subscribe bool
	// OverHTTP says that the transport is Streamable HTTP, where notifications outside of requests need a stream.
	OverHTTP bool
	// OnConnected is called after each successful handshake, and after the loss of a session that no call has
	// noticed.
	OnConnected func()
	// OnLost is called when the pool notices the loss of the current session, before OnConnected.
	OnLost func(*transport.Failure)
	// OnNotification is called with the method of each notification that does not belong to one of our requests.
	OnNotification func(method string)
}

// Pool has the one session with a server that all calls share, or all calls of one principal. It makes the handshake
// when a call needs a session, in the background: however many callers wait, there is one handshake, and a caller who
// gives up does not cancel it for the rest.
type Pool struct {
	Options

	mu      sync.Mutex // protects what follows
	current *Session   // may still be in its handshake; nil until a call needs one, and after a loss
	losses  int        // sessions lost in a row, of which only the first has lasted longer than transport.MaxBackoff
	retryAt time.Time  // see ReconnectDelay
	closed  bool
	work    sync.WaitGroup // counts handshakes, subscriptions, and sessions that are being closed
}

// New returns a Pool without a session.
func New(o Options) *Pool { return &Pool{Options: o} }

// GetSession returns the current session, or makes a new one, and waits for its handshake. The session can be used only
// if the failure is nil. If ctx ends before the handshake is over, the handshake continues; the failure then has
// ErrCredentials in its chain if the handshake was waiting for a token.
func (p *Pool) GetSession(ctx context.Context) (*Session, *transport.Failure) {
	session := p.currentOrNew()
	if session == nil {
		return nil, &transport.Failure{
			Kind: transport.Cancelled, Public: "answerd is shutting down", NotRun: true, Err: transport.ErrClosed,
		}
	}
	select {
	case <-session.ready:
		return session, session.failure // nil if the handshake succeeded
	case <-ctx.Done():
		f := &transport.Failure{
			Kind: transport.Unavailable, Public: "it is not connected yet", NotRun: true, Err: context.Cause(ctx),
		}
		if request := session.handshake.Load(); request != nil && request.FetchingToken() {
			f.Err = transport.CredentialsError(f.Err)
		}
		return nil, f
	}
}

// currentOrNew returns the current session. If there is none, or the server's requests cannot be attributed to calls in
// it any more (transport.Session.Ambiguous), it starts the handshake of a new session and returns that. It returns nil
// after Close.
func (p *Pool) currentOrNew() *Session {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil
	}
	if s := p.current; s != nil {
		if !s.conn.Ambiguous() {
			return s
		}
		// The SDK sends the cancellation of an abandoned call after the call has returned. It cannot do so
		// when the session is closed, so that has to wait.
		p.retireLocked(s, transport.NotifyTimeout)
	}
	session := &Session{ready: make(chan struct{}), pool: p}
	session.conn.Handlers = connectionHandlers(session)
	session.conn.Tokens = p.Tokens
	session.conn.WatchTools = p.Subscribe
	if p.CacheResources {
		session.resources = newResourceCache()
	}
	p.current = session
	p.work.Go(func() { p.makeHandshake(session) })
	return session
}

// makeHandshake makes the handshake of session, starts the goroutines of the session, and closes session.ready. After a
// failure it calls handshakeFailed. The context of the handshake is not that of a caller, because the SDK keeps its
// values for the whole session and uses them for the requests that it sends by itself.
func (p *Pool) makeHandshake(session *Session) {
	request := NewRequest(context.Background(), p.Life, time.Now().Add(p.HandshakeTimeout), session)
	request.Handshake = true
	request.discoverTimeout = p.HandshakeTimeout / 2 // the other half is for initialize
	session.handshake.Store(request)
	defer transport.Recover(p.Logger, func(f *transport.Failure) { p.handshakeFailed(session, request, f) })
	cs, err := p.Connect(request.Context())
	if err != nil {
		p.handshakeFailed(session, request, handshakeFailure(request, err))
		return
	}
	// request.Finish ends the context of the handshake, with which the SDK's session does not end.
	session.cs, session.connectedAt = cs, time.Now()
	request.Finish()
	session.setLogLevel()
	ctx, stop := context.WithCancel(p.Life)
	session.stopSubscribing = stop
	p.work.Go(func() { p.waitForEnd(session) })
	if p.Subscribe {
		p.work.Go(func() { session.subscribeChanges(ctx) })
	}
	close(session.ready) // after p.work has counted all goroutines, since Close may follow
	p.OnConnected()
}

// handshakeFailure returns the reason why the handshake of request failed. err is the error of Options.Connect.
func handshakeFailure(request *Request, err error) *transport.Failure {
	failure, ok := errors.AsType[*transport.Failure](err)
	switch {
	case ok:
	case request.Context().Err() != nil:
		failure = request.Ended()
	default:
		failure = transport.BadReply("the handshake failed", err)
	}
	// There was no session yet that could be lost, so the reason is what ended the connection.
	if cause, ok := errors.AsType[*transport.Failure](failure.Err); ok && failure.Lost {
		failure = cause
	}
	return failure
}

// handshakeFailed ends the handshake request of session, which failed or panicked. GetSession returns failure to the
// callers who wait for session, and makes a new session for the next caller.
func (p *Pool) handshakeFailed(session *Session, request *Request, failure *transport.Failure) {
	if transport.IsClosed(session.ready) { // the handshake succeeded, and OnConnected panicked
		p.handleLoss(session, failure)
		return
	}
	if cs := session.cs; cs != nil {
		session.cs = nil
		p.work.Go(func() { p.closeClientSession(cs) })
	}
	session.failure = &transport.Failure{Kind: transport.Unavailable, Public: failure.Public, NotRun: true, Err: failure}
	p.mu.Lock()
	if p.current == session {
		p.current = nil
	}
	p.mu.Unlock()
	request.Finish()
	close(session.ready)
}

// waitForEnd waits for the end of a session and calls handleLoss. Over HTTP a session ends only when the pool closes
// it. With other transports, a child process may exit or a connection may break at any time.
func (p *Pool) waitForEnd(s *Session) {
	defer transport.Recover(p.Logger, func(f *transport.Failure) { p.handleLoss(s, f) })
	err := s.cs.Wait()
	f, ok := errors.AsType[*transport.Failure](err)
	if !ok {
		f = transport.LostSession(err)
	}
	p.handleLoss(s, f)
}

// handleLoss drops a session that was lost, and calls OnLost and OnConnected so that the supervisor makes a new one. It
// does nothing if the session is not the current one: then the pool has closed it, or a call has noticed the loss.
func (p *Pool) handleLoss(s *Session, f *transport.Failure) {
	if !p.DropSession(s) {
		return
	}
	p.OnLost(f)
	p.OnConnected()
}

// DropSession removes a session that was lost from the pool, if it is still the current one, and closes it when its
// calls have ended. It returns false, and does nothing, if the session was not current, because another caller has
// dropped it already, or if the pool is closed.
//
// It also sets ReconnectDelay, which grows with each session in a row that is lost within transport.MaxBackoff of its
// handshake.
func (p *Pool) DropSession(session *Session) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.current != session || p.closed {
		return false
	}
	now := time.Now()
	if now.Sub(session.connectedAt) > transport.MaxBackoff {
		p.losses = 0
	}
	p.retryAt = now.Add(transport.Backoff(p.losses))
	p.losses++
	p.retireLocked(session, 0)
	return true
}

// retireLocked removes s, the current session, from the pool, ends its subscriptions, and closes it in the background:
// after delay, and when its calls have ended.
func (p *Pool) retireLocked(s *Session, delay time.Duration) {
	p.current = nil
	s.stopSubscribing()
	p.work.Go(func() {
		transport.Pause(p.Life, delay)
		p.closeClientSession(s.cs)
	})
}

// closeClientSession closes cs, which waits for its calls. It recovers from a panic.
func (p *Pool) closeClientSession(cs *sdk.ClientSession) {
	defer transport.Recover(p.Logger, func(*transport.Failure) {})
	_ = cs.Close()
}

// ReconnectDelay returns how long the supervisor must wait before it makes a session after a loss. waiting is false if
// it need not wait. Calls do not wait: GetSession makes a session at once.
func (p *Pool) ReconnectDelay() (remaining time.Duration, waiting bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	remaining = time.Until(p.retryAt)
	return remaining, p.current == nil && remaining > 0
}

// CurrentSession returns the current session, which may still be in its handshake; nil if there is none.
func (p *Pool) CurrentSession() *Session {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.current
}

// Close closes the current session and waits for all goroutines of the pool. Options.Life must have ended, so that no
// call is in flight.
func (p *Pool) Close() error {
	p.mu.Lock()
	p.closed = true
	session := p.current
	p.current = nil
	p.mu.Unlock()
	var err error
	if session != nil {
		<-session.ready
		if session.cs != nil {
			session.stopSubscribing()
			err = session.cs.Close()
		}
	}
	p.work.Wait()
	if errors.Is(err, sdk.ErrConnectionClosed) {
		err = nil
	}
	return err
}
