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

// HandshakeTimeout is the time limit of one handshake, which may be server/discover (2026-07-28) and then initialize.
const HandshakeTimeout = 10 * time.Second

// Options configure a Pool. The functions, except for Connect, must not block.
type Options struct {
	// Life is the server's life. When it ends, all handshakes, requests and subscriptions end.
	Life   context.Context
	Logger *slog.Logger
	// Connect opens a session, as Connector.Connect does. Its context carries the handshake's Request.
	Connect func(context.Context) (*sdk.ClientSession, error)
	// HandshakeTimeout is the time limit of one handshake.
	HandshakeTimeout time.Duration
	// Tokens adds the token of the user to whom the sessions belong. If it is nil, the server's token is used.
	Tokens transport.Sender
	// CacheResources gives each session a cache of the resources that were read in it.
	CacheResources bool
	// Subscribe keeps sessions subscribed to changes of tools and resources.
	Subscribe bool
	// OverHTTP says that the transport is Streamable HTTP, where notifications outside of requests need a stream.
	OverHTTP bool
	// OnConnected is called after each successful handshake.
	OnConnected func()
	// OnLost is called when the pool itself notices that the current session was lost.
	OnLost func(*transport.Failure)
	// OnNotification is called with the method of each notification that does not belong to a request of ours.
	OnNotification func(method string)
}

// Pool has the one session with a server that all calls share, or that all calls of one user share. It performs the
// handshake when a call needs a session, in the background: all waiting calls share one handshake, and a call that is
// cancelled does not end it for the others.
type Pool struct {
	Options

	mu      sync.Mutex // protects the fields below
	current *Session   // nil until a call needs a session, and after a loss; may still be in its handshake
	losses  int        // sessions lost in a row; only the first may have lasted longer than transport.MaxBackoff
	retryAt time.Time  // see ReconnectDelay
	closed  bool
	work    sync.WaitGroup // counts handshakes, subscriptions, and sessions that are being closed
}

// New returns a Pool that has no session yet.
func New(o Options) *Pool { return &Pool{Options: o} }

// GetSession returns the current session, or opens a new one, and waits for its handshake. The session is usable only
// if the failure is nil. If ctx ends during the handshake, GetSession returns, but the handshake continues. If the
// handshake was waiting for a token, that failure wraps ErrCredentials.
func (p *Pool) GetSession(ctx context.Context) (*Session, *transport.Failure) {
	session := p.ensureSession()
	if session == nil {
		return nil, &transport.Failure{
			Kind: transport.Cancelled, Public: "answerd is shutting down", NotRun: true, Err: transport.ErrClosed,
		}
	}
	select {
	case <-session.ready:
		return session, session.failure // failure is nil if the handshake succeeded
	case <-ctx.Done():
		cause := context.Cause(ctx)
		if request := session.handshake.Load(); request != nil && request.FetchingToken.Load() {
			cause = transport.CredentialsError(cause)
		}
		return nil, &transport.Failure{Kind: transport.Unavailable, Public: "it is not connected yet", NotRun: true, Err: cause}
	}
}

