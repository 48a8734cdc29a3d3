package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"answerd/internal/agent/replay"
	"answerd/internal/event"
	"answerd/internal/llm"
	"answerd/internal/mcp"
)

// maxSampled bounds what a model says to a server, in bytes, whatever its endpoint
// makes of the bound in tokens.
const maxSampled = 128 << 10

// sampleForServer lets the run's model answer a server's sampling request, within the run's
// budget. The model gets only what the server sent, nothing of the conversation.
func (l *loop) sampleForServer(ctx context.Context, s mcp.Sampling) (_ mcp.Sample, err error) {
	defer recoverTo(&err) // the goroutine is not ours
	limit, ok := l.budget.SamplingTokens(s.MaxTokens)
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
			err := l.run.writeNote(ctx, replay.NoteSampled, used.InputTokens, used.OutputTokens, used.TotalTokens)
			if err == nil {
				err = l.budget.SpendSampled(ctx, l.run.out, used)
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

// notificationSink appends a server's notifications during one call as events; while the run is
// suspended it waits. mcp calls it for one notification at a time, and not after the call.
type notificationSink struct {
	run  *run
	call event.Call
	err  error // the first failure to append
}

func (s *notificationSink) appendProgress(ctx context.Context, p mcp.Progress) {
	s.appendEvent(ctx, event.ToolProgress{Call: s.call, Progress: p.Progress, Total: p.Total, Message: p.Message})
}

// appendLog appends a log message, after a line of our own if some before it were left out.
func (s *notificationSink) appendLog(ctx context.Context, m mcp.LogMessage) {
	if m.Omitted > 0 {
		text, _ := json.Marshal(fmt.Sprintf("%d log messages were left out here.", m.Omitted)) // strings always marshal
		s.appendEvent(ctx, event.LogMessage{Call: s.call, Level: "warning", Logger: "answerd", Data: text})
	}
	if m.Data != nil {
		s.appendEvent(ctx, event.LogMessage{Call: s.call, Level: m.Level, Logger: m.Logger, Data: m.Data})
	}
}

func (s *notificationSink) appendEvent(ctx context.Context, b event.Body) {
	err := func() (err error) {
		defer recoverTo(&err) // the goroutine is mcp's
		return s.run.appendWhenResumed(ctx, b)
	}()
	if err != nil && s.err == nil {
		s.err = err
	}
}
