package session

import (
	"encoding/json"
	"fmt"

	"answerd/internal/mcp/transport"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// CollectPages returns the first elements of one of the server's lists, at most limit of them and from at most maxPages
// pages. member is the name of the list in the result. getPage requests the page of a cursor; "" is the first page. If
// the server does not have the method, the list is empty.
func CollectPages(
	member string, limit int, getPage func(cursor string) (json.RawMessage, *transport.Failure),
) ([]json.RawMessage, *transport.Failure) {
	var elements []json.RawMessage
	usedCursors := map[string]bool{"": true}
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
		// A result of another type may look like an empty list.
		if json.Unmarshal(raw, &header) == nil && !header.isComplete() {
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
		_ = json.Unmarshal(page["nextCursor"], &cursor) // after an error, cursor is one that was used before
		// A used cursor can only lead to the same pages again.
		if len(elements) >= limit || page["nextCursor"] == nil || usedCursors[cursor] {
			break
		}
		usedCursors[cursor] = true
	}
	return elements[:min(len(elements), limit)], nil
}

// ListPrompts returns a function that requests a page of the server's prompts; cursor "" is the first page.
func ListPrompts(cursor string) RequestFunc {
	return func(request *Request) (json.RawMessage, *transport.Failure) {
		return ask(request, "prompts/list", &sdk.ListPromptsParams{Cursor: cursor})
	}
}

// GetPrompt returns a function that requests a prompt with arguments. The caller handles no messages of the server, so
// its questions during the request are declined.
func GetPrompt(name string, args map[string]string) RequestFunc {
	return func(request *Request) (json.RawMessage, *transport.Failure) {
		sendGet := func(answers sdk.InputResponseMap, state string) (json.RawMessage, *transport.Failure) {
			params := &sdk.GetPromptParams{Name: name, Arguments: args, InputResponses: answers, RequestState: state}
			return ask(request, methodPrompt, params)
		}
		return request.answerInputs(Handlers{}, sendGet)
	}
}
