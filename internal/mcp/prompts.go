package mcp

import (
	"encoding/json"

	"answerd/internal/mcp/transport"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// listPrompts returns the request for a page of a server's prompts.
func listPrompts(cursor string) requestFunc {
	return func(x *exchange) (json.RawMessage, *transport.Failure) {
		return ask(x, "prompts/list", &sdk.ListPromptsParams{Cursor: cursor})
	}
}

// getPrompt returns the request for a prompt whose arguments are filled in.
func getPrompt(name string, args map[string]string) requestFunc {
	return func(x *exchange) (json.RawMessage, *transport.Failure) {
		return x.answerInputs(func(in sdk.InputResponseMap, state string) (json.RawMessage, *transport.Failure) {
			return ask(x, methodPrompt, &sdk.GetPromptParams{Name: name, Arguments: args, InputResponses: in, RequestState: state})
		})
	}
}
