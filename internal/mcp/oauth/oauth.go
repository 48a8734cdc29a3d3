// Package oauth requests the tokens for one MCP server. They come from the authorization server that the MCP server or
// the configuration names, as the MCP authorization specification requires (2025-11-25 and 2026-07-28,
// basic/authorization).
//
//	c, err := oauth.New(oauth.Config{Kind: oauth.AuthorizationCode, URL: "https://crm.example.com/mcp", …})
//	defer c.Close()
//	resp, err := c.For(user).Send(transport, req)     // with a token, requested now if necessary
//	if errors.Is(err, oauth.ErrConsent) {
//		a, err := c.Authorize(ctx, user, waiter) // show a.URL to the user
//	}
//	waiters, found, err := c.Callback(ctx, query)     // the browser's query, here or in another process
//
// The first request has no token, because its refusal says where to request one, and with which scopes (RFC 9728). If
// the configuration names the issuer, only authorization_code needs that refusal. Every user has their own tokens, and
// only one token request per user is in flight, even if many of the user's requests wait for it.
//
// Config.Store, which processes may share, has the sign-ins that have been started and the grants that they led to. A
// Client has only copies of them in memory. So a browser may come back to any process, and only one process at a time
// uses a refresh token (storedgrant.go).
//
// What servers say is checked before it is used (resource.go, authserver.go), and requests are restricted (egress.go).
// Credentials are sent only to their own issuer: those of the configuration go to the issuer that it names, or else to
// the first one that the MCP server named.
//
// A Client belongs to one MCP server. Its discovery finds the authorization server (discovery.go, resource.go,
// authserver.go) and answerd's client there (registration.go). A userTokens has what one user was granted, and a
// token.CachedSource that asks this package for the next token. A Source sends requests with these tokens and handles
// refusals; begin reading in send.go. Authorize and Callback are the two halves of a sign-in (authorization.go).
// Between them a user works in a browser, perhaps for minutes, and the process may end.
//
// The go-sdk's handlers do the same for one user. They are not used: they have data races, connect to any address that
// a server names, and support neither private_key_jwt, jwt-bearer nor DPoP.
package oauth

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"

	"answerd/internal/auth"
	"answerd/internal/auth/sealed"
	"answerd/internal/auth/token"
)

// New returns a Client for cfg, or an error if cfg is not valid or a key cannot be generated. It sends nothing. The
// Client must be closed.
func New(cfg Config) (*Client, error) {
	server, err := url.Parse(cfg.URL)
	if err != nil {
		return nil, errors.New("the server's URL is not a URL")
	}
	server.RawQuery = ""
	server.ForceQuery = false
	server.Host = canonicalHost(server)
	if cfg.Issuer != "" || cfg.TokenURL != "" {
		if err := token.CheckTokenEndpoint(cfg.Issuer, cfg.TokenURL); err != nil {
			return nil, err
		}
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	client := &Client{cfg: cfg, log: cfg.Logger, server: server, egress: newEgress(server, cfg.TLS), store: cfg.Store}
	if client.store == nil {
		if client.store, err = sealed.NewInMemory(cfg.Logger); err != nil {
			return nil, fmt.Errorf("generate a key for sign-ins: %w", err)
		}
	}
	client.users = client.newUserCache()
	client.discovery = newDiscovery(client)
	client.ctx, client.cancel = context.WithCancel(context.Background())
	if cfg.DPoP && cfg.Kind != AuthorizationCode {
		if client.key, err = newProofKey(); err != nil {
			return nil, fmt.Errorf("generate a key for DPoP: %w", err)
		}
	}
	return client, nil
}

// For returns a Source that sends requests with the tokens of the user id. For ClientCredentials and JWTBearer, all
// users share the service's own tokens, and id may be empty. The Source need not be closed.
func (c *Client) For(id auth.Identity) *Source { return &Source{c: c, id: c.principalOf(id)} }

// principalOf returns the part of id that determines which tokens are used. The user's own token is a part of it only
// if the grant exchanges that token. If all users share the grant's tokens, the result is empty.
func (c *Client) principalOf(id auth.Identity) auth.Identity {
	switch c.cfg.Kind {
	case Enterprise:
		return auth.Identity{Issuer: id.Issuer, Subject: id.Subject, Token: id.Token}
	case AuthorizationCode:
		return auth.Identity{Issuer: id.Issuer, Subject: id.Subject}
	}
	return auth.Identity{}
}

// Close cancels the requests in flight, except those that use a refresh token, and waits for all of them. Later
// requests fail. All calls of Send must have returned. Sign-ins stay in Config.Store.
func (c *Client) Close() {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	c.cancel()
	c.users.Close()
	c.callbacks.Wait()
	c.egress.close()
}
