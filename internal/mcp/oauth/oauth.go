// Package oauth gets the tokens for one MCP server from the authorization server that
// it names, or that the configuration does, as the MCP authorization specification
// wants it (2025-11-25 and 2026-07-28, basic/authorization).
//
//	c, err := oauth.New(oauth.Config{Kind: oauth.AuthorizationCode, URL: "https://crm.example.com/mcp", …})
//	defer c.Close()
//	resp, err := c.For(caller).Send(transport, req)   // with a token, got now if need be
//	if errors.Is(err, oauth.ErrConsent) {
//		a, err := c.Authorize(ctx, caller)        // show a.URL to the caller, wait for a.Done
//	}
//	name, err := c.Callback(ctx, query)               // what the browser came back with
//
// A request goes without a token until the server refuses one, because the refusal says
// where to ask and for what (RFC 9728); where the configuration names the issuer, only
// authorization_code waits for that. Every principal has tokens of his own; however
// many requests of one wait, one request for a token is under way.
//
// What a server says is hostile until checked: its metadata must be its own, the
// authorization server's must be of the issuer that was asked for, everything is https
// beyond loopback, bounded, without redirects, and never nearer to this machine than
// the server itself (egress.go). Credentials are bound to the issuer that they were made
// for; those of the configuration go to the issuer that it names, or else to the first
// one that the server named, and to no other.
//
// The SDK's handlers do the same for one user; they are not race free, follow what a
// server names to any address, and know neither private_key_jwt, jwt-bearer nor DPoP.
package oauth

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"sync"

	"answerd/internal/auth"
	"answerd/internal/auth/fetch"
	"answerd/internal/auth/token"
	"answerd/internal/lru"
)

// Client is the tokens for one MCP server. New makes one; it may be used concurrently.
type Client struct {
	cfg    Config
	log    *slog.Logger
	server *url.URL // without query
	egress *egress
	key    *proofKey // nil without DPoP
	finder *finder

	life context.Context // ends with Close
	end  context.CancelFunc

	holders *lru.Cache[holderKey, *holder]

	mu      sync.Mutex // protects what follows
	closed  bool
	work    sync.WaitGroup // callbacks
	pending map[string]*Authorization
}

// New checks cfg and asks nobody anything. Close must be called in the end.
func New(cfg Config) (*Client, error) {
	server, err := url.Parse(cfg.URL)
	if err != nil {
		return nil, errors.New("the server's URL is no URL")
	}
	server.RawQuery, server.ForceQuery = "", false
	if cfg.Issuer != "" || cfg.TokenURL != "" {
		if err := token.CheckTokenEndpoint(cfg.Issuer, cfg.TokenURL); err != nil {
			return nil, err
		}
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	c := &Client{
		cfg: cfg, log: cfg.Logger, server: server, egress: newEgress(server),
		pending: map[string]*Authorization{},
	}
	c.holders = c.newHolders()
	c.finder = newFinder(c)
	c.life, c.end = context.WithCancel(context.Background())
	if cfg.DPoP {
		if c.key, err = newProofKey(); err != nil {
			return nil, fmt.Errorf("make a key for DPoP: %w", err)
		}
	}
	return c, nil
}

// For is the tokens of a principal; of the service itself, whoever id is, for kinds that
// are not personal. It holds nothing and need not be closed.
func (c *Client) For(id auth.Identity) *Source { return &Source{c, c.principal(id)} }

// principal is what is kept of id: the token that he brought is only where it is needed.
func (c *Client) principal(id auth.Identity) auth.Identity {
	switch c.cfg.Kind {
	case Enterprise:
		return auth.Identity{Issuer: id.Issuer, Subject: id.Subject, Token: id.Token}
	case AuthorizationCode:
		return auth.Identity{Issuer: id.Issuer, Subject: id.Subject}
	}
	return auth.Identity{}
}

// Close ends what is under way, waits for it, and lets nothing else start. Nobody may be
// sending any more.
func (c *Client) Close() {
	c.mu.Lock()
	c.closed = true
	for _, a := range c.pending {
		a.settle(errClosed)
	}
	clear(c.pending)
	c.mu.Unlock()
	c.end()
	c.holders.Close()
	c.work.Wait()
	c.egress.close()
}

// ErrConsent is in the chain of an error whose remedy is Authorize: the principal has to
// agree in his browser, for the first time or to more.
var ErrConsent = errors.New("the caller has to allow it first")

// errClosed is why nothing is fetched any more.
var errClosed = errors.New("the service ends")

// Error is why a request was not sent, or was refused for good. It was not carried out.
type Error struct {
	Public string // fit for the caller: no host, no value
	Err    error  // the cause, for the log; may be nil
}

func (e *Error) Error() string {
	if e.Err == nil {
		return e.Public
	}
	return e.Public + ": " + e.Err.Error()
}

func (e *Error) Unwrap() error { return e.Err }

// failed is err as an Error.
func failed(err error) *Error {
	if errors.Is(err, ErrConsent) {
		return &Error{Public: "its user has to allow first that it is used on his behalf", Err: err}
	}
	return &Error{Public: "there is no token for it", Err: err}
}

// wrong is a failure in our own words, of what somebody else answered.
func wrong(format string, args ...any) error {
	return &fetch.Error{Public: fmt.Sprintf(format, args...)}
}
