package session

//lint:file-ignore SA1019 2026-07-28 deprecates sampling (SEP-2577); servers still use it.

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"

	"answerd/internal/mcp/transport"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// clientOptions returns the SDK's options with the handlers for a server's requests. It declares
// sampling only if the configuration allows it.
func clientOptions(sampling bool, log *slog.Logger) *sdk.ClientOptions {
	o := &sdk.ClientOptions{
		// Not nil, which would declare roots. URL mode has to be declared as well.
		Capabilities: &sdk.ClientCapabilities{Elicitation: &sdk.ElicitationCapabilities{
			Form: &sdk.FormElicitationCapabilities{}, URL: &sdk.URLElicitationCapabilities{},
		}},
		ElicitationHandler: withRecover(log, answerElicitation),
	}
	if sampling {
		o.Capabilities.Sampling = &sdk.SamplingCapabilities{} // otherwise the SDK would declare tools as well
		o.CreateMessageWithToolsHandler = withRecover(log, answerSampling)
	}
	return o
}

// withRecover returns a function that calls f and returns a panic in it as an error.
func withRecover[Arg, Result any](log *slog.Logger, f func(context.Context, Arg) (Result, error)) func(context.Context, Arg) (Result, error) {
	return func(ctx context.Context, arg Arg) (res Result, err error) {
		defer transport.Recover(log, func(f *transport.Failure) { err = f })
		return f(ctx, arg)
	}
}

// claimRequest returns the request that the SDK called a handler for. It is the zero value if the call
// that it belongs to is over.
func claimRequest(ctx context.Context, meta sdk.Meta) serverRequest {
	request := requestOf(ctx)
	if request == nil {
		return serverRequest{}
	}
	tag, _ := meta[tagKey].(string)
	return request.session.requests.claim(tag)
}

// answerElicitation handles elicitation/create for the SDK. It declines if the call has no handler
// for it.
func answerElicitation(ctx context.Context, r *sdk.ElicitRequest) (*sdk.ElicitResult, error) {
	asked := claimRequest(ctx, r.Params.Meta)
	elicitation, err := decodeElicitation(r.Params, asked.requestedSchema(r.Params.RequestedSchema))
	if err != nil {
		return nil, &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: err.Error()}
	}
	requests := asked.answers
	if asked.given != nil {
		return elicitResult(elicitation, *asked.given), nil
	}
	if requests == nil || requests.Elicit == nil {
		return &sdk.ElicitResult{Action: Decline}, nil
	}
	ctx, done, ok := requests.beginAnswer(ctx, true)
	if !ok {
		return &sdk.ElicitResult{Action: Cancel}, nil
	}
	defer done()
	answer, err := requests.Elicit(ctx, elicitation)
	if err != nil {
		return &sdk.ElicitResult{Action: Cancel}, nil
	}
	return elicitResult(elicitation, answer), nil
}

// elicitResult returns an answer as the SDK has it. Content that does not decode counts as Cancel.
func elicitResult(e Elicitation, answer ElicitationResult) *sdk.ElicitResult {
	result := &sdk.ElicitResult{Action: answer.Action}
	if answer.Action == Accept && e.Mode == ElicitForm {
		if err := json.Unmarshal(answer.Content, &result.Content); err != nil {
			return &sdk.ElicitResult{Action: Cancel}
		}
	}
	return result
}

// answerSampling handles sampling/createMessage for the SDK. Only sessions with a server that is
// configured to allow sampling use it.
func answerSampling(ctx context.Context, r *sdk.CreateMessageWithToolsRequest) (*sdk.CreateMessageWithToolsResult, error) {
	asked := claimRequest(ctx, r.Params.Meta)
	sampling, err := decodeSampling(r.Params)
	if err != nil {
		return nil, &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: err.Error()}
	}
	refused := &jsonrpc.Error{Code: codeRefused, Message: "the client does not sample for this call"}
	requests := asked.answers
	if requests == nil || requests.Sample == nil {
		return nil, refused
	}
	ctx, done, ok := requests.beginAnswer(ctx, false)
	if !ok {
		return nil, refused
	}
	defer done()
	answer, err := requests.Sample(ctx, sampling)
	switch {
	case errors.Is(err, ErrRefused):
		return nil, refused
	case err != nil:
		return nil, &jsonrpc.Error{Code: jsonrpc.CodeInternalError, Message: "the client's model did not answer"}
	}
	stop := "endTurn"
	if answer.Cut {
		stop = "maxTokens"
	}
	text := []sdk.Content{&sdk.TextContent{Text: answer.Text}}
	return &sdk.CreateMessageWithToolsResult{Content: text, Model: answer.Model, Role: "assistant", StopReason: stop}, nil
}
