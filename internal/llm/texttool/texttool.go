// Package texttool enables a model without tool calling to call tools. It writes the tools and
// the form of a call into the prompt, and reads calls out of the model's text.
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
// Such a block is not part of the answer's text. The text around it is streamed as it arrives.
// Streams may run concurrently.
//
// An extractor goes through the text as it arrives. It looks for the header of such a block, with the
// deviations that toolHeader lists, and for the notations that models were trained with (notation.go).
// At the end of an answer without any call it looks for what was probably meant as one (mention.go,
// nearmiss.go). Unless the tool needs no arguments, the call that it then makes fails, and its error
// tells the model the form. prompt.go writes the tools, and the calls and results so far, into the
// prompt.
//
// Whether a text is a call cannot be decided for certain. To miss a call shows it to the user as text
// and ends the run without it. To see one that is not there calls a tool that nobody asked for, which
// may be worse. So other notations count only for a tool that was offered, and the more they resemble
// prose, at the fewer places. With NewAuto, where the model had a better way to call, the form of the
// prompt counts only for such a tool too.
package texttool

import (
	"context"
	"errors"
	"iter"
	"slices"

	"answerd/internal/llm"
)

// errStopped means that the consumer has left its loop, so no further part may be yielded.
var errStopped = errors.New("the consumer stopped")

// Model wraps a model, and writes tool calls as text.
type Model struct {
	model  llm.Model
	native bool // offer the tools natively
}

// New returns a model that asks another model without tools and reads calls out of its text.
func New(m llm.Model) *Model { return &Model{model: m} }

// NewAuto returns a model that offers the tools to another model natively, and also reads calls of these
// tools out of m's text. Many models write calls there because their endpoint does not parse
// their notation. An answer with native calls is passed on unchanged.
func NewAuto(m llm.Model) *Model { return &Model{model: m, native: true} }

// Models returns the models for each way of tool calling over one model, for an llm.Router.
func Models(m llm.Model) map[llm.ToolCalling]llm.Model {
	return map[llm.ToolCalling]llm.Model{llm.NativeCalling: m, llm.TextCalling: New(m), llm.AutoCalling: NewAuto(m)}
}

// Stream asks the underlying model with a request without tools, and ignores native calls,
// because no tool was offered natively. A model of NewAuto does offer the tools and passes
// native calls on.
func (m *Model) Stream(ctx context.Context, r llm.Request) iter.Seq2[llm.Part, error] {
	return func(yield func(llm.Part, error) bool) {
		err := m.streamAnswer(ctx, r, func(p llm.Part) bool { return yield(p, nil) })
		if err != nil && !errors.Is(err, errStopped) {
			yield(nil, err)
		}
	}
}

// streamAnswer emits the parts of one answer. With ToolChoice None it reads no calls, because a
// final summary may quote the form of a call.
func (m *Model) streamAnswer(ctx context.Context, request llm.Request, emit func(llm.Part) bool) error {
	offered := len(request.Tools) > 0 && request.ToolChoice != llm.None
	if m.native {
		return m.readAnswer(ctx, request, &extractor{emit: emit, tools: request.Tools, disabled: !offered, auto: true})
	}
	if offered {
		request = request.SchemaInPrompt() // a response_format would forbid calls, which are text
	}
	inner := llm.Request{
		Model:        request.Model,
		Messages:     historyAsText(request.Messages),
		MaxTokens:    request.MaxTokens,
		Sampling:     request.Sampling,
		OutputSchema: request.OutputSchema,
	}
	e := &extractor{emit: emit, tools: request.Tools, disabled: !offered, reminders: countReminders(request.Messages)}
	if offered {
		inner.Messages = addInstructions(inner.Messages, request)
		inner.Sampling.Stop = addStops(request.Sampling.Stop)
	}
	return m.readAnswer(ctx, inner, e)
}

// readAnswer asks the underlying model and passes its answer to e.
func (m *Model) readAnswer(ctx context.Context, r llm.Request, e *extractor) error {
	var usage []llm.Part
	for received, err := range m.model.Stream(ctx, r) {
		if err != nil {
			return err
		}
		switch p := received.(type) {
		case llm.Text:
			e.received = received
			err = e.readText(p.Delta)
		case llm.Reasoning:
			err = e.sendPart(received)
		case llm.ToolCallStart, llm.ToolCallArgs, llm.ToolCall:
			if m.native {
				err = e.passNativeCall(p)
			}
		case llm.Extensions:
			if m.native { // extensions belong to native calls, which a message as text does not have
				usage = append(usage, p)
			}
		case llm.Usage:
			usage = append(usage, p) // complete calls precede usage
		case llm.Finish:
			err = e.finishAnswer(append(usage, p)...)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// maxStops is the limit of stop sequences in Chat Completions.
const maxStops = 4

// addStops adds the words that announce results to the stop sequences, so that the model does
// not invent results.
func addStops(stops []string) []string {
	stops = slices.Clone(stops)
	for _, word := range []string{"\nTOOL RESULT:", "\nTOOL ERROR:"} {
		if len(stops) < maxStops {
			stops = append(stops, word)
		}
	}
	return stops
}
