package oauth

import (
	"context"
	"fmt"
	"net/url"
	"time"

	"answerd/internal/auth"
	"answerd/internal/auth/token"
)

// How processes share a user's grant
//
// The grant in the store is the valid one. A process has a copy. While the copy is used, the process compares it with
// the store every grantMaxAge, and also whenever the copy has no valid token.
//
// An authorization server may rotate refresh tokens. It may take the second use of one for a theft and revoke all
// tokens of the user (RFC 9700 section 4.14.2). So a process that uses a refresh token holds a lock: a value with a
// ttl in the store, which only one process can set (compare-and-set). With the lock, the process reads the grant
// again, since another process may just have renewed it. It stores the new grant only if the store still has the grant
// that it has read, so a sign-in or sign-out in between takes precedence. The store ends the lock of a process that
// has died, so the processes' clocks do not matter.

const (
	storeTimeout = 5 * time.Second // for storing what a token endpoint returned
	// refreshLease is the lock's ttl. It is longer than a process may hold the lock: for the rest of the fetchTimeout
	// in which it acquired the lock, to read the grant; for fetchTimeout, to request the token; and for storeTimeout,
	// to store the result.
	refreshLease  = 2*fetchTimeout + storeTimeout + 5*time.Second
	refreshPoll   = 100 * time.Millisecond // pause between two attempts to get the lock
	grantMaxAge   = 10 * time.Second       // age at which a copy is compared with the store
	maxStoreTries = 20                     // attempts to change a value that other processes change too
)

// loadGrant returns the user's stored grant and its revision, which saveGrant needs. If none is stored or it cannot be
// decoded, the grant is nil without an error.
func (u *userTokens) loadGrant(ctx context.Context) (*grant, uint64, error) {
	data, revision, err := u.c.store.Load(ctx, u.grantName()...)
	if err != nil {
		return nil, 0, u.c.storeError(ctx, err)
	}
	if data == nil {
		return nil, revision, nil
	}
	g, err := u.c.decodeGrant(data)
	if err != nil { // another version of answerd wrote it: the user has to sign in again
		u.c.log.WarnContext(ctx, err.Error(), "subject", u.id.Subject)
		return nil, revision, nil
	}
	return g, revision, nil
}

// latestGrant returns the user's latest grant. stored is the grant that the store has at revision. If this process has
// replaced that one with a grant that it could not store, latestGrant returns this grant, otherwise stored.
func (u *userTokens) latestGrant(stored *grant, revision uint64) *grant {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.grantUnsaved && u.revision == revision {
		unsaved := u.grant
		return &unsaved
	}
	return stored
}

// saveGrant stores g as the user's grant in place of the one at revision; a nil g removes that one. It returns the new
// revision. It changes nothing and returns 0 if the store has another revision. It does not change u.grant.
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

// replaceGrant stores g, the grant of a new sign-in, in place of any other one, and makes it this process's copy. If g is
// nil, it removes the grant. It returns the grant that it has replaced or removed; nil if the user had none.
func (u *userTokens) replaceGrant(ctx context.Context, g *grant) (replaced *grant, _ error) {
	for range maxStoreTries {
		stored, revision, err := u.loadGrant(ctx)
		if err != nil {
			return nil, err
		}
		if g == nil && stored == nil {
			u.adoptGrant(nil, revision)
			return nil, nil
		}
		next, err := u.saveGrant(ctx, g, revision)
		if err != nil {
			return nil, err
		}
		if next > 0 {
			replaced = u.latestGrant(stored, revision) // before adoptGrant, which drops this process's copy
			u.adoptGrant(g, next)
			return replaced, nil
		}
	}
	return nil, fetchErrorf("other processes keep changing the sign-in")
}

// adoptGrant makes g, which the store has at revision, this process's copy, and caches its token. If g is nil, the
// copy then has no tokens. u.mu must not be held.
func (u *userTokens) adoptGrant(g *grant, revision uint64) {
	u.mu.Lock()
	replaced := u.adoptLocked(g, revision)
	u.mu.Unlock()
	u.cacheToken(g, replaced)
}

// adoptLocked sets this process's copy to g, which the store has at revision, and returns the copy's previous token.
// u.mu must be held. After u.mu is unlocked, cacheToken must be called with the same g and the returned token.
func (u *userTokens) adoptLocked(g *grant, revision uint64) (replaced auth.Secret) {
	if g == nil { // keep the scopes, because the next sign-in asks for them again (SEP-2350)
		g = &grant{server: u.grant.server, scopes: u.grant.scopes}
	}
	replaced = u.grant.token.Secret
	u.grant = *g
	u.revision = revision
	u.grantUnsaved = false
	u.syncedAt = time.Now()
	return replaced
}

