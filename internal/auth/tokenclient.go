package auth

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"
)

const (
	tokenEndpoint = "the token endpoint"
	secretTimeout = 10 * time.Second // for reading the client secret
)

// tokenClient is one client at one token endpoint, whichever grant it asks for. It may
// ask for several tokens at a time.
type tokenClient struct {
	cfg      ClientCredentialsConfig
	client   *http.Client
	metadata *metadata // nil where the endpoint is configured

	mu     sync.Mutex // protects secret
	secret Secret     // what cfg.Secret gave last
}

// newTokenClient checks cfg and fetches nothing.
func newTokenClient(cfg ClientCredentialsConfig) (*tokenClient, error) {
	if err := CheckTokenEndpoint(cfg.Issuer, cfg.TokenURL); err != nil {
		return nil, err
	}
	if cfg.ClientID == "" || cfg.Secret == nil {
		return nil, errors.New("the client's id and secret must be set")
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	c := &tokenClient{cfg: cfg, client: outboundClient(cfg.HTTPClient)}
	if cfg.Issuer != "" {
		c.metadata = newMetadata(cfg.Issuer, c.client)
	}
	return c, nil
}

// close ends what is read of the metadata. Nobody may be asking for a token any more.
func (c *tokenClient) close() {
	if c.metadata != nil {
		c.metadata.endpoints.close()
	}
	if c.cfg.HTTPClient == nil {
		c.client.CloseIdleConnections()
	}
}

// CheckTokenEndpoint says why tokens cannot be asked for at the endpoint of that URL,
// or at the one of that issuer: one of the two must be given, and be https or on the
// loopback address. The error quotes neither.
func CheckTokenEndpoint(issuer, tokenURL string) error {
	switch {
	case issuer != "" && tokenURL != "":
		return errors.New("an issuer and a token URL are both set")
	case issuer == "":
		return CheckEndpoint("the token URL", tokenURL)
	case strings.ContainsAny(issuer, "?#"): // RFC 8414 section 2
		return errors.New("the issuer must not have a query or a fragment")
	}
	return CheckEndpoint("the issuer", issuer)
}

// fetch is one token, and one line in the log, which holds no value of either side.
func (c *tokenClient) fetch(ctx context.Context, form url.Values) (Fresh, error) {
	started := time.Now()
	f, err := c.fetchWithSecret(ctx, form)
	if err != nil {
		c.cfg.Logger.WarnContext(ctx, "token fetch failed", "client_id", c.cfg.ClientID, "error", err.Error())
		return Fresh{}, err
	}
	c.cfg.Logger.DebugContext(ctx, "token fetched", "client_id", c.cfg.ClientID,
		"life_s", int(f.Life.Seconds()), "took_ms", time.Since(started).Milliseconds())
	return f, nil
}

// fetchWithSecret gets a token. A client that the IAM does not know, or no longer with
// this secret, may have got another secret in the vault: it is read once more, and if
// it has changed the request is repeated, once.
func (c *tokenClient) fetchWithSecret(ctx context.Context, form url.Values) (Fresh, error) {
	before := c.lastSecret()
	secret, justRead := before, before.IsZero()
	if justRead {
		var err error
		if secret, err = c.readSecret(ctx); err != nil {
			return Fresh{}, err
		}
	}
	f, err := c.request(ctx, form, secret)
	var refused *FetchError
	if justRead || !errors.As(err, &refused) || refused.Code != codeInvalidClient && refused.Status != http.StatusUnauthorized {
		return f, err
	}
	secret, readErr := c.readSecret(ctx)
	if readErr != nil {
		return Fresh{}, readErr
	}
	if secret == before {
		return Fresh{}, err
	}
	return c.request(ctx, form, secret)
}

func (c *tokenClient) lastSecret() Secret {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.secret
}

// readSecret asks for the client secret and keeps it. An error that is ours already,
// the vault's, needs no other name.
func (c *tokenClient) readSecret(ctx context.Context) (Secret, error) {
	ctx, cancel := context.WithTimeout(ctx, secretTimeout)
	defer cancel()
	secret, err := c.cfg.Secret(ctx)
	var known *FetchError
	switch {
	case errors.As(err, &known):
		return Secret{}, known
	case err != nil:
		return Secret{}, &FetchError{Public: "the client secret cannot be read", Err: err}
	case secret.IsZero():
		return Secret{}, &FetchError{Public: "the client secret is empty"}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.secret = secret
	return secret, nil
}

// request is one round trip to the token endpoint, after those that find it.
func (c *tokenClient) request(ctx context.Context, form url.Values, secret Secret) (Fresh, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	endpoint := c.cfg.TokenURL
	if c.metadata != nil {
		var err error
		if endpoint, err = c.metadata.tokenEndpoint(ctx); err != nil {
			return Fresh{}, err
		}
	}
	req, err := NewTokenRequest(ctx, endpoint, form, c.cfg.ClientID, secret)
	if err != nil {
		return Fresh{}, err
	}
	asked := time.Now()
	got, err := Do(c.client, req, tokenEndpoint, maxTokenReply)
	if err != nil {
		return Fresh{}, err
	}
	if got.Status != http.StatusOK {
		return Fresh{}, &FetchError{Public: tokenEndpoint + " refused the request", Status: got.Status, Code: ErrorCode(got.Body)}
	}
	return ReadTokenReply(got, asked, "Bearer")
}

// NewTokenRequest returns form as a request to a token endpoint, with the client's id and
// secret in its header; without a secret the client must be named in the form.
//
// golang.org/x/oauth2 sends the same request and reads the reply in one step, which does
// not fit: it refuses a token whose expires_in is 1e12 or 1.5 (F26), takes JSON that is
// labelled text/plain for a form, the last of two access_tokens, and hides the Date header.
func NewTokenRequest(ctx context.Context, endpoint string, form url.Values, id string, secret Secret) (*http.Request, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, endpoint, strings.NewReader(form.Encode()))
	if err != nil {
		return nil, &FetchError{Public: "the token request cannot be made"}
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	req.Header.Set("Accept", "application/json")
	if !secret.IsZero() {
		// RFC 6749 section 2.3.1: both are form-encoded first, so that a colon or a
		// non-ASCII letter in them survives the Basic scheme.
		req.SetBasicAuth(url.QueryEscape(id), url.QueryEscape(secret.Reveal()))
	}
	return req, nil
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
