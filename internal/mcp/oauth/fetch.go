package oauth

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"time"

	"answerd/internal/auth"
	"answerd/internal/auth/fetch"
	"answerd/internal/auth/token"
)

// fetch gets the next token without a person: the kept source calls it, once at a time.
// One line in the log says how it went, which holds no value of either side.
func (h *holder) fetch(ctx context.Context) (token.Token, error) {
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
			"life_s", int(fresh.Lifetime.Seconds()), "took_ms", time.Since(started).Milliseconds())
	}
	return fresh, err
}

// ask gets a token by a grant that takes no person.
func (h *holder) ask(ctx context.Context) (token.Token, error) {
	h.mu.Lock()
	ch, heard, before := h.ch, h.heard, h.grant
	h.mu.Unlock()
	a, who, err := h.c.finder.find(ctx, ch, heard)
	if err != nil {
		h.unhear()
		return token.Token{}, err
	}
	scopes := h.c.scopes(a, ch, before.askedAt(a))
	form, err := h.c.form(ctx, a, h.id, scopes)
	if err != nil {
		return token.Token{}, err
	}
	g, err := h.c.request(ctx, a, who, form)
	if err != nil {
		return token.Token{}, err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.grant = grant{at: a, who: who, scopes: scopes, fresh: g.Token}
	return g.Token, nil
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
func (h *holder) renew(ctx context.Context) (token.Token, error) {
	h.mu.Lock()
	now, times := h.grant, h.times
	h.mu.Unlock()
	if now.refresh.IsZero() {
		return token.Token{}, ErrConsent
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
		return token.Token{}, fmt.Errorf("%w: %w", ErrConsent, err)
	case err != nil:
		return token.Token{}, err
	}
	h.grant.fresh = g.Token
	if !g.refresh.IsZero() { // rotated (RFC 9700 section 4.14.2); else the old one stays
		h.grant.refresh = g.refresh
	}
	return g.Token, nil
}

// isRefused reports whether a token endpoint refused a grant for good, as opposed to not
// having answered.
func isRefused(err error) bool {
	refused, ok := errors.AsType[*fetch.Error](err)
	return ok && slices.Contains([]string{"invalid_grant", "invalid_client", "unauthorized_client", "invalid_scope"}, refused.Code)
}
