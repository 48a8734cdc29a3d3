// Package fetch sends requests for keys, metadata and tokens to identity providers and secret stores. Requests are
// limited in time and size, and do not follow redirects. Errors never quote the reply. With WithoutReply and Transport,
// other packages can keep replies out of their errors as well. A Cache sends one request at a time, no matter how many
// callers wait.
//
//	client := fetch.NewClient(nil)
//	reply, err := fetch.Get(ctx, client, url, "the key set endpoint", 256<<10)
//
//	keys := fetch.NewCache(load, fetch.Policy{PollEvery: 15 * time.Minute})
//	defer keys.Close()
//	set, err := keys.Get(ctx, "the signing keys", func(s keySet) fetch.State {
//		if time.Since(s.fetched) < time.Hour {
//			return fetch.Fresh
//		}
//		return fetch.Expired
//	})
//
// Everything in this package may be used concurrently. Waiting calls return when their context ends.
package fetch

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// Timeout is the time limit for one request, from dialing to the last byte of the reply.
const Timeout = 5 * time.Second

// Together these detect within 45 s that an HTTP/2 connection is dead.
const (
	pingInterval = 30 * time.Second
	pingTimeout  = 15 * time.Second
)

// NewTransport returns a copy of http.DefaultTransport that closes dead HTTP/2 connections, which for example a NAT or a
// load balancer has dropped without closing them. All requests to a host share such a connection. Without pings, each of
// them would wait until its own time limit, for some 15 minutes until TCP gives up.
func NewTransport() *http.Transport {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.HTTP2 = &http.HTTP2Config{SendPingTimeout: pingInterval, PingTimeout: pingTimeout}
	return transport
}

// NewClient returns a client that does not follow redirects. It is a copy of given, or has its own transport if given
// is nil. Following a redirect would send the Authorization header, and after 307 and 308 also the form, to any host
// that the reply names.
func NewClient(given *http.Client) *http.Client {
	client := http.Client{}
	if given != nil {
		client = *given
	} else {
		transport := NewTransport()
		transport.MaxIdleConnsPerHost = 8 // instead of 2, because the client is for a single host
		client.Transport = transport
	}
	client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return &client
}

// Reply is an HTTP response with its complete body.
type Reply struct {
	Status int
	Header http.Header
	Body   []byte
}

// IsObject reports whether the body begins like a JSON object. A web application may answer a path that it does not have
// with its page and the status 200.
func (r Reply) IsObject() bool {
	return bytes.HasPrefix(bytes.TrimLeft(r.Body, " \t\r\n"), []byte("{"))
}

// lacksMember reports whether the body is a JSON object without the member called name. It returns false if name is "".
func (r Reply) lacksMember(name string) bool {
	var members map[string]json.RawMessage
	err := json.Unmarshal(r.Body, &members)
	return name != "" && err == nil && members[name] == nil
}

// Get requests the JSON document at rawURL. The other arguments and the errors are those of Do.
func Get(ctx context.Context, client *http.Client, rawURL, subject string, limit int64) (Reply, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, rawURL, nil)
	if err != nil {
		return Reply{}, &Error{Public: subject + " cannot be requested"}
	}
	req.Header.Set("Accept", "application/json")
	return Do(client, req, subject, limit)
}

// Do sends req and reads the reply. A redirect is an error, and so is a successful reply whose body has more than limit
// bytes after decompression. A reply with any other status is returned without an error, and with the first limit bytes
// of its body: a large page for a path that does not exist must not look like a failure. Errors are *Error and call the
// server subject.
func Do(client *http.Client, req *http.Request, subject string, limit int64) (Reply, error) {
	resp, err := client.Do(req)
	if err != nil {
		return Reply{}, transportError(subject, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode/100 == 3 {
		return Reply{}, &Error{Public: subject + " answered with a redirect, which is not followed", Status: resp.StatusCode}
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, limit+1))
	if err != nil {
		return Reply{}, transportError(subject, err)
	}
	if int64(len(body)) > limit {
		if resp.StatusCode/100 == 2 {
			return Reply{}, &Error{Public: subject + " answered with too many bytes", Status: resp.StatusCode}
		}
		body = body[:limit]
	}
	return Reply{resp.StatusCode, resp.Header, body}, nil
}

// CheckEndpoint returns an error unless secrets may be sent to rawURL and keys may be read from it. It must be https,
// or http on the loopback address, without credentials and without a fragment. The error begins with name, which is
// what errors call the URL, and does not quote the URL.
func CheckEndpoint(name, rawURL string) error {
	u, err := url.Parse(rawURL)
	if err != nil || u.Host == "" {
		return fmt.Errorf("%s is not a URL", name)
	}
	if u.User != nil || u.Fragment != "" {
		return fmt.Errorf("%s must not contain credentials or a fragment", name)
	}
	isLocal := u.Scheme == "http" && IsLoopback(u.Hostname())
	if u.Scheme == "https" || isLocal {
		return nil
	}
	return fmt.Errorf("%s must be https, or http on the loopback address", name)
}

// IsLoopback reports whether host is this machine: localhost or a loopback address. It does not resolve other names,
// because they could resolve to another address the next time.
func IsLoopback(host string) bool {
	ip := net.ParseIP(host)
	return strings.EqualFold(host, "localhost") || ip != nil && ip.IsLoopback()
}

// IsHeaderName reports whether s can be a header's name, which is a token (RFC 9110 section 5.6.2). net/http sends no
// request with another name.
func IsHeaderName(s string) bool {
	isForbidden := func(r rune) bool { return r <= ' ' || r > '~' || strings.ContainsRune(`"(),/:;<=>?@[\]{}`, r) }
	return s != "" && !strings.ContainsFunc(s, isForbidden)
}

// IsHeaderValue reports whether s can be a header's value (RFC 9110 section 5.5). net/http sends no request with another
// value, such as a key with a line break.
func IsHeaderValue(s string) bool {
	return !strings.ContainsFunc(s, func(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f })
}
