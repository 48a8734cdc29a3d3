package mcp

import (
	"bytes"
	"context"
	"encoding/json"
	"strings"
	"time"

	"answerd/internal/mcp/config"
	"answerd/internal/mcp/transport"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// rawPrefix is put before the name of a method in calls of the SDK, because the SDK returns a
// result as it was received only for methods that are not MCP's own. Its own types turn integers beyond 2^53 into
// floats, refuse content types that they don't know and all tools of a page for one that is
// bad, and it keeps lists for their ttlMs. The connection removes the prefix (standardName).
// That the SDK decodes a result into this one costs some 0.5 ms of CPU per 100 kB.
const rawPrefix = "answerd/"

// rawMethods are the methods that have a result of ours.
var rawMethods = []string{
	"tools/list", methodCall, "prompts/list", methodPrompt, "resources/list", "resources/templates/list", methodRead, methodListen,
}

// rawResult is a result as the SDK received it.
type rawResult struct {
	sdk.ResultBase
	raw json.RawMessage
}

// UnmarshalJSON implements json.Unmarshaler.
func (r *rawResult) UnmarshalJSON(data []byte) error {
	r.raw = bytes.Clone(data)
	return nil
}

// sdkClient returns the SDK's side of a server, whatever the transport. It may make many
// sessions.
func sdkClient(cfg config.Server, o Options) *sdk.Client {
	c := sdk.NewClient(&sdk.Implementation{Name: "answerd", Version: o.Version}, clientOptions(cfg.Sampling, o.Logger))
	for _, method := range rawMethods {
		// The error is for names of MCP's own. The type of the parameters is that of the call.
		_ = sdk.AddSendingCustomMethod[*sdk.CallToolParams, *rawResult](c, rawPrefix+method)
	}
	var receive sdk.MethodHandler
	c.AddReceivingMiddleware(func(next sdk.MethodHandler) sdk.MethodHandler {
		receive = next
		return next
	})
	c.AddSendingMiddleware(func(next sdk.MethodHandler) sdk.MethodHandler { return separateHandshake(next, receive) })
	return c
}

// ask sends a request of x by the SDK and returns its result as received.
func ask[P interface {
	*T
	sdk.Params
}, T any](x *exchange, method string, params P) (json.RawMessage, *transport.Failure) {
	res, err := sdk.CallCustomMethod[P, *rawResult](x.ctx, x.session.cs, rawPrefix+method, params)
	if err != nil {
		return nil, x.failure(err)
	}
	return res.raw, nil
}

// standardName returns m with the name that MCP has for its method.
func standardName(m *jsonrpc.Request) *jsonrpc.Request {
	name, ours := strings.CutPrefix(m.Method, rawPrefix)
	if !ours {
		return m
	}
	out := *m
	out.Method = name
	return &out
}

// separateHandshake gives each request of a handshake an exchange of its own: a
// server/discover that fails must not end the context of the initialize that the
// SDK tries next. Why one failed is an error of the SDK's Connect. The session gets receive,
// which answers requests of the server.
func separateHandshake(next, receive sdk.MethodHandler) sdk.MethodHandler {
	return func(ctx context.Context, method string, req sdk.Request) (sdk.Result, error) {
		whole := exchangeOf(ctx)
		if method != discover && method != methodInitialize || whole == nil {
			return next(ctx, method, req)
		}
		deadline := whole.limit.end
		if method == discover {
			// A server of before 2026-07-28 may not answer what it doesn't know; what is left of
			// the handshake's time is for initialize.
			deadline = time.Now().Add(whole.patience)
		}
		// The end of the handshake must not cut an answered stream that is still read to its end,
		// or its TCP connection is lost. So ctx ends x only until the answer is there.
		x := newExchange(context.WithoutCancel(ctx), whole.life, deadline)
		x.caller = ctx
		defer x.finish()
		defer context.AfterFunc(ctx, func() { x.cancel(context.Cause(ctx)) })()
		x.session, x.handshake = whole.session, true
		x.renewed.Store(whole.renewed.Load()) // once in a handshake
		x.session.handshake.Store(x)
		x.session.handleRequest = receive
		res, err := next(x.ctx, method, req)
		whole.renewed.Store(x.renewed.Load())
		if err != nil {
			return nil, x.failure(err)
		}
		return res, nil
	}
}
