package mcp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"answerd/internal/mcp/transport"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

const (
	methodInitialize  = "initialize"
	methodInitialized = "notifications/initialized"
)

// Write sends msg. For a request it returns when the answer has come. An error would end the
// session, so there is one only in the handshake.
func (c *streamable) Write(ctx context.Context, msg jsonrpc.Message) (err error) {
	x := exchangeOf(ctx)
	if x == nil {
		return errors.New("a message without an exchange")
	}
	// Here, and not only where the call began: a panic that goes through the SDK leaves
	// it waiting for the end of the request, and its session can never be closed.
	defer transport.Recover(c.log, x.fail)
	m, ok := msg.(*jsonrpc.Request)
	switch {
	case !ok:
		_ = c.aside(ctx, answerTime, http.MethodPost, msg)
	case m.IsCall():
		c.ask(ctx, x, standardName(m))
	case m.Method == cancelled:
		c.takeBack(ctx, x, m)
	case m.Method == methodInitialized:
		if c.stands() {
			c.stand()
		}
		return c.aside(ctx, sideTime, http.MethodPost, m)
	default:
		_ = c.aside(ctx, sideTime, http.MethodPost, m)
	}
	return nil
}

// ask sends a request that has an answer, and deals with the reply.
func (c *streamable) ask(ctx context.Context, x *exchange, m *jsonrpc.Request) {
	x.begin()
	if c.stale() {
		x.fail(transport.LostSession(nil))
		return
	}
	if mayAsk(m.Method) && c.of.standing.Load() {
		c.of.company.join(x)
	}
	r, err := c.request(x.traced(ctx), http.MethodPost, m)
	if err != nil {
		x.fail(transport.NoReply(err, false))
		return
	}
	resp, err := c.way.RoundTrip(r)
	if err != nil {
		x.fail(transport.NoReply(err, x.sent.Load()))
		return
	}
	if resp.StatusCode < 200 || resp.StatusCode >= 300 {
		c.refused(ctx, x, m, resp)
		return
	}
	if m.Method == methodInitialize {
		c.mu.Lock()
		c.id = resp.Header.Get(sessionHeader)
		c.mu.Unlock()
	}
	switch mediaType(resp) {
	case "text/event-stream":
		x.opened()
		c.follow(ctx, x, m, resp)
	case "application/json":
		body, f := readJSON(resp)
		var answer *jsonrpc.Response
		if f == nil {
			answer, f = acceptAnswer(m.ID, body)
		}
		if f != nil {
			x.fail(f)
			return
		}
		c.hand(ctx, x, m, answer)
	default:
		// 202 and 204 come here too: a request that is accepted but never answered would
		// keep its caller waiting until the time-out.
		drain(resp, maxError)
		x.fail(transport.BadReply(fmt.Sprintf("content type %.60q", resp.Header.Get("Content-Type")), nil))
	}
}

// hand gives the SDK the answer to m.
func (c *streamable) hand(ctx context.Context, x *exchange, m *jsonrpc.Request, answer *jsonrpc.Response) {
	if f := x.answer(answer); f != nil {
		x.fail(f)
		return
	}
	if m.Method == methodInitialize {
		c.settle(answer.Result)
	}
	_ = c.deliver(ctx, answer) // its error is that nobody waits any more
}

// settle notes what initialize has settled on. A version that the SDK doesn't know ends the
// handshake.
func (c *streamable) settle(initialized json.RawMessage) {
	var w struct {
		Version      string `json:"protocolVersion"`
		Capabilities struct {
			Resources struct {
				Subscribe bool `json:"subscribe"`
			} `json:"resources"`
		} `json:"capabilities"`
	}
	if json.Unmarshal(initialized, &w) != nil || !slices.Contains(sdk.SupportedProtocolVersions(), w.Version) {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.version, c.updates = w.Version, w.Capabilities.Resources.Subscribe
}

// refused deals with a status outside 2xx.
func (c *streamable) refused(ctx context.Context, x *exchange, m *jsonrpc.Request, resp *http.Response) {
	body := drain(resp, maxError)
	if c.SessionID() != "" && forgets(resp.StatusCode, body) {
		c.of.lost.Store(true)
		x.fail(transport.LostSession(transport.BadStatus(resp.StatusCode)))
		return
	}
	if resp.StatusCode >= 400 && resp.StatusCode < 500 {
		// A JSON-RPC error with a status of its own; the SDK reads it for the
		// versions that server/discover may be tried with.
		if answer, f := acceptAnswer(m.ID, body); f == nil {
			c.hand(ctx, x, m, answer)
			return
		}
	}
	x.fail(transport.Refusal(resp))
}

// aside sends what nobody waits for, within bound.
func (c *streamable) aside(ctx context.Context, bound time.Duration, method string, m jsonrpc.Message) error {
	if c.stale() {
		return nil
	}
	ctx, stop := context.WithTimeout(ctx, bound)
	defer stop()
	r, err := c.request(ctx, method, m)
	if err != nil {
		return err
	}
	resp, err := c.way.RoundTrip(r)
	if err != nil {
		return transport.NoReply(err, true)
	}
	drain(resp, maxError)
	if resp.StatusCode < 200 || resp.StatusCode >= 300 {
		return transport.Refusal(resp)
	}
	return nil
}
