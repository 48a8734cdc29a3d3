// Package texttool lets a model that has no tool calling of its own call tools: it writes
// the tools and the form of a call into the prompt, and reads calls out of the text.
//
//	model := texttool.New(openai.New(openai.Config{BaseURL: base}))
//	for part, err := range model.Stream(ctx, llm.Request{Model: "local", Messages: msgs, Tools: tools}) {
//		if err != nil {
//			return err
//		}
//		if call, ok := part.(llm.ToolCall); ok {
//			calls = append(calls, call)
//		}
//	}
//
// The model is asked to write a call as two lines:
//
//	TOOL: get_weather
//	PARAMETERS: {"city": "Rome"}
//
// Such a block does not appear in the answer's text; the text around it streams as it
// arrives. See extractor for the variants that are understood. Streams may run
// concurrently.
package texttool

import (
	"context"
	"errors"
	"iter"

	"answerd/internal/llm"
)

// errStopped says that the consumer has left its loop: nothing more may be yielded.
var errStopped = errors.New("the consumer stopped")

// Model is a model with tool calls written as text.
type Model struct {
	model llm.Model
}

// New returns a model that asks m without tools and reads calls out of its text.
func New(m llm.Model) *Model { return &Model{model: m} }

// Stream asks the underlying model with a request that has no tools. Calls that this
// model makes natively nevertheless are ignored: it was offered none.
func (m *Model) Stream(ctx context.Context, r llm.Request) iter.Seq2[llm.Part, error] {
	return func(yield func(llm.Part, error) bool) {
		err := m.streamAnswer(ctx, r, func(p llm.Part) bool { return yield(p, nil) })
		if err != nil && !errors.Is(err, errStopped) {
			yield(nil, err)
		}
	}
}

// streamAnswer emits the parts of one answer. With ToolChoice None it reads no calls: the
// model sums up, and may well quote the form of a call.
func (m *Model) streamAnswer(ctx context.Context, r llm.Request, emit func(llm.Part) bool) error {
	offered := len(r.Tools) > 0 && r.ToolChoice != llm.None
	inner := llm.Request{Model: r.Model, Messages: historyAsText(r.Messages), MaxTokens: r.MaxTokens, Sampling: r.Sampling}
	x := &extractor{emit: emit, tools: r.Tools, disabled: !offered, reminded: wasReminded(r.Messages)}
	if offered {
		inner.Messages = addInstructions(inner.Messages, r)
	}
	var usage []llm.Part
	for p, err := range m.model.Stream(ctx, inner) {
		if err != nil {
			return err
		}
		switch p := p.(type) {
		case llm.Text:
			err = x.readText(p.Delta)
		case llm.Reasoning:
			err = x.send(p)
		case llm.Usage:
			usage = append(usage, p) // complete calls come before it
		case llm.Finish:
			err = x.finishAnswer(append(usage, p)...)
		}
		if err != nil {
			return err
		}
	}
	return nil
}
