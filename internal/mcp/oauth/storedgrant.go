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
// The grant in the store is the valid one. A process has a copy, which it compares with the store every grantMaxAge
// while it is used, and whenever it has no valid token.
//
// An authorization server may rotate refresh tokens, and it may take the second use of one for a theft and revoke all
// tokens of the user (RFC 9700 section 4.14.2). So a process that uses a refresh token holds a lock: a value with a
// ttl in the store, which only one process can set (compare-and-set). Having the lock, the process reads the grant
// again, since another process may just have renewed it. It stores the new grant only if the store still has the
// grant that it has read: a sign-in or a sign-out in between wins. The store ends the lock of a process that has
// died, so the clocks of processes do not matter.

const (
	storeTimeout = 5 * time.Second // for storing what a token endpoint has given
	// refreshLease is the ttl of the lock. It is longer than a process may need with the lock: the rest of the
	// fetchTimeout in which it also got the lock, for reading the grant; fetchTimeout for the token request; and
	// storeTimeout for its outcome.
	refreshLease  = 2*fetchTimeout + storeTimeout + 5*time.Second
	refreshPoll   = 100 * time.Millisecond // between two attempts to get the lock
	grantMaxAge   = 10 * time.Second       // after which a copy is compared with the store
	maxStoreTries = 20                     // attempts to change a value that other processes change too
)

// loadGrant returns the stored grant of the user and its revision, for saveGrant. The grant is nil without an error
// if there is none, or if it cannot be decoded.
func (u *userTokens) loadGrant(ctx context.Context) (*grant, uint64, error) {
	data, revision, err := u.c.store.Load(ctx, u.grantName()...)
	if err != nil {
		return nil, 0, u.c.storeError(ctx, err)
	}
	if data == nil {
		return nil, revision, nil
	}
	g, err := u.c.decodeGrant(data)
	if err != nil { // another version has written it: the user has to sign in again
		u.c.log.WarnContext(ctx, err.Error(), "subject", u.id.Subject)
		return nil, revision, nil
	}
	return g, revision, nil
}

// latestGrant returns the user's grant of this process if it could not be stored and has replaced stored, the grant that
// the store has at revision. Otherwise it returns stored.
func (u *userTokens) latestGrant(stored *grant, revision uint64) *grant {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.grantUnsaved && u.revision == revision {
		unsaved := u.grant
		return &unsaved
	}
	return stored
}

// saveGrant stores a grant of the user in place of the one at revision; a nil grant removes it. It returns the new
// revision, or 0 if the store has another one than revision: then nothing was changed. It does not change u.grant.
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

// replaceGrant stores the grant of a new sign-in in place of any other, and makes it the copy of this process.
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

// adoptGrant makes g, which the store has at revision, the copy of this process, and caches its token. If g is nil,
// the copy has no tokens then.
func (u *userTokens) adoptGrant(g *grant, revision uint64) {
	u.mu.Lock()
	replaced := u.adoptLocked(g, revision)
	u.mu.Unlock()
	u.cacheToken(g, replaced)
}

// adoptLocked sets the copy of this process to g, which the store has at revision, and returns the token that it had
// before. The caller holds u.mu, and must unlock it and call cacheToken with the same g and the returned token.
func (u *userTokens) adoptLocked(g *grant, revision uint64) (replaced auth.Secret) {
	if g == nil { // keep the scopes: the next sign-in asks for them again (SEP-2350)
		g = &grant{server: u.grant.server, scopes: u.grant.scopes}
	}
	replaced = u.grant.token.Secret
	u.grant = *g
	u.revision = revision
	u.grantUnsaved = false
	u.syncedAt = time.Now()
	return replaced
}

// cacheToken puts the token of the grant g into the CachedSource in place of the token replaced. If g is nil or its
// token has expired, it only removes replaced.
func (u *userTokens) cacheToken(g *grant, replaced auth.Secret) {
	switch {
	case g != nil && g.token.Secret == replaced:
	case g != nil && g.token.Lifetime > 0:
		u.source.Put(g.token)
	default:
		u.source.Forget(replaced)
	}
}

// syncGrant calls reloadGrant, unless the copy of this process has a valid token and was compared with the store less
// than grantMaxAge ago. It ignores an error of the store while the copy has a valid token.
func (u *userTokens) syncGrant(ctx context.Context) error {
	_, hasToken := u.source.Cached()
	u.mu.Lock()
	isRecent := time.Since(u.syncedAt) < grantMaxAge
	u.mu.Unlock()
	if hasToken && isRecent {
		return nil
	}
	if err := u.reloadGrant(ctx); err != nil && !hasToken {
		return err
	}
	return nil
}

// reloadGrant adopts the stored grant if it differs from the copy of this process: the user may have signed in or out
// at another process. The error is one of the store.
//
// u.mu must not be held. It is not held while the store is read, so this process may change the grant in between;
// then reloadGrant ignores what it has read.
func (u *userTokens) reloadGrant(ctx context.Context) error {
	u.mu.Lock()
	known := u.revision
	u.mu.Unlock()
	g, revision, err := u.loadGrant(ctx)
	if err != nil {
		return err
	}
	u.mu.Lock()
	if u.revision != known { // this process has changed the grant, perhaps after the store was read
		u.mu.Unlock()
		return nil
	}
	if revision == known {
		u.syncedAt = time.Now()
		u.mu.Unlock()
		return nil
	}
	replaced := u.adoptLocked(g, revision)
	u.mu.Unlock()
	u.cacheToken(g, replaced)
	return nil
}

