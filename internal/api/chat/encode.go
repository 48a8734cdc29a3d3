package chat

import (
	"encoding/json"
	"strings"

	"answerd/internal/event"
	"answerd/internal/sse"
)

// Encoder encodes the events of one run as the chunks of one stream. It needs all events of the run in order, from the
// first on, because the index of a call and the blank line between steps depend on earlier events.
//
// While texts arrive, the Encoder cannot know which of them is the answer. So the contents of all chunks together are the
// texts of all steps, but the content of a Collector's completion is the text of the last step only.
type Encoder struct {
	head         chunk // the members that all chunks share
	includeUsage bool
	structured   bool            // the answer must be JSON
	hasText      bool            // the stream has text
	needsBreak   bool            // the next text needs a blank line before it, because it is of another step
	callIndex    map[string]int  // index in tool_calls of the calls that the caller executes, by call id
	withArgs     map[string]bool // those of them whose arguments have been sent, at least in part
	usage        event.Usage     // of the steps so far
}

// NewEncoder returns the encoder of a new stream. includeUsage is stream_options.include_usage.
func NewEncoder(h Header, includeUsage bool) *Encoder {
	return &Encoder{
		head:         chunk{ID: completionID(h), Object: "chat.completion.chunk", Created: h.Created.Unix(), Model: h.Model},
		includeUsage: includeUsage,
		callIndex:    make(map[string]int),
		withArgs:     make(map[string]bool),
	}
}

// done ends every stream that has a finish_reason. Clients read until it arrives.
var done = sse.Frame{Data: []byte("[DONE]")}

// Encode returns the frames that e, the next event of the run, adds to the stream. Many events add no frame, because the
// format has no chunk for them.
func (enc *Encoder) Encode(e event.Event) []sse.Frame {
	switch b := e.Body.(type) {
	case event.Start:
		enc.structured = b.StructuredOutput
		empty := ""
		return enc.encodeDelta(delta{Role: "assistant", Content: &empty})
	case event.StepStart:
		enc.needsBreak = enc.hasText
	case event.TextDelta:
		// Clients parse the contents of all chunks together. With the text of earlier steps, or of an answer that the
		// agent lets the model correct, they would not be JSON. So only the final answer is sent, in one chunk.
		if !enc.structured {
			return enc.encodeText(b.Delta)
		}
	case event.ToolCallStart:
		if b.Executor == event.Client {
			return enc.encodeCallStart(b.Call)
		}
	case event.ToolCallArgs:
		if _, isClientCall := enc.callIndex[b.CallID]; isClientCall {
			return enc.encodeArguments(b.CallID, b.Delta)
		}
	case event.ToolCall:
		switch {
		case b.Executor != event.Client:
			return enc.encodeReasoning(reasoningText(b))
		case !enc.withArgs[b.CallID]:
			// The model may write no arguments for a tool without parameters. Clients parse the arguments as JSON, so they
			// get those of the event, such as {}.
			return enc.encodeArguments(b.CallID, argumentsOf(b))
		}
	case event.StepReset:
		// Text of the stream cannot be withdrawn, so it is separated from the text of the repeated step.
		enc.needsBreak = enc.hasText
		return enc.encodeReasoning("\n[the answer begins again]\n")
	case event.StepEnd:
		if b.Usage != nil {
			enc.usage = enc.usage.Plus(*b.Usage)
		}
	case event.FinalAnswer:
		enc.usage = b.Metadata.Usage
		if enc.structured && b.Answer != "" {
			return append(enc.encodeDelta(delta{Content: &b.Answer}), enc.endStream(finishReason(b.FinishReason))...)
		}
		return enc.endStream(finishReason(b.FinishReason))
	case event.Cancelled:
		return enc.endStream("stop")
	case event.RunError:
		return []sse.Frame{jsonFrame(errorBody{runError(b)})}
	default:
		if t := reasoningText(b); t != "" {
			return enc.encodeReasoning(t)
		}
	}
	return nil
}

// TokenExpired returns the frames that end a stream before its run ends, because the caller's
// token has expired. There is no [DONE], because the answer is not complete.
func (enc *Encoder) TokenExpired() []sse.Frame {
	return []sse.Frame{jsonFrame(errorBody{tokenExpired()})}
}

// encodeText returns the chunk of a text delta. A blank line separates the text of a step from the texts of the steps
// before it.
func (enc *Encoder) encodeText(s string) []sse.Frame {
	if enc.needsBreak {
		enc.needsBreak = false
		s = "\n\n" + s
	}
	enc.hasText = true
	return enc.encodeDelta(delta{Content: &s})
}

// encodeReasoning returns a chunk with reasoning_content, which UIs show as thinking. The chunk has no content, because
// some clients lose either the content or the reasoning of a chunk with both.
func (enc *Encoder) encodeReasoning(s string) []sse.Frame {
	return enc.encodeDelta(delta{Reasoning: s})
}

