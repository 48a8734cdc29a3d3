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

// PromptArgument is one argument of a prompt. Its value is always a string.
type PromptArgument struct {
	Name        string `json:"name"`
	Description string `json:"description,omitempty"`
	Required    bool   `json:"required,omitempty"`
}

// PromptMessage is one message of a prompt whose arguments are filled in.
type PromptMessage struct {
	Role string // user or assistant
	Text string // other content is replaced by a placeholder that names it
}

// ErrBadPrompt is returned by Client.Prompt if the server has no such prompt, or refuses the
// arguments.
var ErrBadPrompt = errors.New("no such prompt, or not with these arguments")

// Bounds of prompts.
const (
	maxPrompts        = 256 // of a server; further ones are left out
	maxPromptArgs     = 64
	maxPromptMessages = 64
	maxPromptText     = 256 << 10 // bytes of all messages
)

// Prompts asks a server for its prompts, on behalf of the user. The error is ErrUnknownServer or a
// *ServerError.
func (c *Client) Prompts(ctx context.Context, user auth.Identity, server string) ([]Prompt, error) {
	srv := c.serverByName(server)
	if srv == nil {
		return nil, fmt.Errorf("prompts of %.64q: %w", server, ErrUnknownServer)
	}
	list, f := session.CollectPages("prompts", maxPrompts, func(cursor string) (json.RawMessage, *transport.Failure) {
		return srv.doWithRetry(ctx, user, session.ListPrompts(cursor))
	})
	if f != nil {
		return nil, &ServerError{Server: server, Reason: f.Public, Err: f}
	}
	out := []Prompt{} // a list in JSON, even when it is empty
	for _, raw := range list {
		p, err := decodePrompt(raw)
		if err != nil {
			srv.log.Warn("MCP prompt left out", "prompt", wire.Printable(p.Name, 80), "reason", err.Error())
			continue
		}
		out = append(out, p)
	}
	return out, nil
}

// decodePrompt reads one element of a prompts/list result.
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
	prompt.Title, prompt.Description = wire.Truncate(prompt.Title, catalog.MaxTitle), wire.Truncate(prompt.Description, catalog.MaxDescription)
	for i := range prompt.Arguments {
		prompt.Arguments[i].Description = wire.Truncate(prompt.Arguments[i].Description, catalog.MaxDescription)
	}
	return prompt, nil
}

// Prompt asks a server for a prompt, filled in, on behalf of the user. The error is ErrUnknownServer,
// ErrBadPrompt or a *ServerError.
func (c *Client) Prompt(ctx context.Context, user auth.Identity, server, name string, args map[string]string) ([]PromptMessage, error) {
	s := c.serverByName(server)
	if s == nil {
		return nil, fmt.Errorf("prompt of %.64q: %w", server, ErrUnknownServer)
	}
	raw, failure := s.doWithRetry(ctx, user, session.GetPrompt(name, args))
	var out []PromptMessage
	if failure == nil {
		out, failure = decodeMessages(raw)
	}
	switch {
	case failure == nil:
		return out, nil
	case failure.Kind == InvalidArguments, failure.Kind == UnknownTool, isBadPrompt(failure):
		return nil, fmt.Errorf("%w: %s", ErrBadPrompt, failure.Public)
	}
	return nil, &ServerError{Server: server, Reason: failure.Public, Err: failure}
}

// badPrompt is how the Python SDKs and FastMCP say that there is no such prompt, or that arguments are missing.
var badPrompt = regexp.MustCompile(`^unknown prompt\b|^(error rendering prompt .{1,300}: )?missing required arguments\b`)

// isBadPrompt reports whether the server refused the name or the arguments of a prompt with a code that does not say so.
func isBadPrompt(f *transport.Failure) bool {
	e, ok := errors.AsType[*jsonrpc.Error](f.Err)
	return ok && badPrompt.MatchString(strings.ToLower(wire.Printable(e.Message, maxRejection)))
}

// decodeMessages reads a prompts/get result.
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
	var out []PromptMessage
	size := 0
	for _, m := range decoded.Messages {
		text, err := content.BlockText(m.Content)
		hasRole := m.Role == "user" || m.Role == "assistant"
		if !hasRole || err != nil {
			return nil, transport.BadReply("a message of its prompt has no role or no content", nil)
		}
		size += len(text)
		out = append(out, PromptMessage{Role: m.Role, Text: text})
	}
	if len(out) > maxPromptMessages || size > maxPromptText {
		return nil, transport.AnswerTooLarge(maxPromptText)
	}
	return out, nil
}

// doWithRetry sends a request on behalf of the user, and once more if its session turns out to be
// lost.
func (s *server) doWithRetry(ctx context.Context, user auth.Identity, send session.RequestFunc) (json.RawMessage, *transport.Failure) {
	if !s.isLive() {
		return nil, &transport.Failure{Kind: Unavailable, Public: "it is not in use", NotRun: true}
	}
	if f := s.breaker.openFailure(); f != nil {
		return nil, f
	}
	if !s.drain.beginCall() { // keeps the session open until the answer
		return nil, errReconfigured
	}
	defer s.drain.endCall()
	route, leave, f := s.routeFor(user)
	if f != nil {
		return nil, f
	}
	defer leave()
	deadline := time.Now().Add(s.cfg.Timeout)
	for try := 0; ; try++ {
		handshakeCtx, stop := context.WithDeadlineCause(ctx, deadline, transport.ErrTimeout)
		used, failure := route.pool.GetSession(handshakeCtx)
		stop()
		if failure != nil {
			return nil, failure
		}
		result, failure := used.Do(ctx, route.tokens, deadline, send)
		if failure == nil || !failure.Lost {
			return result, failure
		}
		route.pool.DropSession(used)
		if try > 0 {
			return result, failure
		}
	}
}
