package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"answerd/internal/agent/replay"
	"answerd/internal/event"
	"answerd/internal/llm"
	"answerd/internal/mcp"
	"answerd/internal/mcp/content"
)

// maxSampled bounds the model's answer to a server, in bytes, in case the endpoint ignores the
// limit of tokens.
const maxSampled = 128 << 10

// sampleForServer makes the run's model answer a server's sampling request, within the run's
// budget. The model gets only what the server sent, and nothing of the conversation.
func (l *loop) sampleForServer(ctx context.Context, s mcp.Sampling) (_ mcp.Sample, err error) {
	defer recoverTo(&err) // a panic must not reach package mcp, whose goroutine this is
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

// Bounds of the questions of one call's server that are answered by sending the call again. Those
// beyond are answered with cancel.
const (
	maxQuestionsPerResult = 8
	maxQuestionsPerCall   = 32
)

const errBadQuestion = "What its server asks for cannot be shown to a person."

// pendingInput is what the server of a call requires before the call is sent again, and what any
// process needs to do so. Notes of the run have it. Readers never see it, since the server's
// requestState may be a secret.
type pendingInput struct {
	Required *content.InputRequired `json:"required"`
	// Interrupts are the ids of the questions to the owner, by the key of the server's request.
	Interrupts map[string]string `json:"interrupts"`
	Asked      int               `json:"asked"` // questions of the call so far

	// The call as it was sent.
	Args            jsonText `json:"args"`
	Edited          bool     `json:"edited,omitempty"`
	ApprovedVersion string   `json:"approved_version,omitempty"`
}

// interruptIDs returns the ids of the questions; none of a nil pendingInput.
func (p *pendingInput) interruptIDs() []string {
	if p == nil {
		return nil
	}
	return slices.Collect(maps.Values(p.Interrupts))
}

// savePending sets what the call waits for, and writes it down for a process that takes over. That
// comes before the first question, so that every answer finds it.
func (l *loop) savePending(ctx context.Context, x *toolExecution, in *content.InputRequired) error {
	p := &pendingInput{Required: in, Interrupts: make(map[string]string), Args: x.args, Edited: x.edited, ApprovedVersion: x.approvedVersion}
	if x.pending != nil {
		p.Asked = x.pending.Asked
	}
	asked, err := mcp.Elicitations(in)
	if err != nil {
		return x.failure(mcp.Protocol, errBadQuestion)
	}
	for _, key := range slices.Sorted(maps.Keys(asked)) {
		if len(p.Interrupts) < maxQuestionsPerResult && p.Asked < maxQuestionsPerCall {
			p.Interrupts[key] = newID("int")
			p.Asked++
		}
	}
	x.pending = p
	if l.run.job == nil {
		return nil
	}
	data, err := json.Marshal(p)
	if err != nil {
		return fmt.Errorf("encode what a server requires: %w", err)
	}
	err = l.run.writeParts(ctx, data, replay.NoteInput, replay.CallKey(x.CallID))
	if err != nil && ctx.Err() != nil {
		return x.canceledFailure(ctx)
	}
	return err
}

// replayedPending decodes what savePending wrote; nil if that is nothing. Without it nobody knows
// whether the server carried the call out.
func (l *loop) replayedPending(c *replay.Call) *pendingInput {
	if c == nil || c.Input == nil {
		return nil
	}
	var p pendingInput
	err := json.Unmarshal(c.Input, &p)
	if err == nil && p.Required == nil {
		err = errors.New("it has no request")
	}
	if err != nil {
		l.agent.Logger.Warn("stored input requests of a call cannot be used", "run_id", l.run.ID, "call_id", c.CallID, "error", err)
		return nil
	}
	return &p
}

// answerPending asks the owner of the run what the server of the call requires, and returns the
// answers by the key of the server's request. The call must be allowed still, since a person may have
// taken a long time.
func (l *loop) answerPending(ctx context.Context, x *toolExecution) (map[string]mcp.ElicitationResult, error) {
	asked, err := mcp.Elicitations(x.pending.Required)
	if err != nil {
		return nil, x.failure(mcp.Protocol, errBadQuestion)
	}
	keys := slices.Sorted(maps.Keys(x.pending.Interrupts))
	recs := make([]event.Interrupt, len(keys))
	for n, key := range keys {
		e := asked[key]
		recs[n] = event.Interrupt{
			ID: x.pending.Interrupts[key], Kind: event.KindElicitation, Call: x.Call, Message: e.Message, Mode: e.Mode, Schema: e.Schema, URL: e.URL,
		}
	}
	resolved, err := l.askOwnerAll(ctx, recs, nil)
	if err != nil {
		return nil, err
	}
	answers := make(map[string]mcp.ElicitationResult, len(asked))
	for key := range asked {
		answers[key] = mcp.ElicitationResult{Action: mcp.Cancel}
	}
	for n, v := range resolved {
		if errors.Is(v.unanswered, errWithdrawn) { // because ctx ended
			return nil, x.canceledFailure(ctx)
		}
		answers[keys[n]] = mcp.ElicitationResult{Action: v.elicitationAction(), Content: v.Content}
	}
	return answers, l.agent.authorizeCall(ctx, x)
}

// notificationSink appends a server's notifications during one call as events. While the run is
// suspended it waits. Package mcp calls it for one notification at a time, and not after the
// call.
type notificationSink struct {
	run  *run
	call event.Call
	err  error // the first failure to append
}

func (s *notificationSink) appendProgress(ctx context.Context, p mcp.Progress) {
	s.appendEvent(ctx, event.ToolProgress{Call: s.call, Progress: p.Progress, Total: p.Total, Message: p.Message})
}

// appendLog appends a log message. If messages before it were dropped, it first appends a line
// that says so.
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
		defer recoverTo(&err) // a panic must not reach package mcp, whose goroutine this is
		return s.run.appendWhenResumed(ctx, b)
	}()
	if err != nil && s.err == nil {
		s.err = err
	}
}
