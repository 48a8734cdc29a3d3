package mcp

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"time"

	"answerd/internal/auth"
	"answerd/internal/lru"
	"answerd/internal/mcp/catalog"
	"answerd/internal/mcp/oauth"
	"answerd/internal/mcp/session"
	"answerd/internal/mcp/transport"
)

const (
	maxUserSessions = 256              // principals with sessions at one server
	userSessionIdle = 10 * time.Minute // after which a principal's sessions are closed
)

// awaitCaller is the reason that a server's status gives until the first caller's token has
// arrived.
const awaitCaller = "its tools are listed with the first caller's token"

// newUserSessions returns the sessions of a server that needs a token of each user, which the delegation gets.
func newUserSessions(s *server, d delegation) *userSessions {
	c := &userSessions{s: s, delegation: d, turn: make(chan struct{}, 1)}
	c.sessions = lru.New[userKey](maxUserSessions, userSessionIdle, c.closeSession)
	return c
}

// expireLoop closes idle sessions. It returns when the Client is closed.
func (c *userSessions) expireLoop() {
	tick := time.NewTicker(userSessionIdle / 10)
	defer tick.Stop()
	for {
		select {
		case <-c.s.life.Done():
			return
		case <-tick.C:
			c.sessions.Sweep()
		}
	}
}

// acceptsUser reports whether the user has the token that the server's grant needs.
func (c *userSessions) acceptsUser(user auth.Identity) bool {
	return !c.takesToken || !user.Token.IsZero()
}

// acquireSession returns the pool of a user's sessions, which it makes if there is none. The pool stays open at least
// until releaseSession. It remembers the user's latest identity, whose token its requests send.
func (c *userSessions) acquireSession(user auth.Identity) (*userSession, *transport.Failure) {
	if !c.acceptsUser(user) {
		return nil, &transport.Failure{Kind: Unavailable, NotRun: true, Err: transport.ErrCredentials,
			Public: "it needs the caller's token, and the caller sent none"}
	}
	key := userKey{user.Issuer, user.Subject}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, &transport.Failure{Kind: Cancelled, Public: "answerd is shutting down", NotRun: true, Err: transport.ErrClosed}
	}
	acquired, err := c.sessions.Acquire(key, func() *userSession {
		created := &userSession{who: key}
		// OnLost does nothing: one user's lost session tells nothing about the server, and is
		// replaced at the user's next request.
		created.pool = session.New(session.Options{
			Life:             c.s.life,
			Logger:           c.s.log,
			Connect:          c.s.dialer.connect,
			HandshakeTimeout: session.HandshakeTimeout,
			Tokens:           userSessionTokens{c, created},
			OverHTTP:         true,
			OnConnected:      func() {},
			OnLost:           func(*transport.Failure) {},
			OnNotification:   c.s.handleListChanged,
		})
		return created
	})
	if err != nil {
		return nil, &transport.Failure{Kind: Unavailable, Public: "too many users use it at a time", NotRun: true}
	}
	acquired.now = user
	return acquired, nil
}

// isUserFailure reports whether f is caused by its caller's credentials, so that it tells nothing
// about the server and does not count for the breaker.
func (s *server) isUserFailure(f *transport.Failure) bool {
	return s.callers != nil && f != nil && errors.Is(f, transport.ErrCredentials)
}

func (c *userSessions) releaseSession(t *userSession) { c.sessions.Release(t.who) }

// closeSession ends a user's session at the server, if there is one.
func (c *userSessions) closeSession(t *userSession) {
	defer transport.Recover(c.s.log, func(*transport.Failure) {})
	if err := t.pool.Close(); err != nil {
		c.s.log.Debug("end MCP session", "error", err)
	}
}

// closeAll ends all sessions and waits for the goroutines that list tools. The Client's life must
// have ended.
func (c *userSessions) closeAll() {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	c.sessions.Close()
	c.work.Wait()
}

// userSessionTokens sends those requests of a user's session that are not part of a call, such as
// DELETE.
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

// needsListing reports whether the tools should be listed with the next caller's token: they never
// were, the list is out of date, or the latest attempt failed.
func (c *userSessions) needsListing() bool {
	due, _ := c.s.isRenewalDue()
	c.mu.Lock()
	defer c.mu.Unlock()
	return (!c.known || due || c.failures > 0) && !c.closed && !time.Now().Before(c.next)
}

