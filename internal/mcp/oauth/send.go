package oauth

import (
	"context"
	"errors"
	"io"
	"net/http"

	"answerd/internal/auth"
)

// maxSends bounds how often one request is sent: without a token, with one, with a nonce,
// with a renewed token, and with one of more scopes. A server that always refuses gets no
// more requests than that.
const maxSends = 5

// Source sends requests with the tokens of one user. It may be used concurrently. It holds no tokens
// itself: Send looks them up, so a Source stays valid however long it is kept.
type Source struct {
	c  *Client
	id auth.Identity // what principalOf leaves of the caller
}

// Send sends the request through next with a token of the user, if there is one or one can be got
// without a sign-in. After a refusal it sends the request again if a token, a renewed token or one of
// more scopes may help. Send changes the request, which must have GetBody or no body. It returns the
// server's last response. Errors are *Error, for a request that was not carried out, or
// those of next.
func (s *Source) Send(next http.RoundTripper, r *http.Request) (*http.Response, error) {
	tokens, err := s.c.acquireUser(s.id)
	if err != nil {
		closeBody(r)
		return nil, asError(err)
	}
	defer s.c.releaseUser(tokens)
	token, err := tokens.currentToken(r.Context())
	if err != nil {
		closeBody(r)
		return nil, asError(err)
	}

	try := attempt{tokens: tokens}
	for sends := 1; ; sends++ {
		nonce := s.c.nonces.get(r.URL)
		if err := tokens.addToken(r, token, nonce); err != nil {
			closeBody(r)
			return nil, asError(err)
		}
		resp, err := next.RoundTrip(r)
		if err == nil && s.c.cfg.DPoP {
			try.newNonce = s.c.nonces.save(r.URL, resp.Header, nonce)
		}
		if err != nil || sends == maxSends {
			return resp, err
		}
		if resp.StatusCode != http.StatusUnauthorized && resp.StatusCode != http.StatusForbidden {
			return resp, nil
		}
		better, err := try.nextToken(r, resp, token)
		if errors.Is(err, errFinal) {
			return resp, nil
		}
		_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, maxChallenge))
		_ = resp.Body.Close()
		if err != nil {
			return nil, err
		}
		token = better
		if r, err = cloneForRetry(r); err != nil {
			return nil, &Error{Public: "the request cannot be sent again", Err: err}
		}
	}
}

// currentToken returns the token to send with. It returns the zero Secret if the request
// must go without one, to get a challenge from the server. Errors are ErrConsent if only the user can
// help, those of the token endpoint, or those of the store.
//
// For a user who signs in: with a refresh token, the CachedSource gives a token and renews it in time.
// Otherwise it is the token there is. Without one, the server is asked for a challenge, which says
// where to sign in; once it has said that, the result is ErrConsent.
func (u *userTokens) currentToken(ctx context.Context) (auth.Secret, error) {
	if u.c.cfg.Kind != AuthorizationCode {
		if _, ok := u.source.Cached(); !ok && u.needsChallenge() {
			return auth.Secret{}, nil
		}
		return u.source.Token(ctx)
	}
	if err := u.compareGrant(ctx, false); err != nil {
		return auth.Secret{}, err
	}
	token, ok := u.source.Cached()
	switch {
	case u.canRefresh():
		return u.source.Token(ctx)
	case ok:
		return token, nil
	case u.needsChallenge():
		return auth.Secret{}, nil
	}
	return auth.Secret{}, ErrConsent
}

// canRefresh reports whether there is a refresh token.
func (u *userTokens) canRefresh() bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return !u.grant.refresh.IsZero()
}

// addToken sets the Authorization header of the request (RFC 6750 section 2.1), with a proof of the key that
// the token is bound to and with the server's nonce, if it is bound to one (RFC 9449 section 7.1).
func (u *userTokens) addToken(r *http.Request, token auth.Secret, nonce string) error {
	r.Header.Del("DPoP")
	if token.IsZero() {
		return nil
	}
	u.mu.Lock()
	key := u.grant.key
	u.mu.Unlock()
	if key == nil {
		r.Header.Set("Authorization", "Bearer "+token.Reveal())
		return nil
	}
	r.Header.Set("Authorization", "DPoP "+token.Reveal())
	return key.addProof(r, token, nonce)
}

// cloneForRetry returns a copy of the request whose body can be sent once more.
func cloneForRetry(r *http.Request) (*http.Request, error) {
	out := r.Clone(r.Context())
	if r.GetBody != nil {
		body, err := r.GetBody()
		if err != nil {
			return nil, err
		}
		out.Body = body
	}
	return out, nil
}

// closeBody closes the body of a request that is not sent, as a RoundTripper must.
func closeBody(r *http.Request) {
	if r.Body != nil {
		_ = r.Body.Close()
	}
}

