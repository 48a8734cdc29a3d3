package auth

import (
	"container/list"
	"context"
	"crypto/sha256"
	"net/url"
	"sync"
	"time"
)

// The names of RFC 8693 section 2.1 and 3.
const (
	grantExchange   = "urn:ietf:params:oauth:grant-type:token-exchange"
	typeAccessToken = "urn:ietf:params:oauth:token-type:access_token"
	typeJWT         = "urn:ietf:params:oauth:token-type:jwt"
)

const (
	maxCallers = 4096             // whose tokens an Exchange keeps at a time
	callerIdle = 30 * time.Minute // after which a caller's tokens are forgotten
)

// ExchangeConfig says where callers' tokens are exchanged.
type ExchangeConfig struct {
	// As whom to ask, where, and for what: the same as of a token of our own.
	ClientCredentialsConfig
	// Audience is the logical name of whom the token is for, where Resource is not
	// how the IAM knows it; "" names nobody.
	Audience string
}

// Exchange trades a caller's token for one that a server takes on behalf of that
// caller (RFC 8693), and keeps it until shortly before it expires. All calls of a
// caller share one request; a failed one costs that caller a pause, and no other.
//
// A token is kept under its caller and the SHA-256 of the whole token that he
// brought: caches that went by less have mixed callers up (CVE-2026-35030), and one
// person may come with tokens of different rights.
type Exchange struct {
	*tokenClient
	form url.Values

	mu      sync.Mutex // protects what follows
	callers map[callerKey]*list.Element
	recent  *list.List // of *caller, the latest first
	closed  bool
	work    sync.WaitGroup // forgotten callers whose fetch is being ended
}

type callerKey struct {
	issuer, subject string
	token           [sha256.Size]byte
}

// caller is the exchanged token of one token that somebody brought.
type caller struct {
	*keeper
	key callerKey
	// Protected by Exchange.mu: one that is in use is not forgotten.
	using int
	last  time.Time
}

// NewExchange checks cfg and fetches nothing. Close must be called in the end.
func NewExchange(cfg ExchangeConfig) (*Exchange, error) {
	c, err := newTokenClient(cfg.ClientCredentialsConfig)
	if err != nil {
		return nil, err
	}
	form := url.Values{
		"grant_type":           {grantExchange},
		"subject_token_type":   {typeAccessToken},
		"requested_token_type": {typeAccessToken},
	}
	cfg.target(form)
	if cfg.Audience != "" {
		form.Set("audience", cfg.Audience)
	}
	return &Exchange{tokenClient: c, form: form, callers: map[callerKey]*list.Element{}, recent: list.New()}, nil
}

// For is the source of tokens on behalf of id, which must have a Token. It holds
// nothing and need not be closed. Its errors are *FetchError, or the context's.
func (e *Exchange) For(id Identity) TokenSource { return onBehalf{e, id} }

// onBehalf is the TokenSource of one caller.
type onBehalf struct {
	exchange *Exchange
	id       Identity
}

func (o onBehalf) Token(ctx context.Context) (Secret, error) {
	c, err := o.exchange.take(o.id)
	if err != nil {
		return Secret{}, err
	}
	defer o.exchange.release(c)
	return c.token(ctx)
}

func (o onBehalf) Renew(ctx context.Context, rejected Secret) (Secret, error) {
	c, err := o.exchange.take(o.id)
	if err != nil {
		return Secret{}, err
	}
	defer o.exchange.release(c)
	return c.renew(ctx, rejected)
}

// take is the keeper of id's token, made now if there is none.
func (e *Exchange) take(id Identity) (*caller, error) {
	if id.Token.IsZero() {
		return nil, &FetchError{Public: "the caller brought no token"}
	}
	key := callerKey{id.Issuer, id.Subject, sha256.Sum256([]byte(id.Token.Reveal()))}
	e.mu.Lock()
	defer e.mu.Unlock()
	at := e.callers[key]
	if at == nil {
		if e.closed {
			return nil, errClosed
		}
		e.forgetLocked()
		if len(e.callers) >= maxCallers {
			return nil, &FetchError{Public: "too many callers wait for their tokens"}
		}
		at = e.recent.PushFront(&caller{key: key, keeper: newKeeper(func(ctx context.Context) (grant, error) {
			return e.ask(ctx, id.Token)
		})})
		e.callers[key] = at
	}
	e.recent.MoveToFront(at)
	c := at.Value.(*caller)
	c.using++
	c.last = time.Now()
	return c, nil
}

func (e *Exchange) release(c *caller) {
	e.mu.Lock()
	defer e.mu.Unlock()
	c.using--
}

// forgetLocked drops callers who have not been here for long, and makes room for one
// more by dropping the one that nobody has asked for the longest.
func (e *Exchange) forgetLocked() {
	for at := e.recent.Back(); at != nil; {
		c, before := at.Value.(*caller), at.Prev()
		if len(e.callers) < maxCallers && time.Since(c.last) < callerIdle {
			return
		}
		if c.using == 0 {
			e.recent.Remove(at)
			delete(e.callers, c.key)
			e.work.Go(c.grants.close) // a refresh may be under way
		}
		at = before
	}
}

// ask is one exchange: the form of RFC 8693 section 2.1 with the token that the caller
// brought.
func (e *Exchange) ask(ctx context.Context, subject Secret) (grant, error) {
	form := url.Values{"subject_token": {subject.Reveal()}}
	for name, values := range e.form {
		form[name] = values
	}
	return e.fetch(ctx, form)
}

// Close ends the requests under way, waits for them, and lets no other start. Tokens
// that are there are still given while they are valid.
func (e *Exchange) Close() {
	e.mu.Lock()
	e.closed = true
	for at := e.recent.Front(); at != nil; at = at.Next() {
		e.work.Go(at.Value.(*caller).grants.close)
	}
	e.mu.Unlock()
	e.work.Wait()
	e.tokenClient.close()
}
