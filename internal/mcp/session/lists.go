package session

import (
	"encoding/json"
	"fmt"

	"answerd/internal/mcp/transport"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// TooLarge says that a list of the server has too many pages, elements or bytes, as a predicate of the list.
const TooLarge = "is too large"

// readPages calls readPage with the cursor of each page of a list; "" means the first page. readPage must return the next
// page's cursor, which is "" on the last page, and whether no further page is wanted. If some pages were not read, cut
// says why, as a predicate of the list: readPage wanted no more, maxPages were read, or a cursor came again.
func readPages(readPage func(cursor string) (next string, full bool, _ *transport.Failure)) (cut string, _ *transport.Failure) {
	usedCursors := map[string]bool{"": true}
	cursor := ""
	for range maxPages {
		next, full, failure := readPage(cursor)
		switch {
		case failure != nil || next == "":
			return "", failure
		case full:
			return TooLarge, nil
		case usedCursors[next]: // it can only lead to the same pages again
			return "repeats a cursor", nil
		}
		usedCursors[next] = true
		cursor = next
	}
	return TooLarge, nil
}

// CollectPages returns the first elements of one of the server's lists: at most limit elements, from at most maxPages
// pages. member is the list's name in the result. getPage must request the page with the given cursor; "" means the
// first page. If the server does not have the method, the list is empty. If the server may have more elements, cut says
// why they are missing, as a predicate of the list; otherwise it is "".
func CollectPages(
	member string, limit int, getPage func(cursor string) (json.RawMessage, *transport.Failure),
) (elements []json.RawMessage, cut string, _ *transport.Failure) {
	cut, failure := readPages(func(cursor string) (string, bool, *transport.Failure) {
		result, failure := getPage(cursor)
		if isMethodNotFound(failure) {
			return "", false, nil
		}
		if failure != nil {
			return "", false, failure
		}
		page, nextCursor, failure := decodePage(member, result)
		elements = append(elements, page...)
		return nextCursor, len(elements) >= limit, failure
	})
	if failure != nil {
		return nil, "", failure
	}
	if len(elements) > limit {
		return elements[:limit], TooLarge, nil
	}
	return elements, cut, nil
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
