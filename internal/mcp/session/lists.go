package session

import (
	"encoding/json"
	"fmt"

	"answerd/internal/mcp/transport"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// CollectPages returns the first elements of one of the server's lists: at most limit elements, from at most maxPages
// pages. member is the list's name in the result. getPage must request the page with the given cursor; "" means the
// first page. If the server does not have the method, CollectPages returns nil, nil.
func CollectPages(
	member string, limit int, getPage func(cursor string) (json.RawMessage, *transport.Failure),
) ([]json.RawMessage, *transport.Failure) {
	var elements []json.RawMessage
	usedCursors := map[string]bool{}
	cursor := ""
	for range maxPages {
		usedCursors[cursor] = true
		result, failure := getPage(cursor)
		if methodNotFound(failure) {
			return nil, nil
		}
		if failure != nil {
			return nil, failure
		}
		page, nextCursor, failure := decodePage(member, result)
		if failure != nil {
			return nil, failure
		}
		elements = append(elements, page...)
		// A used cursor would only lead to the same pages again.
		if len(elements) >= limit || usedCursors[nextCursor] {
			break
		}
		cursor = nextCursor
	}
	return elements[:min(len(elements), limit)], nil
}

// decodePage returns the elements of one page, which are the list called member in result, and the cursor of the next
// page. nextCursor is "" on the last page, or if it is not a string.
func decodePage(member string, result json.RawMessage) (elements []json.RawMessage, nextCursor string, _ *transport.Failure) {
	var header resultHeader
	// A result of another type must not be taken for an empty list.
	if json.Unmarshal(result, &header) == nil && !header.isComplete() {
		return nil, "", transport.BadReply(fmt.Sprintf("a list of %s of type %.40q", member, header.ResultType), nil)
	}
	var members map[string]json.RawMessage
	err := json.Unmarshal(result, &members)
	if err == nil && members[member] != nil {
		err = json.Unmarshal(members[member], &elements)
	}
	if err != nil {
		return nil, "", transport.BadReply("its list of "+member+" does not decode", nil)
	}
	_ = json.Unmarshal(members["nextCursor"], &nextCursor) // stays "" after an error
	return elements, nextCursor, nil
}

// ListPrompts returns a RequestFunc that requests the page of the server's prompts at cursor; "" means the first page.
func ListPrompts(cursor string) RequestFunc {
	return func(request *Request) (json.RawMessage, *transport.Failure) {
		return callMethod(request, "prompts/list", &sdk.ListPromptsParams{Cursor: cursor})
	}
}

// GetPrompt returns a RequestFunc that requests a prompt with the given arguments. It has no handlers, so the server's
// questions during the request are declined.
func GetPrompt(name string, args map[string]string) RequestFunc {
	return func(request *Request) (json.RawMessage, *transport.Failure) {
		sendGet := func(answers sdk.InputResponseMap, state string) (json.RawMessage, *transport.Failure) {
			params := &sdk.GetPromptParams{Name: name, Arguments: args, InputResponses: answers, RequestState: state}
			return callMethod(request, methodPrompt, params)
		}
		return request.answerInputs(Handlers{}, sendGet)
	}
}
