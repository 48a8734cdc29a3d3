package mcp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"

	"answerd/internal/auth"
	"answerd/internal/help"
	"answerd/internal/mcp/catalog"
	"answerd/internal/mcp/content"
	"answerd/internal/mcp/session"
	"answerd/internal/mcp/transport"
	"answerd/internal/mcp/wire"
)

// Prompt is a prompt that a server offers, as GET /servers/{name}/prompts lists it.
type Prompt struct {
	Name        string           `json:"name"`
	Title       string           `json:"title,omitempty"`
	Description string           `json:"description,omitempty"`
	Arguments   []PromptArgument `json:"arguments,omitempty"`
}

// PromptList is the answer to GET /servers/{name}/prompts.
type PromptList struct {
	Prompts []Prompt `json:"prompts"` // not nil
	// Omitted is how many of the server's prompts were left out, at least: they are not valid, or the list is too
	// large or repeats a cursor.
	Omitted int `json:"omitted_prompts,omitempty"`
}

// PromptArgument is one argument of a prompt. Its value is always a string.
type PromptArgument struct {
	Name        string `json:"name"`
	Description string `json:"description,omitempty"`
	Required    bool   `json:"required,omitempty"`
}

// PromptMessage is one message of a prompt, with the arguments filled in.
type PromptMessage struct {
	Role string // user or assistant
	Text string // content other than text is replaced by a placeholder
}

// ErrBadPrompt is returned by Client.Prompt if the server has no such prompt or refuses the arguments.
var ErrBadPrompt = errors.New("no such prompt, or not with these arguments")

// Bounds of prompts.
const (
	maxPrompts        = 256       // per server; further ones are left out
	maxPromptArgs     = 64        // a prompt with more is left out
	maxPromptMessages = 64        // a prompt with more is an error
	maxPromptText     = 256 << 10 // bytes in all messages; more are an error
)

// Prompts requests a server's prompts on behalf of user. It leaves out and logs prompts that are not valid. The error
// is ErrUnknownServer or a *ServerError.
func (c *Client) Prompts(ctx context.Context, user auth.Identity, server string) (PromptList, error) {
	s := c.serverByName(server)
	if s == nil {
		return PromptList{}, fmt.Errorf("prompts of %.64q: %w", server, ErrUnknownServer)
	}
	received, reasonForCut, failure := session.CollectPages("prompts", maxPrompts, func(cursor string) (json.RawMessage, *transport.Failure) {
		return s.requestWithRetry(ctx, user, session.ListPrompts(cursor))
	})
	if failure != nil {
		return PromptList{}, s.unusableError(failure)
	}
	list := PromptList{Prompts: []Prompt{}} // so that JSON has an array
	for _, raw := range received {
		prompt, err := decodePrompt(raw)
		if err != nil {
			s.log.Warn("MCP prompt left out", "prompt", wire.Printable(prompt.Name, 80), "reason", err.Error())
			list.Omitted++
			continue
		}
		list.Prompts = append(list.Prompts, prompt)
	}
	if reasonForCut != "" {
		s.log.Warn("MCP prompts left out", "kept", len(list.Prompts), "reason", "the list "+reasonForCut, help.ToolLists.Attr())
		list.Omitted = max(list.Omitted, 1)
	}
	return list, nil
}

// decodePrompt decodes one element of a prompts/list result, and cuts texts that are too long. If it returns an error,
// the prompt may still have its Name, for the log.
func decodePrompt(raw json.RawMessage) (Prompt, error) {
	var prompt Prompt
	if err := json.Unmarshal(raw, &prompt); err != nil {
		return prompt, errors.New("it does not decode")
	}
	if err := catalog.CheckName(prompt.Name); err != nil {
		return prompt, err
	}
	if len(prompt.Arguments) > maxPromptArgs {
		return prompt, fmt.Errorf("it has more than %d arguments", maxPromptArgs)
	}
	prompt.Title = wire.Truncate(prompt.Title, catalog.MaxTitle)
	prompt.Description = wire.Truncate(prompt.Description, catalog.MaxDescription)
	for i := range prompt.Arguments {
		prompt.Arguments[i].Description = wire.Truncate(prompt.Arguments[i].Description, catalog.MaxDescription)
	}
	return prompt, nil
}

