package oauth

import (
	"cmp"
	"context"
	"errors"
	"strings"
	"time"
)

const (
	discoveryTimeout    = 15 * time.Second // for all requests of one search and one registration
	discoveryMaxAge     = time.Hour        // after which a result is looked up again
	discoveryRetryAfter = time.Second      // after which a failed search is repeated
	maxIssuers          = 8                // how many issuers' registrations are stored
)

// newDiscovery returns a discovery without a result. It sends nothing.
func newDiscovery(c *Client) *discovery {
	return &discovery{c: c, lock: make(contextLock, 1), boundIssuer: c.cfg.Issuer, registered: map[string]clientIdentity{}}
}

// discover returns what to request the next token with, as a grant without tokens: the authorization server that ch,
// the latest challenge, leads to, our client there, and the scopes. previous is the user's grant so far. discover
// registers a client if needed. It uses the result of the last search, unless that is outdated or ch, which arrived at
// challengedAt, is newer (isCurrent): a server may have moved to another authorization server (SEP-2352). The error is
// a *fetch.Error or the cause of the end of ctx.
func (d *discovery) discover(ctx context.Context, ch challenge, challengedAt time.Time, previous grant) (*grant, error) {
	if err := d.lock.acquire(ctx); err != nil {
		return nil, err
	}
	defer d.lock.release()
	ctx, stop := context.WithTimeout(ctx, discoveryTimeout)
	defer stop()
	if !d.isCurrent(ch, challengedAt) {
		started := time.Now()
		server, err := d.search(ctx, ch)
		if errors.Is(ctx.Err(), context.Canceled) {
			return nil, ctx.Err() // only this request was cancelled: record nothing
		}
		d.server = server
		d.err = err
		d.searchedAt = started
		d.metadataURL = ch.metadata
		if err == nil {
			d.boundIssuer = server.Issuer
		}
	}
	if d.err != nil {
		return nil, d.err
	}
	scopes := d.c.selectScopes(d.server, ch, previous.scopesAt(d.server))
	client, err := d.obtainClient(ctx, d.server, scopes)
	if err != nil {
		return nil, err
	}
	return &grant{server: d.server, client: client, scopes: scopes}, nil
}

// lookUp searches for the authorization server that ch leads to, even if the last search found one. It records nothing
// and registers no client. Errors are those of discover.
func (d *discovery) lookUp(ctx context.Context, ch challenge) (*authServer, error) {
	if err := d.lock.acquire(ctx); err != nil {
		return nil, err
	}
	defer d.lock.release()
	ctx, stop := context.WithTimeout(ctx, discoveryTimeout)
	defer stop()
	return d.search(ctx, ch)
}

// isCurrent reports whether the result of the last search also applies to the challenge ch, which arrived at
// challengedAt. d.lock must be held.
func (d *discovery) isCurrent(ch challenge, challengedAt time.Time) bool {
	age := time.Since(d.searchedAt)
	switch {
	case d.server == nil && d.err == nil: // there was no search yet
		return false
	case d.err != nil: // a pause, so that the waiting requests of many users do not repeat the search
		return age < discoveryRetryAfter
	case d.server.Configured: // the challenge does not matter
		return age < discoveryMaxAge
	}
	// The MCP server has named the authorization server, and a newer challenge may name another one.
	return age < discoveryMaxAge && d.searchedAt.After(challengedAt) && d.metadataURL == ch.metadata
}

// search requests metadata and returns the authorization server that the configuration names or, if it names none, the
// one that the MCP server names. It records nothing. d.lock must be held.
//
// If the configuration names no issuer, boundIssuer protects the configured credentials. The first issuer that the MCP
// server names gets the credentials, because nothing shows which issuer they are for. If the server names another
// issuer later, an attacker may have taken the server over, and the next token request would send the client secret to
// the attacker. So that is an error.
func (d *discovery) search(ctx context.Context, ch challenge) (*authServer, error) {
	cfg := &d.c.cfg
	found := resource{name: d.c.server.String(), issuer: cfg.Issuer}
	if cfg.TokenURL != "" {
		return &authServer{Configured: true, TokenURL: cfg.TokenURL, Resource: cmp.Or(cfg.Resource, found.name)}, nil
	}
	isConfigured := cfg.Issuer != ""
	if !isConfigured {
		var err error
		if found, err = d.c.fetchResource(ctx, ch); err != nil {
			return nil, err
		}
		isSameIssuer := strings.TrimSuffix(d.boundIssuer, "/") == strings.TrimSuffix(found.issuer, "/")
		if d.hasBoundCredentials() && d.boundIssuer != "" && !isSameIssuer {
			return nil, fetchErrorf("the server names another authorization server than before, which the configured credentials are not for; set the issuer in the configuration")
		}
	}
	server, err := d.c.fetchAuthServer(ctx, found.issuer, isConfigured)
	if err != nil {
		return nil, err
	}
	server.Resource = cmp.Or(cfg.Resource, found.name)
	server.ResourceScopes = found.scopes
	return server, nil
}

// isConfigured reports whether the configuration names the authorization server.
func (d *discovery) isConfigured() bool { return d.c.cfg.Issuer != "" || d.c.cfg.TokenURL != "" }

// hasBoundCredentials reports whether the configuration has credentials that must be sent to one issuer only. Without
// a client id, AuthorizationCode has none: it can register a client at each issuer.
func (d *discovery) hasBoundCredentials() bool {
	return d.c.cfg.ClientID != "" || d.c.cfg.Kind != AuthorizationCode
}

// obtainClient returns our client at server: the configured client or, for AuthorizationCode, the URL of our metadata
// document or a client that obtainClient registers (RFC 7591). It uses a registration again until it expires. A
// registration is for all scopes requested at server so far, because some authorization servers refuse scopes that a
// client was not registered for. d.lock must be held.
func (d *discovery) obtainClient(ctx context.Context, server *authServer, scopes []string) (clientIdentity, error) {
	cfg := &d.c.cfg
	switch {
	case cfg.ClientID != "":
		return d.c.configuredClient(server), nil
	case cfg.Kind != AuthorizationCode:
		return clientIdentity{method: methodNone}, nil
	case cfg.ClientMetadataURL != "" && server.AcceptsMetadata:
		return clientIdentity{id: cfg.ClientMetadataURL, method: methodNone}, nil
	}
	known := d.registered[server.Issuer] // the zero clientIdentity, which has expired, if none is registered
	if time.Now().Before(known.expires) && isSubset(scopes, known.scopes) {
		return known, nil
	}
	if server.RegisterURL == "" {
		return clientIdentity{}, fetchErrorf("the authorization server knows none of our clients and registers none: set the client id in the configuration")
	}
	client, err := d.c.registerClient(ctx, server, mergeScopes(scopes, known.scopes))
	if err != nil {
		return clientIdentity{}, err
	}
	if len(d.registered) >= maxIssuers { // only a server that keeps naming other issuers gets here
		clear(d.registered)
	}
	d.registered[server.Issuer] = client
	return client, nil
}

// forgetClient drops the registration of g.client at g.server, which no longer knows it, so that the next discover
// registers another one. It first waits for a search in progress, and does nothing if ctx ends during that.
func (d *discovery) forgetClient(ctx context.Context, g *grant) {
	if d.lock.acquire(ctx) != nil {
		return
	}
	defer d.lock.release()
	if d.registered[g.server.Issuer].id == g.client.id {
		delete(d.registered, g.server.Issuer)
	}
}
