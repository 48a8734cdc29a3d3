package mcp

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"answerd/internal/mcp/transport"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// handshakeTime bounds one handshake, tried twice by the SDK: server/discover
// (2026-07-28), then initialize.
const handshakeTime = 10 * time.Second

// startTime bounds the handshake with a child process, which has to come up first: npx and
// uvx fetch a package the first time, and who is killed meanwhile begins anew.
const startTime = time.Minute

// session is one handshake with a server, and what came of it.
type session struct {
	ready   chan struct{}      // closed when the handshake is over; then the next two are set
	cs      *sdk.ClientSession // nil where it failed
	fail    *transport.Failure
	shaking atomic.Pointer[exchange] // the handshake
	begun   time.Time                // when the handshake was over
	lost    atomic.Bool              // the server forgot it: its id is never sent again
	asked   asked                    // by the server, within exchanges of ours
	// receive is how the SDK answers a request of the server. The handshake sets it.
	receive sdk.MethodHandler
	// told is called with the method of each notification that is not about one request
	// of ours. It must not wait: it runs where messages are read.
	told  func(method string)
	heard atomic.Bool // what the server says beside its answers has reached us once
	shelf *shelf      // nil where none of the server's resources are offered
	// leave ends what attends to the session, when it is the current one no more.
	leave context.CancelFunc
	// standing says that it has a stream that belongs to no request; then company is the
	// calls that what comes on it may be about.
	standing atomic.Bool
	company  company
	// forgotten is called when the server turns out to have forgotten it, where no call
	// was there to find out. It must not wait.
	forgotten func()
	// tokens are the pool's, for what belongs to no call: the handshake, lists, the end.
	tokens sender
}

// id is the server's id for the session; "" before there is one, and for servers
// without sessions.
func (s *session) id() string {
	select {
	case <-s.ready:
		if s.cs != nil {
			return s.cs.ID()
		}
	default:
	}
	return ""
}

// changed deals with a notification that is not about one request of ours.
func (s *session) changed(method string, params json.RawMessage) {
	if s.shelf != nil {
		s.shelf.noticed(method, params)
	}
	if method == methodAcknowledged {
		s.hears(true)
	}
	s.told(method)
}

// hears notes whether what the server says beside its answers reaches us. When it does
// again, something may have been missed.
func (s *session) hears(on bool) {
	if s.shelf != nil {
		s.shelf.hear(on)
	}
	if on && s.heard.Swap(true) {
		s.told("notifications/tools/list_changed")
	}
}

// protocol is the negotiated version.
func (s *session) protocol() string { return negotiated(s.cs) }

// pool holds the one session of a server that all calls share, or all calls of one
// principal. A handshake is made
// when a call needs one, by a goroutine of its own: however many callers wait, there
// is one, and none of them can cancel it for the others (S3.3).
type pool struct {
	life    context.Context
	log     *slog.Logger
	dial    func(context.Context) (*sdk.ClientSession, error)
	time    time.Duration            // of one handshake
	made    func()                   // called after each successful handshake, and after the loss of a session
	gone    func(*transport.Failure) // called when a session is lost
	changed func(string)             // session.told
	// attend, if set, runs for as long as the session is the current one.
	attend  func(context.Context, *session)
	shelved bool // sessions have a shelf
	// tokens are of the principal whose sessions these are; nil: the server's.
	tokens sender

	mu     sync.Mutex // protects what follows
	cur    *session   // nil until needed and after drop
	losses int        // sessions lost in a row, each soon after it was made
	rest   time.Time  // until then only a call makes a session
	closed bool
	work   sync.WaitGroup // handshakes, and sessions being closed
}

// get is the current session, made now if there is none. It waits under ctx.
func (p *pool) get(ctx context.Context) (*session, *transport.Failure) {
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return nil, &transport.Failure{Kind: Cancelled, Public: "answerd is shutting down", NotRun: true, Err: transport.ErrClosed}
	}
	s := p.cur
	if s != nil && s.company.crowded() {
		// On a new session what the server asks has a call again that it is about. The SDK
		// tells the server of a call that was given up when that has returned, and a session
		// that is closed tells nothing any more.
		p.leaveLocked(s, sideTime)
		s = nil
	}
	if s == nil {
		s = &session{ready: make(chan struct{}), told: p.changed, tokens: p.tokens}
		if p.shelved {
			s.shelf = newShelf()
		}
		s.forgotten = func() {
			s.lost.Store(true) // the next call finds it so
			if isClosed(s.ready) {
				p.lose(s, transport.LostSession(nil))
			}
		}
		p.cur = s
		p.work.Go(func() { p.handshake(s) })
	}
	p.mu.Unlock()
	select {
	case <-s.ready:
		return s, s.fail
	case <-ctx.Done():
		f := &transport.Failure{Kind: Unavailable, Public: "it is not connected yet", NotRun: true, Err: context.Cause(ctx)}
		if x := s.shaking.Load(); x != nil && x.fetching.Load() {
			f.Err = transport.CredentialsError(f.Err)
		}
		return nil, f
	}
}

