package oauth

import (
	"context"
	"errors"
	"time"

	"answerd/internal/auth/fetch"
)

const (
	findTime   = 15 * time.Second // for all requests of one search
	foundFor   = time.Hour        // how soon an endpoint that has moved is found
	failedFor  = time.Second      // how soon a search that failed is repeated
	maxIssuers = 8                // that we are registered with at a time
)

// finder finds the authorization server, and who we are there. Both are kept for all
// principals. One search is under way at a time.
type finder struct {
	c    *Client
	turn chan struct{} // of capacity 1: held by who searches; it protects what follows

	at      string // what the challenge said when found was found
	found   *authority
	err     error
	began   time.Time // the search that found it
	first   string    // the issuer that the configured credentials are bound to
	clients map[string]identity
}

func newFinder(c *Client) *finder {
	return &finder{c: c, turn: make(chan struct{}, 1), first: c.cfg.Issuer, clients: map[string]identity{}}
}

// find is the authorization server that a challenge leads to, and who we are there. What
// was found before will do unless the challenge came after that: a server may have moved
// to another authorization server (SEP-2352). Errors are *fetch.Error, or ctx's.
func (f *finder) find(ctx context.Context, ch challenge, heard time.Time) (*authority, identity, error) {
	select {
	case f.turn <- struct{}{}:
		defer func() { <-f.turn }()
	case <-ctx.Done():
		return nil, identity{}, context.Cause(ctx)
	}
	ctx, stop := context.WithTimeout(ctx, findTime)
	defer stop()
	if !f.stillGood(ch, heard) {
		began := time.Now()
		found, err := f.search(ctx, ch)
		if errors.Is(ctx.Err(), context.Canceled) {
			return nil, identity{}, ctx.Err() // its caller has gone, which is nobody else's trouble
		}
		f.found, f.err, f.began, f.at = found, err, began, ch.metadata
		if err == nil {
			f.first = found.issuer
		}
	}
	if f.err != nil {
		return nil, identity{}, f.err
	}
	who, err := f.identify(ctx, f.found)
	return f.found, who, err
}

// look is find for who only wants to know: it keeps nothing and registers nobody.
func (f *finder) look(ctx context.Context, ch challenge) (*authority, error) {
	select {
	case f.turn <- struct{}{}:
		defer func() { <-f.turn }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	ctx, stop := context.WithTimeout(ctx, findTime)
	defer stop()
	return f.search(ctx, ch)
}

// stillGood reports whether the last search answers for this challenge too.
func (f *finder) stillGood(ch challenge, heard time.Time) bool {
	age := time.Since(f.began)
	switch {
	case f.found == nil && f.err == nil:
		return false
	case f.err != nil:
		return age < failedFor
	case f.found.trusted:
		return age < foundFor
	}
	return age < foundFor && f.began.After(heard) && f.at == ch.metadata
}

// search asks the configuration, or the server and whom it names.
func (f *finder) search(ctx context.Context, ch challenge) (*authority, error) {
	cfg := &f.c.cfg
	if cfg.TokenURL != "" {
		return f.targeted(&authority{trusted: true, token: cfg.TokenURL}, resource{name: f.c.server.String()}), nil
	}
	if cfg.Issuer != "" {
		a, err := f.c.authorityOf(ctx, cfg.Issuer, true)
		if err != nil {
			return nil, err
		}
		return f.targeted(a, resource{name: f.c.server.String()}), nil
	}
	r, err := f.c.protectedResource(ctx, ch)
	if err != nil {
		return nil, err
	}
	if f.bound() && f.first != "" && f.first != r.issuer {
		return nil, wrong("the server names another authorization server than before, for which the configured credentials are not; the configuration can name the issuer")
	}
	a, err := f.c.authorityOf(ctx, r.issuer, false)
	if err != nil {
		return nil, err
	}
	return f.targeted(a, r), nil
}

// configured reports whether the configuration says where tokens come from.
func (f *finder) configured() bool { return f.c.cfg.Issuer != "" || f.c.cfg.TokenURL != "" }

// bound reports whether there are credentials in the configuration, which are good at
// one issuer: the first one that is found.
func (f *finder) bound() bool {
	return f.c.cfg.ClientID != "" || f.c.cfg.Kind != AuthorizationCode
}

// targeted is a with whom and what its tokens are for.
func (f *finder) targeted(a *authority, r resource) *authority {
	a.resource, a.wanted = r.name, r.scopes
	if f.c.cfg.Resource != "" {
		a.resource = f.c.cfg.Resource
	}
	return a
}

// identify is who we are at a: as configured, by the URL of our metadata document, or as
// a registers us now.
func (f *finder) identify(ctx context.Context, a *authority) (identity, error) {
	cfg := &f.c.cfg
	switch {
	case cfg.ClientID != "":
		return f.c.configured(a), nil
	case cfg.Kind != AuthorizationCode:
		return identity{method: methodNone}, nil
	case cfg.ClientMetadataURL != "" && a.takesURL:
		return identity{id: cfg.ClientMetadataURL, method: methodNone}, nil
	}
	if who, ok := f.clients[a.issuer]; ok && time.Now().Before(who.expires) {
		return who, nil
	}
	if a.register == "" {
		return identity{}, wrong("the authorization server knows no client of ours and registers none: the configuration must name the client id")
	}
	who, err := f.c.register(ctx, a)
	if err != nil {
		return identity{}, err
	}
	if len(f.clients) >= maxIssuers {
		clear(f.clients)
	}
	f.clients[a.issuer] = who
	return who, nil
}

// forget drops a registration that its issuer knows no more.
func (f *finder) forget(ctx context.Context, a *authority, who identity) {
	select {
	case f.turn <- struct{}{}:
		defer func() { <-f.turn }()
	case <-ctx.Done():
		return
	}
	if f.clients[a.issuer].id == who.id {
		delete(f.clients, a.issuer)
	}
}

// unknownClient reports whether an authorization server said that it doesn't know us.
func unknownClient(err error) bool {
	refused, ok := errors.AsType[*fetch.Error](err)
	return ok && refused.Code == "invalid_client"
}
