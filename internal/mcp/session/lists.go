package session

import (
	"encoding/json"
	"fmt"

	"answerd/internal/mcp/transport"
	"answerd/internal/mcp/wire"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// TooLarge says that a list of the server has too many pages, elements or bytes, as a predicate of the list.
const TooLarge = "is too large"

// readPages calls readPage with the cursor of each page of a list; "" means the first page. readPage must return the next
// page's cursor, which is "" on the last page, and whether no further page is wanted. If some pages were not read, cut
// says why, as a predicate of the list: readPage wanted no more, maxPages were read, or a cursor came again or is
// notString.
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
		case next == notString:
			return "has a cursor that is not a string", nil
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
		page, failure := decodePage(member, result)
		elements = append(elements, page.elements...)
		return page.nextCursor, len(elements) >= limit, failure
	})
	if failure != nil {
		return nil, "", failure
	}
	if len(elements) > limit {
		return elements[:limit], TooLarge, nil
	}
	return elements, cut, nil
}

// listPage is one page of a list. Its elements are not decoded: with the SDK's types, one invalid element would make the
// whole page fail.
type listPage struct {
	resultHeader
	elements   []json.RawMessage
	nextCursor string // "" on the last page
}

// notString is the nextCursor of a page whose cursor is not a string, and so cannot be sent back.
const notString = "\x00"

// decodePage decodes result, a page of the list that is called member in it.
func decodePage(member string, result json.RawMessage) (page listPage, _ *transport.Failure) {
	var members map[string]json.RawMessage
	err := json.Unmarshal(result, &members)
	if err == nil && members[member] != nil {
		err = json.Unmarshal(members[member], &page.elements)
	}
	var isString bool
	if page.nextCursor, isString = wire.Text(members["nextCursor"]); !isString {
		page.nextCursor = notString
	}
	_ = json.Unmarshal(members["resultType"], &page.ResultType) // stays "" if it is not a string
	page.TTLMs = members["ttlMs"]
	switch {
	case !page.isComplete(): // it must not be taken for an empty list
		return listPage{}, transport.BadReply(fmt.Sprintf("a list of %s of type %.40q", member, page.ResultType), nil)
	case err != nil:
		return listPage{}, transport.BadReply("its list of "+member+" does not decode", err)
	}
	return page, nil
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
