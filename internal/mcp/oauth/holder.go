package oauth

import (
	"context"
	"crypto/sha256"
	"fmt"
	"net/url"
	"sync"
	"time"

	"answerd/internal/auth"
)

const (
	maxHolders   = 4096                // principals whose tokens are kept at a time
	exchangeIdle = 30 * time.Minute    // after which those that are got without a person are forgotten
	consentIdle  = 30 * 24 * time.Hour // and those that a person agreed to
)

// holderKey is whose tokens a holder keeps. Those that a principal's own token was
// exchanged for are kept for the whole of that token: one person may come with tokens of
// different rights (CVE-2026-35030).
type holderKey struct {
	issuer, subject string
	token           [sha256.Size]byte
}

// holder is the tokens of one principal.
type holder struct {
	c    *Client
	id   auth.Identity
	key  holderKey
	kept *auth.Kept
	turn chan struct{} // of capacity 1: held by who begins an authorization

	// Protected by Client.mu: one that is in use is not forgotten.
	using int
	last  time.Time

	mu    sync.Mutex // protects what follows
	ch    challenge  // the latest one
	heard time.Time  // when it came; zero: never
	grant grant
	times int // grants so far
}

// grant is what a principal agreed to, or was given, beside the token itself.
type grant struct {
	at      *authority // nil: none yet
	who     identity
	scopes  []string    // that were asked for
	refresh auth.Secret // good at that authority, for that identity
	fresh   auth.Fresh
}

// take is the holder of id's tokens, made now if there is none. It needs a release.
func (c *Client) take(id auth.Identity) (*holder, error) {
	key := holderKey{issuer: id.Issuer, subject: id.Subject}
	if c.cfg.Kind == Enterprise {
		if id.Token.IsZero() {
			return nil, wrong("the caller brought no token")
		}
		key.token = sha256.Sum256([]byte(id.Token.Reveal()))
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	at := c.holders[key]
	if at == nil {
		if c.closed {
			return nil, errClosed
		}
		c.sweepLocked()
		if len(c.holders) >= maxHolders {
			return nil, wrong("too many callers wait for their tokens")
		}
		h := &holder{c: c, id: id, key: key, turn: make(chan struct{}, 1)}
		h.kept = auth.NewKept(h.fetch)
		at = c.recent.PushFront(h)
		c.holders[key] = at
	}
	c.recent.MoveToFront(at)
	h := at.Value.(*holder)
	h.using++
	h.last = time.Now()
	return h, nil
}

func (c *Client) release(h *holder) {
	c.mu.Lock()
	defer c.mu.Unlock()
	h.using--
}

// sweepLocked drops principals who have not been here for long, and makes room for one
// more by dropping the one who has not been here for the longest.
func (c *Client) sweepLocked() {
	idle := exchangeIdle
	if c.cfg.Kind == AuthorizationCode {
		idle = consentIdle
	}
	for at := c.recent.Back(); at != nil; {
		h, before := at.Value.(*holder), at.Prev()
		if len(c.holders) < maxHolders && time.Since(h.last) < idle {
			return
		}
		if h.using == 0 {
			c.recent.Remove(at)
			delete(c.holders, h.key)
			c.work.Go(h.kept.Close) // a refresh may be under way
		}
		at = before
	}
}

// fetch gets the next token without a person: the kept source calls it, once at a time.
// One line in the log says how it went, which holds no value of either side.
func (h *holder) fetch(ctx context.Context) (auth.Fresh, error) {
	ctx, stop := context.WithTimeout(ctx, fetchTime)
	defer stop()
	started, get := time.Now(), h.ask
	if h.c.cfg.Kind == AuthorizationCode {
		get = h.renew
	}
	fresh, err := get(ctx)
	switch {
	case err == ErrConsent: // nobody was asked
	case err != nil:
		h.c.log.WarnContext(ctx, "token fetch failed", "grant", string(h.c.cfg.Kind), "error", err.Error())
	default:
		h.c.log.DebugContext(ctx, "token fetched", "grant", string(h.c.cfg.Kind),
			"life_s", int(fresh.Life.Seconds()), "took_ms", time.Since(started).Milliseconds())
	}
	return fresh, err
}

// ask gets a token by a grant that takes no person.
func (h *holder) ask(ctx context.Context) (auth.Fresh, error) {
	h.mu.Lock()
	ch, heard, before := h.ch, h.heard, h.grant
	h.mu.Unlock()
	a, who, err := h.c.finder.find(ctx, ch, heard)
	if err != nil {
		h.unhear()
		return auth.Fresh{}, err
	}
	scopes := h.c.scopes(a, ch, before.askedAt(a))
	form, err := h.c.form(ctx, a, h.id, scopes)
	if err != nil {
		return auth.Fresh{}, err
	}
	g, err := h.c.request(ctx, a, who, form)
	if err != nil {
		return auth.Fresh{}, err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.grant = grant{at: a, who: who, scopes: scopes, fresh: g.Fresh}
	return g.Fresh, nil
}

// askedAt is what was asked for before, if it was at the same authorization server:
// another one's scopes mean something else.
func (g *grant) askedAt(a *authority) []string {
	if g.at == nil || g.at.issuer != a.issuer {
		return nil
	}
	return g.scopes
}

// renew uses the refresh token, where it was given and as whom it was given to. Without
// one, or when it is worth nothing any more, only its person can help.
func (h *holder) renew(ctx context.Context) (auth.Fresh, error) {
	h.mu.Lock()
	now, times := h.grant, h.times
	h.mu.Unlock()
	if now.refresh.IsZero() {
		return auth.Fresh{}, ErrConsent
	}
	g, err := h.c.request(ctx, now.at, now.who, url.Values{"grant_type": {"refresh_token"}, "refresh_token": {now.refresh.Reveal()}})
	if unknownClient(err) {
		h.c.finder.forget(ctx, now.at, now.who)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.times != times: // he has agreed anew meanwhile
		return h.grant.fresh, nil
	case err != nil && isRefused(err):
		h.grant.refresh = auth.Secret{}
		return auth.Fresh{}, fmt.Errorf("%w: %w", ErrConsent, err)
	case err != nil:
		return auth.Fresh{}, err
	}
	h.grant.fresh = g.Fresh
	if !g.refresh.IsZero() { // rotated (RFC 9700 section 4.14.2); else the old one stays
		h.grant.refresh = g.refresh
	}
	return g.Fresh, nil
}

// put keeps what a person agreed to.
func (h *holder) put(g grant) {
	h.mu.Lock()
	h.grant = g
	h.times++
	h.mu.Unlock()
	h.kept.Put(g.fresh)
}

// hear notes a challenge, which says what the next token is asked for with.
func (h *holder) hear(ch challenge) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ch, h.heard = ch, time.Now()
}

// unhear drops a challenge that led nowhere: the server may say something else now.
func (h *holder) unhear() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ch, h.heard = challenge{}, time.Time{}
}

// waits reports whether a token is to be asked for only after a challenge: the server
// says where, or with which scopes.
func (h *holder) waits() bool {
	if h.c.cfg.Kind != AuthorizationCode && h.c.finder.configured() {
		return false
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.heard.IsZero()
}
