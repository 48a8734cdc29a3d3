package delivery

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"answerd/internal/agent/webhook"
	"answerd/internal/auth/fetch"
)

const (
	attemptTimeout = 10 * time.Second // from dialing to the end of the response's header
	dialTimeout    = 5 * time.Second
	maxHeader      = 16 << 10 // bytes of a response's header
	// maxAnswerBody is how many bytes of a response are read, so that its connection can be reused.
	maxAnswerBody = 4 << 10
)

// Headers of an attempt, in addition to webhook.SignatureHeader.
const (
	idHeader        = "Webhook-Id"
	timestampHeader = "Webhook-Timestamp"
)

// sender sends attempts. It follows no redirects, because a receiver could otherwise redirect a request to any host.
type sender struct {
	Options
	// configured sends to Options.URL, at any address. It uses the proxy that the environment configures.
	configured *http.Client

	mu sync.Mutex // protects the field below
	// callbacks has the clients for callbacks, by the most private class of addresses that each may dial. They check
	// the address after DNS has resolved the host, so they use no proxy.
	callbacks map[fetch.AddressClass]*http.Client
}

// newSender returns a sender. Its transports reuse idle connections until close is called.
func newSender(opts Options) *sender {
	configured := newClient(fetch.NewTransport())
	return &sender{Options: opts, configured: configured, callbacks: make(map[fetch.AddressClass]*http.Client)}
}

// newClient returns a client that uses t and applies the limits of an attempt.
func newClient(t *http.Transport) *http.Client {
	t.MaxResponseHeaderBytes = maxHeader
	t.MaxIdleConnsPerHost = 2
	t.IdleConnTimeout = 30 * time.Second
	return &http.Client{
		Transport:     t,
		Timeout:       attemptTimeout,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// clientFor returns the client for a delivery to target. For a callback, the URL's host decides which addresses the
// client may dial: unless PrivateCallbacks is set, a public name must not lead to a private address through DNS
// (server-side request forgery). Each class of addresses has its own client, whose dialer checks them.
func (s *sender) clientFor(target string, isCallback bool) *http.Client {
	if !isCallback {
		return s.configured
	}
	limit := fetch.Public
	if u, err := url.Parse(target); err == nil {
		limit = fetch.ClassifyHost(u.Hostname())
	}
	if s.PrivateCallbacks {
		limit = max(limit, fetch.Private)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.callbacks[limit]
	if c == nil {
		t := fetch.NewTransport()
		t.Proxy = nil
		t.DialContext = (&net.Dialer{Timeout: dialTimeout, Control: func(_, address string, _ syscall.RawConn) error {
			return fetch.CheckAddress(address, limit)
		}}).DialContext
		c = newClient(t)
		s.callbacks[limit] = c
	}
	return c
}

// send makes one attempt, which takes attemptTimeout at most. It returns nil if the receiver answers 2xx. Its errors do
// not wrap those of net/http, which could contain the URL, or quote the response.
func (s *sender) send(ctx context.Context, target string, rec record, now time.Time) error {
	req, err := s.newRequest(ctx, target, rec, now)
	if err != nil {
		return err
	}
	isCallback := rec.Callback != ""
	resp, err := s.clientFor(target, isCallback).Do(req)
	if err != nil {
		var netErr net.Error
		if errors.As(err, &netErr) && netErr.Timeout() {
			return fmt.Errorf("the receiver did not answer within %s", attemptTimeout)
		}
		return errors.New("the receiver cannot be reached, is at an address that is not allowed, or broke the connection")
	}
	defer resp.Body.Close()
	if resp.StatusCode/100 != 2 {
		return fmt.Errorf("the receiver answered HTTP %d", resp.StatusCode)
	}
	// A connection is reused only if the body was read. Ignore the error: the status is all that matters.
	_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, maxAnswerBody))
	return nil
}

// newRequest returns the signed request of one attempt.
func (s *sender) newRequest(ctx context.Context, target string, rec record, now time.Time) (*http.Request, error) {
	rec.Body.Timestamp, rec.Body.DeliveryID = now.Unix(), rec.ID
	text, err := webhook.Encode(rec.Body)
	if err != nil {
		return nil, fmt.Errorf("encode a delivery: %w", err)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, target, bytes.NewReader(text))
	if err != nil {
		return nil, errors.New("the URL cannot be used")
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("User-Agent", "answerd")
	req.Header.Set(idHeader, rec.ID)
	req.Header.Set(timestampHeader, strconv.FormatInt(now.Unix(), 10))
	req.Header.Set("Idempotency-Key", rec.ID)
	req.Header.Set(webhook.SignatureHeader, webhook.Sign(s.CurrentSecret(), text))
	return req, nil
}

// close closes the idle connections.
func (s *sender) close() {
	s.configured.CloseIdleConnections()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.callbacks {
		c.CloseIdleConnections()
	}
}

// originOf returns a URL's origin, in lower case and without the default port. ok is false if deliveries must not go to
// the URL. Allowed are https, and http to a loopback address.
func originOf(raw string) (origin string, ok bool) {
	if fetch.CheckEndpoint("", raw) != nil {
		return "", false
	}
	u, err := url.Parse(raw)
	if err != nil {
		return "", false
	}
	defaultPort := map[string]string{"http": ":80", "https": ":443"}[u.Scheme]
	return u.Scheme + "://" + strings.TrimSuffix(strings.ToLower(u.Host), defaultPort), true
}

// ParseOrigin parses text as an origin, and returns it in the form that Options.CallbackOrigins requires. It returns an
// error if deliveries must not go to such an origin.
func ParseOrigin(text string) (string, error) {
	text = strings.TrimSuffix(strings.TrimSpace(text), "/")
	u, err := url.Parse(text)
	origin, ok := originOf(text)
	isOrigin := ok && err == nil && u.Path == "" && u.RawQuery == ""
	if !isOrigin {
		return "", fmt.Errorf("%q is not an origin like https://crm.example.com, or http:// on the loopback address", text)
	}
	return origin, nil
}
