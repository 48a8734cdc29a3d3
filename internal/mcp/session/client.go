package session

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"answerd/internal/help"
	"answerd/internal/mcp/transport"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// Every request is sent as a custom method of the SDK (transport.MethodPrefix), because the SDK
// returns a result as it was received only for methods that are not MCP's own. Its own types turn
// integers beyond 2^53 into floats, refuse content types that they do not know and all tools of a
// page for one that is bad, and it keeps lists for their ttlMs. That the SDK decodes a result into
// this one costs some 0.5 ms of CPU per 100 kB.

const (
	methodDiscover   = "server/discover"
	methodInitialize = "initialize"
)

// rawMethods are the methods that have a result type of our own.
var rawMethods = []string{
	"tools/list", methodCall, "prompts/list", methodPrompt, "resources/list", "resources/templates/list", methodRead, methodListen,
}

// newClient returns an SDK client for one server, with any transport. It may open many sessions.
func newClient(version string, sampling bool, log *slog.Logger) *sdk.Client {
	client := sdk.NewClient(&sdk.Implementation{Name: "answerd", Version: version}, clientOptions(sampling, log))
	for _, method := range rawMethods {
		// The error is for names of MCP's own. The type of the parameters is that of the call.
		_ = sdk.AddSendingCustomMethod[*sdk.CallToolParams, *rawResult](client, transport.MethodPrefix+method)
	}
	var receive sdk.MethodHandler
	client.AddReceivingMiddleware(func(next sdk.MethodHandler) sdk.MethodHandler {
		receive = keepEmptyContent(next)
		if !sampling {
			receive = refuseSampling(receive, log)
		}
		return receive
	})
	client.AddSendingMiddleware(func(next sdk.MethodHandler) sdk.MethodHandler { return separateHandshake(next, receive) })
	return client
}

// errSamplingDisabled answers a server that asks for sampling without being allowed to. The SDK would
// say that the client does not support it, which does not tell the operator what to change.
var errSamplingDisabled = fmt.Errorf(`sampling is disabled for this server, "sampling": true in mcp.json enables it: %w`,
	&jsonrpc.Error{Code: codeRefused, Message: "refused"})

// refuseSampling answers sampling requests with errSamplingDisabled and passes on all others.
func refuseSampling(next sdk.MethodHandler, log *slog.Logger) sdk.MethodHandler {
	return func(ctx context.Context, method string, req sdk.Request) (sdk.Result, error) {
		if method != methodSample {
			return next(ctx, method, req)
		}
		log.Warn("MCP server asked for sampling, which is disabled for it", "setting", `"sampling": true in mcp.json`, help.ServerRequests.Attr())
		return nil, errSamplingDisabled
	}
}

// keepEmptyContent passes on all requests. The answer to a form keeps its content if that is an empty object,
// which the SDK would leave out.
func keepEmptyContent(next sdk.MethodHandler) sdk.MethodHandler {
	return func(ctx context.Context, method string, req sdk.Request) (sdk.Result, error) {
		result, err := next(ctx, method, req)
		answer, ok := result.(*sdk.ElicitResult)
		hasContent := ok && answer != nil && answer.Content != nil
		if hasContent && len(answer.Content) == 0 {
			return emptyForm{answer}, err
		}
		return result, err
	}
}

// emptyForm is the answer to a form in which no field was filled in.
type emptyForm struct{ *sdk.ElicitResult }

// MarshalJSON implements json.Marshaler.
func (f emptyForm) MarshalJSON() ([]byte, error) {
	return json.Marshal(struct {
		Action  string         `json:"action"`
		Content map[string]any `json:"content"`
	}{f.Action, f.Content})
}

// separateHandshake gives each request of a handshake a Request of its own: a server/discover that
// fails must not end the context of the initialize that the SDK tries next. The SDK's Connect
// returns why one failed. The session gets receive, which answers requests of the server.
func separateHandshake(next, receive sdk.MethodHandler) sdk.MethodHandler {
	return func(ctx context.Context, method string, req sdk.Request) (sdk.Result, error) {
		handshake := requestOf(ctx)
		begins := method == methodDiscover || method == methodInitialize
		if !begins || handshake == nil {
			return next(ctx, method, req)
		}
		deadline := handshake.Deadline()
		if method == methodDiscover {
			// A server of before 2026-07-28 may not answer a method that it does not know; the rest of
			// the handshake's time is for initialize.
			deadline = time.Now().Add(handshake.discoverTimeout)
		}
		request := &Request{}
		request.Owner, request.Handshake = request, true
		request.useSession(handshake.session)
		request.Start(ctx, handshake.Life(), deadline)
		defer request.Finish()
		request.SetTokenRenewed(handshake.TokenRenewed()) // once in a handshake
		request.session.handshake.Store(request)
		request.session.handleRequest = receive
		res, err := next(request.Context(), method, req)
		handshake.SetTokenRenewed(request.TokenRenewed())
		if err != nil {
			failure := request.Failure(err)
			handshake.discoverBusy = method == methodDiscover && (failure.Status == http.StatusTooManyRequests || failure.Status >= 500)
			return nil, failure
		}
		return res, nil
	}
}
