package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"answerd/internal/agent/budget"
	"answerd/internal/agent/replay"
	"answerd/internal/agent/window"
	"answerd/internal/event"
	"answerd/internal/llm"
	"answerd/internal/mcp"
	"answerd/internal/mcp/content"
)

// maxSampled bounds the model's answer to a server, in bytes, in case the endpoint ignores the
// limit of tokens.
const maxSampled = 128 << 10

// sampleForServer makes the run's model answer a server's sampling request, within the run's
// budget. The model gets only what the server sent, and nothing of the conversation. It runs in a goroutine of
// package mcp, while the call of the server is open. The note with the tokens comes before they are counted: a
// process that takes over charges them with the step (replay.Step.Sampled), since no event has them.
func (l *loop) sampleForServer(ctx context.Context, sampling mcp.Sampling) (_ mcp.Sample, err error) {
	defer recoverTo(&err) // a panic must not reach package mcp, whose goroutine this is
	limit, ok := l.budget.SamplingTokens(sampling.MaxTokens)
	if !ok {
		return mcp.Sample{}, mcp.ErrRefused
	}
	if l.callerSpent.Load() != nil {
		return mcp.Sample{}, mcp.ErrRefused
	}
	r := llm.Request{Model: l.run.req.Model, MaxTokens: limit}
	if sampling.System != "" {
		r.Messages = append(r.Messages, llm.Message{Role: llm.System, Text: sampling.System})
	}

	for _, m := range sampling.Messages {
		r.Messages = append(r.Messages, llm.Message{Role: llm.Role(m.Role), Text: m.Text})
	}
	written, counted := budget.NewOutput(0), false
	count := func(ctx context.Context, used event.Usage) error {
		counted = true
		err := l.run.writeNote(ctx, replay.NoteSampled, used.InputTokens, used.OutputTokens, used.TotalTokens)
		l.countModelCall(ctx, used)
		if err == nil {
			err = l.budget.SpendSampled(ctx, l.run.out, used)
		}
		return err
	}
	defer func() {
		if output := written.Tokens(); err != nil && !counted && output > 0 { // as countCutAnswer does
			input := window.MessageTokens(r.Messages)
			err = errors.Join(err, count(context.WithoutCancel(ctx), event.Usage{
				InputTokens:  input,
				OutputTokens: output,
				TotalTokens:  input + output,
			}))
		}
	}()
	var said strings.Builder
	out := mcp.Sample{Model: r.Model}
	for part, err := range l.agent.Model.Stream(ctx, r) {
		if err != nil {
			return mcp.Sample{}, err
		}
		switch p := part.(type) {
		case llm.Text:
			said.WriteString(p.Delta)
			written.Add(p.Delta)
			if said.Len() > maxSampled {
				return mcp.Sample{}, errors.New("the model says more than it was allowed")
			}
		case llm.Reasoning:
			written.Add(p.Delta)
		case llm.Usage:
			if err := count(ctx, event.Usage{InputTokens: p.Input, OutputTokens: p.Output, TotalTokens: p.Total}); err != nil {
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

// saveSignIn sets that the owner has to sign in before the call is sent, as savePending does. What its
// server has required before stays required.
func (l *loop) saveSignIn(ctx context.Context, exec *toolExecution, in *content.SignIn, interrupt string) error {
	p := &pendingInput{Args: exec.args, Edited: exec.edited, ApprovedVersion: exec.approvedVersion}
	if exec.pending != nil {
		*p = *exec.pending
	}
	p.SignIn = in
	p.SignInInterrupt = interrupt
	p.SignInExpires = l.agent.Log.Now().Add(time.Until(in.Expires)).UnixMilli()
	exec.pending = p
	return l.writePending(ctx, exec)
}

// savePending sets what the call waits for, and writes it down for a process that takes over. That
// comes before the first question, so that every answer finds it.
func (l *loop) savePending(ctx context.Context, exec *toolExecution, in *content.InputRequired) error {
	pending := &pendingInput{
		Required:        in,
		Interrupts:      make(map[string]string),
		Args:            exec.args,
		Edited:          exec.edited,
		ApprovedVersion: exec.approvedVersion,
	}
	if exec.pending != nil {
		pending.Asked = exec.pending.Asked
	}
	asked, err := mcp.Elicitations(in)
	if err != nil {
		return exec.failure(mcp.Protocol, errBadQuestion)
	}
	for _, key := range slices.Sorted(maps.Keys(asked)) {
		if len(pending.Interrupts) < maxQuestionsPerResult && pending.Asked < maxQuestionsPerCall {
			pending.Interrupts[key] = newID("int")
			pending.Asked++
		}
	}
	exec.pending = pending
	return l.writePending(ctx, exec)
}

// writePending writes the notes of exec.pending.
func (l *loop) writePending(ctx context.Context, exec *toolExecution) error {
	if l.run.job == nil {
		return nil
	}
	data, err := json.Marshal(exec.pending)
	if err != nil {
		return fmt.Errorf("encode what a call requires: %w", err)
	}
	err = l.run.writeParts(ctx, data, replay.NoteInput, replay.CallKey(exec.CallID))
	if err != nil && ctx.Err() != nil {
		return exec.canceledFailure(ctx)
	}
	return err
}

// replayedPending decodes what savePending wrote; nil if it wrote nothing. Without
// it, it is unknown whether the server carried the call out.
func (l *loop) replayedPending(c *replay.Call) *pendingInput {
	if c == nil || c.Input == nil {
		return nil
	}
	var pending pendingInput
	err := json.Unmarshal(c.Input, &pending)
	if err == nil && pending.Required == nil && pending.SignIn == nil {
		err = errors.New("it has no request")
	}
	if err != nil {
		l.agent.Logger.Warn("stored input requests of a call cannot be used", "run_id", l.run.ID, "call_id", c.CallID, "error", err)
		return nil
	}
	if pending.SignIn != nil && pending.SignIn.InMemory { // of a process that has ended: the owner is asked again
		pending.SignIn, pending.SignInInterrupt = nil, ""
	}
	return &pending
}

// settlePending asks the owner of the run for what the call requires, and completes the request with
// that. The call must be allowed still, since a person may have taken a long time.
func (l *loop) settlePending(ctx context.Context, exec *toolExecution, request *mcp.Call) (err error) {
	pending := exec.pending
	if pending == nil {
		return nil
	}
	if pending.Required != nil {
		if pending.answers == nil {
			if pending.answers, err = l.answerPending(ctx, exec); err != nil {
				return err
			}
		}
		request.Resume = &mcp.Resumption{Required: pending.Required, Answers: pending.answers}
	}
	request.SignIn = pending.SignIn
	if pending.SignIn != nil {
		if err := l.awaitSignIn(ctx, exec, *request); err != nil {
			return err
		}
	}
	return l.agent.authorizeCall(ctx, exec)
}

// awaitSignIn asks the owner of the run to sign in to the server of the call, and returns when they
// have. Their browser answers the question too (FinishSignIn).
func (l *loop) awaitSignIn(ctx context.Context, exec *toolExecution, request mcp.Call) error {
	in := exec.pending.SignIn
	res, err := l.askOwner(ctx, event.Interrupt{
		ID: exec.pending.SignInInterrupt, Kind: event.KindElicitation, Call: exec.Call, Message: in.Message, Mode: mcp.ElicitURL, URL: in.URL,
		HeldOpen: in.InMemory, ExpiresAt: exec.pending.SignInExpires,
	})
	if err != nil {
		return err
	}
	if errors.Is(res.unanswered, errWithdrawn) { // because ctx ended
		return exec.canceledFailure(ctx)
	}
	if err := l.agent.Tools.AwaitSignIn(ctx, request, res.elicitationAction()); err != nil {
		return err
	}
	l.agent.Tools.ToolsFor(ctx, exec.caller) // this process may not have been able to list the tools before
	return nil
}

// answerPending asks the owner of the run what the server of the call requires, and returns the
// answers by the key of the server's request.
func (l *loop) answerPending(ctx context.Context, exec *toolExecution) (map[string]mcp.ElicitationResult, error) {
	asked, err := mcp.Elicitations(exec.pending.Required)
	if err != nil {
		return nil, exec.failure(mcp.Protocol, errBadQuestion)
	}
	keys := slices.Sorted(maps.Keys(exec.pending.Interrupts))
	recs := make([]event.Interrupt, len(keys))
	for n, key := range keys {
		e := asked[key]
		recs[n] = event.Interrupt{
			ID:      exec.pending.Interrupts[key],
			Kind:    event.KindElicitation,
			Call:    exec.Call,
			Message: e.Message,
			Mode:    e.Mode,
			Schema:  e.Schema,
			URL:     e.URL,
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
			return nil, exec.canceledFailure(ctx)
		}
		answers[keys[n]] = mcp.ElicitationResult{Action: v.elicitationAction(), Content: v.Content}
	}
	return answers, nil
}
