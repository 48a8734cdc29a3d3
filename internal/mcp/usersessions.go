package mcp

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"time"

	"answerd/internal/auth"
	"answerd/internal/lru"
	"answerd/internal/mcp/session"
	"answerd/internal/mcp/transport"
)

const (
	maxSeats = 256              // principals with sessions at one server
	seatIdle = 10 * time.Minute // after which a principal's sessions are closed
)

// awaitCaller is the state of a server whose tools nobody could list yet.
const awaitCaller = "its tools are listed with the first caller's token"

// userSessions are the sessions of a server that is used on behalf of its callers
// (AuthExchange): such a server may bind a session to a user and refuse it to others
// (go-sdk servers do, by TokenInfo.UserID), and what it remembers in a session is
// nobody else's business. So each principal has a pool of his own, and every request
// in it carries a token that his own was exchanged for.
//
// The service itself has no token for such a server. Its tools are listed with the
// token of the first caller there is, and the list is kept for all; what a principal
// may not do, the server refuses. Nothing is done on behalf of somebody who is not
// there: no listing again with backoff, and no reconnecting.
type userSessions struct {
	delegation
	s     *server
	turn  chan struct{} // of capacity 1: held by who lists the tools
	seats *lru.Cache[userKey, *userSession]

	mu       sync.Mutex // protects what follows, and the identities in seats
	work     sync.WaitGroup
	closed   bool
	known    bool      // the tools are listed, if long ago
	failures int       // lists in a row that the server failed, not the caller
	next     time.Time // nobody tries again before, unless asked to
}

// userKey identifies a user with sessions of their own.
type userKey struct{ issuer, subject string }

// userSession has the sessions of one user at one server.
type userSession struct {
	pool *session.Pool
	who  userKey
	now  auth.Identity // as he came last; his token is for what belongs to no call
}

func newUserSessions(s *server, b delegation) *userSessions {
	c := &userSessions{s: s, delegation: b, turn: make(chan struct{}, 1)}
	c.seats = lru.New[userKey](maxSeats, seatIdle, c.closeSession)
	return c
}

// expireLoop closes idle sessions. It returns when the Client is closed.
func (c *userSessions) expireLoop() {
	tick := time.NewTicker(seatIdle / 10)
	defer tick.Stop()
	for {
		select {
		case <-c.s.life.Done():
			return
		case <-tick.C:
			c.seats.Sweep()
		}
	}
}

// acceptsUser reports whether who has the token that the server's grant needs.
func (c *userSessions) acceptsUser(who auth.Identity) bool {
	return !c.takesToken || !who.Token.IsZero()
}

// acquireSession returns the sessions of a user, which stay open at least until releaseSession.
func (c *userSessions) acquireSession(who auth.Identity) (*userSession, *transport.Failure) {
	if !c.acceptsUser(who) {
		return nil, &transport.Failure{Kind: Unavailable, NotRun: true, Err: transport.ErrCredentials,
			Public: "it is used on behalf of its caller, and this one has brought no token"}
	}
	key := userKey{who.Issuer, who.Subject}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, &transport.Failure{Kind: Cancelled, Public: "answerd is shutting down", NotRun: true, Err: transport.ErrClosed}
	}
	t, err := c.seats.Acquire(key, func() *userSession {
		t := &userSession{who: key}
		// One caller's lost session says nothing about the server, and is made again when
		// he comes again.
		t.pool = session.New(session.Options{
			Life: c.s.life, Logger: c.s.log, Connect: c.s.dialer.connect, HandshakeTimeout: session.HandshakeTimeout, Tokens: userSessionTokens{c, t},
			OverHTTP: true, OnConnected: func() {}, OnLost: func(*transport.Failure) {}, OnNotification: c.s.handleListChanged,
		})
		return t
	})
	if err != nil {
		return nil, &transport.Failure{Kind: Unavailable, Public: "too many callers use it at a time", NotRun: true}
	}
	t.now = who
	return t, nil
}

// isUserFailure reports whether f concerns its caller only: it says nothing about the
// server, to the breaker for one.
func (s *server) isUserFailure(f *transport.Failure) bool {
	return s.callers != nil && f != nil && errors.Is(f, transport.ErrCredentials)
}

func (c *userSessions) releaseSession(t *userSession) { c.seats.Release(t.who) }

