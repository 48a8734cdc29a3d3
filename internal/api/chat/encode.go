package chat

import (
	"encoding/json"
	"strings"

	"answerd/internal/event"
	"answerd/internal/sse"
)

// Encoder encodes the events of one run as the chunks of one stream. It needs all events of the
// run in order, from the first on, because the index of a call and the blank line between steps
// depend on earlier events. It cannot know which of the texts is the answer while they arrive, so a
// client that adds up the content gets the text of all steps; Collector has that of the last one only.
type Encoder struct {
	head         chunk
	includeUsage bool
	structured   bool            // the content must be JSON
	begun        bool            // the stream has text
	newStep      bool            // a step has begun since the last text
	byID         map[string]int  // index of a call in tool_calls, by its id
	withArgs     map[string]bool // the calls whose arguments were sent, by id
	usage        event.Usage     // of the steps so far
}

// NewEncoder returns the encoder of a new stream. includeUsage is stream_options.include_usage.
func NewEncoder(h Header, includeUsage bool) *Encoder {
	return &Encoder{
		head:         chunk{ID: completionID(h), Object: "chat.completion.chunk", Created: h.Created.Unix(), Model: h.Model},
		includeUsage: includeUsage,
		byID:         make(map[string]int),
		withArgs:     make(map[string]bool),
	}
}

// done ends every stream that has a finish_reason. Clients read until it arrives.
var done = sse.Frame{Data: []byte("[DONE]")}

