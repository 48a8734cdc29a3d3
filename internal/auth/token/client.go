package token

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"answerd/internal/auth"
	"answerd/internal/auth/fetch"
	"answerd/internal/auth/issuer"
	"answerd/internal/help"
)

// ClientCredentialsConfig says how the service gets its own token. ClientID, Secret, and either TokenURL or Issuer must
// be set.
type ClientCredentialsConfig struct {
	// TokenURL is the IAM's token endpoint: https, or http on the loopback address.
	TokenURL string
	// Issuer is set instead of TokenURL to read the token endpoint from the issuer's metadata, which must name exactly
	// this issuer (RFC 8414).
	Issuer   string
	ClientID string
	// Secret returns the client secret. FixedSecret and ocivault.NewReader return such functions. It is called for the
	// first request, and again only after the IAM has refused the secret, so it needs no cache. Its context ends after
	// 10 s.
	Secret func(context.Context) (auth.Secret, error)
	// Scope is sent unchanged. It has scopes separated by spaces. If it is "", none is sent.
	Scope string
	// Resource is the URI of the server that the token is for (RFC 8707). If it is "", none is sent.
	Resource string
	// HTTPClient sends the requests. nil means a new client with its own connections. Redirects are not followed in
	// either case.
	HTTPClient *http.Client
	// Logger gets a debug line for each token and a warning for each failure. nil means no log.
	Logger *slog.Logger
}

// addTarget adds the parameters scope and resource to form, if they are set. They limit what the token can be used for.
func (cfg *ClientCredentialsConfig) addTarget(form url.Values) {
	if cfg.Scope != "" {
		form.Set("scope", cfg.Scope)
	}
	if cfg.Resource != "" {
		form.Set("resource", cfg.Resource)
	}
}

const (
	endpointName  = "the token endpoint" // what errors call it
	secretTimeout = 10 * time.Second     // for reading the client secret
)

// endpointClient sends one OAuth client's token requests to one token endpoint, for any grant. It may be used
// concurrently.
type endpointClient struct {
	cfg      ClientCredentialsConfig
	client   *http.Client
	metadata *issuer.Cache[string]       // the token endpoint from the issuer's metadata; nil if cfg.TokenURL is set
	secret   atomic.Pointer[auth.Secret] // the last result of cfg.Secret; nil before the first call
}

// newEndpointClient checks cfg and returns a client. It sends no request. Callers must call close.
func newEndpointClient(cfg ClientCredentialsConfig) (*endpointClient, error) {
	if err := CheckTokenEndpoint(cfg.Issuer, cfg.TokenURL); err != nil {
		return nil, err
	}
	if cfg.ClientID == "" || cfg.Secret == nil {
		return nil, errors.New("the client's id and secret must be set")
	}
	cfg.Logger = cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler))
	c := &endpointClient{cfg: cfg, client: fetch.NewClient(cfg.HTTPClient)}
	if cfg.Issuer != "" {
		c.metadata = newEndpointCache(cfg.Issuer, c.client)
	}
	return c, nil
}

// newEndpointCache returns a cache for the token endpoint in an issuer's metadata (RFC 8414). issuerURL is the issuer's
// identifier. The metadata is read with client when the cache is first used.
func newEndpointCache(issuerURL string, client *http.Client) *issuer.Cache[string] {
	source := issuer.Source{Issuer: issuerURL, Name: "the issuer's metadata", Client: client}
	return issuer.NewCache(source.Name, func(ctx context.Context) (string, error) {
		document, err := source.Read(ctx)
		if err != nil {
			return "", err
		}
		endpoint, ok := document.Endpoint("token_endpoint")
		if !ok {
			return "", source.UnusableError("names no token endpoint that a secret may be sent to")
		}
		return endpoint, nil
	})
}

// close cancels a request for metadata. It closes idle connections only if the client made its own HTTP client. All
// token requests must have ended before.
func (c *endpointClient) close() {
	if c.metadata != nil {
		c.metadata.Close()
	}
	if c.cfg.HTTPClient == nil {
		c.client.CloseIdleConnections()
	}
}

// CheckTokenEndpoint returns an error unless exactly one of issuer and tokenURL is set, and that one is an https URL,
// or an http URL on the loopback address. The error does not quote the URLs.
func CheckTokenEndpoint(issuer, tokenURL string) error {
	switch {
	case issuer != "" && tokenURL != "":
		return errors.New("an issuer and a token URL are both set")
	case issuer == "":
		return fetch.CheckEndpoint("the token URL", tokenURL)
	case strings.ContainsAny(issuer, "?#"): // RFC 8414 section 2
		return errors.New("the issuer must not have a query or a fragment")
	}
	return fetch.CheckEndpoint("the issuer", issuer)
}

