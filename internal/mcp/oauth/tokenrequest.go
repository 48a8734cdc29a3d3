package oauth

import (
	"context"
	"encoding/json"
	"maps"
	"net/http"
	"net/url"
	"strings"
	"time"

	"answerd/internal/auth"
	"answerd/internal/auth/fetch"
	"answerd/internal/auth/token"
)

const (
	tokenEndpoint = "the token endpoint"
	maxTokenReply = 64 << 10 // bytes
	maxRefresh    = 16 << 10 // bytes of a refresh token; a longer one is not kept
)

// granted is what a token endpoint gave.
type granted struct {
	token.Token
	refresh auth.Secret // zero: none
	scopes  []string    // nil where it didn't say, which means those asked for
}

// request asks a for a token with form, as who.
func (c *Client) request(ctx context.Context, a *authority, who identity, form url.Values) (granted, error) {
	started := time.Now()
	if a.resource != "" {
		form.Set("resource", a.resource)
	}
	reply, err := c.post(ctx, a, who, form)
	if err != nil {
		return granted{}, err
	}
	return c.read(reply, started)
}

// post sends a token request, and once more if the endpoint wants a nonce in its proof
// (RFC 9449 section 8).
func (c *Client) post(ctx context.Context, a *authority, who identity, form url.Values) (fetch.Reply, error) {
	for again := false; ; again = true {
		req, err := c.tokenRequest(ctx, a, who, form)
		if err != nil {
			return fetch.Reply{}, err
		}
		got, err := fetch.Do(c.egress.to(a.token, a.trusted), req, tokenEndpoint, maxTokenReply)
		if err != nil {
			return fetch.Reply{}, err
		}
		fresh := c.key != nil && c.key.hear(req.URL, got.Header)
		switch {
		case got.Status == http.StatusOK:
			return got, nil
		case !again && fresh && wantsNonce(got):
			continue
		}
		return fetch.Reply{}, &fetch.Error{Public: tokenEndpoint + " refused the request", Status: got.Status, Code: token.ErrorCode(got.Body)}
	}
}

// tokenRequest is form as a request of who's, with a proof of its own.
func (c *Client) tokenRequest(ctx context.Context, a *authority, who identity, form url.Values) (*http.Request, error) {
	form = maps.Clone(form)
	if err := c.sign(form, a, who); err != nil {
		return nil, err
	}
	var secret auth.Secret
	if who.method == methodBasic {
		secret = who.secret
	}
	req, err := token.NewRequest(ctx, a.token, form, who.id, secret)
	if err != nil {
		return nil, err
	}
	if c.key != nil {
		if err := c.key.prove(req, auth.Secret{}); err != nil {
			return nil, wrong("the token request cannot be signed")
		}
	}
	return req, nil
}

// read is what a successful reply gives.
func (c *Client) read(r fetch.Reply, asked time.Time) (granted, error) {
	kind := "Bearer"
	if c.key != nil {
		kind = "DPoP"
	}
	fresh, err := token.ParseReply(r, asked, kind)
	if err != nil {
		return granted{}, err
	}
	g := granted{Token: fresh}
	var w struct {
		Refresh string  `json:"refresh_token"`
		Scope   *string `json:"scope"`
	}
	// What is broken of these is not there: the token is.
	if json.Unmarshal(r.Body, &w) == nil {
		if len(w.Refresh) <= maxRefresh {
			g.refresh = auth.NewSecret(w.Refresh)
		}
		if w.Scope != nil {
			g.scopes = cleanScopes(strings.Fields(*w.Scope))
		}
	}
	return g, nil
}
