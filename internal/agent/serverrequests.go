package agent

import (
	"cmp"
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

// maxSampled is how many bytes the model may send to a server, in case the endpoint ignores the token limit.
const maxSampled = 128 << 10

// sampleForServer lets the run's model answer a sampling request that a server sends during a call, within the run's
// budget. The model sees only the messages that the server sent, not the run's conversation. The error is
// mcp.ErrRefused if a budget of the run or the caller is used up; there are others, for example if the answer is longer
// than maxSampled. Package mcp calls sampleForServer in a goroutine of its own.
func (l *loop) sampleForServer(ctx context.Context, sampling mcp.Sampling) (_ mcp.Sample, err error) {
	defer recoverTo(&err) // a panic must not reach package mcp, whose goroutine this is
	limit, mayAnswer := l.budget.SamplingTokens(sampling.MaxTokens)
	if !mayAnswer || l.callerSpent.Load() != nil {
		return mcp.Sample{}, mcp.ErrRefused
	}
	request := samplingRequest(l.run.req.Model, limit, sampling)
	output := budget.NewOutput(0) // counts the answer's tokens; 0 means no limit
	sample, isCounted, err := l.readSample(ctx, request, output)
	if err == nil || isCounted || output.Tokens() == 0 {
		return sample, err
	}
	// Providers charge for an answer that fails midway, but do not report its usage: estimate it.
	estimate := event.Usage{InputTokens: window.MessageTokens(request.Messages), OutputTokens: output.Tokens()}
	estimate.TotalTokens = estimate.InputTokens + estimate.OutputTokens
	return mcp.Sample{}, errors.Join(err, l.countSampled(context.WithoutCancel(ctx), estimate))
}

// readSample sends a sampling request to the model, and returns the answer. It adds the answer to output. isCounted is
// true if the provider reported the usage, which readSample then counts. With an error, the sample is empty.
func (l *loop) readSample(ctx context.Context, request llm.Request, output *budget.Output) (_ mcp.Sample, isCounted bool, _ error) {
	var text strings.Builder
	sample := mcp.Sample{Model: request.Model}
	for part, err := range l.agent.Model.Stream(ctx, request) {
		if err != nil {
			return mcp.Sample{}, isCounted, err
		}
		switch p := part.(type) {
		case llm.Text:
			text.WriteString(p.Delta)
			output.Add(p.Delta)
			if text.Len() > maxSampled {
				return mcp.Sample{}, isCounted, errors.New("the model says more than it was allowed")
			}
		case llm.Reasoning:
			output.Add(p.Delta)
		case llm.Usage:
			isCounted = true
			if err := l.countSampled(ctx, event.Usage{InputTokens: p.Input, OutputTokens: p.Output, TotalTokens: p.Total}); err != nil {
				return mcp.Sample{}, isCounted, err
			}
		case llm.Finish:
			sample.Cut = p.Reason == "length"
			sample.Model = cmp.Or(p.Model, sample.Model)
		}
	}
	sample.Text = text.String()
	return sample, isCounted, nil
}

// samplingRequest converts a server's sampling request to a model request whose answer may have at most maxTokens.
func samplingRequest(model string, maxTokens int64, sampling mcp.Sampling) llm.Request {
	r := llm.Request{Model: model, MaxTokens: maxTokens}
	if sampling.System != "" {
		r.Messages = append(r.Messages, llm.Message{Role: llm.System, Text: sampling.System})
	}
	for _, m := range sampling.Messages {
		r.Messages = append(r.Messages, llm.Message{Role: llm.Role(m.Role), Text: m.Text})
	}
	return r
}

// countSampled counts the tokens of a server's sampling request in metrics, for the caller, and towards the run's
// budget. It stores them in a note before it charges the budget, because no event contains them. A process that takes
// over charges the tokens in the note (replay.Step.Sampled). An error comes from the log.
func (l *loop) countSampled(ctx context.Context, used event.Usage) error {
	err := l.run.writeNote(ctx, replay.NoteSampled, used.InputTokens, used.OutputTokens, used.TotalTokens)
	l.countModelCall(ctx, used)
	if err != nil {
		return err
	}
	return l.budget.SpendSampled(ctx, l.run.out, used)
}

// Limits on the questions that one call's input_required results may contain. Further questions are not asked, and
// answered with cancel.
const (
	maxQuestionsPerResult = 8
	maxQuestionsPerCall   = 32
)

// errBadQuestion is the message of a call whose server requires something that is not a valid elicitation.
const errBadQuestion = "What its server asks for cannot be shown to a person."

// saveSignIn records in exec.pending that the owner must sign in before the call is sent again, and stores exec.pending
// in notes. Input that the server required earlier stays required. interrupt is the id of the question that will ask
// for the sign-in. The error is that of writePending.
func (l *loop) saveSignIn(ctx context.Context, exec *toolExecution, signIn *content.SignIn, interrupt string) error {
	if exec.pending == nil {
		exec.pending = exec.newPending()
	}
	exec.pending.SignIn = signIn
	exec.pending.SignInInterrupt = interrupt
	expires := l.agent.Log.Now().Add(time.Until(signIn.Expires)) // converts from this machine's clock to the log's
	exec.pending.SignInExpires = expires.UnixMilli()
	return l.writePending(ctx, exec)
}

// savePending replaces exec.pending by what the call's server now requires, with an id for each question within the
// limits, and stores it in notes for a process that takes over. Call it before the first question is asked, so that the
// process that gets an answer knows what it is for. It returns a failure of the call if the server requires something
// that is not an elicitation.
func (l *loop) savePending(ctx context.Context, exec *toolExecution, required *content.InputRequired) error {
	asked, err := mcp.Elicitations(required)
	if err != nil {
		return exec.failure(mcp.Protocol, errBadQuestion)
	}
	pending := exec.newPending()
	pending.Required = required
	pending.Interrupts = make(map[string]string)
	if exec.pending != nil {
		pending.Asked = exec.pending.Asked // questions in earlier results count too
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

// newPending returns a pendingInput with the call as it was sent.
func (exec *toolExecution) newPending() *pendingInput {
	return &pendingInput{Args: exec.args, Edited: exec.edited, ApprovedVersion: exec.approvedVersion}
}

// writePending stores exec.pending in notes. It does nothing if no other process can continue the run. If ctx ends, it
// returns the corresponding failure of the call.
func (l *loop) writePending(ctx context.Context, exec *toolExecution) error {
	if l.run.job == nil {
		return nil
	}
	data, err := json.Marshal(exec.pending)
	if err != nil {
		return fmt.Errorf("encode what a call requires: %w", err)
	}
	if err := l.run.writeParts(ctx, data, replay.NoteInput, replay.CallKey(exec.CallID)); err != nil {
		return exec.canceledOr(ctx, err)
	}
	return nil
}

// restorePending decodes what writePending stored for a call in an earlier process. It returns nil if nothing was
// stored. It also returns nil, and logs a warning, if the data cannot be decoded: then it is unknown whether the server
// executed the call (refuseRepetition). replayedCall may be nil.
func (l *loop) restorePending(replayedCall *replay.Call) *pendingInput {
	if replayedCall == nil || replayedCall.Input == nil {
		return nil
	}
	var pending pendingInput
	err := json.Unmarshal(replayedCall.Input, &pending)
	if err == nil && pending.Required == nil && pending.SignIn == nil {
		err = errors.New("it has no request")
	}
	if err != nil {
		l.agent.Logger.Warn("stored input requests of a call cannot be used", "run_id", l.run.ID, "call_id", replayedCall.CallID, "error", err)
		return nil
	}
	if pending.SignIn != nil && pending.SignIn.InMemory {
		// The sign-in was only in the memory of the other process. The server will require another one.
		pending.SignIn = nil
		pending.SignInInterrupt = ""
	}
	return &pending
}

// interruptIDs returns the ids of all questions to the owner, in no particular order. p may be nil.
func (p *pendingInput) interruptIDs() []string {
	if p == nil {
		return nil
	}
	ids := slices.Collect(maps.Values(p.Interrupts))
	if p.SignInInterrupt != "" {
		ids = append(ids, p.SignInInterrupt)
	}
	return ids
}

// settlePending asks the run's owner for what exec.pending says: the input that the server required in its last answer,
// and a sign-in. It waits for both, and adds them to request, with which the call is sent again. Then it authorizes the
// call again, because the access rules may have changed in the meantime. It does nothing if exec.pending is nil. It
// returns a failure of the call, or an error that ends the run.
func (l *loop) settlePending(ctx context.Context, exec *toolExecution, request *mcp.Call) error {
	pending := exec.pending
	if pending == nil {
		return nil
	}
	if pending.Required != nil {
		if pending.answers == nil {
			answers, err := l.answerPending(ctx, exec)
			if err != nil {
				return err
			}
			pending.answers = answers
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

// awaitSignIn asks the run's owner to sign in to the call's server, and returns nil once they have. The owner can
// answer the question directly, or sign in with a browser, whose redirect answers it (FinishSignIn). If the question is
// declined or not answered, the call fails.
func (l *loop) awaitSignIn(ctx context.Context, exec *toolExecution, request mcp.Call) error {
	signIn := exec.pending.SignIn
	res, err := l.askOwner(ctx, event.Interrupt{
		ID: exec.pending.SignInInterrupt, Kind: event.KindElicitation, Call: exec.Call,
		Message: signIn.Message, Mode: mcp.ElicitURL, URL: signIn.URL,
		HeldOpen: signIn.InMemory, ExpiresAt: exec.pending.SignInExpires,
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
	l.agent.Tools.ToolsFor(ctx, exec.caller) // lists the server's tools, which may need the sign-in
	return nil
}

// answerPending asks the run's owner the questions in exec.pending, waits until all are resolved, and returns the
// answers by the key of the server's request. Questions beyond the limits are answered with cancel. The error is a
// failure of the call, or that of askOwnerAll.
func (l *loop) answerPending(ctx context.Context, exec *toolExecution) (map[string]mcp.ElicitationResult, error) {
	asked, err := mcp.Elicitations(exec.pending.Required)
	if err != nil {
		return nil, exec.failure(mcp.Protocol, errBadQuestion)
	}
	keys := slices.Sorted(maps.Keys(exec.pending.Interrupts))
	questions := make([]event.Interrupt, len(keys))
	for i, key := range keys {
		questions[i] = elicitationQuestion(exec.Call, asked[key])
		questions[i].ID = exec.pending.Interrupts[key]
	}
	resolutions, err := l.askOwnerAll(ctx, questions, nil)
	if err != nil {
		return nil, err
	}
	answers := make(map[string]mcp.ElicitationResult, len(asked))
	for key := range asked {
		answers[key] = mcp.ElicitationResult{Action: mcp.Cancel}
	}
	for i, res := range resolutions {
		if errors.Is(res.unanswered, errWithdrawn) { // because ctx ended
			return nil, exec.canceledFailure(ctx)
		}
		answers[keys[i]] = mcp.ElicitationResult{Action: res.elicitationAction(), Content: res.Content}
	}
	return answers, nil
}
