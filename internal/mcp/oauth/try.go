package oauth

import (
	"context"
	"errors"
	"net/http"

	"answerd/internal/auth"
)

// try is one request, and what has been done to get it through.
type try struct {
	h                       *holder
	nonced, renewed, raised bool
	fresh                   bool // the latest reply had a nonce that was not known
}

// errFinal ends the attempts: the refusal is the answer.
var errFinal = errors.New("the server's last word")

// refused finds out what would help against a refusal: the token to send again with, or
// errFinal, or an *Error. A WebSocket handshake may be refused with 403 for want of a
// good token: some frameworks have no other way to decline one.
func (t *try) refused(r *http.Request, resp *http.Response, sent auth.Secret) (auth.Secret, error) {
	h, ch := t.h, readChallenge(resp.Header)
	switch {
	case resp.StatusCode == http.StatusForbidden && (ch.code == insufficientScope || r.Header.Get("Upgrade") == ""):
		return t.raise(r.Context(), ch, sent)
	case t.fresh && ch.code == useNonce && !t.nonced && !sent.IsZero():
		t.nonced = true // the token is good, the proof was not
		return sent, nil
	case sent.IsZero():
		h.hear(ch)
	case t.renewed:
		// A new token is no better than the old one. Whoever agreed to it may have
		// taken it back, or the server has moved to another authorization server.
		return t.end(ch, sent)
	default:
		h.hear(ch)
		t.renewed = true
	}
	if h.c.cfg.Kind == AuthorizationCode && !h.refreshable() {
		return t.end(ch, sent)
	}
	get := func(ctx context.Context) (auth.Secret, error) { return h.kept.Renew(ctx, sent) }
	if sent.IsZero() {
		get = h.kept.Token
	}
	token, err := get(r.Context())
	if err != nil {
		return auth.Secret{}, failed(err)
	}
	return token, nil
}

// end gives up a token that the server doesn't take. Another request of its principal may
// have got a better one meanwhile; else only he can help, or nobody.
func (t *try) end(ch challenge, sent auth.Secret) (auth.Secret, error) {
	h := t.h
	if h.c.cfg.Kind != AuthorizationCode {
		return auth.Secret{}, errFinal
	}
	if token, ok := h.kept.Cached(); ok && token != sent {
		return token, nil
	}
	h.hear(ch)
	h.kept.Forget(sent)
	h.mu.Lock()
	h.grant.refresh = auth.Secret{}
	h.mu.Unlock()
	return auth.Secret{}, failed(ErrConsent)
}

// raise gets a token of more rights after a 403 that asks for them (step-up), once. It
// gives up at once where the rights were asked for before: to ask again would get the
// same, and be a loop.
func (t *try) raise(ctx context.Context, ch challenge, sent auth.Secret) (auth.Secret, error) {
	h := t.h
	if ch.code != insufficientScope || len(ch.scopes) == 0 || sent.IsZero() {
		return auth.Secret{}, errFinal
	}
	if token, ok := h.kept.Cached(); ok && token != sent && !t.raised {
		t.raised = true
		return token, nil // another request got one meanwhile
	}
	h.mu.Lock()
	had := h.grant.scopes
	h.mu.Unlock()
	if h.c.cfg.Scope != "" || within(ch.scopes, had) || t.raised {
		return auth.Secret{}, &Error{Public: "it wants more rights than its token has", Err: errScope}
	}
	t.raised = true
	h.hear(ch)
	if h.c.cfg.Kind == AuthorizationCode {
		return auth.Secret{}, failed(ErrConsent)
	}
	h.kept.Forget(sent)
	token, err := h.kept.Token(ctx)
	if err != nil {
		return auth.Secret{}, failed(err)
	}
	return token, nil
}

const insufficientScope = "insufficient_scope" // RFC 6750 section 3.1

var errScope = errors.New(insufficientScope)
