package mcp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"answerd/internal/auth"
	"answerd/internal/mcp/transport"
	"answerd/internal/mcp/wire"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// Prompt is a prompt that a server offers, as GET /servers/{name}/prompts lists it.
type Prompt struct {
	Name        string           `json:"name"`
	Title       string           `json:"title,omitempty"`
	Description string           `json:"description,omitempty"`
	Arguments   []PromptArgument `json:"arguments,omitempty"`
}

// PromptArgument is one argument of a prompt; all are texts.
type PromptArgument struct {
	Name        string `json:"name"`
	Description string `json:"description,omitempty"`
	Required    bool   `json:"required,omitempty"`
}

// PromptMessage is one message of a prompt that was filled in.
type PromptMessage struct {
	Role string // user or assistant
	Text string // other content is a placeholder that says what it was
}

// ErrBadPrompt is returned by Client.Prompt where the server has no such prompt, or
// doesn't take the arguments.
var ErrBadPrompt = errors.New("no such prompt, or not with these arguments")

// Bounds of prompts.
const (
	maxPrompts        = 256 // of a server; the rest is left out
	maxPromptArgs     = 64
	maxPromptMessages = 64
	maxPromptText     = 256 << 10 // bytes of all messages
)

// Prompts asks a server for its prompts, on behalf of who. The error is ErrUnknownServer or a
// *ServerError.
func (c *Client) Prompts(ctx context.Context, who auth.Identity, server string) ([]Prompt, error) {
	s := c.named(server)
	if s == nil {
		return nil, fmt.Errorf("prompts of %.64q: %w", server, ErrUnknownServer)
	}
	list, f := paged("prompts", maxPrompts, func(cursor string) (json.RawMessage, *transport.Failure) {
		return s.query(ctx, who, func(x *exchange) (json.RawMessage, *transport.Failure) {
			return ask(x, "prompts/list", &sdk.ListPromptsParams{Cursor: cursor})
		})
	})
	if f != nil {
		return nil, &ServerError{Server: server, Reason: f.Public, Err: f}
	}
	out := []Prompt{} // a list in JSON, even when it is empty
	for _, raw := range list {
		p, err := decodePrompt(raw)
		if err != nil {
			s.log.Warn("MCP prompt left out", "prompt", wire.Printable(p.Name, 80), "reason", err.Error())
			continue
		}
		out = append(out, p)
	}
	return out, nil
}

// decodePrompt reads one element of a prompts/list result.
func decodePrompt(raw json.RawMessage) (Prompt, error) {
	var p Prompt
	if err := json.Unmarshal(raw, &p); err != nil {
		return p, errors.New("it does not decode")
	}
	if err := checkToolName(p.Name); err != nil {
		return p, err
	}
	if len(p.Arguments) > maxPromptArgs {
		return p, fmt.Errorf("it has more than %d arguments", maxPromptArgs)
	}
	p.Title, p.Description = wire.Truncate(p.Title, maxTitle), wire.Truncate(p.Description, maxDescription)
	for i := range p.Arguments {
		p.Arguments[i].Description = wire.Truncate(p.Arguments[i].Description, maxDescription)
	}
	return p, nil
}

// Prompt asks a server for a prompt, filled in, on behalf of who. The error is ErrUnknownServer,
// ErrBadPrompt or a *ServerError.
func (c *Client) Prompt(ctx context.Context, who auth.Identity, server, name string, args map[string]string) ([]PromptMessage, error) {
	s := c.named(server)
	if s == nil {
		return nil, fmt.Errorf("prompt of %.64q: %w", server, ErrUnknownServer)
	}
	raw, f := s.query(ctx, who, func(x *exchange) (json.RawMessage, *transport.Failure) {
		return x.rounds(func(in sdk.InputResponseMap, state string) (json.RawMessage, *transport.Failure) {
			return ask(x, methodPrompt, &sdk.GetPromptParams{Name: name, Arguments: args, InputResponses: in, RequestState: state})
		})
	})
	var out []PromptMessage
	if f == nil {
		out, f = decodeMessages(raw)
	}
	switch {
	case f == nil:
		return out, nil
	case f.Kind == InvalidArguments, f.Kind == UnknownTool:
		return nil, fmt.Errorf("%w: %s", ErrBadPrompt, f.Public)
	}
	return nil, &ServerError{Server: server, Reason: f.Public, Err: f}
}

// decodeMessages reads a prompts/get result.
func decodeMessages(raw json.RawMessage) ([]PromptMessage, *transport.Failure) {
	var w struct {
		Messages []struct {
			Role    string          `json:"role"`
			Content json.RawMessage `json:"content"`
		} `json:"messages"`
	}
	if err := json.Unmarshal(raw, &w); err != nil {
		return nil, transport.BadReply("its prompt does not decode", err)
	}
	var out []PromptMessage
	size := 0
	for _, m := range w.Messages {
		var b block
		if m.Role != "user" && m.Role != "assistant" || json.Unmarshal(m.Content, &b) != nil {
			return nil, transport.BadReply("a message of its prompt has no role or no content", nil)
		}
		b.raw = m.Content
		text := b.render()
		size += len(text)
		out = append(out, PromptMessage{Role: m.Role, Text: text})
	}
	if len(out) > maxPromptMessages || size > maxPromptText {
		return nil, transport.AnswerTooLarge(maxPromptText)
	}
	return out, nil
}
