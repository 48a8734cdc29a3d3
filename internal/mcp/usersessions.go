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
	maxUserSessions = 256              // how many users may have sessions at one server
	userSessionIdle = 10 * time.Minute // time after which a user's unused session is closed
)

// awaitCaller is the reason in a server's status until the first user's token has arrived.
const awaitCaller = "its tools are listed with the first caller's token"

// newUserSessions returns userSessions for s, which adds each user's tokens with d. It opens no session.
func newUserSessions(s *server, d delegation) *userSessions {
	u := &userSessions{server: s, delegation: d, listLock: make(chan struct{}, 1)}
	closeSession := func(user *userSession) { s.closePool(user.pool) }
	u.sessions = lru.New[userKey](maxUserSessions, userSessionIdle, closeSession)
	return u
}

// expireLoop closes idle sessions until the server's life ends.
func (u *userSessions) expireLoop() {
	tick := time.NewTicker(userSessionIdle / 10)
	defer tick.Stop()
	for {
		select {
		case <-u.server.life.Done():
			return
		case <-tick.C:
			u.sessions.Sweep()
		}
	}
}

// acceptsUser reports whether the server can be used for user: user has a Token, or the server does not need it.
func (u *userSessions) acceptsUser(user auth.Identity) bool {
	return !u.needsCallerToken || !user.Token.IsZero()
}

// acquireSession returns user's userSession, which it creates if needed, and makes user its latest identity. It does
// not connect. The pool stays open at least until releaseSession is called. acquireSession fails if user lacks a token
// that the server needs, if maxUserSessions users use the server at the same time, and after closeAll.
func (u *userSessions) acquireSession(user auth.Identity) (*userSession, *transport.Failure) {
	if !u.acceptsUser(user) {
		return nil, &transport.Failure{Kind: Unavailable, NotRun: true, Err: transport.ErrCredentials,
			Public: "it needs the caller's token, and the caller sent none"}
	}
	key := userKey{user.Issuer, user.Subject}
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.closed {
		return nil, u.server.endedFailure()
	}
	acquired, err := u.sessions.Acquire(key, func() *userSession {
		created := &userSession{key: key}
		// OnConnected and OnLost do nothing, because no supervisor keeps the session open. If it is lost, the user's
		// next request opens a new one.
		created.pool = session.New(session.Options{
			Life:             u.server.life,
			Logger:           u.server.log,
			Connect:          u.server.dialer.connect,
			HandshakeTimeout: session.HandshakeTimeout,
			Tokens:           userSessionTokens{sessions: u, user: created},
			OverHTTP:         true,
			OnConnected:      func() {},
			OnLost:           func(*transport.Failure) {},
			OnNotification:   u.server.handleListChanged,
		})
		return created
	})
	if err != nil {
		return nil, &transport.Failure{Kind: Unavailable, Public: "too many users use it at a time", NotRun: true}
	}
	acquired.latest = user
	return acquired, nil
}

// isUserFailure reports whether f was caused by one user's credentials. Such a failure says nothing about the server's
// state and does not count for the breaker. For a server whose credentials all users share, isUserFailure returns
// false.
func (s *server) isUserFailure(f *transport.Failure) bool {
	return s.userSessions != nil && f != nil && errors.Is(f, transport.ErrCredentials)
}

// releaseSession ends one use of user, which acquireSession has begun.
func (u *userSessions) releaseSession(user *userSession) { u.sessions.Release(user.key) }

// closeAll ends all sessions and waits for the goroutines that list tools. Later calls of acquireSession fail. The
// server's life must have ended.
func (u *userSessions) closeAll() {
	u.mu.Lock()
	u.closed = true
	u.mu.Unlock()
	u.sessions.Close()
	u.listings.Wait()
}

// userSessionTokens adds a token to those requests of a user's sessions that are not part of a call, such as DELETE.
// The token is that of the user's latest identity.
type userSessionTokens struct {
	sessions *userSessions
	user     *userSession
}

// Send implements transport.Sender.
func (s userSessionTokens) Send(next http.RoundTripper, r *http.Request) (*http.Response, error) {
	s.sessions.mu.Lock()
	user := s.user.latest
	s.sessions.mu.Unlock()
	return s.sessions.senderFor(user).Send(next, r)
}

// needsListing reports whether the tools should be listed now, with the next user's token. They should if they were
// never listed, if the list is out of date, or if the latest attempt failed, but not before the pause after a failure
// is over.
func (u *userSessions) needsListing() bool {
	isDue := u.server.isRenewalDue()
	u.mu.Lock()
	defer u.mu.Unlock()
	isWanted := !u.everListed || isDue || u.failures > 0
	isAllowed := !u.closed && !time.Now().Before(u.nextAttempt)
	return isWanted && isAllowed
}

// wasListed reports whether the tools have ever been listed in this process.
func (u *userSessions) wasListed() bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.everListed
}

