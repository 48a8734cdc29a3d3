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
// requests no further page once add has returned false, or after maxToolPages. A page may have as
// many bytes as maxBytes and the tools before leave, and at least transport.MaxMessage.
func (s *Session) ListTools(deadline time.Time, maxBytes int, add func(tool json.RawMessage) bool) (list ToolList, _ *transport.Failure) {
	used := map[string]bool{"": true}
	cursor := ""
	for range maxToolPages {
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
	raw, f := s.Do(context.Background(), nil, deadline, func(x *Request) (json.RawMessage, *transport.Failure) {
		x.MaxAnswer = maxBytes
		return ask(x, "tools/list", &sdk.ListToolsParams{Cursor: cursor})
	})
	switch {
	case methodNotFound(f):
		return page, nil
	case f != nil && f.Kind == transport.TooLarge:
		return page, &transport.Failure{Kind: transport.TooLarge, Public: fmt.Sprintf("a page of its list of tools is larger than %d bytes", maxBytes), Err: f}
	case f != nil:
		return page, f
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

// CallTool sends a tools/call by x and returns its result as received. While it waits, the
// server's messages go to the handlers; none is called after CallTool has returned.
func (s *Session) CallTool(x *Request, call ToolCall) (json.RawMessage, *transport.Failure) {
	// The SDK writes to params, so each call has its own.
	params := &sdk.CallToolParams{Meta: call.Meta, Name: call.Name, Arguments: call.Args}
	return s.withHandlers(x, call.Handlers, call.Meta, func() (json.RawMessage, *transport.Failure) {
		return x.answerInputs(call.Handlers, func(in sdk.InputResponseMap, state string) (json.RawMessage, *transport.Failure) {
			params.InputResponses, params.RequestState = in, state
			return ask(x, methodCall, params)
		})
	})
}

// withHandlers sends a request of x by send. Until that has returned, messages of the server
// go to the handlers; meta, which is that of the request, asks the server for them.
func (s *Session) withHandlers(x *Request, h Handlers, meta sdk.Meta, send func() (json.RawMessage, *transport.Failure)) (json.RawMessage, *transport.Failure) {
	x.useSession(s)
	if h.OnProgress != nil {
		x.ProgressToken = "p" + strconv.FormatInt(s.progressTokens.Add(1), 36)
		meta["progressToken"] = x.ProgressToken
	}
	if x.wantsLog = h.OnLog != nil; x.wantsLog && s.Protocol() >= transport.StatelessVersion {
		meta[metaLogLevel] = logLevel
	}
	if h.OnProgress != nil || h.OnLog != nil {
		x.notifications = newNotificationQueue(func(n notification) {
			if n.log != nil {
				h.OnLog(*n.log)
			} else if p, ok := x.decodeProgress(n.progress); ok {
				h.OnProgress(p)
			}
		})
	}
	x.serverRequests = newServerRequests(&x.RoundTrip, h)
	result, f := send()
	x.serverRequests.cancelAndWait()
	if x.notifications != nil {
		// What came before the server's answer is delivered, also before an error.
		x.notifications.closeQueue(f == nil || x.Context().Err() == nil)
	}
	return result, f
}
