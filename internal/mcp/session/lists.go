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
		// A used cursor can only lead to the same pages again.
		if len(elements) >= limit || usedCursors[nextCursor] {
			break
		}
		cursor = nextCursor
	}
	return elements[:min(len(elements), limit)], nil
}

// decodePage returns the elements of one page, the list called member in result, and the cursor of the next page. The
// cursor is "" if the page is the last one, or if its cursor is not a string.
func decodePage(member string, result json.RawMessage) (elements []json.RawMessage, nextCursor string, _ *transport.Failure) {
	var header resultHeader
	// A result of another type may look like an empty list.
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
