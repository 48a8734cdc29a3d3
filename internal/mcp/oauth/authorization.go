package oauth

import (
	"context"
	"crypto/rand"
	"errors"
	"net/url"
	"sync"
	"time"

	"golang.org/x/oauth2"

	"answerd/internal/auth"
)

const (
	consentTime = 10 * time.Minute // for a person to agree in
	maxPending  = 1024             // authorizations at a time
	maxCode     = 4 << 10          // bytes of an authorization code
	maxURL      = 8 << 10          // bytes of the address that a person is sent to
)

// Authorization is a principal's agreement, as long as he has not given it.
type Authorization struct {
	// URL is where his browser goes. It is an address of an authorization server that
	// the MCP server may have named.
	URL string
	// Done is closed when the browser came back, or nobody may any more.
	Done    <-chan struct{}
	Expires time.Time

	id       auth.Identity
	state    string
	verifier string
	at       *authority
	who      identity
	scopes   []string

	done chan struct{}
	once sync.Once
	err  error // set before done is closed
}

// Err is what came of it, once Done is closed: nil if he has agreed, and then his
// requests go through. It is an *Error.
func (a *Authorization) Err() error {
	select {
	case <-a.done:
		return a.err
	default:
		return nil
	}
}

// Host is the authorization server's, for people.
func (a *Authorization) Host() string {
	u, err := url.Parse(a.URL)
	if err != nil {
		return ""
	}
	return u.Host
}

func (a *Authorization) settle(err error) {
	a.once.Do(func() {
		if err != nil {
			a.err = &Error{Public: "signing in failed", Err: err}
		}
		close(a.done)
	})
}

// Authorize begins, or joins, the authorization that the principal's latest refusal asks
// for. It waits under ctx. Errors are *Error.
func (c *Client) Authorize(ctx context.Context, id auth.Identity) (*Authorization, error) {
	id = c.principal(id)
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	defer context.AfterFunc(c.life, stop)()
	h, err := c.take(id)
	if err != nil {
		return nil, failed(err)
	}
	defer c.release(h)
	select {
	case h.turn <- struct{}{}:
		defer func() { <-h.turn }()
	case <-ctx.Done():
		return nil, failed(context.Cause(ctx))
	}
	h.mu.Lock()
	ch, heard, now := h.ch, h.heard, h.grant
	h.mu.Unlock()
	at, who, err := c.finder.find(ctx, ch, heard)
	if err != nil {
		h.unhear()
		c.log.WarnContext(ctx, "authorization cannot begin", "error", err.Error())
		return nil, failed(err)
	}
	a := &Authorization{
		id: id, at: at, who: who, scopes: c.scopes(at, ch, now.askedAt(at)),
		state: rand.Text() + rand.Text(), verifier: oauth2.GenerateVerifier(),
		done: make(chan struct{}), Expires: time.Now().Add(consentTime),
	}
	a.Done = a.done
	if a.URL, err = c.address(a); err != nil {
		return nil, failed(err)
	}
	return c.pend(a)
}

// At is the host where principals agree, which is where id's latest refusal leads to.
// Errors are *Error.
func (c *Client) At(ctx context.Context, id auth.Identity) (string, error) {
	h, err := c.take(c.principal(id))
	if err != nil {
		return "", failed(err)
	}
	defer c.release(h)
	h.mu.Lock()
	ch := h.ch
	h.mu.Unlock()
	at, err := c.finder.look(ctx, ch)
	if err != nil {
		return "", failed(err)
	}
	u, err := url.Parse(at.authorize)
	if err != nil {
		return "", failed(err)
	}
	return u.Host, nil
}

// address is where the browser goes: the request of OAuth 2.1 section 4.1.1 with PKCE and
// a resource (RFC 8707).
func (c *Client) address(a *Authorization) (string, error) {
	options := []oauth2.AuthCodeOption{oauth2.S256ChallengeOption(a.verifier)}
	if a.at.resource != "" {
		options = append(options, oauth2.SetAuthURLParam("resource", a.at.resource))
	}
	config := oauth2.Config{
		ClientID: a.who.id, RedirectURL: c.cfg.RedirectURL, Scopes: a.scopes, Endpoint: oauth2.Endpoint{AuthURL: a.at.authorize},
	}
	if out := config.AuthCodeURL(a.state, options...); len(out) <= maxURL {
		return out, nil
	}
	return "", wrong("the address of the authorization server is too long")
}

// pend makes a known to Callback, or gives the one under way of the same principal that
// asks for the same: however many of his calls wait, he agrees once.
func (c *Client) pend(a *Authorization) (*Authorization, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, failed(errClosed)
	}
	now := time.Now()
	for state, p := range c.pending {
		if now.After(p.Expires) {
			delete(c.pending, state)
			p.settle(errors.New("nobody agreed in time"))
			continue
		}
		same := p.id.Issuer == a.id.Issuer && p.id.Subject == a.id.Subject
		if same && p.at.issuer == a.at.issuer && p.who == a.who && within(a.scopes, p.scopes) && now.Add(consentTime/2).Before(p.Expires) {
			return p, nil
		}
	}
	if len(c.pending) >= maxPending {
		return nil, failed(wrong("too many callers are signing in"))
	}
	c.pending[a.state] = a
	return a, nil
}
