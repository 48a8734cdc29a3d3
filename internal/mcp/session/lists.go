package session

import (
	"encoding/json"
	"fmt"

	"answerd/internal/mcp/transport"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// CollectPages returns the elements of one of the server's lists, page by page, at most limit
// of them. member is the name of the list in the result. A server that does not have the
// method has no elements.
func CollectPages(member string, limit int, getPage func(cursor string) (json.RawMessage, *transport.Failure)) ([]json.RawMessage, *transport.Failure) {
	var elements []json.RawMessage
	used := map[string]bool{"": true}
	cursor := ""
	for range maxPages {
		raw, f := getPage(cursor)
		if methodNotFound(f) {
			return nil, nil
		}
		if f != nil {
			return nil, f
		}
		var header resultHeader
		var page map[string]json.RawMessage
		var list []json.RawMessage
		if json.Unmarshal(raw, &header) == nil && !header.isComplete() { // it may look like an empty list
			return nil, transport.BadReply(fmt.Sprintf("a list of %s of type %.40q", member, header.ResultType), nil)
		}
		err := json.Unmarshal(raw, &page)
		if err == nil && page[member] != nil {
			err = json.Unmarshal(page[member], &list)
		}
		if err != nil {
			return nil, transport.BadReply("its list of "+member+" does not decode", nil)
		}
		elements = append(elements, list...)
		_ = json.Unmarshal(page["nextCursor"], &cursor)
		// A cursor that was used before can only lead to the same pages again.
		if len(elements) >= limit || page["nextCursor"] == nil || used[cursor] {
			break
		}
		used[cursor] = true
	}
	return elements[:min(len(elements), limit)], nil
}

// ListPrompts returns the request for a page of a server's prompts.
func ListPrompts(cursor string) RequestFunc {
	return func(request *Request) (json.RawMessage, *transport.Failure) {
		return ask(request, "prompts/list", &sdk.ListPromptsParams{Cursor: cursor})
	}
}

// GetPrompt returns the request for a prompt whose arguments are filled in.
func GetPrompt(name string, args map[string]string) RequestFunc {
	return func(request *Request) (json.RawMessage, *transport.Failure) {
		return request.answerInputs(Handlers{}, func(in sdk.InputResponseMap, state string) (json.RawMessage, *transport.Failure) {
			return ask(request, methodPrompt, &sdk.GetPromptParams{Name: name, Arguments: args, InputResponses: in, RequestState: state})
		})
	}
}
