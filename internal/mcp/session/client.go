package session

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"time"

	"answerd/internal/help"
	"answerd/internal/mcp/transport"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// Lists, calls, prompts and reads are sent as custom methods of the SDK (transport.MethodPrefix), because the SDK
// returns a result as received only for custom methods. The SDK's own result types turn integers beyond 2^53 into
// floats, refuse unknown content types, and refuse a whole page of tools if one tool is bad. The SDK also caches lists
// for their ttlMs. rawResult costs some 0.5 ms of CPU time per 100 kB.

const (
	methodDiscover   = "server/discover"
	methodInitialize = "initialize"
)

// rawMethods are the methods that are sent as custom methods with the result type rawResult.
var rawMethods = []string{
	"tools/list", methodCall, "prompts/list", methodPrompt, "resources/list", "resources/templates/list", methodRead, methodListen,
}

// newClient returns an SDK client for the sessions with one server. version is answerd's version. sampling says that
// the configuration allows the server to request sampling.
func newClient(version string, sampling bool, log *slog.Logger) *sdk.Client {
	client := sdk.NewClient(&sdk.Implementation{Name: "answerd", Version: version}, clientOptions(sampling))
	for _, method := range rawMethods {
		// AddSendingCustomMethod fails only for standard names. The SDK ignores the type of the parameters here.
		_ = sdk.AddSendingCustomMethod[*sdk.CallToolParams, *rawResult](client, transport.MethodPrefix+method)
	}
	var receive sdk.MethodHandler // handles the server's requests: the SDK's handler with our middleware
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

// errSamplingDisabled is the answer to a sampling request if the configuration does not allow sampling. The SDK's own
// error, that the client does not support sampling, would not tell the operator which setting to change.
var errSamplingDisabled = fmt.Errorf(`sampling is disabled for this server, "sampling": true in mcp.json enables it: %w`,
	&jsonrpc.Error{Code: codeRefused, Message: "refused"})

// refuseSampling returns a handler that answers sampling requests with errSamplingDisabled and logs a warning. It
// passes other requests to next.
func refuseSampling(next sdk.MethodHandler, log *slog.Logger) sdk.MethodHandler {
	return func(ctx context.Context, method string, req sdk.Request) (sdk.Result, error) {
		if method != methodSample {
			return next(ctx, method, req)
		}
		log.Warn("MCP server asked for sampling, which is disabled for it", "setting", `"sampling": true in mcp.json`, help.ServerRequests.Attr())
		return nil, errSamplingDisabled
	}
}

// withRecover returns a handler that passes all of the server's messages to next. If next panics, the handler returns a
// *transport.Failure as the error: the SDK calls it on a goroutine of its own, where a panic would end the process.
func withRecover(next sdk.MethodHandler, log *slog.Logger) sdk.MethodHandler {
	return func(ctx context.Context, method string, req sdk.Request) (result sdk.Result, err error) {
		defer transport.Recover(log, func(f *transport.Failure) { result, err = nil, f })
		return next(ctx, method, req)
	}
}

// markRefusals returns a handler that passes all of the server's requests to next. If next refuses a request's
// parameters, the handler logs that and marks the error as answerd's refusal (transport.RefusedRequest), because many
// servers return the error's text as the failure of the tool call.
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

// keepEmptyContent returns a handler that passes all requests to next. If the result is the answer to a form and its
// content is an empty object, the handler returns it as emptyForm, because the SDK would omit the content.
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

// emptyForm is an answer to a form in which no field was filled in. Its JSON has a content that is an empty object.
type emptyForm struct{ *sdk.ElicitResult }

// MarshalJSON implements json.Marshaler.
func (f emptyForm) MarshalJSON() ([]byte, error) {
	return json.Marshal(struct {
		Action  string         `json:"action"`
		Content map[string]any `json:"content"`
	}{f.Action, f.Content})
}

// separateHandshake returns a sending handler that sends server/discover and initialize each with its own Request,
// derived from the handshake's Request. A failure ends only the context of its own Request, so the SDK can still try
// initialize after server/discover has failed. The handler returns such a failure as a *transport.Failure, also if the
// result of initialize has a version that the SDK does not support, which the SDK's error would not name to users. It
// also sets session.handleRequest to receive. It passes other requests to next.
func separateHandshake(next, receive sdk.MethodHandler) sdk.MethodHandler {
	return func(ctx context.Context, method string, req sdk.Request) (sdk.Result, error) {
		handshake := requestOf(ctx)
		isHandshake := method == methodDiscover || method == methodInitialize
		if !isHandshake || handshake == nil {
			return next(ctx, method, req)
		}
		deadline := handshake.Deadline()
		if method == methodDiscover {
			// Servers older than 2026-07-28 may not answer this unknown method at all. The rest is for initialize.
			deadline = time.Now().Add(handshake.discoverTimeout)
		}
		request := &Request{}
		request.Owner, request.Handshake = request, true
		request.useSession(handshake.session)
		request.Start(ctx, handshake.session.pool.Life, deadline)
		defer request.Finish()
		request.TokenRenewed.Store(handshake.TokenRenewed.Load()) // one renewal per handshake
		request.session.handshake.Store(request)
		request.session.handleRequest = receive
		result, err := next(request.Context(), method, req)
		handshake.TokenRenewed.Store(request.TokenRenewed.Load())
		if err == nil {
			return checkedVersion(result)
		}
		failure := request.Failure(err)
		isBusy := failure.Status == http.StatusTooManyRequests || failure.Status >= 500
		handshake.discoverBusy = method == methodDiscover && isBusy
		return nil, failure
	}
}

// checkedVersion returns result, the result of server/discover or initialize. If it is that of initialize and has a
// protocol version that the SDK does not support, checkedVersion returns a *transport.Failure as the error.
func checkedVersion(result sdk.Result) (sdk.Result, error) {
	initialized, ok := result.(*sdk.InitializeResult)
	if !ok || slices.Contains(sdk.SupportedProtocolVersions(), initialized.ProtocolVersion) {
		return result, nil
	}
	return nil, &transport.Failure{
		Kind:   transport.Protocol,
		Public: fmt.Sprintf("it has the protocol version %.20q, which answerd does not support", initialized.ProtocolVersion),
	}
}
