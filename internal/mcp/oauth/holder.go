package oauth

import (
	"crypto/sha256"
	"errors"
	"sync"
	"time"

	"answerd/internal/auth"
	"answerd/internal/auth/token"
	"answerd/internal/lru"
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
	kept *token.CachedSource
	turn chan struct{} // of capacity 1: held by who begins an authorization

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
	fresh   token.Token
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
	h, err := c.holders.Acquire(key, func() *holder {
		h := &holder{c: c, id: id, key: key, turn: make(chan struct{}, 1)}
		h.kept = token.NewCachedSource(h.fetch)
		return h
	})
	switch {
	case errors.Is(err, lru.ErrClosed):
		return nil, errClosed
	case err != nil:
		return nil, wrong("too many callers wait for their tokens")
	}
	return h, nil
}

func (c *Client) release(h *holder) { c.holders.Release(h.key) }

// newHolders makes room for the holders of c.
func (c *Client) newHolders() *lru.Cache[holderKey, *holder] {
	idle := exchangeIdle
	if c.cfg.Kind == AuthorizationCode {
		idle = consentIdle
	}
	return lru.New[holderKey](maxHolders, idle, func(h *holder) { h.kept.Close() }) // a refresh may be under way
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