// cacheToken puts g's token into the CachedSource in place of the token replaced. If g is nil or its token has
// expired, it only removes replaced. It changes nothing if g's token is replaced itself.
func (u *userTokens) cacheToken(g *grant, replaced auth.Secret) {
	switch {
	case g == nil:
		u.source.Forget(replaced)
	case g.token.Secret == replaced: // already in the CachedSource, if it is still valid
	case g.token.Lifetime > 0:
		u.source.Put(g.token)
	default:
		u.source.Forget(replaced)
	}
}

// syncGrant calls reloadGrant, unless this process's copy has a valid token and was compared with the store less than
// grantMaxAge ago. While the copy has a valid token, it ignores an error of the store.
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

// reloadGrant adopts the stored grant if it differs from this process's copy, because the user may have signed in or
// out through another process. The error is one of the store.
//
// u.mu must not be held. reloadGrant does not hold it while it reads the store. If this process changes the grant
// during that time, reloadGrant ignores what it has read.
func (u *userTokens) reloadGrant(ctx context.Context) error {
	u.mu.Lock()
	copied := u.revision
	u.mu.Unlock()
	g, revision, err := u.loadGrant(ctx)
	if err != nil {
		return err
	}
	u.mu.Lock()
	switch {
	case u.revision != copied: // this process has changed the grant, perhaps after the store was read
		u.mu.Unlock()
		return nil
	case revision == copied: // the store has not changed it
		u.syncedAt = time.Now()
		u.mu.Unlock()
		return nil
	}
	replaced := u.adoptLocked(g, revision)
	u.mu.Unlock()
	u.cacheToken(g, replaced)
	return nil
}

