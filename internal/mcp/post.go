package mcp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

const (
	methodInitialize  = "initialize"
	methodInitialized = "notifications/initialized"
)

// errTaken is an answer that the SDK does not get to see: to it the request looks refused,
// which ends that request and nothing else, and outcome finds the result in the exchange. To
// read even a hollow one would cost the SDK a decoder of 32 KiB.
var errTaken = fmt.Errorf("the answer was taken from the wire: %w", errRejected)

// rejected is err as the SDK is to have it, so that it ends one message and not the session.
func rejected(err error) error { return fmt.Errorf("%w: %w", errRejected, err) }

// Write sends msg. For a request it returns when the answer has come, all but
// subscriptions/listen, whose stream goes on.
func (c *streamable) Write(ctx context.Context, msg jsonrpc.Message) (err error) {
	x := exchangeOf(ctx)
	if x == nil {
		return rejected(errors.New("a message without an exchange"))
	}
	// Here, and not only where the call began: a panic that goes through the SDK leaves
	// it waiting for the end of the request, and its session can never be closed.
	defer recovered(c.log, func(f *failure) { err = rejected(x.fail(f)) })
	m, ok := msg.(*jsonrpc.Request)
	switch {
	case !ok:
		return c.aside(ctx, x, answerTime, http.MethodPost, msg)
	case m.IsCall():
		return c.ask(ctx, x, m)
	case m.Method == cancelled:
		return c.takeBack(ctx, x, m)
	case m.Method == methodInitialized && c.stands(x.received()):
		c.stand()
	}
	return c.aside(ctx, x, sideTime, http.MethodPost, m)
}

// ask sends a request that has an answer, and deals with the reply.
func (c *streamable) ask(ctx context.Context, x *exchange, m *jsonrpc.Request) error {
	x.begin(m.ID, m.Method)
	if c.stale() {
		return rejected(x.fail(lostSession(nil)))
	}
	if mayAsk(m.Method) && c.of.standing.Load() {
		c.of.company.join(x)
	}
	if m.Method == discover {
		c.of.introduce(m.Params)
		// A server of before 2026-07-28 may not answer what it doesn't know; what is
		// left of the handshake's time is for initialize.
		dctx, cancel := context.WithCancel(ctx)
		defer time.AfterFunc(x.patience, cancel).Stop()
		ctx = dctx
	}
	r, err := c.request(x.traced(ctx), http.MethodPost, m)
	if err != nil {
		return rejected(x.fail(noReply(err, false)))
	}
	resp, err := c.way.RoundTrip(r)
	if err != nil {
		return rejected(x.fail(noReply(err, x.sent.Load())))
	}
	if resp.StatusCode < 200 || resp.StatusCode >= 300 {
		return c.refused(ctx, x, m, resp)
	}
	if m.Method == methodInitialize {
		c.mu.Lock()
		c.id = resp.Header.Get(sessionHeader)
		c.mu.Unlock()
	}
	switch mediaType(resp) {
	case "text/event-stream":
		x.opened()
		if m.Method == methodListen {
			c.work.Go(func() { c.attend(ctx, x, m, resp) })
			return nil
		}
		return c.follow(ctx, x, m, resp)
	case "application/json":
		body, f := readJSON(resp)
		var answer *jsonrpc.Response
		if f == nil {
			answer, f = x.accept(m.ID, body)
		}
		if f != nil {
			return rejected(x.fail(f))
		}
		return c.hand(ctx, m, answer)
	}
	// 202 and 204 come here too: a request that is accepted but never answered would
	// keep its caller waiting until the time-out.
	drain(resp, maxError)
	return rejected(x.fail(badReply(fmt.Sprintf("content type %.60q", resp.Header.Get("Content-Type")), nil)))
}

// hand gives the SDK the answer to m, unless it can do without.
func (c *streamable) hand(ctx context.Context, m *jsonrpc.Request, answer *jsonrpc.Response) error {
	if _, ok := hollowed(m.Method, answer); ok {
		return errTaken
	}
	if m.Method == methodInitialize {
		c.settle(answer.Result)
	}
	return c.deliver(ctx, answer)
}

// settle notes the version that initialize has settled on. One that the SDK doesn't know
// ends the handshake.
func (c *streamable) settle(initialized json.RawMessage) {
	var w struct {
		Version string `json:"protocolVersion"`
	}
	if json.Unmarshal(initialized, &w) != nil || !slices.Contains(sdk.SupportedProtocolVersions(), w.Version) {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.version = w.Version
}

// refused turns a status outside 2xx into an error of this request.
func (c *streamable) refused(ctx context.Context, x *exchange, m *jsonrpc.Request, resp *http.Response) error {
	body := drain(resp, maxError)
	if c.SessionID() != "" && forgets(resp.StatusCode, body) {
		c.of.lost.Store(true)
		return rejected(x.fail(lostSession(badStatus(resp.StatusCode))))
	}
	if resp.StatusCode >= 400 && resp.StatusCode < 500 {
		// A JSON-RPC error with a status of its own; the SDK reads it for the
		// versions that server/discover may be tried with.
		if answer, f := x.accept(m.ID, body); f == nil {
			return c.hand(ctx, m, answer)
		}
	}
	return rejected(x.fail(refusal(resp)))
}

// aside sends what nobody waits for, within bound.
func (c *streamable) aside(ctx context.Context, x *exchange, bound time.Duration, method string, m jsonrpc.Message) error {
	if c.stale() {
		return nil
	}
	ctx, stop := context.WithTimeout(ctx, bound)
	defer stop()
	r, err := c.request(ctx, method, m)
	if err != nil {
		return rejected(err)
	}
	resp, err := c.way.RoundTrip(r)
	if err != nil {
		return rejected(x.failAside(noReply(err, true)))
	}
	drain(resp, maxError)
	if resp.StatusCode < 200 || resp.StatusCode >= 300 {
		return rejected(x.failAside(refusal(resp)))
	}
	return nil
}
