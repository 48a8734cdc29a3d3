package mcp

import (
	"context"
	"time"

	"answerd/internal/auth"
	"answerd/internal/mcp/transport"
)

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
