package session

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"answerd/internal/help"
	"answerd/internal/mcp/transport"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// Lists, calls, prompts and reads are sent as custom methods of the SDK (transport.MethodPrefix), because the SDK
// returns a result as received only for custom methods. The SDK's own result types turn integers beyond 2^53 into
// floats, refuse unknown content types, and refuse a whole page of tools if one tool is bad. The SDK also caches lists
// for their ttlMs. rawResult costs some 0.5 ms of CPU per 100 kB.

const (
	methodDiscover   = "server/discover"
	methodInitialize = "initialize"
)

// rawMethods are the methods that are sent as custom methods, with the result type rawResult.
var rawMethods = []string{
	"tools/list", methodCall, "prompts/list", methodPrompt, "resources/list", "resources/templates/list", methodRead, methodListen,
}

// newClient returns an SDK client for the sessions with one server. version is that of answerd. sampling says that the
// configuration lets the server ask for sampling.
func newClient(version string, sampling bool, log *slog.Logger) *sdk.Client {
	client := sdk.NewClient(&sdk.Implementation{Name: "answerd", Version: version}, clientOptions(sampling))
	for _, method := range rawMethods {
		// The error would be about a standard name. The SDK ignores the type of the parameters here.
		_ = sdk.AddSendingCustomMethod[*sdk.CallToolParams, *rawResult](client, transport.MethodPrefix+method)
	}
	var receive sdk.MethodHandler // the SDK's handler of the server's requests, with our middleware
	client.AddReceivingMiddleware(func(next sdk.MethodHandler) sdk.MethodHandler {
		receive = keepEmptyContent(markRefusals(withRecover(next, log), log))
		if !sampling {
			receive = refuseSampling(receive, log)
		}
		return receive
	})
	client.AddSendingMiddleware(func(next sdk.MethodHandler) sdk.MethodHandler { return separateHandshake(next, receive) })
	return client
}

// errSamplingDisabled is the answer to a sampling request if the configuration does not allow them. The error of the
// SDK, that the client does not support sampling, would not say what the operator can change.
var errSamplingDisabled = fmt.Errorf(`sampling is disabled for this server, "sampling": true in mcp.json enables it: %w`,
	&jsonrpc.Error{Code: codeRefused, Message: "refused"})

// refuseSampling returns a handler that answers sampling requests with errSamplingDisabled and logs them as a warning.
// It passes other requests to next.
func refuseSampling(next sdk.MethodHandler, log *slog.Logger) sdk.MethodHandler {
	return func(ctx context.Context, method string, req sdk.Request) (sdk.Result, error) {
		if method != methodSample {
			return next(ctx, method, req)
		}
		log.Warn("MCP server asked for sampling, which is disabled for it", "setting", `"sampling": true in mcp.json`, help.ServerRequests.Attr())
		return nil, errSamplingDisabled
	}
}

// withRecover returns a handler that passes all messages of the server to next. If next panics, be it the SDK or one of
// our handlers, it returns a *transport.Failure: the SDK calls it on a goroutine of its own, whose panic would end the
// process.
func withRecover(next sdk.MethodHandler, log *slog.Logger) sdk.MethodHandler {
	return func(ctx context.Context, method string, req sdk.Request) (result sdk.Result, err error) {
		defer transport.Recover(log, func(f *transport.Failure) { result, err = nil, f })
		return next(ctx, method, req)
	}
}

// markRefusals returns a handler that passes all requests of the server to next. If next refuses the parameters of a
// request, the handler logs that and marks the error as answerd's refusal (transport.RefusedRequest), because many
// servers return the text of the error as the failure of the tool call.
func markRefusals(next sdk.MethodHandler, log *slog.Logger) sdk.MethodHandler {
	return func(ctx context.Context, method string, req sdk.Request) (sdk.Result, error) {
		result, err := next(ctx, method, req)
		refusal, ok := errors.AsType[*jsonrpc.Error](err)
		if !ok || refusal.Code != jsonrpc.CodeInvalidParams {
			return result, err
		}
		log.Warn("MCP server asked for what cannot be answered", "method", method, "reason", refusal.Message, help.ServerRequests.Attr())
		return nil, &jsonrpc.Error{Code: refusal.Code, Message: transport.RefusedRequest + refusal.Message}
	}
}

// keepEmptyContent returns a handler that passes all requests to next. If the result is the answer to a form with an
// empty object as content, the handler returns it as emptyForm: the SDK would omit the content.
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

// emptyForm is an answer to a form in which no field was filled in. Its JSON has an empty content.
type emptyForm struct{ *sdk.ElicitResult }

// MarshalJSON implements json.Marshaler.
func (f emptyForm) MarshalJSON() ([]byte, error) {
	return json.Marshal(struct {
		Action  string         `json:"action"`
		Content map[string]any `json:"content"`
	}{f.Action, f.Content})
}

// separateHandshake returns a sending handler that gives server/discover and initialize a Request each, derived from
// that of the handshake: a failure ends the context of its Request, and after a failed server/discover the SDK
// still tries initialize. The handler returns such a failure as a *transport.Failure, and sets session.handleRequest to
// receive. It passes other requests to next.
func separateHandshake(next, receive sdk.MethodHandler) sdk.MethodHandler {
	return func(ctx context.Context, method string, req sdk.Request) (sdk.Result, error) {
		handshake := requestOf(ctx)
		isHandshake := method == methodDiscover || method == methodInitialize
		if !isHandshake || handshake == nil {
			return next(ctx, method, req)
		}
		deadline := handshake.Deadline()
		if method == methodDiscover {
			// Servers of versions before 2026-07-28 may not answer this unknown method at all. The rest of the
			// time is for initialize.
			deadline = time.Now().Add(handshake.discoverTimeout)
		}
		request := &Request{}
		request.Owner, request.Handshake = request, true
		request.useSession(handshake.session)
		request.Start(ctx, handshake.Life(), deadline)
		defer request.Finish()
		request.SetTokenRenewed(handshake.TokenRenewed()) // a handshake may renew the token once
		request.session.handshake.Store(request)
		request.session.handleRequest = receive
		res, err := next(request.Context(), method, req)
		handshake.SetTokenRenewed(request.TokenRenewed())
		if err != nil {
			failure := request.Failure(err)
			isBusy := failure.Status == http.StatusTooManyRequests || failure.Status >= 500
			handshake.discoverBusy = method == methodDiscover && isBusy
			return nil, failure
		}
		return res, nil
	}
}
