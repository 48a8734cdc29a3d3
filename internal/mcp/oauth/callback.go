package oauth

import (
	"context"
	"errors"
	"net/url"
	"time"
)

// Callback takes what a browser brought back (OAuth 2.1 section 4.1.2). found is false
// where the state is none of ours, was used before, or has expired: then nothing
// happened. A nil error says that the principal's requests go through now; others are
// *Error, and end the authorization too. It waits for the token, also when ctx ends: a
// browser that is closed early has agreed all the same.
func (c *Client) Callback(ctx context.Context, q url.Values) (found bool, _ error) {
	a := c.claim(q)
	if a == nil {
		return false, nil
	}
	defer c.work.Done()
	err := c.redeem(ctx, a, q)
	if err != nil {
		c.log.WarnContext(ctx, "authorization failed", "error", err.Error())
	} else {
		c.log.InfoContext(ctx, "authorized", "subject", a.id.Subject)
	}
	a.settle(err)
	return true, a.Err()
}

// claim takes the authorization that a callback belongs to off the list: whatever comes
// of it, its state is good once.
func (c *Client) claim(q url.Values) *Authorization {
	c.mu.Lock()
	defer c.mu.Unlock()
	a := c.pending[q.Get("state")]
	if a == nil || c.closed || len(q["state"]) != 1 {
		return nil
	}
	delete(c.pending, a.state)
	if time.Now().After(a.Expires) {
		a.settle(errors.New("nobody agreed in time"))
		return nil
	}
	c.work.Add(1)
	return a
}

// redeem checks a response and gets the token that its code stands for.
func (c *Client) redeem(ctx context.Context, a *Authorization, q url.Values) error {
	for _, name := range []string{"code", "iss", "error"} {
		if len(q[name]) > 1 { // RFC 6749 section 3.1
			return errors.New("the response has a parameter twice")
		}
	}
	// RFC 9207 section 2.4, letter by letter: else a hostile authorization server could
	// have us bring it the code of an honest one (mix-up, RFC 9700 section 4.4).
	if iss := q.Get("iss"); iss != a.at.issuer && (iss != "" || a.at.returnsIss) {
		return errors.New("the response is not of the authorization server that was asked")
	}
	code := q.Get("code")
	switch {
	case q.Has("error"):
		return errors.New("the authorization server says no")
	case code == "" || len(code) > maxCode:
		return errors.New("the response has no code")
	}
	h, err := c.take(a.id)
	if err != nil {
		return err
	}
	defer c.release(h)
	ctx, stop := context.WithTimeout(context.WithoutCancel(ctx), fetchTime)
	defer stop()
	defer context.AfterFunc(c.life, stop)()
	g, err := c.request(ctx, a.at, a.who, url.Values{
		"grant_type": {"authorization_code"}, "code": {code}, "redirect_uri": {c.cfg.RedirectURL}, "code_verifier": {a.verifier},
	})
	if err != nil {
		if unknownClient(err) {
			c.finder.forget(ctx, a.at, a.who)
		}
		return err
	}
	h.put(grant{at: a.at, who: a.who, scopes: union(a.scopes, g.scopes), refresh: g.refresh, fresh: g.Token})
	return nil
}
