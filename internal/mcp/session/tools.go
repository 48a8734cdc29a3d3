package session

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	"answerd/internal/mcp/transport"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// ToolList describes a list of tools that ListTools has read.
type ToolList struct {
	TTL time.Duration // how long the list may be cached: the shortest ttlMs of its pages; 0 if they have none
	Cut string        // why not all pages were requested, as a predicate; "" if all were
}

// ListTools requests the pages of the server's list of tools, and calls add with each tool as received. It stops, and
// sets Cut, after a page for which add returned false, after maxPages, and when it would request a page again. The
// tools may have about maxBytes together: a page may have the remainder of that, but at least transport.MaxMessage.
func (s *Session) ListTools(deadline time.Time, maxBytes int, add func(tool json.RawMessage) bool) (list ToolList, _ *transport.Failure) {
	cut, failure := readPages(func(cursor string) (string, bool, *transport.Failure) {
		page, failure := s.getToolPage(cursor, deadline, max(maxBytes, transport.MaxMessage))
		if failure != nil {
			return "", false, failure
		}
		// The list is outdated as soon as one page is.
		if ttl := s.ttl(&page.resultHeader); ttl > 0 && (list.TTL == 0 || ttl < list.TTL) {
			list.TTL = ttl
		}
		isFull := false
		for _, tool := range page.elements {
			maxBytes -= len(tool)
			if !add(tool) {
				isFull = true
			}
		}
		return page.nextCursor, isFull, nil
	})
	if failure != nil {
		return ToolList{}, failure
	}
	list.Cut = cut
	return list, nil
}

// getToolPage requests the page at cursor, of at most maxBytes. If the server lacks the method, the page is empty.
func (s *Session) getToolPage(cursor string, deadline time.Time, maxBytes int) (page listPage, _ *transport.Failure) {
	// The context is not a call's context, because the list is for all calls.
	raw, failure := s.Do(context.Background(), nil, deadline, func(request *Request) (json.RawMessage, *transport.Failure) {
		request.MaxAnswer = maxBytes
		return callMethod(request, "tools/list", &sdk.ListToolsParams{Cursor: cursor})
	})
	switch {
	case isMethodNotFound(failure):
		return page, nil
	case failure != nil && failure.Kind == transport.TooLarge:
		return page, &transport.Failure{
			Kind:   transport.TooLarge,
			Public: fmt.Sprintf("a page of its list of tools is larger than %d bytes", maxBytes),
			Err:    failure,
		}
	case failure != nil:
		return page, failure
	}
	return decodePage("tools", raw)
}

// ToolCall is one call of a tool in a session.
type ToolCall struct {
	Name string          // the server's own name for the tool
	Args json.RawMessage // a JSON object
	Meta sdk.Meta        // not nil; CallTool writes to it
	Handlers
}

// CallTool sends tools/call with request, waits for the result, and returns it as received. The Handlers of call get
// the server's messages until CallTool returns, but not after that. If the user must answer first (Handlers.Suspend),
// the result and the failure are nil and request.InputRequired is set.
func (s *Session) CallTool(request *Request, call ToolCall) (json.RawMessage, *transport.Failure) {
	params := &sdk.CallToolParams{Meta: call.Meta, Name: call.Name, Arguments: call.Args}
	return s.withHandlers(request, call.Handlers, call.Meta, func() (json.RawMessage, *transport.Failure) {
		sendCall := func(answers sdk.InputResponseMap, state string) (json.RawMessage, *transport.Failure) {
			params.InputResponses, params.RequestState = answers, state
			return callMethod(request, methodCall, params)
		}
		return request.answerInputs(call.Handlers, sendCall)
	})
}

// withHandlers calls send, which sends request in s, and returns its result. Until withHandlers returns, handlers get
// the server's messages about request. After that, none of them is running. meta is the request's _meta, to which
// withHandlers adds the members that ask the server for progress and log messages.
func (s *Session) withHandlers(
	request *Request, handlers Handlers, meta sdk.Meta, send func() (json.RawMessage, *transport.Failure),
) (json.RawMessage, *transport.Failure) {
	request.useSession(s)
	if handlers.OnProgress != nil {
		request.ProgressToken = "p" + strconv.FormatInt(s.progressTokens.Add(1), 36)
		meta["progressToken"] = request.ProgressToken
	}
	request.wantsLog = handlers.OnLog != nil
	// In earlier versions, setLogLevel has asked for log messages for the whole session.
	if request.wantsLog && s.Protocol() >= transport.StatelessVersion {
		meta[metaLogLevel] = logLevel
	}
	if handlers.OnProgress != nil || handlers.OnLog != nil {
		request.notifications = newNotificationQueue(func(n notification) {
			if n.log != nil {
				handlers.OnLog(*n.log)
			} else if p, ok := request.decodeProgress(n.progress); ok {
				handlers.OnProgress(p)
			}
		})
	}
	request.answerer = newRequestAnswerer(&request.RoundTrip, handlers)
	result, failure := send()
	request.answerer.cancelAndWait()
	if request.notifications != nil {
		// Deliver all notifications that came before the answer, even if the answer is an error.
		deliverRest := failure == nil || request.Context().Err() == nil
		request.notifications.closeQueue(deliverRest)
	}
	return result, failure
}