// ensureSession returns the current session, whose handshake may not be over yet. If the pool has none, or the server's
// requests can no longer be attributed to calls in it (transport.Session.Ambiguous), it starts the handshake of a new
// session and returns that one. It returns nil after Close.
func (p *Pool) ensureSession() *Session {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil
	}
	if s := p.current; s != nil {
		if !s.conn.Ambiguous() {
			return s
		}
		// The SDK sends the cancellation of an abandoned call after the call has returned, and cannot do so once the
		// session is closed. So closing has to wait.
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

// makeHandshake performs session's handshake, starts session's goroutines, and closes session.ready. After a failure it
// calls failHandshake. The handshake's context is not a call's context, because the SDK keeps its values for the whole
// session and uses them for the requests that the SDK itself sends.
func (p *Pool) makeHandshake(session *Session) {
	request := NewRequest(context.Background(), p.Life, time.Now().Add(p.HandshakeTimeout), session)
	request.Handshake = true
	request.discoverTimeout = p.HandshakeTimeout / 2 // the other half is for initialize
	session.handshake.Store(request)
	defer transport.Recover(p.Logger, func(f *transport.Failure) { p.failHandshake(session, request, f) })
	cs, err := p.Connect(request.Context())
	if err != nil {
		p.failHandshake(session, request, handshakeFailure(request, err))
		return
	}
	// request.Finish ends the handshake's context, but not the SDK's session.
	session.cs, session.connectedAt = cs, time.Now()
	request.Finish()
	session.setLogLevel()
	subscribeCtx, stopSubscribing := context.WithCancel(p.Life)
	session.stopSubscribing = stopSubscribing
	p.work.Go(func() { p.waitForEnd(session) })
	if p.Subscribe {
		p.work.Go(func() { session.subscribeChanges(subscribeCtx) })
	}
	close(session.ready) // after p.work has counted all goroutines, because Close may follow
	p.OnConnected()
}

// handshakeFailure returns the reason why a handshake failed. request is the handshake's Request, and err the error of
// Options.Connect.
func handshakeFailure(request *Request, err error) *transport.Failure {
	failure, isFailure := errors.AsType[*transport.Failure](err)
	if !isFailure && request.Context().Err() != nil {
		failure = request.Ended()
	} else if !isFailure {
		failure = transport.BadReply("the handshake failed", err)
	}
	if !failure.Lost {
		return failure
	}
	// No session could be lost yet, so the reason is what ended the connection.
	if cause, ok := errors.AsType[*transport.Failure](failure.Err); ok {
		return cause
	}
	return &transport.Failure{Kind: transport.Unavailable, Public: "it closed the connection", NotRun: true, Err: failure.Err}
}

// failHandshake ends the handshake of session, which failed or panicked. request is the handshake's Request. GetSession
// then returns failure to the calls that wait for session, and opens a new session for the next call.
func (p *Pool) failHandshake(session *Session, request *Request, failure *transport.Failure) {
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

// waitForEnd waits until s has ended and calls handleLoss. Over HTTP a session ends only when the pool closes it. With
// other transports, a child process may exit or a connection may break at any time.
func (p *Pool) waitForEnd(s *Session) {
	defer transport.Recover(p.Logger, func(f *transport.Failure) { p.handleLoss(s, f) })
	err := s.cs.Wait()
	failure, ok := errors.AsType[*transport.Failure](err)
	if !ok {
		failure = transport.LostSession(err)
	}
	p.handleLoss(s, failure)
}

// handleLoss drops s, which was lost because of failure, and calls OnLost. If s is not the current session, the pool has
// closed it or a call has noticed the loss, and handleLoss does nothing.
func (p *Pool) handleLoss(s *Session, failure *transport.Failure) {
	if p.DropSession(s) {
		p.OnLost(failure)
	}
}

// DropSession removes session, which was lost, from the pool and closes it when its calls have ended. It returns false
// and does nothing if session is no longer the current one, because it was dropped already, or if the pool is closed.
//
// It also sets ReconnectDelay, which grows with each session in a row that is lost within MaxBackoff of its handshake.
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
	p.retireLocked(session, 0) // 0: the server has lost the session, so it needs no cancellation first
	return true
}

// retireLocked removes s, the current session, from the pool and ends its subscriptions. It closes s in the background,
// after closeDelay and when its calls have ended. It waits for the calls before it begins to close s, because the SDK
// refuses the server's requests from then on, and the calls may need the user's answers. p.mu must be held.
func (p *Pool) retireLocked(s *Session, closeDelay time.Duration) {
	p.current = nil
	s.stopSubscribing()
	p.work.Go(func() {
		transport.Pause(p.Life, closeDelay)
		s.conn.WaitForCalls(p.Life)
		p.closeClientSession(s.cs)
	})
}

// closeClientSession closes cs and waits for its calls. It recovers from a panic.
func (p *Pool) closeClientSession(cs *sdk.ClientSession) {
	defer transport.Recover(p.Logger, func(*transport.Failure) {})
	_ = cs.Close()
}

// ReconnectDelay returns how long the supervisor must wait before it opens a session after a loss. If it need not
// wait, waiting is false. Calls do not wait, because GetSession opens a session at once.
func (p *Pool) ReconnectDelay() (remaining time.Duration, waiting bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	remaining = time.Until(p.retryAt)
	return remaining, p.current == nil && remaining > 0
}

// CurrentSession returns the current session, which may still be in its handshake, or nil if the pool has none.
func (p *Pool) CurrentSession() *Session {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.current
}

// Close closes the current session and waits for all goroutines of the pool. Options.Life must have ended, so that no
// call is in flight. The error is that of closing the session; a session whose connection is already closed is not an
// error.
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