// lockRefresh waits, under ctx, until no other process uses the refresh token of the user, and sets the lock for this
// process. The caller must call unlock when the outcome is stored. The lock ends after refreshLease in any case.
func (u *userTokens) lockRefresh(ctx context.Context) (unlock func(), err error) {
	name := u.c.storedName(kindRefresh, u.id.Issuer, u.id.Subject)
	for {
		locked, err := u.tryLock(ctx, name)
		if err != nil {
			return nil, u.c.storeError(ctx, err)
		}
		if locked > 0 {
			return func() {
				ctx, stop := context.WithTimeout(context.WithoutCancel(ctx), storeTimeout)
				defer stop()
				_, _ = u.c.store.Save(ctx, nil, locked, refreshLease, name...) // after an error, the ttl ends the lock
			}, nil
		}
		select {
		case <-time.After(refreshPoll):
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// tryLock stores the lock under name, for refreshLease, and returns its revision. It returns 0 without an error if
// another process has the lock.
func (u *userTokens) tryLock(ctx context.Context, name []string) (revision uint64, _ error) {
	holder, revision, err := u.c.store.Load(ctx, name...)
	if err != nil || holder != nil {
		return 0, err
	}
	return u.c.store.Save(ctx, []byte{1}, revision, refreshLease, name...)
}

// redeemRefreshToken returns a new token of the user's sign-in. If another process has just renewed the token, it
// adopts that grant. Otherwise it uses the refresh token, at the authorization server and as the client that it was
// issued to, and stores the new grant. If there is no refresh token, or the authorization server has refused it, the
// error is or wraps ErrConsent: the user must sign in again. The user's CachedSource calls it once at a time in this
// process; lockRefresh extends that to all processes.
func (u *userTokens) redeemRefreshToken(ctx context.Context) (token.Token, error) {
	unlock, err := u.lockRefresh(ctx)
	if err != nil {
		return token.Token{}, err
	}
	defer unlock()
	current, revision, err := u.loadGrant(ctx)
	if err != nil {
		return token.Token{}, err
	}
	current = u.latestGrant(current, revision)
	u.mu.Lock()
	local := u.grant
	u.mu.Unlock()

	switch {
	case current == nil: // the user has signed out
		u.adoptGrant(nil, revision)
		return token.Token{}, ErrConsent
	case current.token.Secret != local.token.Secret && current.token.Lifetime > 0: // another process has renewed it
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
	reply, err := u.c.requestGrant(ctx, next.server, next.client, next.key, url.Values{
		"grant_type": {"refresh_token"}, "refresh_token": {next.refresh.Reveal()},
	})
	if err != nil {
		return token.Token{}, u.handleRefreshError(ctx, &next, revision, err)
	}
	if !reply.refresh.IsZero() { // rotated (RFC 9700 section 4.14.2); without a new one, the old one stays valid
		next.refresh = reply.refresh
	}
	next.token = reply.Token
	return u.storeRefreshed(ctx, &next, revision)
}

// storeRefreshed stores the renewed grant g in place of the grant at revision, adopts it, and returns its token. It
// does so even if ctx has ended: the authorization server may not accept the old refresh token any more. If the store
// does not work for storeTimeout, this process alone uses g (grantUnsaved). If the store has another revision, the
// user has signed in or out in between: storeRefreshed adopts what the store has, and returns that token or
// ErrConsent.
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
			return u.adoptStored(ctx, g)
		}
		select {
		case <-time.After(refreshPoll):
		case <-ctx.Done():
			u.c.log.WarnContext(ctx, "a renewed token could not be stored; only this process has it")
			u.adoptGrant(g, revision)
			u.mu.Lock()
			u.grantUnsaved = true
			u.mu.Unlock()
			return g.token, nil
		}
	}
}

// adoptStored adopts the grant that the store has instead of the renewed grant g, and returns its token. The error is
// ErrConsent if the store has no grant, or one without a valid token.
func (u *userTokens) adoptStored(ctx context.Context, g *grant) (token.Token, error) {
	current, revision, err := u.loadGrant(ctx)
	if err != nil {
		return token.Token{}, err
	}
	u.adoptGrant(current, revision)
	if current == nil {
		u.c.revoke(ctx, g) // the sign-out has revoked only the refresh token that g has replaced
		return token.Token{}, ErrConsent
	}
	if current.token.Lifetime <= 0 {
		return token.Token{}, ErrConsent
	}
	return current.token, nil
}

// handleRefreshError handles the error err of a token request with the refresh token of g, which the store has at
// revision. If the authorization server has refused the refresh token for good, it removes the grant here and in the
// store, and returns an error that wraps ErrConsent; otherwise it returns err.
func (u *userTokens) handleRefreshError(ctx context.Context, g *grant, revision uint64, err error) error {
	if isClientUnknown(err) {
		u.c.discovery.forgetClient(ctx, g.server, g.client)
	}
	if !u.c.isGrantRefused(err) {
		return err
	}
	if next, storeErr := u.saveGrant(ctx, nil, revision); storeErr == nil && next > 0 {
		u.adoptGrant(nil, next)
	} else {
		// A new sign-in has replaced the grant, or the store has failed: then another process removes it when it
		// refreshes.
		u.adoptGrant(nil, revision)
	}
	return fmt.Errorf("%w: %w", ErrConsent, err)
}

// dropGrant removes the grant whose token the MCP server has refused, here and in the store. If the user's grant has
// another token by now, it only removes the refused token from the cache. If the store has another revision, its
// grant stays there, and the next syncGrant adopts it. An error of the store is ignored.
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