// isKnown reports whether the tools have been listed.
func (c *userSessions) isKnown() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.known
}

// listForNewUser lists the tools with the token of user if needsListing. It waits under ctx only for
// the first list. If an older list exists or the server failed last time, it lists in the
// background, because waiting would delay every question.
func (c *userSessions) listForNewUser(ctx context.Context, user auth.Identity) {
	c.mu.Lock()
	inBackground := c.known || c.failures > 0
	c.mu.Unlock()
	if !inBackground {
		// The error is in the server's status already, or concerns only user.
		_ = c.listTools(ctx, user, false)
		return
	}
	select {
	case c.turn <- struct{}{}:
		c.startListing(user, c.needsListing())
	default: // the tools are being listed already
	}
}

// listTools lists the tools with the token of user and waits for that under ctx. If they are known,
// it lists them again only with fresh. The error is a *ServerError, or the cause of the ended
// context.
func (c *userSessions) listTools(ctx context.Context, user auth.Identity, fresh bool) error {
	select {
	case c.turn <- struct{}{}:
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-c.s.life.Done():
		return context.Cause(c.s.life)
	}
	select {
	case err := <-c.startListing(user, fresh):
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// startListing starts a goroutine that lists the tools, sends the result to the returned channel
// and releases c.turn. The goroutine does not end with the caller. The caller must hold c.turn.
func (c *userSessions) startListing(user auth.Identity, fresh bool) <-chan error {
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
			err := c.refreshList(user)
			<-c.turn
			done <- err
		})
	}
	return done
}

// refreshList lists the tools and sets the server's state. A refused token does not change the
// state, since it tells nothing about the server.
func (c *userSessions) refreshList(user auth.Identity) (err error) {
	defer transport.Recover(c.s.log, func(f *transport.Failure) {
		c.s.setDown(f)
		c.noteFailure(f)
		err = &ServerError{Server: c.s.cfg.Name, Reason: f.Public, Err: f}
	})
	t, failure := c.acquireSession(user)
	if failure != nil {
		return &ServerError{Server: c.s.cfg.Name, Reason: failure.Public, Err: failure}
	}
	defer c.releaseSession(t)
	_, changes := c.s.isRenewalDue()
	l, used, failure := c.s.listTools(t.pool)
	switch {
	case c.s.life.Err() != nil:
		return context.Cause(c.s.life)
	case failure == nil:
		c.s.setConnected(l, used.Protocol(), nil, changes)
		c.noteFailure(nil)
		return nil
	case !c.s.isUserFailure(failure):
		c.s.setDown(failure)
		c.noteFailure(failure)
	default:
		c.offerSignIn(failure)
	}
	return &ServerError{Server: c.s.cfg.Name, Reason: failure.Public, Err: failure}
}

// noteFailure records the result of listing; nil is success. After each failure the next attempt is
// delayed further.
func (c *userSessions) noteFailure(failure *transport.Failure) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if failure == nil {
		c.known = true
		c.failures = 0
		c.next = time.Time{}
		return
	}
	c.next = time.Now().Add(max(transport.Backoff(c.failures), failure.RetryAfter()))
	c.failures++
}

// awaitConsent is the reason that a server's status gives until the first user has signed in.
const awaitConsent = "its tools are listed after the first user has signed in"

// signInTool names the only tool of a server before its first user has signed in.
const signInTool = "sign_in"

// offerSignIn offers one tool that asks the user to sign in. The server's own tools cannot be
// listed before that, and without any tool the model would have no reason to call the server.
func (c *userSessions) offerSignIn(f *transport.Failure) {
	c.mu.Lock()
	known := c.known
	c.mu.Unlock()
	if known || c.consents == nil || !errors.Is(f, oauth.ErrConsent) {
		return
	}
	c.s.c.catalog.SetTools(c.s.id, &c.s.cfg, []catalog.Tool{{
		Server: c.s.cfg.Name, Original: signInTool, SignsIn: true,
		Title:       "Sign in to " + c.s.cfg.Name,
		Description: "Asks the user to sign in to the MCP server " + c.s.cfg.Name + ", so that its tools can be used on their behalf. Call it when the question needs that server.",
		InputSchema: json.RawMessage(`{"type":"object","properties":{}}`),
		Annotations: &catalog.Annotations{ReadOnly: true}, // it changes nothing, and the user is asked anyway
	}})
}
