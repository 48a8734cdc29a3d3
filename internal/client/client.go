// Package client sends requests to the native API of an answerd. It is for the commands and other programs of this
// repository that use a running answerd over HTTP.
//
//	c := client.New("http://127.0.0.1:8080", nil, 1)
//	defer c.Close()
//	stream, err := c.Stream(ctx, http.MethodPost, "/answer/stream", question, nil)
//	if p, ok := errors.AsType[*client.Problem](err); ok {
//		return p // answerd has refused the question
//	}
//	defer stream.Close()
//	frame, err := stream.Next()
//
// The tests of this package are in internal/api, and use the API itself.
//
// A Client is safe for concurrent use, but only one goroutine at a time may use a Stream. Every method that sends a
// request blocks until answerd has answered or ctx ends. The client never repeats a failed request. It accepts up to
// 64 MiB for an answer that it decodes, 8 MiB for one event of a stream, and 1 MiB for a problem document.
package client

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
)

// MaxAnswer bounds the response bodies that Send decodes, in bytes. It is large because an answer's metadata contains
// the results of all calls.
const MaxAnswer = 64 << 20

// maxRedirects bounds the redirects of one request. It is the default of net/http.
const maxRedirects = 10

// Client sends requests to one answerd.
type Client struct {
	baseURL    string                 // without a trailing slash
	token      func() (string, error) // nil sends requests without a token
	httpClient *http.Client
}

// New returns a client of the answerd at baseURL. It calls token before each request to get the bearer token; if token
// is nil, requests have none. The client keeps up to maxIdleConnections idle connections open until Close.
func New(baseURL string, token func() (string, error), maxIdleConnections int) *Client {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.MaxIdleConnsPerHost = maxIdleConnections
	return &Client{
		baseURL: strings.TrimSuffix(baseURL, "/"), token: token,
		httpClient: &http.Client{Transport: transport, CheckRedirect: checkRedirect},
	}
}

// checkRedirect is the CheckRedirect of http.Client. It allows up to maxRedirects redirects that keep the method, and
// refuses others: after 301, 302 and 303, which proxies use to enforce https, net/http would send a POST again as a GET
// without a body (RFC 9110 section 15.4), so the question would be lost.
//
// A request with a token may only stay at its origin, or change from http to https at the same host name. net/http
// would also send the token to other ports, to subdomains, and without TLS.
func checkRedirect(next *http.Request, via []*http.Request) error {
	from, to := via[0].URL, next.URL
	isSameOrigin := to.Scheme == from.Scheme && to.Host == from.Host
	isUpgrade := to.Scheme == "https" && from.Scheme == "http" && to.Hostname() == from.Hostname()
	hasToken := via[0].Header.Get("Authorization") != ""
	switch {
	case next.Method != via[0].Method, hasToken && !isSameOrigin && !isUpgrade:
		return fmt.Errorf("it redirects to %s; give the URL that it redirects to", next.URL.Redacted())
	case len(via) >= maxRedirects:
		return fmt.Errorf("it redirects more than %d times", maxRedirects)
	}
	return nil
}

// Close closes the idle connections.
func (c *Client) Close() { c.httpClient.CloseIdleConnections() }

// URL returns the base URL, without a trailing slash.
func (c *Client) URL() string { return c.baseURL }

// Open sends a request and returns the response. The caller must close its body. The request has body as JSON, or no
// body if body is nil. header may be nil. If the status is 400 or more, the error is a *Problem, or another error if
// the response is not a problem document of answerd. Open returns an error of the token function unchanged.
func (c *Client) Open(ctx context.Context, method, path string, body any, header http.Header) (*http.Response, error) {
	req, err := c.newRequest(ctx, method, path, body, header)
	if err != nil {
		return nil, err
	}
	resp, err := c.httpClient.Do(req)
	if err != nil {
		return nil, fmt.Errorf("ask answerd at %s: %w", c.baseURL, err)
	}
	if resp.StatusCode < http.StatusBadRequest {
		return resp, nil
	}
	defer resp.Body.Close()
	p, err := readProblem(resp)
	if err != nil {
		return nil, fmt.Errorf("%s answered with HTTP status %s, which is not an answer of answerd", c.baseURL, resp.Status)
	}
	return nil, p
}

// newRequest returns the request that Open sends, with the token.
func (c *Client) newRequest(ctx context.Context, method, path string, body any, header http.Header) (*http.Request, error) {
	var content io.Reader
	if body != nil {
		raw, err := json.Marshal(body)
		if err != nil {
			return nil, fmt.Errorf("encode a request to answerd: %w", err)
		}
		content = bytes.NewReader(raw)
	}
	req, err := http.NewRequestWithContext(ctx, method, c.baseURL+path, content)
	if err != nil {
		return nil, fmt.Errorf("build a request to answerd: %w", err)
	}
	if header != nil {
		req.Header = header.Clone()
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if c.token != nil {
		token, err := c.token()
		if err != nil {
			return nil, err
		}
		req.Header.Set("Authorization", "Bearer "+token)
	}
	return req, nil
}

// Send sends a request as Open does, decodes the JSON response into result, a pointer, and returns the HTTP status. If
// result is nil, Send ignores the content of the response. After an error the status is 0.
func (c *Client) Send(
	ctx context.Context, method, path string, body any, header http.Header, result any,
) (status int, _ error) {
	resp, err := c.Open(ctx, method, path, body, header)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, MaxAnswer+1))
	switch {
	case err != nil:
		return 0, fmt.Errorf("read the answer of answerd at %s: %w", c.baseURL, err)
	case len(text) > MaxAnswer:
		return 0, fmt.Errorf("the answer of answerd at %s has more than %d bytes", c.baseURL, MaxAnswer)
	case result == nil:
		return resp.StatusCode, nil
	}
	if err := json.Unmarshal(text, result); err != nil {
		return 0, fmt.Errorf("decode the answer of answerd at %s: %w", c.baseURL, err)
	}
	return resp.StatusCode, nil
}

// SendInput answers an interrupt of a suspended run. input is the body of POST /runs/{run_id}/input.
func (c *Client) SendInput(ctx context.Context, runID string, input map[string]any) error {
	_, err := c.Send(ctx, http.MethodPost, RunPath(runID, "/input"), input, nil, nil)
	return err
}

// RunPath returns the API path of a run, followed by suffix. suffix is "" or begins with a slash, such as "/events".
func RunPath(runID, suffix string) string { return "/runs/" + url.PathEscape(runID) + suffix }

// FailedRun returns the id of the run that failed, if p is the response to a question, or "" if no run has failed.
func (p *Problem) FailedRun() string {
	_, id, _ := strings.Cut(p.Instance, RunPath("", ""))
	return id
}
