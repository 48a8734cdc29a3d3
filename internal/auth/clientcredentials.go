package auth

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"time"
)

// ClientCredentialsConfig says where the service's own token comes from.
type ClientCredentialsConfig struct {
	// TokenURL is the IAM's token endpoint: https, or http on the loopback address.
	TokenURL string
	ClientID string
	// Secret gives the client secret: Fixed, or VaultSecret. It is called at the
	// first fetch, and again once the IAM has refused the secret that it gave, so it
	// need not remember anything. It gets 10 s and must observe its context.
	Secret func(context.Context) (Secret, error)
	// Scope is asked for as it is, several with spaces between; "" asks for none.
	Scope string
	// HTTPClient is used with its redirects off; nil means one of our own.
	HTTPClient *http.Client
	// Logger gets a debug line per token and a warning per failure; nil is silent.
	Logger *slog.Logger
}

// ClientCredentials is the service's own token by the client credentials grant (RFC
// 6749 section 4.4), kept until shortly before it expires. Callers share one request;
// a failed one is followed by a pause of 1 s to 30 s, in which the old token is
// given while it is valid and callers fail at once when it is not.
//
// Nothing is fetched that nobody asks for: the refresh is started by a caller that
// comes late in a token's life, who takes the old one away and does not wait.
type ClientCredentials struct {
	cfg    ClientCredentialsConfig
	client *http.Client
	// secret is what cfg.Secret gave last; only the fetch under way touches it.
	secret Secret

	grants *renewal[grant]
	forced time.Time // the last Renew that fetched; protected by grants.mu
}

// grant is a token and its times, which are read on the monotonic clock: setting
// the wall clock does not age it.
type grant struct {
	token   Secret
	refresh time.Time // from here on a new one is fetched
	expires time.Time // from here on it isn't given to anybody
}

// forcedEvery is the shortest time between two fetches that Renew starts.
const forcedEvery = time.Second

// NewClientCredentials checks cfg and fetches nothing. Close must be called in the end.
func NewClientCredentials(cfg ClientCredentialsConfig) (*ClientCredentials, error) {
	if err := checkEndpoint("the token URL", cfg.TokenURL); err != nil {
		return nil, err
	}
	if cfg.ClientID == "" || cfg.Secret == nil {
		return nil, errors.New("the client's id and secret must be set")
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	c := &ClientCredentials{cfg: cfg, client: outboundClient(cfg.HTTPClient)}
	c.grants = newRenewal(c.fetch, func(failures int, _ bool) time.Duration {
		if failures == 0 {
			return 0
		}
		return backoff(failures)
	})
	return c, nil
}

// Close ends the fetch under way, waits for it, and lets no other start. A token that
// is there is still given while it is valid, so that sessions can be closed with it.
func (c *ClientCredentials) Close() {
	c.grants.close()
	if c.cfg.HTTPClient == nil {
		c.client.CloseIdleConnections()
	}
}

// Token implements TokenSource. A token that is valid costs a mutex and no allocation,
// because every request to every MCP server asks. Errors are *FetchError, or ctx's.
func (c *ClientCredentials) Token(ctx context.Context) (Secret, error) {
	c.grants.mu.Lock()
	now, have := time.Now(), c.grants.value
	if now.Before(have.expires) {
		if !now.Before(have.refresh) {
			// For the callers to come. Why none starts is of no interest
			// while this one is good.
			_, _ = c.grants.startLocked()
		}
		c.grants.mu.Unlock()
		return have.token, nil
	}
	under, err := c.grants.startLocked()
	c.grants.mu.Unlock()
	if err != nil {
		return Secret{}, err
	}
	fresh, err := under.wait(ctx, "a token")
	return fresh.token, err
}

// Renew implements TokenSource. It starts at most one fetch per second, and none in
// the pause after a failed one: a server that refuses every token costs the IAM no
// more than that, and the callers in between fail at once. Others are given the
// rejected token until the new one is there, because it may have been refused by
// a server that is wrong. Errors are *FetchError, or ctx's.
func (c *ClientCredentials) Renew(ctx context.Context, rejected Secret) (Secret, error) {
	c.grants.mu.Lock()
	now, have := time.Now(), c.grants.value
	if have.token != rejected && now.Before(have.expires) {
		c.grants.mu.Unlock()
		return have.token, nil
	}
	under, err := c.startForcedLocked(now)
	c.grants.mu.Unlock()
	if err != nil {
		return Secret{}, err
	}
	fresh, err := under.wait(ctx, "a new token")
	if err != nil {
		return Secret{}, err
	}
	if fresh.token == rejected {
		return Secret{}, &FetchError{Public: "the token endpoint gave the refused token again"}
	}
	return fresh.token, nil
}

// startForcedLocked is startLocked for Renew; grants.mu is held. A fetch that is under
// way will do: what it brings is newer than what was refused.
func (c *ClientCredentials) startForcedLocked(now time.Time) (*flight[grant], error) {
	if c.grants.current != nil {
		return c.grants.current, nil
	}
	if !c.forced.IsZero() && now.Before(c.forced.Add(forcedEvery)) {
		return nil, errTooSoon
	}
	under, err := c.grants.startLocked()
	if err == nil {
		c.forced = now
	}
	return under, err
}

// newGrant lays down when a token that was asked for at asked is refreshed: the
// larger of 30 s and a tenth of its life before the end, but not in the first half
// of it. Up to a tenth more, by chance, keeps replicas that started together from
// asking together.
func newGrant(token Secret, life time.Duration, asked time.Time) grant {
	lead := max(30*time.Second, life/10)
	lead += time.Duration(rand.Int64N(int64(lead / 10)))
	lead = min(lead, life/2)
	return grant{token, asked.Add(life - lead), asked.Add(life)}
}