// Prompt requests the messages of a server's prompt on behalf of user. args has the values of the prompt's arguments,
// by name. The error is ErrUnknownServer, ErrBadPrompt or a *ServerError.
func (c *Client) Prompt(ctx context.Context, user auth.Identity, server, name string, args map[string]string) ([]PromptMessage, error) {
	s := c.serverByName(server)
	if s == nil {
		return nil, fmt.Errorf("prompt of %.64q: %w", server, ErrUnknownServer)
	}
	raw, failure := s.requestWithRetry(ctx, user, session.GetPrompt(name, args))
	var messages []PromptMessage
	if failure == nil {
		messages, failure = decodeMessages(raw)
	}
	switch {
	case failure == nil:
		return messages, nil
	case refusesPrompt(failure):
		return nil, fmt.Errorf("%w: %s", ErrBadPrompt, failure.Public)
	}
	return nil, s.unusableError(failure)
}

// badPromptText matches the error messages, in lower case, of the Python SDKs and of FastMCP for an unknown prompt and
// for missing, unknown or invalid arguments.
var badPromptText = regexp.MustCompile(`^unknown prompt\b|` +
	`^(error rendering prompt .{1,300}: )?(missing required arguments\b|\d+ validation errors? for )`)

// refusesPrompt reports whether the server refused a prompt's name or arguments with failure, or has no prompts at all.
// Servers use the codes of tool calls for prompts too, and some send a message that matches badPromptText with an
// unrelated code.
func refusesPrompt(failure *transport.Failure) bool {
	if failure.Kind == InvalidArguments || failure.Kind == UnknownTool {
		return true
	}
	e, ok := errors.AsType[*jsonrpc.Error](failure.Err)
	return ok && (e.Code == jsonrpc.CodeMethodNotFound || badPromptText.MatchString(strings.ToLower(wire.Printable(e.Message, maxErrorText))))
}

// decodeMessages decodes a prompts/get result. One message that is not valid makes the whole result a failure.
func decodeMessages(raw json.RawMessage) ([]PromptMessage, *transport.Failure) {
	var decoded struct {
		Messages []struct {
			Role    string          `json:"role"`
			Content json.RawMessage `json:"content"`
		} `json:"messages"`
	}
	if err := json.Unmarshal(raw, &decoded); err != nil {
		return nil, transport.BadReply("its prompt does not decode", err)
	}
	var messages []PromptMessage
	textSize := 0 // bytes in all messages
	for _, message := range decoded.Messages {
		text, err := content.BlockText(message.Content)
		hasRole := message.Role == "user" || message.Role == "assistant"
		if !hasRole || err != nil {
			return nil, transport.BadReply("a message of its prompt has no role or no content", nil)
		}
		textSize += len(text)
		messages = append(messages, PromptMessage{Role: message.Role, Text: text})
	}
	if len(messages) > maxPromptMessages || textSize > maxPromptText {
		return nil, transport.AnswerTooLarge(maxPromptText)
	}
	return messages, nil
}

// requestWithRetry sends a request other than a tool call on behalf of user, and returns the result as received. If the
// session is lost, it sends the request once more, even if the server may have received it, so the request must change
// nothing. It takes at most the server's configured timeout. It fails at once while the breaker is open, but it needs
// no permit, and the breaker does not count it.
func (s *server) requestWithRetry(ctx context.Context, user auth.Identity, send session.RequestFunc) (json.RawMessage, *transport.Failure) {
	if !s.isLive() {
		return nil, notInUseFailure()
	}
	if failure := s.breaker.openFailure(); failure != nil {
		return nil, failure
	}
	if !s.drain.beginCall() { // until endCall, a Reload keeps the session open
		return nil, errReconfigured
	}
	defer s.drain.endCall()
	route, release, failure := s.routeFor(user)
	if failure != nil {
		return nil, failure
	}
	defer release()
	deadline := time.Now().Add(s.cfg.Timeout)
	var result json.RawMessage
	failure = useSession(ctx, route.pool, deadline, func(used *session.Session) (failure *transport.Failure) {
		result, failure = used.Do(ctx, route.tokens, deadline, send)
		return failure
	})
	return result, failure
}
