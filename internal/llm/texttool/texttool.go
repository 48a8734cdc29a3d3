// Package texttool lets a model without tool calling call tools. It writes the tools and the form of a call into the
// prompt, and finds calls in the model's text.
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
// Such a block is not part of the answer's text. The text around it is streamed as it arrives. Streams may run
// concurrently.
//
// An extractor reads the text as it arrives. It looks for the header of such a block, with the deviations that
// toolHeader lists, and for the notations that models were trained with (notation.go). If an answer has no call, the
// extractor looks at the end for text that was probably meant as a call: a mention of a tool (mention.go), or a near
// miss, which is a call in a form that no parser understands (nearmiss.go). It makes a call of this text, too. If the
// tool needs arguments, that call fails, and its error shows the model the right form. prompt.go writes the tools, and
// the earlier calls and results, into the prompt.
//
// It is impossible to decide with certainty whether text is a call. A missed call is shown to the user as text, and the
// run ends without it. A call that was not intended executes a tool without reason, which may be worse. So a call in
// another notation counts only if its tool was offered, and the more the notation resembles prose, the fewer positions
// in an answer are accepted. With NewAuto, the model had a better way to call tools, so even a call in the form of the
// prompt counts only if its tool was offered.
package texttool

import (
	"context"
	"errors"
	"iter"
	"slices"

	"answerd/internal/llm"
)

// errStopped says that the consumer has left its loop, so no more parts may be yielded.
var errStopped = errors.New("the consumer stopped")

// Model wraps another model and finds tool calls in its text. Use New or NewAuto to create a Model.
type Model struct {
	model  llm.Model
	native bool // made by NewAuto: the requests to model include the tools
}

// New returns a Model for text tool calling. It asks model without tools, describes the tools in the prompt, and finds
// calls in the text of model's answers.
func New(model llm.Model) *Model { return &Model{model: model} }

// NewAuto returns a Model that offers the tools to model natively, and also finds calls of these tools in the text of
// model's answers. Many models write calls as text because their endpoint does not parse their notation. An answer with
// native calls is passed on unchanged.
func NewAuto(model llm.Model) *Model { return &Model{model: model, native: true} }

// Models returns one model per way of tool calling, all of them based on model, for an llm.Router.
func Models(model llm.Model) map[llm.ToolCalling]llm.Model {
	return map[llm.ToolCalling]llm.Model{llm.NativeCalling: model, llm.TextCalling: New(model), llm.AutoCalling: NewAuto(model)}
}

// Stream implements llm.Model. A Model made by New sends a request without tools, and therefore ignores native calls in
// the answer. A Model made by NewAuto sends request unchanged and passes native calls on.
func (m *Model) Stream(ctx context.Context, request llm.Request) iter.Seq2[llm.Part, error] {
	return func(yield func(llm.Part, error) bool) {
		err := m.streamAnswer(ctx, request, func(p llm.Part) bool { return yield(p, nil) })
		if err != nil && !errors.Is(err, errStopped) {
			yield(nil, err)
		}
	}
}

// streamAnswer asks the underlying model and emits the parts of its answer. It returns errStopped if emit returns
// false. With ToolChoice None, it does not look for calls in the text, because a final summary may quote the form of a
// call.
func (m *Model) streamAnswer(ctx context.Context, request llm.Request, emit func(llm.Part) bool) error {
	offered := len(request.Tools) > 0 && request.ToolChoice != llm.None
	if m.native {
		return m.readAnswer(ctx, request, &extractor{emit: emit, tools: request.Tools, disabled: !offered, auto: true})
	}
	if offered {
		request = request.SchemaInPrompt() // a response_format would forbid calls, because these are text
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

// readAnswer asks the underlying model and passes its answer to e, which emits the parts. The calls that e finds come
// before the answer's extensions and usage, as package llm requires. If m was made by New,
// readAnswer ignores native calls, because the model was offered no tools natively.
func (m *Model) readAnswer(ctx context.Context, request llm.Request, e *extractor) error {
	var last []llm.Part // the parts that follow the calls
	for received, err := range m.model.Stream(ctx, request) {
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
			// With New, the message goes back to the model as text (historyAsText), which cannot have extensions.
			if m.native {
				last = append(last, p)
			}
		case llm.Usage:
			last = append(last, p)
		case llm.Finish:
			err = e.finishAnswer(append(last, p)...)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// maxStops is how many stop sequences Chat Completions allows.
const maxStops = 4

// addStops returns a copy of stops with the words that announce results in the prompt, at most maxStops in total. With
// them, the endpoint ends an answer before the model invents a result.
func addStops(stops []string) []string {
	stops = slices.Clone(stops)
	for _, word := range []string{"\nTOOL RESULT:", "\nTOOL ERROR:"} {
		if len(stops) < maxStops {
			stops = append(stops, word)
		}
	}
	return stops
}