// listForNewUser lists the tools with user's token. Call it after needsListing returned true. It waits, until ctx
// ends, only for a first list. If an older list exists or the latest attempt failed, it lists in the background,
// because waiting would delay every question.
func (u *userSessions) listForNewUser(ctx context.Context, user auth.Identity) {
	u.mu.Lock()
	inBackground := u.everListed || u.failures > 0
	u.mu.Unlock()
	if !inBackground {
		// refreshList has put the error into the server's status, or the error concerns only this user.
		_ = u.listTools(ctx, user, ifNeeded)
		return
	}
	select {
	case u.listLock <- struct{}{}:
		// Another user's request may have listed the tools since needsListing returned true.
		u.startListing(user, refreshWhen(u.needsListing()))
	default: // the tools are being listed already
	}
}

// listTools lists the tools with user's token and waits for the outcome until ctx ends. With ifNeeded, it does nothing
// if the tools have been listed before. The end of ctx does not end the listing. The error is a *ServerError, or the
// cause of the end of ctx or of the server's life.
func (u *userSessions) listTools(ctx context.Context, user auth.Identity, when refreshWhen) error {
	select {
	case u.listLock <- struct{}{}:
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-u.server.life.Done():
		return context.Cause(u.server.life)
	}
	select {
	case err := <-u.startListing(user, when):
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// startListing starts a goroutine that lists the tools. It starts none if the server is closed, or with ifNeeded if the
// tools have been listed before. The returned channel gets one value: the error of refreshList, nil if no list was
// needed, or the cause of the end of the server's life. The caller must have acquired listLock; startListing releases
// it, at once or when the goroutine ends. The goroutine does not end with the caller; closeAll waits for it.
func (u *userSessions) startListing(user auth.Identity, when refreshWhen) <-chan error {
	done := make(chan error, 1)
	u.mu.Lock()
	defer u.mu.Unlock()
	switch {
	case u.closed:
		<-u.listLock
		done <- context.Cause(u.server.life)
	case u.everListed && when == ifNeeded:
		<-u.listLock
		done <- nil
	default:
		u.listings.Go(func() {
			err := u.refreshList(user)
			<-u.listLock
			done <- err
		})
	}
	return done
}

// refreshList lists the tools with user's token, records them, and sets the server's state. If the server refuses the
// token, refreshList leaves the state unchanged, and offers the tool sign_in if a sign-in can help. The error is a
// *ServerError that wraps the *transport.Failure, or the cause of the end of the server's life.
func (u *userSessions) refreshList(user auth.Identity) (err error) {
	defer transport.Recover(u.server.log, func(failure *transport.Failure) {
		u.server.recordFailedListing(failure)
		u.recordAttempt(failure)
		err = u.server.unusableError(failure)
	})
	acquired, failure := u.acquireSession(user)
	if failure != nil {
		return u.server.unusableError(failure)
	}
	defer u.releaseSession(acquired)
	changes := u.server.announcedChanges()
	list, used, failure := u.server.listTools(acquired.pool)
	if u.server.life.Err() != nil {
		return context.Cause(u.server.life)
	}
	if failure == nil {
		u.server.recordList(list, used, changes)
		u.recordAttempt(nil)
		return nil
	}
	if u.server.isUserFailure(failure) {
		u.offerSignIn(failure)
	} else {
		u.server.recordFailedListing(failure)
		u.recordAttempt(failure)
	}
	return u.server.unusableError(failure)
}

// recordAttempt records an attempt to list the tools; failure is nil if it succeeded. After each failure in a row, the
// pause before the next attempt grows. It is at least as long as the server's Retry-After.
func (u *userSessions) recordAttempt(failure *transport.Failure) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if failure == nil {
		u.everListed = true
		u.failures = 0
		u.nextAttempt = time.Time{}
		return
	}
	u.nextAttempt = time.Now().Add(max(transport.Backoff(u.failures), failure.RetryAfter()))
	u.failures++
}

// awaitConsent is the reason in a server's status until the first user has signed in.
const awaitConsent = "its tools are listed after the first user has signed in"

// signInTool is the name of the server's only tool before its first user has signed in.
const signInTool = "sign_in"

// offerSignIn handles failure, with which the tools could not be listed for a user. If it is about a missing sign-in
// and the server's own tools were never listed, offerSignIn puts a single tool into the catalog that asks the user to
// sign in. Without any tool, the model could not call the server.
func (u *userSessions) offerSignIn(failure *transport.Failure) {
	if u.wasListed() || u.signInClient == nil || !errors.Is(failure, oauth.ErrConsent) {
		return
	}
	u.server.client.catalog.SetTools(u.server.id, &u.server.cfg, []catalog.Tool{{
		Server: u.server.cfg.Name, Original: signInTool, SignsIn: true,
		Title:       "Sign in to " + u.server.cfg.Name,
		Description: "Asks the user to sign in to the MCP server " + u.server.cfg.Name + ", so that its tools can be used on their behalf. Call it when the question needs that server.",
		InputSchema: json.RawMessage(`{"type":"object","properties":{}}`),
		Annotations: &catalog.Annotations{ReadOnly: true}, // it changes nothing, and the user is asked anyway
	}})
}
