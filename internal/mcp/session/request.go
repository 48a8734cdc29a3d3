package session

import (
	"context"
	"encoding/json"
	"strconv"
	"time"

	"answerd/internal/mcp/transport"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

const (
	maxPages = 16             // of one list
	maxTTL   = 24 * time.Hour // of a list or resource, whatever the server says
)

// RequestFunc sends one request, such as by ask, and returns its result as received.
type RequestFunc func(*Request) (json.RawMessage, *transport.Failure)

// Do sends a request in the session that is not a tool call. tokens are whose token it
// carries; nil: the session's.
func (s *Session) Do(ctx context.Context, tokens transport.Sender, deadline time.Time, send RequestFunc) (json.RawMessage, *transport.Failure) {
	x := NewRequest(ctx, s.pool.Life, deadline, s)
	defer x.Finish()
	x.Tokens = tokens
	return send(x)
}

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
		var page map[string]json.RawMessage
		var list []json.RawMessage
		if json.Unmarshal(raw, &page) != nil || page[member] != nil && json.Unmarshal(page[member], &list) != nil {
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

// resultHeader is what a result says about itself (2026-07-28).
type resultHeader struct {
	ResultType string          `json:"resultType"`
	TTLMs      json.RawMessage `json:"ttlMs"` // raw, so that a bad one does not hide the rest
}

// isComplete reports whether the result is final. There are no other results before
// 2026-07-28.
func (h *resultHeader) isComplete() bool { return h.ResultType == "" || h.ResultType == "complete" }

// ttl returns how long a result of the session holds; 0 if the server did not say. Before
// 2026-07-28 a ttlMs has no meaning.
func (s *Session) ttl(h *resultHeader) time.Duration {
	ms, err := strconv.ParseFloat(string(h.TTLMs), 64)
	if err != nil || ms <= 0 || s.Protocol() < transport.StatelessVersion {
		return 0
	}
	return time.Duration(min(ms, float64(maxTTL/time.Millisecond))) * time.Millisecond
}

// ListPrompts returns the request for a page of a server's prompts.
func ListPrompts(cursor string) RequestFunc {
	return func(x *Request) (json.RawMessage, *transport.Failure) {
		return ask(x, "prompts/list", &sdk.ListPromptsParams{Cursor: cursor})
	}
}

// GetPrompt returns the request for a prompt whose arguments are filled in.
func GetPrompt(name string, args map[string]string) RequestFunc {
	return func(x *Request) (json.RawMessage, *transport.Failure) {
		return x.answerInputs(func(in sdk.InputResponseMap, state string) (json.RawMessage, *transport.Failure) {
			return ask(x, methodPrompt, &sdk.GetPromptParams{Name: name, Arguments: args, InputResponses: in, RequestState: state})
		})
	}
}
