package delivery

import (
	"bytes"
	"context"
	"encoding/json"
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
	"answerd/internal/auth"
	"answerd/internal/auth/fetch"
)

const (
	attemptTimeout = 10 * time.Second // from dialing to the end of the answer's header
	dialTimeout    = 5 * time.Second
	maxHeader      = 16 << 10 // bytes of an answer's header
	// maxAnswerBody is how much of an answer is read, so that its connection can be used again.
	maxAnswerBody = 4 << 10
)

// Headers of an attempt, besides webhook.SignatureHeader.
const (
	idHeader        = "Webhook-Id"
	timestampHeader = "Webhook-Timestamp"
)

// sender sends attempts. It follows no redirects, which would carry an answer to whatever host a
// receiver names.
type sender struct {
	secret func() auth.Secret
	// trusted is for the operator's URL, which may be anywhere; proxies from the environment are used.
	trusted *http.Client
	// Callbacks have paths that callers chose, at origins of the configuration. The address is checked
	// when DNS has resolved the host; therefore no proxy is used.
	allowPrivate bool

	mu        sync.Mutex // protects the field below
	callbacks map[fetch.AddressClass]*http.Client
}

// newSender returns a sender. Its transports use idle connections again until close.
func newSender(o Options) *sender {
	return &sender{
		secret: o.CurrentSecret, allowPrivate: o.PrivateCallbacks, callbacks: make(map[fetch.AddressClass]*http.Client),
		trusted: newClient(http.DefaultTransport.(*http.Transport).Clone()),
	}
}

// newClient returns a client with the bounds of an attempt.
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

// clientFor returns the client for a delivery to that URL. A callback may go to addresses that are at most as
// private as its own host is written: one at a public name must not reach a private address through DNS.
// There is one client for each limit, because the dialer of its transport checks it.
func (s *sender) clientFor(target string, isCallback bool) *http.Client {
	if !isCallback {
		return s.trusted
	}
	limit := fetch.Public
	if u, err := url.Parse(target); err == nil {
		limit = fetch.ClassifyHost(u.Hostname())
	}
	if s.allowPrivate {
		limit = max(limit, fetch.Private)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.callbacks[limit]
	if c == nil {
		t := http.DefaultTransport.(*http.Transport).Clone()
		t.Proxy = nil
		t.DialContext = (&net.Dialer{Timeout: dialTimeout, Control: func(_, address string, _ syscall.RawConn) error {
			return fetch.CheckAddress(address, limit)
		}}).DialContext
		c = newClient(t)
		s.callbacks[limit] = c
	}
	return c
}

// send makes one attempt. Its error is in our own words: what net/http says could name the URL and
// quote the answer.
func (s *sender) send(ctx context.Context, target string, rec record, now time.Time) error {
	b := rec.Body
	b.Timestamp, b.DeliveryID = now.Unix(), rec.ID
	var text bytes.Buffer
	enc := json.NewEncoder(&text)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(b); err != nil {
		return fmt.Errorf("encode a delivery: %w", err)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, target, bytes.NewReader(text.Bytes()))
	if err != nil {
		return errors.New("the URL cannot be used")
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("User-Agent", "answerd")
	req.Header.Set(idHeader, rec.ID)
	req.Header.Set(timestampHeader, strconv.FormatInt(b.Timestamp, 10))
	req.Header.Set("Idempotency-Key", rec.ID)
	req.Header.Set(webhook.SignatureHeader, webhook.Sign(s.secret(), text.Bytes()))
	resp, err := s.clientFor(target, rec.Callback != "").Do(req)
	if err != nil {
		var timeout net.Error
		if errors.As(err, &timeout) && timeout.Timeout() {
			return fmt.Errorf("the receiver did not answer within %s", attemptTimeout)
		}
		return errors.New("the receiver cannot be reached, is at an address that is not allowed, or broke the connection")
	}
	defer resp.Body.Close()
	if resp.StatusCode/100 != 2 {
		return fmt.Errorf("the receiver answered HTTP %d", resp.StatusCode)
	}
	_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, maxAnswerBody)) // the status has said all
	return nil
}

// close closes the idle connections.
func (s *sender) close() {
	s.trusted.CloseIdleConnections()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.callbacks {
		c.CloseIdleConnections()
	}
}

// originOf returns the origin of a URL to which deliveries may go: https, or http on the loopback
// address.
func originOf(raw string) (origin string, ok bool) {
	if fetch.CheckEndpoint("", raw) != nil {
		return "", false
	}
	u, err := url.Parse(raw)
	if err != nil {
		return "", false
	}
	port := map[string]string{"http": ":80", "https": ":443"}[u.Scheme]
	return u.Scheme + "://" + strings.TrimSuffix(strings.ToLower(u.Host), port), true
}

// ParseOrigin returns an origin in the form of Options.CallbackOrigins.
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
