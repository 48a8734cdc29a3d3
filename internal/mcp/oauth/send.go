package oauth

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"

	"answerd/internal/auth"
)

// maxSends is how often one request is sent to a server that refuses it every time: without a token, with a token,
// with a nonce, with a renewed token, and with a token that has more scopes.
const maxSends = 5

// Source sends requests with one user's tokens. It may be used concurrently. It holds no tokens itself: Send looks
// them up in the Client, so a Source can be used as long as the Client.
type Source struct {
	c  *Client
	id auth.Identity // as principalOf returns it
}

// Send sends r through next with a token of the user. If the user has none, Send requests one, unless the user would
// have to sign in for it. If only a refusal can say where and with which scopes to request a token, Send first sends r
// without one. After a refusal with 401 or 403, Send sends r again if a new token, a renewed token or a token with
// more scopes may help, maxSends times in all. Send changes r, which must have GetBody or no body.
//
// Send returns the server's last response, which may be a refusal. The error is an *Error if the server did not
// execute the request; it wraps ErrConsent if the user must sign in. Otherwise the error is one of next.
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

	replacements := tokenReplacer{tokens: tokens}
	for sends := 1; ; sends++ {
		nonce := s.c.nonces.get(r.URL)
		if err := tokens.addToken(r, token, nonce); err != nil {
			closeBody(r)
			return nil, asError(err)
		}
		resp, err := next.RoundTrip(r)
		if err == nil && s.c.cfg.DPoP {
			replacements.hasNewNonce = s.c.nonces.save(r.URL, resp.Header, nonce)
		}
		if err != nil || sends == maxSends || !isRefusal(resp) {
			return resp, err
		}
		token, err = replacements.nextToken(r, resp, token)
		if errors.Is(err, errFinal) {
			return resp, nil
		}
		discardBody(resp)
		if err != nil {
			return nil, err
		}
		if r, err = cloneForRetry(r); err != nil {
			return nil, &Error{Public: "the request cannot be sent again", Err: err}
		}
	}
}

// isRefusal reports whether another token may change the status of resp.
func isRefusal(resp *http.Response) bool {
	return resp.StatusCode == http.StatusUnauthorized || resp.StatusCode == http.StatusForbidden
}

// currentToken returns the token for the first attempt of a request. It returns the zero Secret if the request must be
// sent without a token, to get a challenge that says where to request one. It may wait for the token endpoint or the
// store, until ctx ends. The error is ErrConsent if the user must sign in, or one of the token endpoint or the store.
func (u *userTokens) currentToken(ctx context.Context) (auth.Secret, error) {
	if u.c.cfg.Kind != AuthorizationCode {
		if _, ok := u.source.Cached(); !ok && u.needsChallenge() {
			return auth.Secret{}, nil
		}
		return u.source.Token(ctx)
	}
	if err := u.syncGrant(ctx); err != nil {
		return auth.Secret{}, err
	}
	token, isValid := u.source.Cached()
	switch {
	case u.canRefresh():
		token, err := u.source.Token(ctx) // cached, and renewed before it expires
		if err != nil && !errors.Is(err, ErrConsent) && u.needsChallenge() {
			return auth.Secret{}, nil // the server may name another authorization server by now
		}
		return token, err
	case isValid:
		return token, nil
	case u.needsChallenge():
		return auth.Secret{}, nil
	}
	return auth.Secret{}, ErrConsent
}

// canRefresh reports whether the user's grant has a refresh token.
func (u *userTokens) canRefresh() bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return !u.grant.refresh.IsZero()
}

// addToken sets r's Authorization header (RFC 6750 section 2.1). If the user's tokens are bound to a key, it also sets
// the DPoP header to a new proof with nonce (RFC 9449 section 7.1). If token is zero, it only removes the DPoP header.
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

// cloneForRetry returns a copy of r with a new body from GetBody, because the body of r was already read.
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

// discardBody closes the body of a response that is not used. It first reads a short body to its end, so that the
// connection can be used again.
func discardBody(resp *http.Response) {
	_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, maxChallenge))
	_ = resp.Body.Close()
}

// closeBody closes the body of a request that is not sent. http.RoundTripper requires that.
func closeBody(r *http.Request) {
	if r.Body != nil {
		_ = r.Body.Close()
	}
}

// tokenReplacer finds a token that replaces a refused one, for one call of Send. It tries each way once, so that Send
// returns even if the server refuses everything.
type tokenReplacer struct {
	tokens       *userTokens
	nonceRetried bool // the same token was sent again with a new nonce
	tokenRenewed bool // the token was replaced after a 401
	steppedUp    bool // the token was replaced by one with more scopes after a 403
	hasNewNonce  bool // the latest response had another DPoP nonce than its request
}

// errFinal means that no other token helps, so Send returns the server's refusal.
var errFinal = errors.New("the server's refusal is final")

