package session

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	"answerd/internal/help"
	"answerd/internal/mcp/transport"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// ToolList says what ListTools did.
type ToolList struct {
	TTL time.Duration // how long the list holds; 0 if the server did not say
	Cut bool          // not all pages were requested
}

// ListTools asks for all pages of the server's tools and gives each tool, as received, to add. It
// requests no further page once add has returned false, or after maxPages. A page may have as
// many bytes as maxBytes and the tools before leave, and at least transport.MaxMessage.
func (s *Session) ListTools(deadline time.Time, maxBytes int, add func(tool json.RawMessage) bool) (list ToolList, _ *transport.Failure) {
	used := map[string]bool{"": true}
	cursor := ""
	for range maxPages {
		page, f := s.getToolPage(cursor, deadline, max(maxBytes, transport.MaxMessage))
		if f != nil {
			return ToolList{}, f
		}
		// A list is as old as its oldest page.
		if t := s.ttl(&page.resultHeader); t > 0 && (list.TTL == 0 || t < list.TTL) {
			list.TTL = t
		}
		full := false
		for _, tool := range page.Tools {
			maxBytes -= len(tool)
			full = !add(tool) || full
		}
		if page.NextCursor == "" {
			return list, nil
		}
		if full {
			list.Cut = true
			return list, nil
		}
		if used[page.NextCursor] { // it can only lead to the same pages again
			s.pool.Logger.Warn("MCP tools/list has a pagination loop", "pages", len(used), help.ToolLists.Attr())
			return list, nil
		}
		used[page.NextCursor] = true
		cursor = page.NextCursor
	}
	list.Cut = true
	return list, nil
}

// toolPage is one page of a list of tools whose elements are not decoded yet: the SDK's
// types would fail as a whole if one element did.
type toolPage struct {
	Tools      []json.RawMessage `json:"tools"`
	NextCursor string            `json:"nextCursor"`
	resultHeader
}

// getToolPage asks for one page of at most maxBytes. A server without tools has an empty one.
func (s *Session) getToolPage(cursor string, deadline time.Time, maxBytes int) (page toolPage, _ *transport.Failure) {
	// Not under a caller's context: the list is for all of them.
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
	// A result of another type is not a list, although it may look like an empty one.
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

// CallTool sends a tools/call by request and returns its result as received. While it waits, the
// server's messages go to the handlers; none is called after CallTool has returned.
func (s *Session) CallTool(request *Request, call ToolCall) (json.RawMessage, *transport.Failure) {
	// The SDK writes to params, so each call has its own.
	params := &sdk.CallToolParams{Meta: call.Meta, Name: call.Name, Arguments: call.Args}
	return s.withHandlers(request, call.Handlers, call.Meta, func() (json.RawMessage, *transport.Failure) {
		return request.answerInputs(call.Handlers, func(in sdk.InputResponseMap, state string) (json.RawMessage, *transport.Failure) {
			params.InputResponses, params.RequestState = in, state
			return ask(request, methodCall, params)
		})
	})
}

// withHandlers sends a request of request by send. Until that has returned, messages of the server
// go to the handlers; meta, which is that of the request, asks the server for them.
func (s *Session) withHandlers(request *Request, handlers Handlers, meta sdk.Meta, send func() (json.RawMessage, *transport.Failure)) (json.RawMessage, *transport.Failure) {
	request.useSession(s)
	if handlers.OnProgress != nil {
		request.ProgressToken = "p" + strconv.FormatInt(s.progressTokens.Add(1), 36)
		meta["progressToken"] = request.ProgressToken
	}
	request.wantsLog = handlers.OnLog != nil
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
		// What came before the server's answer is delivered, also before an error.
		request.notifications.closeQueue(f == nil || request.Context().Err() == nil)
	}
	return result, f
}
