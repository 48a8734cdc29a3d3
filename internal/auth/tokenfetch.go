package auth

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"strings"
	"time"
)

const (
	tokenEndpoint = "the token endpoint"
	secretTimeout = 10 * time.Second // for reading the client secret
)

// fetch is the renewal's: one token, and one line in the log, which holds no value of
// either side.
func (c *ClientCredentials) fetch(ctx context.Context) (grant, error) {
	started := time.Now()
	g, err := c.fetchWithSecret(ctx)
	if err != nil {
		c.cfg.Logger.WarnContext(ctx, "token fetch failed", "client_id", c.cfg.ClientID, "error", err.Error())
		return grant{}, err
	}
	c.cfg.Logger.DebugContext(ctx, "token fetched", "client_id", c.cfg.ClientID,
		"life_s", int(g.expires.Sub(started).Seconds()), "took_ms", time.Since(started).Milliseconds())
	return g, nil
}

// fetchWithSecret gets a token. A client that the IAM does not know, or no longer with
// this secret, may have got another secret in the vault: it is read once more, and if
// it has changed the request is repeated, once.
func (c *ClientCredentials) fetchWithSecret(ctx context.Context) (grant, error) {
	justRead := c.secret.IsZero()
	if justRead {
		if err := c.readSecret(ctx); err != nil {
			return grant{}, err
		}
	}
	g, err := c.request(ctx)
	var refused *FetchError
	if justRead || !errors.As(err, &refused) || refused.Code != codeInvalidClient && refused.Status != http.StatusUnauthorized {
		return g, err
	}
	before := c.secret
	if readErr := c.readSecret(ctx); readErr != nil {
		return grant{}, readErr
	}
	if c.secret == before {
		return grant{}, err
	}
	return c.request(ctx)
}

// readSecret asks for the client secret and keeps it. An error that is ours already,
// the vault's, needs no other name.
func (c *ClientCredentials) readSecret(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, secretTimeout)
	defer cancel()
	secret, err := c.cfg.Secret(ctx)
	var known *FetchError
	switch {
	case errors.As(err, &known):
		return known
	case err != nil:
		return &FetchError{Public: "the client secret cannot be read", Err: err}
	case secret.IsZero():
		return &FetchError{Public: "the client secret is empty"}
	}
	c.secret = secret
	return nil
}

// request is one round trip to the token endpoint.
func (c *ClientCredentials) request(ctx context.Context) (grant, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	form := url.Values{"grant_type": {"client_credentials"}}
	if c.cfg.Scope != "" {
		form.Set("scope", c.cfg.Scope)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.cfg.TokenURL, strings.NewReader(form.Encode()))
	if err != nil {
		return grant{}, &FetchError{Public: "the token request cannot be made"}
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	req.Header.Set("Accept", "application/json")
	// RFC 6749 section 2.3.1: both are form-encoded first, so that a colon or a
	// non-ASCII letter in them survives the Basic scheme.
	req.SetBasicAuth(url.QueryEscape(c.cfg.ClientID), url.QueryEscape(c.secret.Reveal()))

	asked := time.Now()
	got, err := exchange(c.client, req, tokenEndpoint, maxTokenReply)
	if err != nil {
		return grant{}, err
	}
	if got.status != http.StatusOK {
		return grant{}, &FetchError{Public: tokenEndpoint + " refused the request", Status: got.status, Code: errorCode(got.body)}
	}
	token, life, err := parseTokenReply(got.body, issuerTime(got.header, asked))
	if err != nil {
		return grant{}, &FetchError{Public: err.Error(), Status: got.status}
	}
	return newGrant(token, life, asked), nil
}

// issuerTime is what the other side's clock showed, which exp was set by: judged by a
// clock of ours that is 90 s off, a token would look expired or be used for too long
// (F27). Without a Date header ours has to do.
func issuerTime(header http.Header, ours time.Time) time.Time {
	if date, err := http.ParseTime(header.Get("Date")); err == nil {
		return date
	}
	return ours
}
