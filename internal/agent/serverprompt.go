package agent

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"answerd/internal/event"
	"answerd/internal/llm"
	"answerd/internal/mcp"
)

// promptError is a prompt that could not be had from its server.
type promptError struct {
	of  ServerPrompt
	err error
}

func (e *promptError) Error() string {
	return fmt.Sprintf("prompt %q of %s: %v", e.of.Name, e.of.Server, e.err)
}

func (e *promptError) Unwrap() error { return e.err }

// end is the end of a run that needed it.
func (e *promptError) end() event.RunError {
	if errors.Is(e.err, mcp.ErrBadPrompt) {
		return event.RunError{Code: "unprocessable", Message: "The MCP server has no such prompt, or does not take these arguments."}
	}
	return event.RunError{Code: "unavailable", Message: "The prompt cannot be had from its MCP server now.", Retryable: true}
}

// withPrompt puts the messages of a server's prompt right before the question.
func (l *loop) withPrompt(ctx context.Context, messages []llm.Message, p ServerPrompt) ([]llm.Message, error) {
	// As the rules are now: the run may have been taken up long after it was asked for.
	if !l.agent.Rules.Of(l.run.caller).Server(p.Server) {
		return nil, &promptError{p, fmt.Errorf("%w: the rules do not allow it", mcp.ErrBadPrompt)}
	}
	filled, err := l.agent.Tools.Prompt(ctx, l.run.caller, p.Server, p.Name, p.Arguments)
	if err != nil {
		return nil, &promptError{p, err}
	}
	var more []llm.Message
	for _, m := range filled {
		more = append(more, llm.Message{Role: llm.Role(m.Role), Text: m.Text})
	}
	return slices.Insert(messages, l.history+1, more...), nil
}