// handshake makes s and tells all who wait for it. Its context is the pool's own: the
// SDK keeps its values for the whole session and uses them for the requests that it
// sends by itself, so no caller's may be in it.
func (p *pool) handshake(s *session) {
	x := newExchange(context.Background(), p.life, time.Now().Add(p.time))
	x.session, x.handshake, x.patience = s, true, p.time/2
	s.shaking.Store(x)
	defer transport.Recover(p.log, func(f *transport.Failure) { p.unmade(s, x, f) })
	cs, err := p.dial(x.ctx)
	if err != nil {
		f, ok := errors.AsType[*transport.Failure](err)
		switch {
		case ok:
		case x.ctx.Err() != nil:
			f = x.ended()
		default:
			f = transport.BadReply("the handshake failed", err)
		}
		// There was no session to lose yet: what ended the connection is the reason.
		if end, ok := errors.AsType[*transport.Failure](f.Err); ok && f.Lost {
			f = end
		}
		p.unmade(s, x, f)
		return
	}
	// The SDK's session doesn't end with the context that it was made under.
	s.cs, s.begun = cs, time.Now()
	x.finish()
	askForLogs(p.life, s)
	ctx, leave := context.WithCancel(p.life)
	s.leave = leave
	close(s.ready)
	p.work.Go(func() { p.watch(s) })
	if p.attend != nil {
		p.work.Go(func() { p.attend(ctx, s) })
	}
	p.made()
}

// unmade is the end of a handshake that came to nothing because of f. Whatever went wrong,
// no call has been sent: the next one tries again (S3.4).
func (p *pool) unmade(s *session, x *exchange, f *transport.Failure) {
	if isClosed(s.ready) { // all but the last of it had gone well
		p.lose(s, f)
		return
	}
	if cs := s.cs; cs != nil {
		s.cs = nil
		p.work.Go(func() { survived(p.log, func() { _ = cs.Close() }) })
	}
	s.fail = &transport.Failure{Kind: Unavailable, Public: f.Public, NotRun: true, Err: f}
	p.mu.Lock()
	if p.cur == s {
		p.cur = nil
	}
	p.mu.Unlock()
	x.finish()
	close(s.ready)
}

// watch waits for the end of s and has it made again, without waiting for the next
// call (S4.5). Over HTTP a session ends only by drop or close; a child process may die
// and a connection break at any time.
func (p *pool) watch(s *session) {
	defer transport.Recover(p.log, func(f *transport.Failure) { p.lose(s, f) }) // or its end would never be known
	err := s.cs.Wait()
	f, ok := errors.AsType[*transport.Failure](err)
	if !ok {
		f = transport.LostSession(err)
	}
	p.lose(s, f)
}

// lose is the end of s that no call has found. If it was the current one, the next one
// is made.
func (p *pool) lose(s *session, f *transport.Failure) {
	if !p.drop(s) {
		return // our own doing, or whoever found it lost makes the next one
	}
	p.gone(f)
	p.made()
}

// drop forgets s if it is still the current session, so that callers who lost it
// together cause one handshake, and closes it when its other calls have ended. It
// reports whether it was.
//
// A server that lets everybody in and throws them out again gets no more visits of
// the supervisor than one that is down: with each session that is lost soon after it
// was made, the pool rests for longer. A call does not wait for that.
func (p *pool) drop(s *session) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cur != s || p.closed {
		return false
	}
	now := time.Now()
	if now.Sub(s.begun) > transport.MaxBackoff {
		p.losses = 0
	}
	p.rest = now.Add(transport.Backoff(p.losses))
	p.losses++
	p.leaveLocked(s, 0)
	return true
}

// leaveLocked closes s, which is the current session, when its calls have ended, and not
// before grace is over.
func (p *pool) leaveLocked(s *session, grace time.Duration) {
	p.cur = nil
	s.leave()
	p.work.Go(func() {
		transport.Pause(p.life, grace)
		survived(p.log, func() { _ = s.cs.Close() })
	})
}

// resting is for how long the supervisor leaves a pool without a session alone.
func (p *pool) resting() (left time.Duration, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	left = time.Until(p.rest)
	return left, p.cur == nil && left > 0
}

// current is the session that the next call would use, nil where one would be made.
func (p *pool) current() *session {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.cur
}

// close ends the current session and waits for everything that the pool started.
// The pool's life must be over, so that no call is under way.
func (p *pool) close() error {
	p.mu.Lock()
	p.closed = true
	s := p.cur
	p.cur = nil
	p.mu.Unlock()
	var err error
	if s != nil {
		<-s.ready
		if s.cs != nil {
			s.leave()
			err = s.cs.Close()
		}
	}
	p.work.Wait()
	if errors.Is(err, sdk.ErrConnectionClosed) {
		err = nil
	}
	return err
}
