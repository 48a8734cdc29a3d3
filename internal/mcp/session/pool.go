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

// HandshakeTimeout bounds one handshake, which the SDK tries twice: server/discover (2026-07-28),
// then initialize.
const HandshakeTimeout = 10 * time.Second

// Options say how a Pool makes sessions and whom it informs about them. The functions must not
// wait.
type Options struct {
	// Life ends all handshakes, requests and subscriptions. The values of callers' contexts are
	// not in it.
	Life   context.Context
	Logger *slog.Logger
	// Connect makes a session under a context that has the Request of the handshake, such as by a
	// Connector.
	Connect func(context.Context) (*sdk.ClientSession, error)
	// HandshakeTimeout bounds one handshake.
	HandshakeTimeout time.Duration
	// Tokens sends requests with the token of the principal whose sessions these are; nil: with
	// the server's.
	Tokens transport.Sender
	// CacheResources gives each session a cache of the resources that were read in it.
	CacheResources bool
	// Subscribe keeps the session subscribed to changes of tools and resources.
	Subscribe bool
	// OverHTTP says that notifications outside of requests need a stream of their own.
	OverHTTP bool
	// OnConnected is called after each handshake that succeeded, and after the loss of a session.
	OnConnected func()
	// OnLost is called when a session is lost.
	OnLost func(*transport.Failure)
	// OnNotification is called with the method of each notification that does not belong to one of
	// our requests.
	OnNotification func(method string)
}

// Pool holds the one session of a server that all calls share, or all calls of one
// principal. It makes a handshake when a call needs one, on a goroutine of its own: however
// many callers wait, there is one handshake, and none of them can cancel it for the others.
type Pool struct {
	Options

	mu      sync.Mutex // protects what follows
	current *Session   // nil until a call needs one, and after a loss
	losses  int        // sessions lost in a row, each soon after its handshake
	retryAt time.Time  // before then only a call makes a session
	closed  bool
	work    sync.WaitGroup // handshakes, subscriptions, and sessions being closed
}

// New returns a Pool without a session.
func New(o Options) *Pool { return &Pool{Options: o} }

// GetSession returns the current session. If there is none it starts a handshake and waits
// for it under ctx.
func (p *Pool) GetSession(ctx context.Context) (*Session, *transport.Failure) {
	session := p.currentOrNew()
	if session == nil {
		return nil, &transport.Failure{Kind: transport.Cancelled, Public: "answerd is shutting down", NotRun: true, Err: transport.ErrClosed}
	}
	select {
	case <-session.ready:
		return session, session.failed
	case <-ctx.Done():
		f := &transport.Failure{Kind: transport.Unavailable, Public: "it is not connected yet", NotRun: true, Err: context.Cause(ctx)}
		if request := session.handshake.Load(); request != nil && request.FetchingToken() {
			f.Err = transport.CredentialsError(f.Err)
		}
		return nil, f
	}
}

// currentOrNew returns the current session, or a new one whose handshake it starts. It
// returns nil after Close.
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
		// In a new session the server's requests can be attributed to a call again. The SDK
		// cancels an abandoned call when that has returned, and can no longer do so once
		// the session is closed; hence the grace.
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

// makeHandshake connects s and informs all who wait for it. Its context is the pool's own:
// the SDK keeps the values of that context for the whole session and uses them for the
// requests that it sends by itself, so it must not be a caller's.
func (p *Pool) makeHandshake(session *Session) {
	request := NewRequest(context.Background(), p.Life, time.Now().Add(p.HandshakeTimeout), session)
	request.Handshake, request.discoverTimeout = true, p.HandshakeTimeout/2
	session.handshake.Store(request)
	defer transport.Recover(p.Logger, func(f *transport.Failure) { p.handshakeFailed(session, request, f) })
	cs, err := p.Connect(request.Context())
	if err != nil {
		p.handshakeFailed(session, request, handshakeFailure(request, err))
		return
	}
	// The SDK's session does not end with the context that it was made under.
	session.cs, session.connectedAt = cs, time.Now()
	request.Finish()
	session.setLogLevel()
	ctx, stop := context.WithCancel(p.Life)
	session.stopSubscribing = stop
	p.work.Go(func() { p.waitForEnd(session) })
	if p.Subscribe {
		p.work.Go(func() { session.subscribeChanges(ctx) })
	}
	close(session.ready) // last: a caller who gets the session finds all of its goroutines started
	p.OnConnected()
}