// encodeCallStart returns the first chunk of a call that the caller executes, and gives the call its index. Clients add
// the arguments of later chunks to the call with the same index.
func (enc *Encoder) encodeCallStart(c event.Call) []sse.Frame {
	index := len(enc.callIndex)
	enc.callIndex[c.CallID] = index
	start := callDelta{Index: index, ID: c.CallID, Type: "function", Function: functionDelta{Name: c.Tool}}
	return enc.encodeDelta(delta{ToolCalls: []callDelta{start}})
}

// encodeArguments returns a chunk with a piece of the arguments of a call that encodeCallStart has begun.
func (enc *Encoder) encodeArguments(callID, piece string) []sse.Frame {
	enc.withArgs[callID] = true
	args := callDelta{Index: enc.callIndex[callID], Function: functionDelta{Arguments: piece}}
	return enc.encodeDelta(delta{ToolCalls: []callDelta{args}})
}

// endStream returns the last chunks of a stream: one with the finish_reason, one with the usage if the caller asked for
// it, and [DONE]. The chunk with the usage has no choices, as OpenAI's API reference requires.
func (enc *Encoder) endStream(reason string) []sse.Frame {
	last := enc.newChunk(delta{})
	last.Choices[0].FinishReason = &reason
	frames := []sse.Frame{jsonFrame(last)}
	if enc.includeUsage {
		c := enc.head
		c.Choices = []choice{}
		c.Usage = wireUsage(enc.usage)
		frames = append(frames, jsonFrame(c))
	}
	return append(frames, done)
}

// encodeDelta returns the frame of a chunk with d.
func (enc *Encoder) encodeDelta(d delta) []sse.Frame { return []sse.Frame{jsonFrame(enc.newChunk(d))} }

// newChunk returns a chunk with d as the delta of its only choice. Its usage is null if the caller asked for the usage,
// which the last chunk then has, and absent otherwise.
func (enc *Encoder) newChunk(d delta) chunk {
	c := enc.head
	c.Choices = []choice{{Delta: d}}
	if enc.includeUsage {
		c.Usage = json.RawMessage("null")
	}
	return c
}

// jsonFrame returns a frame with v as its data. Streams of this format name no event types.
func jsonFrame(v any) sse.Frame {
	data, _ := json.Marshal(v) // cannot fail: v has only texts, numbers and valid JSON
	return sse.Frame{Data: data}
}

// finishReason returns the format's finish_reason for the one of a run. The answer of a run that reached a limit counts as
// cut off ("length"); the run's metadata have its own reason. Other reasons of providers become "stop", because clients
// may refuse values that they do not know.
func finishReason(reason string) string {
	switch reason {
	case "stop", "length", "content_filter", "tool_calls":
		return reason
	case "max_turns", "budget_exceeded":
		return "length"
	}
	return "stop"
}

// Collector builds the completion of one run from its events. It needs all of them and not only the final answer, because
// the message has the reasoning of all steps and the calls that the caller executes.
type Collector struct {
	head        Header
	reasoning   strings.Builder
	clientCalls []call // calls that the caller executes
	answer      event.FinalAnswer
	calledTools bool // the model has called a tool that the server executes
}

// NewCollector returns a collector that has no events yet.
func NewCollector(h Header) *Collector { return &Collector{head: h} }

// Add adds the next event of the run.
func (c *Collector) Add(e event.Event) {
	c.reasoning.WriteString(reasoningText(e.Body))
	switch b := e.Body.(type) {
	case event.ToolCall:
		if b.Executor != event.Client {
			c.calledTools = true
			return
		}
		c.clientCalls = append(c.clientCalls, call{ID: b.CallID, Type: "function", Function: function{b.Tool, argumentsOf(b)}})
	case event.StepReset:
		c.clientCalls = nil // the step's calls are void; only the last step of a run has calls that the caller executes
	case event.FinalAnswer:
		c.answer = b
	}
}

// CalledTools reports whether the model has called tools that the server executes. The handler must then not make a client
// repeat a failed request, because the repetition would execute the calls again.
func (c *Collector) CalledTools() bool { return c.calledTools }

// Completion returns the body of the response, to be encoded as JSON. The final answer must have been added. The content
// is that answer; only streams have the text of earlier steps.
func (c *Collector) Completion() any {
	m := message{Role: "assistant", Content: &c.answer.Answer, Reasoning: c.reasoning.String(), ToolCalls: c.clientCalls}
	if len(c.clientCalls) > 0 && c.answer.Answer == "" {
		// The format has null for a message that only calls tools.
		m.Content = nil
	}
	return completion{
		ID: completionID(c.head), Object: "chat.completion", Created: c.head.Created.Unix(), Model: c.head.Model,
		Choices: []completionChoice{{Message: m, FinishReason: finishReason(c.answer.FinishReason)}},
		Usage:   wireUsage(c.answer.Metadata.Usage),
	}
}
