package oauth

import (
	"crypto/sha256"
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