// handshakeFailure returns why the handshake of request failed with err.
func handshakeFailure(request *Request, err error) *transport.Failure {
	failure, ok := errors.AsType[*transport.Failure](err)
	switch {
	case ok:
	case request.Context().Err() != nil:
		failure = request.Ended()
	default:
		failure = transport.BadReply("the handshake failed", err)
	}
	// There was no session to lose yet: what ended the connection is the reason.
	if cause, ok := errors.AsType[*transport.Failure](failure.Err); ok && failure.Lost {
		failure = cause
	}
	return failure
}

// handshakeFailed ends a handshake that failed with failure. No call has been sent, so the next call
// tries again.
func (p *Pool) handshakeFailed(session *Session, request *Request, failure *transport.Failure) {
	if isClosed(session.ready) { // only what follows the handshake failed
		p.handleLoss(session, failure)
		return
	}
	if cs := session.cs; cs != nil {
		session.cs = nil
		p.work.Go(func() { p.closeClientSession(cs) })
	}
	session.failed = &transport.Failure{Kind: transport.Unavailable, Public: failure.Public, NotRun: true, Err: failure}
	p.mu.Lock()
	if p.current == session {
		p.current = nil
	}
	p.mu.Unlock()
	request.Finish()
	close(session.ready)
}

// waitForEnd waits for the end of a session and has it made again, without waiting for the next
// call. Over HTTP a session ends only by DropSession or Close; a child process may exit
// and a connection break at any time.
func (p *Pool) waitForEnd(s *Session) {
	defer transport.Recover(p.Logger, func(f *transport.Failure) { p.handleLoss(s, f) }) // otherwise the session's end would go unnoticed
	err := s.cs.Wait()
	f, ok := errors.AsType[*transport.Failure](err)
	if !ok {
		f = transport.LostSession(err)
	}
	p.handleLoss(s, f)
}

// handleLoss reports the loss of a session, which no call has found. It does nothing if it is no longer the
// current session: then we closed it, or the call that found it lost makes the next one.
func (p *Pool) handleLoss(s *Session, f *transport.Failure) {
	if !p.DropSession(s) {
		return
	}
	p.OnLost(f)
	p.OnConnected()
}

// DropSession removes a session if it is still the current one, and closes it when its other
// calls have ended. It reports whether it was current, so that callers who lost it together
// cause one handshake.
//
// With each session that is lost soon after its handshake, the supervisor waits longer
// before it connects again, as it does for a server that is down. A call does not wait for
// that.
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

// retireLocked closes the current session when its calls have ended, and not
// before grace is over.
func (p *Pool) retireLocked(s *Session, grace time.Duration) {
	p.current = nil
	s.stopSubscribing()
	p.work.Go(func() {
		transport.Pause(p.Life, grace)
		p.closeClientSession(s.cs)
	})
}

// closeClientSession closes cs. A panic in it must not keep others from going on.
func (p *Pool) closeClientSession(cs *sdk.ClientSession) {
	defer transport.Recover(p.Logger, func(*transport.Failure) {})
	_ = cs.Close()
}

// isClosed reports whether ch is closed.
func isClosed(ch <-chan struct{}) bool {
	select {
	case <-ch:
		return true
	default:
		return false
	}
}

// ReconnectDelay returns how long the supervisor must wait before it makes a session. waiting is
// false if it need not wait: there is a session, or the last one was not lost recently.
func (p *Pool) ReconnectDelay() (remaining time.Duration, waiting bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	remaining = time.Until(p.retryAt)
	return remaining, p.current == nil && remaining > 0
}

// CurrentSession returns the session that the next call would use; nil if that call would
// make one.
func (p *Pool) CurrentSession() *Session {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.current
}

// Close ends the current session and waits for everything that the pool started. The
// pool's life must be over, so that no call is in flight.
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