// requestToken requests one token and logs the outcome, without a secret or a token. form has the request's parameters
// except the client's id and secret.
func (c *endpointClient) requestToken(ctx context.Context, form url.Values) (Token, error) {
	started := time.Now()
	t, err := c.requestWithSecret(ctx, form)
	if err != nil {
		if !errors.Is(ctx.Err(), context.Canceled) { // by Close, at the end of the process
			c.cfg.Logger.WarnContext(ctx, "token fetch failed",
				"client_id", c.cfg.ClientID, "error", err.Error(), help.ServerTokens.Attr())
		}
		return Token{}, err
	}
	c.cfg.Logger.DebugContext(ctx, "token fetched", "client_id", c.cfg.ClientID,
		"life_s", int(t.Lifetime.Seconds()), "took_ms", time.Since(started).Milliseconds())
	return t, nil
}

// requestWithSecret sends the request with the client secret that was read last. If none was read yet, it reads the
// secret first. If the token endpoint refuses a client secret that was read for an earlier request, the secret may have
// been rotated. requestWithSecret then reads it again and, if it has changed, repeats the request once.
func (c *endpointClient) requestWithSecret(ctx context.Context, form url.Values) (Token, error) {
	last := c.secret.Load()
	if last == nil {
		secret, err := c.readSecret(ctx)
		if err != nil {
			return Token{}, err
		}
		return c.sendRequest(ctx, form, secret)
	}
	t, err := c.sendRequest(ctx, form, *last)
	if !isClientRefused(err) {
		return t, err
	}
	newSecret, readErr := c.readSecret(ctx)
	if readErr != nil {
		return Token{}, readErr
	}
	if newSecret == *last {
		return Token{}, err
	}
	return c.sendRequest(ctx, form, newSecret)
}

// isClientRefused reports whether err means that the token endpoint refused the client's credentials (RFC 6749 section
// 5.2), rather than the grant.
func isClientRefused(err error) bool {
	refusal, ok := errors.AsType[*fetch.Error](err)
	return ok && (refusal.Code == codeInvalidClient || refusal.Status == http.StatusUnauthorized)
}

// readSecret calls cfg.Secret and stores the result as the last secret. Its error is a *fetch.Error. If cfg.Secret
// returned one, such as the vault's, it is that one.
func (c *endpointClient) readSecret(ctx context.Context) (auth.Secret, error) {
	ctx, cancel := context.WithTimeout(ctx, secretTimeout)
	defer cancel()
	secret, err := c.cfg.Secret(ctx)
	var fetchErr *fetch.Error
	switch {
	case errors.As(err, &fetchErr):
		return auth.Secret{}, fetchErr
	case err != nil:
		return auth.Secret{}, &fetch.Error{Public: "the client secret cannot be read", Err: err}
	case secret.IsZero():
		return auth.Secret{}, &fetch.Error{Public: "the client secret is empty"}
	}
	c.secret.Store(&secret)
	return secret, nil
}

// sendRequest sends one token request with the given client secret, and returns the token. If the configuration has an
// issuer, it first gets the token endpoint from the issuer's metadata.
func (c *endpointClient) sendRequest(ctx context.Context, form url.Values, secret auth.Secret) (Token, error) {
	ctx, cancel := context.WithTimeout(ctx, fetch.Timeout)
	defer cancel()
	tokenURL := c.cfg.TokenURL
	if c.metadata != nil {
		var err error
		if tokenURL, err = c.metadata.Get(ctx); err != nil {
			return Token{}, err
		}
	}
	req, err := NewRequest(ctx, tokenURL, form, c.cfg.ClientID, secret)
	if err != nil {
		return Token{}, err
	}
	requested := time.Now()
	reply, err := fetch.Do(c.client, req, endpointName, maxReply)
	if err != nil {
		return Token{}, err
	}
	if reply.Status != http.StatusOK {
		code := ErrorCode(reply.Body)
		return Token{}, &fetch.Error{Public: endpointName + " refused the request", Status: reply.Status, Code: code}
	}
	return ParseReply(reply, requested, "Bearer")
}

// NewRequest returns a request to a token endpoint with form as its body. It sends the client's id and secret in the
// header Authorization. If secret is zero, it leaves out that header, and form must contain the client's id.
//
// golang.org/x/oauth2 sends the same request, but does not let its callers decode the reply. It rejects a token whose
// expires_in is 1e12 or 1.5, decodes JSON that is labeled text/plain as a form, takes the last of two access_tokens,
// and hides the header Date.
func NewRequest(ctx context.Context, tokenURL string, form url.Values, clientID string, secret auth.Secret) (*http.Request, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, tokenURL, strings.NewReader(form.Encode()))
	if err != nil {
		return nil, &fetch.Error{Public: "the token request cannot be created"}
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	req.Header.Set("Accept", "application/json")
	if !secret.IsZero() {
		// RFC 6749 section 2.3.1 requires form encoding for both, because the Basic scheme supports neither a colon in
		// the id nor characters outside of ASCII.
		req.SetBasicAuth(url.QueryEscape(clientID), url.QueryEscape(secret.Reveal()))
	}
	return req, nil
}
