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

// clientOptions returns the SDK's options with the handlers for a server's requests. sampling says that the
// configuration lets the server ask for sampling; otherwise the client does not declare that capability.
func clientOptions(sampling bool) *sdk.ClientOptions {
	o := &sdk.ClientOptions{
		// For nil Capabilities the SDK would declare roots, and elicitation without URL mode.
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

// claimRequest removes the request for which the SDK has called a handler from the registry of its session, and returns
// it. ctx and meta are those of the handler. It returns the zero value if the request belongs to no call, or its call
// has ended.
func claimRequest(ctx context.Context, meta sdk.Meta) serverRequest {
	request := requestOf(ctx)
	if request == nil {
		return serverRequest{}
	}
	tag, _ := meta[tagKey].(string)
	return request.session.requests.claim(tag)
}

// answerElicitation handles elicitation/create for the SDK. If the person has answered before the request was sent
// again, it returns that answer. Otherwise it calls Handlers.Elicit of the call and waits. It declines if there is no
// such handler, and cancels after an error or if the bounds of beginAnswer are reached.
func answerElicitation(ctx context.Context, r *sdk.ElicitRequest) (*sdk.ElicitResult, error) {
	request := claimRequest(ctx, r.Params.Meta)
	elicitation, err := decodeElicitation(r.Params, request.requestedSchema(r.Params.RequestedSchema))
	if err != nil {
		return nil, &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: err.Error()}
	}
	if request.resumeAnswer != nil {
		return elicitResult(elicitation, *request.resumeAnswer), nil
	}
	handlers := request.requests
	if handlers == nil || handlers.Elicit == nil {
		return &sdk.ElicitResult{Action: Decline}, nil
	}
	ctx, done, ok := handlers.beginAnswer(ctx, true)
	if !ok {
		return &sdk.ElicitResult{Action: Cancel}, nil
	}
	defer done()
	answer, err := handlers.Elicit(ctx, elicitation)
	if err != nil {
		return &sdk.ElicitResult{Action: Cancel}, nil
	}
	return elicitResult(elicitation, answer), nil
}

// elicitResult converts an answer to the SDK's type, with the defaults of the form. It returns Cancel if the content of a
// form does not decode.
func elicitResult(e Elicitation, answer ElicitationResult) *sdk.ElicitResult {
	result := &sdk.ElicitResult{Action: answer.Action}
	if answer.Action == Accept && e.Mode == ElicitForm {
		content, err := decodeMembers(answer.Content)
		if err != nil {
			return &sdk.ElicitResult{Action: Cancel}
		}
		addDefaults(content, e.Schema)
		result.Content = content
	}
	return result
}

// addDefaults adds the defaults of the form to content, for the fields that content leaves out. The SDK would add them
// as well, but as floats, which rounds large integers.
func addDefaults(content map[string]any, form json.RawMessage) {
	schema, _ := decodeMembers(form) // compileForm has decoded it before
	fields, _ := schema["properties"].(map[string]any)
	for name, field := range fields {
		members, _ := field.(map[string]any)
		if _, exists := content[name]; !exists && members["default"] != nil {
			content[name] = members["default"]
		}
	}
}

// decodeMembers decodes a JSON object whose numbers keep all of their digits.
func decodeMembers(raw json.RawMessage) (members map[string]any, err error) {
	decoder := json.NewDecoder(bytes.NewReader(raw))
	decoder.UseNumber()
	err = decoder.Decode(&members)
	if err == nil && members == nil {
		err = errors.New("not an object")
	}
	return members, err
}

// answerSampling handles sampling/createMessage for the SDK, if the configuration lets the server ask for sampling. It
// calls Handlers.Sample of the call and waits. The error is a *jsonrpc.Error, which the server gets.
func answerSampling(ctx context.Context, r *sdk.CreateMessageWithToolsRequest) (*sdk.CreateMessageWithToolsResult, error) {
	request := claimRequest(ctx, r.Params.Meta)
	sampling, err := decodeSampling(r.Params)
	if err != nil {
		return nil, &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: err.Error()}
	}
	refused := &jsonrpc.Error{Code: codeRefused, Message: "the client does not sample for this call"}
	handlers := request.requests
	if handlers == nil || handlers.Sample == nil {
		return nil, refused
	}
	ctx, done, ok := handlers.beginAnswer(ctx, false)
	if !ok {
		return nil, refused
	}
	defer done()
	answer, err := handlers.Sample(ctx, sampling)
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
