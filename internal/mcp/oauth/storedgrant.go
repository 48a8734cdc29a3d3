package oauth

import (
	"context"
	"fmt"
	"net/url"
	"time"

	"answerd/internal/auth"
	"answerd/internal/auth/token"
)

// How processes share the grant of a user
//
// The grant in the store counts. A process has a copy, which it compares with the store from time to
// time, and whenever it has no token that is valid.
//
// An authorization server may rotate refresh tokens, and it may take the second use of one for a
// theft and revoke all tokens of the user (RFC 9700 section 4.14.2). So a process that uses a refresh
// token holds a lock: a value with a ttl, which only one process can set (compare-and-set). Having the
// lock, it reads the grant again, since another process may just have renewed it. It stores the new
// grant only if the store still has the one that it has read: a sign-in or a sign-out meanwhile wins.
// The store ends the lock of a process that has died, so that the clocks of processes do not matter.

const (
	storeTimeout = 5 * time.Second // for storing what a token endpoint has given
	// refreshLease is the ttl of the lock. It is longer than a process may need: it gives up the
	// request after fetchTimeout.
	refreshLease  = fetchTimeout + storeTimeout + 5*time.Second
	refreshPoll   = 100 * time.Millisecond // between two attempts to get the lock
	grantMaxAge   = 10 * time.Second       // after which a copy is compared with the store
	maxStoreTries = 20                     // to change what other processes change too
)

// loadGrant returns the stored grant of the user and its revision; nil if there is none.
func (u *userTokens) loadGrant(ctx context.Context) (*grant, uint64, error) {
	data, revision, err := u.c.store.Load(ctx, u.grantName()...)
	if err != nil {
		return nil, 0, u.c.storeError(ctx, err)
	}
	if data == nil {
		return nil, revision, nil
	}
	g, err := u.c.decodeGrant(data)
	if err != nil { // it was written by another version: the user has to sign in again
		u.c.log.WarnContext(ctx, err.Error(), "subject", u.id.Subject)
		return nil, revision, nil
	}
	return g, revision, nil
}

// saveGrant stores a grant of the user in place of the one at revision; nil removes it. It returns 0
// if the store has another revision.
func (u *userTokens) saveGrant(ctx context.Context, g *grant, revision uint64) (uint64, error) {
	var data []byte
	if g != nil {
		var err error
		if data, err = u.c.encodeGrant(g); err != nil {
			return 0, err
		}
	}
	next, err := u.c.store.Save(ctx, data, revision, signInIdleTimeout, u.grantName()...)
	if err != nil {
		return 0, u.c.storeError(ctx, err)
	}
	return next, nil
}

// grantName returns the name of the user's grant in the store.
func (u *userTokens) grantName() []string {
	return u.c.storedName(kindGrant, u.id.Issuer, u.id.Subject)
}

// replaceGrant stores the grant of a new sign-in, whatever the store has.
func (u *userTokens) replaceGrant(ctx context.Context, g *grant) error {
	for range maxStoreTries {
		_, revision, err := u.loadGrant(ctx)
		if err != nil {
			return err
		}
		next, err := u.saveGrant(ctx, g, revision)
		if err != nil {
			return err
		}
		if next > 0 {
			u.adoptGrant(g, next)
			return nil
		}
	}
	return fetchErrorf("other processes keep changing the sign-in")
}

// adoptGrant makes a grant of the store, at that revision, the copy of this process; nil drops the copy.
func (u *userTokens) adoptGrant(g *grant, revision uint64) {
	u.mu.Lock()
	before := u.adoptLocked(g, revision)
	u.mu.Unlock()
	u.setToken(g, before)
}

// adoptLocked is adopt without setToken, which must follow. It returns the token before.
func (u *userTokens) adoptLocked(g *grant, revision uint64) (before auth.Secret) {
	if g == nil { // the next sign-in asks for these scopes again (SEP-2350)
		g = &grant{server: u.grant.server, scopes: u.grant.scopes}
	}
	before = u.grant.token.Secret
	u.grant = *g
	u.revision = revision
	u.unsaved = false
	u.comparedAt = time.Now()
	return before
}

// setToken makes the token of the grant the one that requests are sent with, in place of before.
func (u *userTokens) setToken(g *grant, before auth.Secret) {
	switch {
	case g != nil && g.token.Secret == before:
	case g != nil && g.token.Lifetime > 0:
		u.source.Put(g.token)
	default:
		u.source.Forget(before)
	}
}

// compareGrant reads the stored grant if the copy may be out of date, or always with now. The user may
// have signed in or out at another process. u.mu must not be held. It is not held while the store is
// read, so this process may change the grant in between; what was read is then thrown away.
func (u *userTokens) compareGrant(ctx context.Context, now bool) error {
	_, valid := u.source.Cached()
	u.mu.Lock()
	known, fresh := u.revision, time.Since(u.comparedAt) < grantMaxAge
	u.mu.Unlock()
	if valid && fresh && !now {
		return nil
	}
	g, revision, err := u.loadGrant(ctx)
	if err != nil {
		if valid && !now {
			return nil // the token can be used without the store
		}
		return err
	}
	u.mu.Lock()
	if u.revision != known { // this process has changed the grant, perhaps after the store was read
		u.mu.Unlock()
		return nil
	}
	if revision == known {
		u.comparedAt = time.Now()
		u.mu.Unlock()
		return nil
	}
	before := u.adoptLocked(g, revision)
	u.mu.Unlock()
	u.setToken(g, before)
	return nil
}

