// Package client sends requests to the native API of an answerd, for the commands that ask one from outside
// and for programs in this repository that do the same.
//
//	c := client.New("http://127.0.0.1:8080", nil, 1)
//	defer c.Close()
//	stream, err := c.Stream(ctx, http.MethodPost, "/answer/stream", question, nil)
//	if p, ok := errors.AsType[*client.Problem](err); ok {
//		return p // what answerd says about the question
//	}
//	defer stream.Close()
//	frame, err := stream.Next()
//
// It is tested in internal/api, against the API itself.
//
// A Client is for any number of goroutines, a Stream for one at a time. Every method blocks until answerd has
// answered or ctx ends; nothing is repeated. What answerd sends is bounded: 64 MiB of an answer that is decoded
// and 8 MiB of an event.
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

// MaxAnswer bounds an answer that is decoded, in bytes. Its metadata has the results of all calls.
const MaxAnswer = 64 << 20

// maxRedirects bounds the redirects of one request, as net/http does by default.
const maxRedirects = 10

// Client sends requests to one answerd.
type Client struct {
	url   string
	token func() (string, error)
	http  *http.Client
}

// New returns a client of the answerd at a base URL. token returns the bearer token of each request; nil
// sends none. As many idle connections as asked for are kept open until Close.
func New(url string, token func() (string, error), idleConnections int) *Client {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.MaxIdleConnsPerHost = idleConnections
	return &Client{url: strings.TrimSuffix(url, "/"), token: token, http: &http.Client{Transport: transport, CheckRedirect: checkRedirect}}
}

// checkRedirect follows redirects that repeat the request. net/http sends a POST again as a GET without its body after
// 301, 302 and 303 (RFC 9110 section 15.4), as a proxy answers that wants https: the answer would be about a question
// that is missing.
func checkRedirect(next *http.Request, via []*http.Request) error {
	switch {
	case next.Method != via[0].Method:
		return fmt.Errorf("it redirects to %s; give the URL that it redirects to", next.URL.Redacted())
	case len(via) >= maxRedirects:
		return fmt.Errorf("it redirects more than %d times", maxRedirects)
	}
	return nil
}

// Close closes the idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// URL returns the base URL, without a slash at its end.
func (c *Client) URL() string { return c.url }

// Open sends a request and returns its response, whose body the caller must close. The body of the request is
// the JSON of a value, or nothing for nil. A status of 400 or more is returned as a *Problem.
func (c *Client) Open(ctx context.Context, method, path string, body any, header http.Header) (*http.Response, error) {
	var content io.Reader
	if body != nil {
		raw, err := json.Marshal(body)
		if err != nil {
			return nil, fmt.Errorf("encode a request to answerd: %w", err)
		}
		content = bytes.NewReader(raw)
	}

	req, err := http.NewRequestWithContext(ctx, method, c.url+path, content)
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

	resp, err := c.http.Do(req)
	if err != nil {
		return nil, fmt.Errorf("ask answerd at %s: %w", c.url, err)
	}
	if resp.StatusCode < http.StatusBadRequest {
		return resp, nil
	}
	defer resp.Body.Close()
	p, err := readProblem(resp)
	if err != nil {
		return nil, fmt.Errorf("%s answered with HTTP status %s, which is not an answer of answerd", c.url, resp.Status)
	}
	return nil, p
}

// Send sends a request as Open does and decodes the JSON of the response into a value, unless that is nil. It
// returns the status of the response.
func (c *Client) Send(ctx context.Context, method, path string, body any, header http.Header, into any) (status int, _ error) {
	resp, err := c.Open(ctx, method, path, body, header)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, MaxAnswer+1))
	switch {
	case err != nil:
		return 0, fmt.Errorf("read the answer of answerd at %s: %w", c.url, err)
	case len(text) > MaxAnswer:
		return 0, fmt.Errorf("the answer of answerd at %s has more than %d bytes", c.url, MaxAnswer)
	case into == nil:
		return resp.StatusCode, nil
	}
	if err := json.Unmarshal(text, into); err != nil {
		return 0, fmt.Errorf("decode the answer of answerd at %s: %w", c.url, err)
	}
	return resp.StatusCode, nil
}

// SendInput answers an interrupt of a suspended run.
func (c *Client) SendInput(ctx context.Context, runID string, input map[string]any) error {
	_, err := c.Send(ctx, http.MethodPost, RunPath(runID, "/input"), input, nil, nil)
	return err
}

// RunPath returns the path of a run, or of what rest names below it.
func RunPath(runID, rest string) string { return "/runs/" + url.PathEscape(runID) + rest }
