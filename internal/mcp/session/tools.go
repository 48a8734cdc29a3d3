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

// ToolList describes the list that ListTools has read.
type ToolList struct {
	TTL time.Duration // how long the list may be cached: the shortest ttlMs of its pages; 0 if they have none
	Cut string        // why further pages of the server were not requested, as CollectPages returns it; else ""
}

// ListTools requests the pages of the server's list of tools and calls add with each tool, as received. It stops, with
// Cut, after a page during which add returned false, after maxPages, and before it would repeat a page. All tools
// together may have about maxBytes: a page may have as many bytes as the tools before it have left of maxBytes, but
// always transport.MaxMessage.
func (s *Session) ListTools(deadline time.Time, maxBytes int, add func(tool json.RawMessage) bool) (list ToolList, _ *transport.Failure) {
	cut, failure := readPages(func(cursor string) (string, bool, *transport.Failure) {
		page, failure := s.getToolPage(cursor, deadline, max(maxBytes, transport.MaxMessage))
		if failure != nil {
			return "", false, failure
		}
		// The list is outdated as soon as one page is.
		if t := s.ttl(&page.resultHeader); t > 0 && (list.TTL == 0 || t < list.TTL) {
			list.TTL = t
		}
		full := false
		for _, tool := range page.Tools {
			maxBytes -= len(tool)
			full = !add(tool) || full
		}
		return page.NextCursor, full, nil
	})
	if failure != nil {
		return ToolList{}, failure
	}
	list.Cut = cut
	return list, nil
}

// toolPage is one page of the list of tools. Its tools are not decoded, because with the SDK's type one invalid tool
// would make the whole page fail.
type toolPage struct {
	Tools      []json.RawMessage `json:"tools"`
	NextCursor string            `json:"nextCursor"`
	resultHeader
}

// getToolPage requests the page of cursor, of at most maxBytes. If the server does not have the method, the page is
// empty.
func (s *Session) getToolPage(cursor string, deadline time.Time, maxBytes int) (page toolPage, _ *transport.Failure) {
	// The context is not that of a caller, because the list is for all callers.
	raw, failure := s.Do(context.Background(), nil, deadline, func(request *Request) (json.RawMessage, *transport.Failure) {
		request.MaxAnswer = maxBytes
		return ask(request, "tools/list", &sdk.ListToolsParams{Cursor: cursor})
	})
	switch {
	case methodNotFound(failure):
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
	if err := json.Unmarshal(raw, &page); err != nil {
		return page, transport.BadReply("its list of tools does not decode", fmt.Errorf("tools/list: %w", err))
	}
	// A result of another type may look like an empty list.
	if !page.isComplete() {
		return page, transport.BadReply(fmt.Sprintf("a list of tools of type %.40q", page.ResultType), nil)
	}
	return page, nil
}

// ToolCall is one call of a tool in a session.
type ToolCall struct {
	Name string          // the server's own name for the tool
	Args json.RawMessage // a JSON object
	Meta sdk.Meta        // not nil; CallTool writes to it
	Handlers
}

// CallTool sends tools/call with request, waits for the result, and returns it as received. The handlers of call get
// the server's messages until CallTool returns, and not afterwards. If a person must answer first (Handlers.Suspend),
// the result is nil and request.InputRequired is set.
func (s *Session) CallTool(request *Request, call ToolCall) (json.RawMessage, *transport.Failure) {
	params := &sdk.CallToolParams{Meta: call.Meta, Name: call.Name, Arguments: call.Args}
	return s.withHandlers(request, call.Handlers, call.Meta, func() (json.RawMessage, *transport.Failure) {
		sendCall := func(answers sdk.InputResponseMap, state string) (json.RawMessage, *transport.Failure) {
			params.InputResponses, params.RequestState = answers, state
			return ask(request, methodCall, params)
		}
		return request.answerInputs(call.Handlers, sendCall)
	})
}

// withHandlers calls send, which sends request in s, and returns its result. While send runs, the handlers get the
// server's messages about request. When withHandlers returns, no handler is running. meta is the _meta of the request,
// to which withHandlers adds the members that ask the server for progress and log messages.
func (s *Session) withHandlers(
	request *Request, handlers Handlers, meta sdk.Meta, send func() (json.RawMessage, *transport.Failure),
) (json.RawMessage, *transport.Failure) {
	request.useSession(s)
	if handlers.OnProgress != nil {
		request.ProgressToken = "p" + strconv.FormatInt(s.progressTokens.Add(1), 36)
		meta["progressToken"] = request.ProgressToken
	}
	request.wantsLog = handlers.OnLog != nil
	// In earlier versions, setLogLevel has asked for the log messages of the whole session.
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
	request.serverRequests = newServerRequests(&request.RoundTrip, handlers)
	result, f := send()
	request.serverRequests.cancelAndWait()
	if request.notifications != nil {
		// Unless the context of the request has ended, the caller gets all notifications that came before the answer,
		// also before an error.
		request.notifications.closeQueue(f == nil || request.Context().Err() == nil)
	}
	return result, f
}
