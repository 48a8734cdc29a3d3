package oauth

import (
	"context"
	"errors"
	"strings"
	"time"

	"answerd/internal/auth/fetch"
)

const (
	discoveryTimeout    = 15 * time.Second // for all requests of one search
	discoveryMaxAge     = time.Hour        // after which endpoints are looked up again
	discoveryRetryAfter = time.Second      // after which a failed search is repeated
	maxIssuers          = 8                // whose registrations are stored at a time
)

// newDiscovery sends nothing yet.
func newDiscovery(c *Client) *discovery {
	return &discovery{c: c, turn: make(chan struct{}, 1), boundIssuer: c.cfg.Issuer, registered: map[string]clientIdentity{}}
}

// discover returns the authorization server that a challenge leads to, our client there, and the scopes to
// request for a user with the grant previous. It uses the last search unless the challenge came after that:
// a server may have moved to another authorization server (SEP-2352). Errors are *fetch.Error, or the context's.
func (d *discovery) discover(ctx context.Context, ch challenge, challengedAt time.Time, previous grant) (*authServer, clientIdentity, []string, error) {
	select {
	case d.turn <- struct{}{}:
		defer func() { <-d.turn }()
	case <-ctx.Done():
		return nil, clientIdentity{}, nil, context.Cause(ctx)
	}
	ctx, stop := context.WithTimeout(ctx, discoveryTimeout)
	defer stop()
	if !d.isCurrent(ch, challengedAt) {
		started := time.Now()
		server, err := d.search(ctx, ch)
		if errors.Is(ctx.Err(), context.Canceled) {
			return nil, clientIdentity{}, nil, ctx.Err() // this caller gave up; for others the search may succeed
		}
		d.server = server
		d.err = err
		d.searchedAt = started
		d.metadataURL = ch.metadata
		if err == nil {
			d.boundIssuer = server.issuer
		}
	}
	if d.err != nil {
		return nil, clientIdentity{}, nil, d.err
	}
	scopes := d.c.selectScopes(d.server, ch, previous.scopesAt(d.server))
	client, err := d.clientAt(ctx, d.server, scopes)
	return d.server, client, scopes, err
}

// lookUp returns the authorization server that a challenge leads to. It stores nothing and
// registers no client.
func (d *discovery) lookUp(ctx context.Context, ch challenge) (*authServer, error) {
	select {
	case d.turn <- struct{}{}:
		defer func() { <-d.turn }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	ctx, stop := context.WithTimeout(ctx, discoveryTimeout)
	defer stop()
	return d.search(ctx, ch)
}

// isCurrent reports whether the outcome of the last search also applies to this challenge. A failure
// applies for a second, so that the requests of many users that wait do not repeat it one after the
// other. What the configuration names applies whatever a server says. What a server named applies only
// to challenges that are older than the search and name the same metadata. d.turn must be held.
func (d *discovery) isCurrent(ch challenge, challengedAt time.Time) bool {
	age := time.Since(d.searchedAt)
	switch {
	case d.server == nil && d.err == nil:
		return false
	case d.err != nil:
		return age < discoveryRetryAfter
	case d.server.trusted:
		return age < discoveryMaxAge
	}
	return age < discoveryMaxAge && d.searchedAt.After(challengedAt) && d.metadataURL == ch.metadata
}

// search returns the authorization server that the configuration names, or else the one that
// the MCP server names. d.turn must be held.
//
// boundIssuer protects the credentials of the configuration where that names no issuer. The first
// issuer that the server names gets them, because there is nothing to compare it with. If the server
// names another one later, it may have been taken over, and the next token request would send the
// client secret to whoever did that.
func (d *discovery) search(ctx context.Context, ch challenge) (*authServer, error) {
	cfg := &d.c.cfg
	if cfg.TokenURL != "" {
		return d.withTarget(&authServer{trusted: true, tokenURL: cfg.TokenURL}, resource{name: d.c.server.String()}), nil
	}
	if cfg.Issuer != "" {
		a, err := d.c.fetchAuthServer(ctx, cfg.Issuer, true)
		if err != nil {
			return nil, err
		}
		return d.withTarget(a, resource{name: d.c.server.String()}), nil
	}
	r, err := d.c.fetchResource(ctx, ch)
	if err != nil {
		return nil, err
	}
	if d.hasBoundCredentials() && d.boundIssuer != "" && strings.TrimSuffix(d.boundIssuer, "/") != strings.TrimSuffix(r.issuer, "/") {
		return nil, fetchErrorf("the server names another authorization server than before, which the configured credentials are not for; set the issuer in the configuration")
	}
	a, err := d.c.fetchAuthServer(ctx, r.issuer, false)
	if err != nil {
		return nil, err
	}
	return d.withTarget(a, r), nil
}

// isConfigured reports whether the configuration says where tokens come from.
func (d *discovery) isConfigured() bool { return d.c.cfg.Issuer != "" || d.c.cfg.TokenURL != "" }

// hasBoundCredentials reports whether the configuration has credentials. They are valid at
// one issuer: the first one that is found.
func (d *discovery) hasBoundCredentials() bool {
	return d.c.cfg.ClientID != "" || d.c.cfg.Kind != AuthorizationCode
}

// withTarget sets the resource that tokens of a are for, and its scopes.
func (d *discovery) withTarget(a *authServer, r resource) *authServer {
	a.resource, a.wanted = r.name, r.scopes
	if d.c.cfg.Resource != "" {
		a.resource = d.c.cfg.Resource
	}
	return a
}

// clientAt returns our client at a: the configured one, the URL of our metadata document, or
// the one that a registers now (RFC 7591), for all scopes that have been requested there so far: some
// authorization servers refuse others. d.turn must be held. Registrations are forgotten all at once
// when there are maxIssuers: only a server that keeps naming other issuers gets that far.
func (d *discovery) clientAt(ctx context.Context, server *authServer, scopes []string) (clientIdentity, error) {
	cfg := &d.c.cfg
	switch {
	case cfg.ClientID != "":
		return d.c.configuredClient(server), nil
	case cfg.Kind != AuthorizationCode:
		return clientIdentity{method: methodNone}, nil
	case cfg.ClientMetadataURL != "" && server.acceptsMetadata:
		return clientIdentity{id: cfg.ClientMetadataURL, method: methodNone}, nil
	}
	known, ok := d.registered[server.issuer]
	if ok && time.Now().Before(known.expires) && isSubset(scopes, known.scopes) {
		return known, nil
	}
	if server.registerURL == "" {
		return clientIdentity{}, fetchErrorf("the authorization server knows none of our clients and registers none: set the client id in the configuration")
	}
	client, err := d.c.registerClient(ctx, server, mergeScopes(scopes, known.scopes))
	if err != nil {
		return clientIdentity{}, err
	}
	if len(d.registered) >= maxIssuers {
		clear(d.registered)
	}
	d.registered[server.issuer] = client
	return client, nil
}

// forgetClient drops a registration that its issuer no longer knows.
func (d *discovery) forgetClient(ctx context.Context, server *authServer, client clientIdentity) {
	select {
	case d.turn <- struct{}{}:
		defer func() { <-d.turn }()
	case <-ctx.Done():
		return
	}
	if d.registered[server.issuer].id == client.id {
		delete(d.registered, server.issuer)
	}
}

// isClientUnknown reports whether an authorization server does not know our client (RFC 6749
// section 5.2).
func isClientUnknown(err error) bool {
	refusal, ok := errors.AsType[*fetch.Error](err)
	return ok && refusal.Code == "invalid_client"
}
