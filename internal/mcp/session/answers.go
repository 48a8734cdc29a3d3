package session

//lint:file-ignore SA1019 2026-07-28 deprecates sampling (SEP-2577); servers still use it.

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// clientOptions returns the SDK's client options with handlers for a server's requests. sampling says that the
// configuration allows the server to request sampling; otherwise the client does not declare that capability.
func clientOptions(sampling bool) *sdk.ClientOptions {
	o := &sdk.ClientOptions{
		// If Capabilities were nil, the SDK would declare roots, and elicitation without URL mode.
		Capabilities: &sdk.ClientCapabilities{Elicitation: &sdk.ElicitationCapabilities{
			Form: &sdk.FormElicitationCapabilities{}, URL: &sdk.URLElicitationCapabilities{},
		}},
		ElicitationHandler: answerElicitation,
	}
	if sampling {
		o.Capabilities.Sampling = &sdk.SamplingCapabilities{} // if nil, the SDK would also declare tools in sampling
		o.CreateMessageWithToolsHandler = answerSampling
	}
	return o
}

// claimRequest returns the server's request for which the SDK has called a handler, and removes it from the session's
// registry. ctx and meta are the handler's. If the request belongs to no call, or its call has ended, claimRequest
// returns the zero value.
func claimRequest(ctx context.Context, meta sdk.Meta) serverRequest {
	request := requestOf(ctx)
	if request == nil {
		return serverRequest{}
	}
	tag, _ := meta[tagKey].(string)
	return request.session.requests.claim(tag)
}

// answerElicitation handles elicitation/create for the SDK. If the user answered a suspended call and the call was
// sent again, it returns that answer. Otherwise it calls the call's Handlers.Elicit and waits. It declines if there is
// no such handler. It cancels if the handler returns an error or beginAnswer refuses another answer.
func answerElicitation(ctx context.Context, r *sdk.ElicitRequest) (*sdk.ElicitResult, error) {
	request := claimRequest(ctx, r.Params.Meta)
	elicitation, err := decodeElicitation(r.Params, request.requestedSchema(r.Params.RequestedSchema))
	if err != nil {
		return nil, &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: err.Error()}
	}
	if request.resumeAnswer != nil {
		return elicitResult(elicitation, *request.resumeAnswer), nil
	}
	answerer := request.answerer
	if answerer == nil || answerer.Elicit == nil {
		return &sdk.ElicitResult{Action: Decline}, nil
	}
	ctx, done, ok := answerer.beginAnswer(ctx, methodElicit)
	if !ok {
		return &sdk.ElicitResult{Action: Cancel}, nil
	}
	defer done()
	answer, err := answerer.Elicit(ctx, elicitation)
	if err != nil {
		return &sdk.ElicitResult{Action: Cancel}, nil
	}
	return elicitResult(elicitation, answer), nil
}

// elicitResult converts an answer to the SDK's type, and adds the form's defaults to an accepted form. If the form's
// content does not decode, the result is Cancel.
func elicitResult(e Elicitation, answer ElicitationResult) *sdk.ElicitResult {
	if answer.Action != Accept || e.Mode != ElicitForm {
		return &sdk.ElicitResult{Action: answer.Action}
	}
	content, err := decodeMembers(answer.Content)
	if err != nil {
		return &sdk.ElicitResult{Action: Cancel}
	}
	addDefaults(content, e.Schema)
	return &sdk.ElicitResult{Action: Accept, Content: content}
}

// addDefaults adds the form's defaults to content, for fields that content leaves out. The SDK would add them too, but
// as floats, which rounds large integers.
func addDefaults(content map[string]any, form json.RawMessage) {
	schema, _ := decodeMembers(form) // cannot fail: compileForm has decoded it
	fields, _ := schema["properties"].(map[string]any)
	for name, field := range fields {
		members, _ := field.(map[string]any)
		if _, exists := content[name]; !exists && members["default"] != nil {
			content[name] = members["default"]
		}
	}
}

// decodeMembers decodes a JSON object. Numbers become json.Number, which keeps all of their digits. null is an error.
func decodeMembers(raw json.RawMessage) (members map[string]any, err error) {
	decoder := json.NewDecoder(bytes.NewReader(raw))
	decoder.UseNumber()
	err = decoder.Decode(&members)
	if err == nil && members == nil {
		err = errors.New("not an object")
	}
	return members, err
}

// answerSampling handles sampling/createMessage for the SDK, if the configuration allows the server to request
// sampling. It calls the call's Handlers.Sample and waits. The error is a *jsonrpc.Error, which is sent to the server.
func answerSampling(ctx context.Context, r *sdk.CreateMessageWithToolsRequest) (*sdk.CreateMessageWithToolsResult, error) {
	request := claimRequest(ctx, r.Params.Meta)
	sampling, err := decodeSampling(r.Params)
	if err != nil {
		return nil, &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: err.Error()}
	}
	refused := &jsonrpc.Error{Code: codeRefused, Message: "the client does not sample for this call"}
	answerer := request.answerer
	if answerer == nil || answerer.Sample == nil {
		return nil, refused
	}
	ctx, done, ok := answerer.beginAnswer(ctx, methodSample)
	if !ok {
		return nil, refused
	}
	defer done()
	answer, err := answerer.Sample(ctx, sampling)
	switch {
	case errors.Is(err, ErrRefused):
		return nil, refused
	case err != nil:
		return nil, &jsonrpc.Error{Code: jsonrpc.CodeInternalError, Message: "the client's model did not answer"}
	}
	stopReason := "endTurn"
	if answer.Cut {
		stopReason = "maxTokens"
	}
	text := []sdk.Content{&sdk.TextContent{Text: answer.Text}}
	return &sdk.CreateMessageWithToolsResult{Content: text, Model: answer.Model, Role: "assistant", StopReason: stopReason}, nil
}