// attempt is one request and what was already tried to get it accepted. Each remedy is tried once, so
// that a server which refuses everything ends the attempt.
type attempt struct {
	tokens       *userTokens
	nonceRetried bool // the same token was sent with the server's new nonce
	tokenRenewed bool // the token was replaced after a 401
	steppedUp    bool // the token was replaced by one of more scopes after a 403
	newNonce     bool // the latest response had another DPoP nonce than its request
}

// errFinal means that no token helps, so the caller gets the server's refusal.
var errFinal = errors.New("the server's refusal is final")

// nextToken returns the token to send again with after a refusal, or errFinal, or an *Error.
// A WebSocket handshake may be refused with 403 because of its token: some frameworks have
// no other way to decline one.
func (t *attempt) nextToken(r *http.Request, resp *http.Response, sent auth.Secret) (auth.Secret, error) {
	tokens, ch := t.tokens, parseChallenge(resp.Header)
	isWebSocket := r.Header.Get("Upgrade") != ""
	isAboutScope := ch.code == errorInsufficientScope || !isWebSocket
	switch {
	case resp.StatusCode == http.StatusForbidden && isAboutScope:
		return t.stepUp(r.Context(), ch, sent)
	case ch.code == errorUseNonce && !sent.IsZero(): // the token may be valid, the proof was not
		if !t.newNonce || t.nonceRetried {
			return auth.Secret{}, errFinal
		}
		t.nonceRetried = true
		return sent, nil
	case sent.IsZero():
		tokens.saveChallenge(ch)
	case t.tokenRenewed:
		// A new token does not help. The user may have revoked access, or the server has
		// moved to another authorization server.
		return t.giveUp(r.Context(), ch, sent)
	default:
		tokens.saveChallenge(ch)
		t.tokenRenewed = true
	}
	if tokens.c.cfg.Kind == AuthorizationCode && !tokens.canRefresh() {
		return t.giveUp(r.Context(), ch, sent)
	}
	get := func(ctx context.Context) (auth.Secret, error) { return tokens.source.Renew(ctx, sent) }
	if sent.IsZero() {
		get = tokens.source.Token
	}
	token, err := get(r.Context())
	if err != nil {
		return auth.Secret{}, asError(err)
	}
	return token, nil
}

// giveUp drops a token that the server does not accept. It returns the token of another
// request of the same user, if that got a new one meanwhile. Otherwise it returns
// ErrConsent if a sign-in can help, else errFinal.
func (t *attempt) giveUp(ctx context.Context, ch challenge, sent auth.Secret) (auth.Secret, error) {
	tokens := t.tokens
	if tokens.c.cfg.Kind != AuthorizationCode {
		return auth.Secret{}, errFinal
	}
	tokens.saveChallenge(ch)
	if sent.IsZero() {
		return auth.Secret{}, asError(ErrConsent)
	}
	if err := tokens.compareGrant(ctx, true); err != nil { // the user may have signed in at another process
		return auth.Secret{}, asError(err)
	}
	if token, ok := tokens.source.Cached(); ok && token != sent {
		return token, nil
	}
	tokens.dropGrant(ctx, sent)
	return auth.Secret{}, asError(ErrConsent)
}

// stepUp gets a token of more scopes, once, after a 403 that requires them (MCP
// basic/authorization, step-up authorization). It fails at once if those scopes were
// requested before: requesting them again would give the same token, and loop. It fails too if the
// configuration names the scopes: the operator has decided what the token may do, and a server must
// not be able to widen that.
func (t *attempt) stepUp(ctx context.Context, ch challenge, sent auth.Secret) (auth.Secret, error) {
	tokens := t.tokens
	if ch.code != errorInsufficientScope || len(ch.scopes) == 0 || sent.IsZero() {
		return auth.Secret{}, errFinal
	}
	if tokens.c.cfg.Kind == AuthorizationCode {
		if err := tokens.compareGrant(ctx, true); err != nil {
			return auth.Secret{}, asError(err)
		}
	}
	if token, ok := tokens.source.Cached(); ok && token != sent && !t.steppedUp {
		t.steppedUp = true
		return token, nil // another request got it meanwhile
	}
	tokens.mu.Lock()
	requested := tokens.grant.scopes
	tokens.mu.Unlock()
	if tokens.c.cfg.Scope != "" || isSubset(ch.scopes, requested) || t.steppedUp {
		return auth.Secret{}, &Error{Public: "the server requires more scopes than the token has", Err: errScope}
	}
	t.steppedUp = true
	tokens.saveChallenge(ch)
	if tokens.c.cfg.Kind == AuthorizationCode {
		return auth.Secret{}, asError(ErrConsent)
	}
	tokens.source.Forget(sent)
	token, err := tokens.source.Token(ctx)
	if err != nil {
		return auth.Secret{}, asError(err)
	}
	return token, nil
}

const errorInsufficientScope = "insufficient_scope" // RFC 6750 section 3.1

var errScope = errors.New(errorInsufficientScope)