// lockRefresh waits until no other process uses the refresh token of the user. Call unlock when the
// outcome is stored.
func (u *userTokens) lockRefresh(ctx context.Context) (unlock func(), err error) {
	name := u.c.storedName(kindRefresh, u.id.Issuer, u.id.Subject)
	for {
		held, revision, err := u.c.store.Load(ctx, name...)
		if err == nil && held == nil {
			revision, err = u.c.store.Save(ctx, []byte{1}, revision, refreshLease, name...)
		}
		switch {
		case err != nil:
			return nil, u.c.storeError(ctx, err)
		case held == nil && revision > 0:
			return func() {
				ctx, stop := context.WithTimeout(context.WithoutCancel(ctx), storeTimeout)
				defer stop()
				_, _ = u.c.store.Save(ctx, nil, revision, refreshLease, name...) // else the lease ends it
			}, nil
		}
		select {
		case <-time.After(refreshPoll):
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// refreshToken uses the refresh token, at the authorization server and as the client that it was
// issued to, unless another process has done so meanwhile. Without a valid one it returns ErrConsent:
// only the user can help. It is called by the CachedSource of the user, once at a time in this
// process; lockRefresh extends that to all processes.
func (u *userTokens) refreshToken(ctx context.Context) (token.Token, error) {
	unlock, err := u.lockRefresh(ctx)
	if err != nil {
		return token.Token{}, err
	}
	defer unlock()
	current, revision, err := u.loadGrant(ctx)
	if err != nil {
		return token.Token{}, err
	}
	u.mu.Lock()
	mine, unsaved := u.grant, u.unsaved && u.revision == revision
	u.mu.Unlock()
	if unsaved { // the store still has the refresh token that was used for it
		current = &mine
	}

	switch {
	case current == nil:
		u.adoptGrant(nil, revision)
		return token.Token{}, ErrConsent
	case current.token.Secret != mine.token.Secret && current.token.Lifetime > 0:
		u.adoptGrant(current, revision)
		return current.token, nil
	case current.refresh.IsZero():
		return token.Token{}, ErrConsent
	}
	// The request continues when ctx ends, with Close for example: an authorization server that rotates refresh
	// tokens takes the next use of this one for a theft, so its reply must be stored.
	ctx, stop := context.WithTimeout(context.WithoutCancel(ctx), fetchTimeout)
	defer stop()
	next := *current
	reply, err := u.c.requestGrant(ctx, next.server, next.client, next.key, url.Values{"grant_type": {"refresh_token"}, "refresh_token": {next.refresh.Reveal()}})
	switch {
	case err != nil:
		return token.Token{}, u.refreshFailed(ctx, &next, revision, err)
	case !reply.refresh.IsZero(): // rotated (RFC 9700 section 4.14.2); else the old one stays valid
		next.refresh = reply.refresh
	}

	next.token = reply.Token
	return u.storeRefreshed(ctx, &next, revision)
}

// storeRefreshed stores what a refresh token gave in place of the grant at revision, even if ctx has
// ended: the authorization server may not accept the old refresh token any more.
func (u *userTokens) storeRefreshed(ctx context.Context, g *grant, revision uint64) (token.Token, error) {
	ctx, stop := context.WithTimeout(context.WithoutCancel(ctx), storeTimeout)
	defer stop()
	for {
		next, err := u.saveGrant(ctx, g, revision)
		switch {
		case err == nil && next > 0:
			u.adoptGrant(g, next)
			return g.token, nil
		case err == nil: // the user has signed in again, or out
			current, currentRevision, err := u.loadGrant(ctx)
			if err != nil {
				return token.Token{}, err
			}
			u.adoptGrant(current, currentRevision)
			if current == nil {
				u.c.revoke(ctx, g) // the sign-out has revoked the refresh token before this one
			}
			if current == nil || current.token.Lifetime <= 0 {
				return token.Token{}, ErrConsent
			}
			return current.token, nil
		}
		select {
		case <-time.After(refreshPoll):
		case <-ctx.Done():
			u.c.log.WarnContext(ctx, "a renewed token could not be stored; only this process has it")
			u.adoptGrant(g, revision)
			u.mu.Lock()
			u.unsaved = true
			u.mu.Unlock()
			return g.token, nil
		}
	}
}

// refreshFailed returns the error of a refresh. It removes a grant that the authorization server has
// refused for good.
func (u *userTokens) refreshFailed(ctx context.Context, g *grant, revision uint64, err error) error {
	if isClientUnknown(err) {
		u.c.discovery.forgetClient(ctx, g.server, g.client)
	}
	if !u.c.isGrantRefused(err) {
		return err
	}
	if next, storeErr := u.saveGrant(ctx, nil, revision); storeErr == nil && next > 0 {
		u.adoptGrant(nil, next)
	} else {
		u.adoptGrant(nil, revision) // another sign-in has replaced it, or the next refresh removes it
	}
	return fmt.Errorf("%w: %w", ErrConsent, err)
}

// dropGrant removes the grant of a token that the server does not accept, here and in the store. It
// does nothing if another token has replaced that one. If the store has another revision meanwhile, its
// grant stays there, and the next compareGrant adopts it.
func (u *userTokens) dropGrant(ctx context.Context, refused auth.Secret) {
	u.mu.Lock()
	current, revision := u.grant.token.Secret, u.revision
	u.mu.Unlock()
	if current != refused {
		u.source.Forget(refused)
		return
	}
	if next, err := u.saveGrant(ctx, nil, revision); err == nil && next > 0 {
		revision = next
	}
	u.adoptGrant(nil, revision)
}