// Encode returns the frames that e adds to the stream. Most events add none, because the format
// has no chunk for them.
func (enc *Encoder) Encode(e event.Event) []sse.Frame {
	switch b := e.Body.(type) {
	case event.Start:
		enc.structured = b.StructuredOutput
		empty := ""
		return enc.encodeDelta(delta{Role: "assistant", Content: &empty})
	case event.StepStart:
		enc.newStep = enc.begun
	case event.TextDelta:
		// Clients parse the content of all chunks together. It would not be JSON with the text of
		// earlier steps or of an answer that is repaired, so the final answer is sent in one chunk.
		if !enc.structured {
			return enc.encodeText(b.Delta)
		}
	case event.ToolCallStart:
		if b.Executor == event.Client {
			return enc.encodeCallStart(b.Call)
		}
	case event.ToolCallArgs:
		if _, ok := enc.byID[b.CallID]; ok {
			return enc.encodeArguments(b.CallID, b.Delta)
		}
	case event.ToolCall:
		switch {
		case b.Executor != event.Client:
			return enc.encodeReasoning(reasoningText(b))
		case !enc.withArgs[b.CallID]:
			// Endpoints may send none for a tool without parameters. Clients parse what they got as JSON.
			return enc.encodeArguments(b.CallID, argumentsOf(b))
		}
	case event.StepReset:
		// Streamed text cannot be withdrawn, so it is separated from what follows.
		enc.newStep = enc.begun
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
		return []sse.Frame{jsonFrame(errorBody{runErrorBody(b)})}
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

// encodeText returns the chunk of a text delta. A blank line separates the text of a later step
// from that before the tool calls.
func (enc *Encoder) encodeText(s string) []sse.Frame {
	if enc.newStep {
		enc.newStep = false
		s = "\n\n" + s
	}
	enc.begun = true
	return enc.encodeDelta(delta{Content: &s})
}

// encodeReasoning returns a chunk with reasoning_content, which UIs show as thinking. It has no
// content, because some clients lose one of the two.
func (enc *Encoder) encodeReasoning(s string) []sse.Frame {
	return enc.encodeDelta(delta{Reasoning: s})
}

// encodeCallStart returns the first chunk of a client call and gives the call its index. Clients
// add the arguments of later chunks to the call with the same index.
func (enc *Encoder) encodeCallStart(c event.Call) []sse.Frame {
	i := len(enc.byID)
	enc.byID[c.CallID] = i
	return enc.encodeDelta(delta{ToolCalls: []callDelta{{Index: i, ID: c.CallID, Type: "function", Function: functionDelta{Name: c.Tool}}}})
}

// encodeArguments returns a chunk with a piece of the arguments of a client call.
func (enc *Encoder) encodeArguments(call, piece string) []sse.Frame {
	enc.withArgs[call] = true
	return enc.encodeDelta(delta{ToolCalls: []callDelta{{Index: enc.byID[call], Function: functionDelta{Arguments: piece}}}})
}

// endStream returns the last chunks of a stream: one with the finish_reason, one with the usage if
// the caller asked for it, and [DONE]. The chunk with the usage has no choices, as OpenAI's API
// reference requires.
func (enc *Encoder) endStream(reason string) []sse.Frame {
	last := enc.newChunk(delta{})
	last.Choices[0].FinishReason = &reason
	frames := []sse.Frame{jsonFrame(last)}
	if enc.includeUsage {
		end := enc.head
		end.Choices, end.Usage = []choice{}, wireUsage(enc.usage)
		frames = append(frames, jsonFrame(end))
	}
	return append(frames, done)
}

// encodeDelta returns a chunk with d as its only choice.
func (enc *Encoder) encodeDelta(d delta) []sse.Frame { return []sse.Frame{jsonFrame(enc.newChunk(d))} }

// newChunk returns a chunk with d. Its usage is null if the last chunk has the usage, and absent
// otherwise.
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

// finishReason returns the finish_reason of the format for that of a run. A run that reached a
// limit has an answer too, which counts as cut off ("length"); the run's metadata name the limit.
// Unknown reasons of providers become "stop", because clients may refuse values that they do not know.
func finishReason(reason string) string {
	switch reason {
	case "stop", "length", "content_filter", "tool_calls":
		return reason
	case "max_turns", "budget_exceeded":
		return "length"
	}
	return "stop"
}

// Collector builds the completion of one run from its events. The handler needs it instead of the
// final answer alone, because the message has the reasoning and the calls of all steps.
type Collector struct {
	head      Header
	reasoning strings.Builder
	calls     []call
	end       event.FinalAnswer
	called    bool // the agent has called a tool
}

// NewCollector returns a collector that has no events yet.
func NewCollector(h Header) *Collector { return &Collector{head: h} }

// Add adds the next event of the run.
func (c *Collector) Add(e event.Event) {
	c.reasoning.WriteString(reasoningText(e.Body))
	switch b := e.Body.(type) {
	case event.ToolCall:
		c.called = c.called || b.Executor != event.Client
		if b.Executor == event.Client {
			c.calls = append(c.calls, call{ID: b.CallID, Type: "function", Function: function{b.Tool, argumentsOf(b)}})
		}
	case event.StepReset:
		c.calls = nil // the step's calls are void; only the last step of a run has calls of the caller's tools
	case event.FinalAnswer:
		c.end = b
	}
}

// CalledTools reports whether the agent has called tools of its own. If it has, the handler must
// not make a client repeat a failed request, because a repetition would call them again.
func (c *Collector) CalledTools() bool { return c.called }

// Completion returns the body of the response. The final answer must have been added. Its content
// is that answer; only streams have the text of earlier steps.
func (c *Collector) Completion() any {
	m := message{Role: "assistant", Content: &c.end.Answer, Reasoning: c.reasoning.String(), ToolCalls: c.calls}
	if len(c.calls) > 0 && c.end.Answer == "" {
		// The format has null for a message that only calls tools.
		m.Content = nil
	}
	return completion{
		ID: completionID(c.head), Object: "chat.completion", Created: c.head.Created.Unix(), Model: c.head.Model,
		Choices: []completionChoice{{Message: m, FinishReason: finishReason(c.end.FinishReason)}},
		Usage:   wireUsage(c.end.Metadata.Usage),
	}
}
