package agent

import (
	"context"
	"errors"
	"strings"

	"answerd/internal/event"
	"answerd/internal/llm"
	"answerd/internal/mcp"
)

// maxSampled bounds what a model says to a server, in bytes, whatever its endpoint
// makes of the bound in tokens.
const maxSampled = 128 << 10

// sample lets the run's model answer a server's own request, within the run's budget.
// Nothing of the conversation is in it but what the server sent.
func (l *loop) sample(ctx context.Context, s mcp.Sampling) (_ mcp.Sample, err error) {
	defer recovered(&err) // the goroutine is not ours
	limit, ok := l.budget.tokensFor(s.MaxTokens)
	if !ok {
		return mcp.Sample{}, mcp.ErrRefused
	}
	r := llm.Request{Model: l.run.req.Model, MaxTokens: limit}
	if s.System != "" {
		r.Messages = append(r.Messages, llm.Message{Role: llm.System, Text: s.System})
	}
	for _, m := range s.Messages {
		r.Messages = append(r.Messages, llm.Message{Role: llm.Role(m.Role), Text: m.Text})
	}
	var said strings.Builder
	out := mcp.Sample{Model: r.Model}
	for part, err := range l.agent.Model.Stream(ctx, r) {
		if err != nil {
			return mcp.Sample{}, err
		}
		switch p := part.(type) {
		case llm.Text:
			said.WriteString(p.Delta)
			if said.Len() > maxSampled {
				return mcp.Sample{}, errors.New("the model says more than it was allowed")
			}
		case llm.Usage:
			used := event.Usage{InputTokens: p.Input, OutputTokens: p.Output, TotalTokens: p.Total}
			err := l.run.note(ctx, noteSampled, used.InputTokens, used.OutputTokens, used.TotalTokens)
			if err == nil {
				err = l.budget.spendSampled(ctx, l.run.out, used)
			}
			if err != nil {
				return mcp.Sample{}, err
			}
		case llm.Finish:
			out.Cut = p.Reason == "length"
			if p.Model != "" {
				out.Model = p.Model
			}
		}
	}
	out.Text = said.String()
	return out, nil
}