// closeSession ends a user's session at the server, if there is one.
func (c *userSessions) closeSession(t *userSession) {
	defer transport.Recover(c.s.log, func(*transport.Failure) {})
	if err := t.pool.Close(); err != nil {
		c.s.log.Debug("end MCP session", "error", err)
	}
}

// closeAll ends all sessions and waits for what was started. The Client's life must be
// over.
func (c *userSessions) closeAll() {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	c.seats.Close()
	c.work.Wait()
}

// userSessionTokens sends the requests of a user's session that belong to no call.
type userSessionTokens struct {
	c *userSessions
	t *userSession
}

// Send implements transport.Sender.
func (s userSessionTokens) Send(next http.RoundTripper, r *http.Request) (*http.Response, error) {
	s.c.mu.Lock()
	now := s.t.now
	s.c.mu.Unlock()
	return s.c.of(now).Send(next, r)
}

// needsListing reports whether the tools should be listed with the token of whoever asks for
// them: nobody has, or the list is out of date.
func (c *userSessions) needsListing() bool {
	due, _ := c.s.isRenewalDue()
	c.mu.Lock()
	defer c.mu.Unlock()
	return (!c.known || due) && !c.closed && !time.Now().Before(c.next)
}

// listForNewUser lists the tools with who's token, if nobody has lately. It waits under ctx,
// but not where there is a list that will do meanwhile, nor where the server failed the
// last time: that would hold up every question.
func (c *userSessions) listForNewUser(ctx context.Context, who auth.Identity) {
	c.mu.Lock()
	behind := c.known || c.failures > 0
	c.mu.Unlock()
	if !behind {
		// Why it fails is in the server's state, or is who's own trouble.
		_ = c.listTools(ctx, who, false)
		return
	}
	select {
	case c.turn <- struct{}{}:
		c.startListing(who, c.needsListing())
	default: // somebody is at it
	}
}

// listTools lists the tools with who's token and waits for it under ctx; where they are
// known it does so only if fresh. The error is a *ServerError, or ctx's.
func (c *userSessions) listTools(ctx context.Context, who auth.Identity, fresh bool) error {
	select {
	case c.turn <- struct{}{}:
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-c.s.life.Done():
		return context.Cause(c.s.life)
	}
	select {
	case err := <-c.startListing(who, fresh):
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// startListing starts the listing, which goes on without its caller and gives the turn back.
func (c *userSessions) startListing(who auth.Identity, fresh bool) <-chan error {
	done := make(chan error, 1)
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.closed:
		<-c.turn
		done <- context.Cause(c.s.life)
	case c.known && !fresh:
		<-c.turn
		done <- nil
	default:
		c.work.Go(func() {
			err := c.refreshList(who)
			<-c.turn
			done <- err
		})
	}
	return done
}

// refreshList lists the tools and sets the server's state. A caller whose token is refused
// has found out nothing about the server.
func (c *userSessions) refreshList(who auth.Identity) (err error) {
	defer transport.Recover(c.s.log, func(f *transport.Failure) {
		c.s.setFailed(f)
		c.noteFailure(f)
		err = &ServerError{Server: c.s.cfg.Name, Reason: f.Public, Err: f}
	})
	t, f := c.acquireSession(who)
	if f != nil {
		return &ServerError{Server: c.s.cfg.Name, Reason: f.Public, Err: f}
	}
	defer c.releaseSession(t)
	_, changes := c.s.isRenewalDue()
	l, used, f := c.s.listTools(t.pool)
	switch {
	case c.s.life.Err() != nil:
		return context.Cause(c.s.life)
	case f == nil:
		c.s.setConnected(l, used.Protocol(), nil, changes)
		c.noteFailure(nil)
		return nil
	case !c.s.isUserFailure(f):
		c.s.setFailed(f)
		c.noteFailure(f)
	default:
		c.offerSignIn(f)
	}
	return &ServerError{Server: c.s.cfg.Name, Reason: f.Public, Err: f}
}

// noteFailure records the result of listing: after each failure the next attempt waits longer.
func (c *userSessions) noteFailure(f *transport.Failure) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if f == nil {
		c.known, c.failures, c.next = true, 0, time.Time{}
		return
	}
	c.next = time.Now().Add(max(transport.Backoff(c.failures), f.RetryAfter()))
	c.failures++
}