// nextToken returns the token with which to send r again, after the server has refused r with resp. sent is the
// refused token; zero if r had none. nextToken records the server's challenge. It may request a token, for which it
// waits until r's context ends. The error is errFinal or an *Error.
func (t *tokenReplacer) nextToken(r *http.Request, resp *http.Response, sent auth.Secret) (auth.Secret, error) {
	ctx, tokens, ch := r.Context(), t.tokens, parseChallenge(resp.Header)
	// Some server frameworks refuse a missing token with 403, and can refuse a WebSocket handshake only with 403. So it may
	// be about the token, as 401 is.
	isWebSocket := r.Header.Get("Upgrade") != ""
	isAboutScope := ch.code == errorInsufficientScope || !isWebSocket && !sent.IsZero()
	switch {
	case resp.StatusCode == http.StatusForbidden && isAboutScope:
		return t.stepUp(ctx, ch, sent)
	case ch.code == errorUseNonce && !sent.IsZero(): // the server refused the proof, not the token
		if !t.hasNewNonce || t.nonceRetried {
			return auth.Secret{}, errFinal
		}
		t.nonceRetried = true
		return sent, nil
	case t.tokenRenewed && !sent.IsZero():
		// The renewed token was refused too. The user may have revoked access, or the server may have moved to another
		// authorization server.
		return t.requireSignIn(ctx, ch, sent)
	}
	tokens.saveChallenge(ch)
	t.tokenRenewed = !sent.IsZero()
	if tokens.c.cfg.Kind == AuthorizationCode && !tokens.canRefresh() {
		return t.requireSignIn(ctx, ch, sent)
	}
	var token auth.Secret
	var err error
	if sent.IsZero() {
		token, err = tokens.source.Token(ctx)
	} else {
		token, err = tokens.source.Renew(ctx, sent)
	}
	// An error of currentToken may be from before the challenge, without which hasMoved is false.
	if err != nil && sent.IsZero() && tokens.canRefresh() && tokens.hasMoved(ctx) {
		err = fmt.Errorf("%w: %w", ErrConsent, err)
	}
	if err != nil {
		return auth.Secret{}, asError(err)
	}
	return token, nil
}

// requireSignIn handles a refusal after which no token can be requested without a sign-in. sent is the refused token.
// If another request or process has obtained a valid token for the user, requireSignIn returns that. Otherwise it
// returns an *Error that wraps ErrConsent. It keeps the user's grant until the next sign-in, because the server may
// refuse valid tokens for a time. For grants without sign-in it returns errFinal.
func (t *tokenReplacer) requireSignIn(ctx context.Context, ch challenge, sent auth.Secret) (auth.Secret, error) {
	tokens := t.tokens
	if tokens.c.cfg.Kind != AuthorizationCode {
		return auth.Secret{}, errFinal
	}
	tokens.saveChallenge(ch)
	if sent.IsZero() {
		return auth.Secret{}, asError(ErrConsent)
	}
	if err := tokens.reloadGrant(ctx); err != nil { // the user may have signed in through another process
		return auth.Secret{}, asError(err)
	}
	if token, ok := tokens.source.Cached(); ok && token != sent {
		return token, nil
	}
	return auth.Secret{}, asError(ErrConsent)
}

// stepUp returns a token with more scopes after a 403 that requires them (MCP basic/authorization, step-up
// authorization). sent is the refused token. If the user must sign in for the scopes, the error is an *Error that
// wraps ErrConsent. If the 403 has another reason, the error is errFinal.
//
// stepUp returns another *Error in three cases. If it has replaced the token before, or if the scopes were requested
// for the refused token, a request would give the same token, and Send would loop. If the configuration has scopes, the
// operator has decided what the token may do, and a server must not be able to extend that.
func (t *tokenReplacer) stepUp(ctx context.Context, ch challenge, sent auth.Secret) (auth.Secret, error) {
	tokens := t.tokens
	if ch.code != errorInsufficientScope || len(ch.scopes) == 0 || sent.IsZero() {
		return auth.Secret{}, errFinal
	}
	if tokens.c.cfg.Kind == AuthorizationCode {
		if err := tokens.reloadGrant(ctx); err != nil {
			return auth.Secret{}, asError(err)
		}
	}
	current, wereRequested := tokens.requestedScopes(ch.scopes)
	switch {
	case wereRequested && current != sent: // another request has replaced the token
		token, err := tokens.source.Replace(ctx, sent)
		if err != nil {
			return auth.Secret{}, asError(err)
		}
		return token, nil
	case tokens.c.cfg.Scope != "" || wereRequested || t.steppedUp:
		return auth.Secret{}, insufficientScope(ErrInsufficientScope)
	}
	t.steppedUp = true
	tokens.saveStepUp(ch)
	if tokens.c.cfg.Kind == AuthorizationCode {
		return auth.Secret{}, asError(ErrConsent)
	}
	return tokens.requestMoreScopes(ctx, ch, sent)
}

// requestMoreScopes returns a token with the scopes of ch, which saveStepUp has recorded, in addition to those of the
// token sent. If the authorization server refuses these scopes, the error wraps ErrInsufficientScope. After any error,
// sent stays in use for requests that need no more.
func (u *userTokens) requestMoreScopes(ctx context.Context, ch challenge, sent auth.Secret) (auth.Secret, error) {
	token, err := u.source.Replace(ctx, sent)
	if _, wereRequested := u.requestedScopes(ch.scopes); err == nil && !wereRequested {
		// Another request had already begun to request this token, before it could know of ch.
		token, err = u.source.Replace(ctx, token)
	}
	if err == nil {
		return token, nil
	}
	u.withdrawStepUp()
	if refusalCode(err) == errorInvalidScope {
		return auth.Secret{}, insufficientScope(errors.Join(ErrInsufficientScope, err))
	}
	return auth.Secret{}, asError(err)
}

// insufficientScope returns the error for a server that requires more scopes, which cannot be obtained because of err.
func insufficientScope(err error) *Error {
	return &Error{Public: "the server requires more scopes than the token has", Err: err}
}

const errorInsufficientScope = "insufficient_scope" // RFC 6750 section 3.1

// ErrInsufficientScope is in the chain of an error if the server has refused the request with 403, because it requires
// more scopes than the token has, and the user cannot give them by a sign-in.
var ErrInsufficientScope = errors.New(errorInsufficientScope)