// lockRefresh waits until no other process uses the user's refresh token, or ctx ends, and locks it for this process.
// The lock is a value in the store, which other processes see. Call unlock after the new grant is stored or the refresh
// has failed. Without that, the lock ends after refreshLease.
func (u *userTokens) lockRefresh(ctx context.Context) (unlock func(), err error) {
	name := u.c.storedName(kindRefresh, u.id.Issuer, u.id.Subject)
	for {
		lockRevision, err := u.tryLock(ctx, name)
		if err != nil {
			return nil, u.c.storeError(ctx, err)
		}
		if lockRevision > 0 {
			return func() {
				ctx, stop := context.WithTimeout(context.WithoutCancel(ctx), storeTimeout)
				defer stop()
				_, _ = u.c.store.Save(ctx, nil, lockRevision, refreshLease, name...) // after an error, the ttl ends the lock
			}, nil
		}
		select {
		case <-time.After(refreshPoll):
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// tryLock stores the lock under name for refreshLease and returns its revision. If another process has the lock, it
// returns 0 and no error.
func (u *userTokens) tryLock(ctx context.Context, name []string) (revision uint64, _ error) {
	holder, revision, err := u.c.store.Load(ctx, name...)
	if err != nil || holder != nil {
		return 0, err
	}
	return u.c.store.Save(ctx, []byte{1}, revision, refreshLease, name...)
}

// redeemRefreshToken returns a new token for the user's sign-in. If another process has just renewed the token,
// redeemRefreshToken adopts that process's grant. Otherwise it uses the refresh token and stores the new grant. If the
// grant has no refresh token, or the authorization server has refused it, the user must sign in again, and the error is
// or wraps ErrConsent. In this process, the user's CachedSource does not call it concurrently; lockRefresh extends that
// to all processes.
func (u *userTokens) redeemRefreshToken(ctx context.Context) (token.Token, error) {
	unlock, err := u.lockRefresh(ctx)
	if err != nil {
		return token.Token{}, err
	}
	defer unlock()
	stored, revision, err := u.loadGrant(ctx)
	if err != nil {
		return token.Token{}, err
	}
	latest := u.latestGrant(stored, revision)
	u.mu.Lock()
	expiring := u.grant.token.Secret
	u.mu.Unlock()

	switch {
	case latest == nil: // the user has signed out
		u.adoptGrant(nil, revision)
		return token.Token{}, ErrConsent
	case latest.token.Secret != expiring && latest.token.Lifetime > 0: // another process has renewed it
		u.adoptGrant(latest, revision)
		return latest.token, nil
	case latest.refresh.IsZero():
		return token.Token{}, ErrConsent
	}
	return u.renewGrant(ctx, *latest, revision)
}

// renewGrant uses g's refresh token, at the authorization server and as the client that it was issued to, and returns
// the new token. It stores the new grant in place of g, which is the latest grant and replaces the one that the store
// has at revision. Errors are those of redeemRefreshToken.
//
// The request continues when ctx ends, for example because of Close. An authorization server that rotates refresh
// tokens would take the next use of this one for a theft, so its reply must be stored.
func (u *userTokens) renewGrant(ctx context.Context, g grant, revision uint64) (token.Token, error) {
	ctx, stop := context.WithTimeout(context.WithoutCancel(ctx), fetchTimeout)
	defer stop()
	reply, err := u.c.postTokenRequest(ctx, g, url.Values{
		"grant_type":    {"refresh_token"},
		"refresh_token": {g.refresh.Reveal()},
	})
	if err != nil {
		return token.Token{}, u.handleRefreshError(ctx, &g, revision, err)
	}
	if !reply.refresh.IsZero() { // rotated (RFC 9700 section 4.14.2); otherwise the old one stays valid
		g.refresh = reply.refresh
	}
	g.token = reply.Token
	return u.storeRenewed(ctx, &g, revision)
}

// storeRenewed stores the renewed grant g in place of the grant at revision, adopts it, and returns its token. It
// does so even if ctx has ended, because the authorization server may no longer accept the old refresh token. If the
// store fails for storeTimeout, only this process uses g (grantUnsaved). If the store has another revision, the user
// has signed in or out in between; storeRenewed then adopts the stored grant, and returns its token or ErrConsent.
func (u *userTokens) storeRenewed(ctx context.Context, g *grant, revision uint64) (token.Token, error) {
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

// adoptStored adopts the stored grant instead of the renewed grant g, and returns its token. The error is ErrConsent
// if no grant is stored or its token is not valid, or an error of the store.
func (u *userTokens) adoptStored(ctx context.Context, g *grant) (token.Token, error) {
	current, revision, err := u.loadGrant(ctx)
	if err != nil {
		return token.Token{}, err
	}
	u.adoptGrant(current, revision)
	if current == nil {
		u.c.revoke(ctx, g) // the sign-out has revoked only the refresh token that g replaced
		return token.Token{}, ErrConsent
	}
	if current.token.Lifetime <= 0 {
		return token.Token{}, ErrConsent
	}
	return current.token, nil
}

// handleRefreshError handles err, the error of a token request with the refresh token of g, which the store has at
// revision. If the authorization server has refused the refresh token for good, handleRefreshError removes the grant
// here and in the store, and returns an error that wraps ErrConsent. If the reason of the refusal is unclear, it returns
// such an error too, but keeps the grant: the user can sign in again, and the refresh token may be accepted later. It
// does the same if the token endpoint may no longer exist (hasMoved). Otherwise it returns err.
func (u *userTokens) handleRefreshError(ctx context.Context, g *grant, revision uint64, err error) error {
	if isClientRefused(err) {
		u.c.discovery.forgetClient(ctx, g)
	}
	switch {
	case u.c.isGrantRefused(err):
		u.removeGrant(ctx, revision)
	case !u.c.isUnclearRefusal(err) && !u.hasMoved(ctx):
		return err
	}
	return fmt.Errorf("%w: %w", ErrConsent, err)
}

// hasMoved reports whether the MCP server names another authorization server by now than that of the user's grant, or
// that one another token endpoint. The next sign-in then uses the new one. It returns false if the metadata cannot be
// read, or if the MCP server has not yet said where it is.
func (u *userTokens) hasMoved(ctx context.Context) bool {
	u.mu.Lock()
	ch, current, isChallenged := u.challenge, u.grant.server, !u.challengedAt.IsZero()
	u.mu.Unlock()
	if current == nil || !isChallenged {
		return false
	}
	server, err := u.c.discovery.lookUp(ctx, ch)
	if err != nil || server.Issuer == current.Issuer && server.TokenURL == current.TokenURL {
		return false
	}
	u.saveChallenge(ch) // as if it had arrived now, so that the sign-in does not use the result of an earlier search
	return true
}

// removeGrant removes the user's grant, here and in the store, which has it at revision. If the store has another
// revision, because the user has signed in again, that grant stays there, and the next syncGrant adopts it. If the
// store fails, the next process that uses the grant is refused too, and removes it.
func (u *userTokens) removeGrant(ctx context.Context, revision uint64) {
	if next, err := u.saveGrant(ctx, nil, revision); err == nil && next > 0 {
		revision = next
	}
	u.adoptGrant(nil, revision)
}
