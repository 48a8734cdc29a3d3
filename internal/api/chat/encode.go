package chat

import (
	"encoding/json"
	"strings"

	"answerd/internal/event"
	"answerd/internal/sse"
)

// Encoder encodes the events of one run as the chunks of one stream. It needs all of the run's events, in order,
// because the index of a call and the blank line between steps depend on earlier events.
//
// While text arrives, the Encoder cannot know whether it is the answer. So a stream has the texts of all steps, while a
// Collector's completion has only the text of the last step.
type Encoder struct {
	head         chunk // the members that all chunks share
	includeUsage bool
	structured   bool            // the answer must be JSON
	hasText      bool            // the stream has text
	needsBreak   bool            // the next text belongs to another step, so it needs a blank line before it
	callIndex    map[string]int  // the client's calls: their index in tool_calls, by call id
	sentArgs     map[string]bool // the client's calls whose arguments were sent, at least in part, by call id
	usage        event.Usage     // the usage of the steps so far
}

// NewEncoder returns the encoder of a new stream. includeUsage is stream_options.include_usage.
func NewEncoder(h Header, includeUsage bool) *Encoder {
	return &Encoder{
		head:         chunk{ID: completionID(h), Object: "chat.completion.chunk", Created: h.Created.Unix(), Model: h.Model},
		includeUsage: includeUsage,
		callIndex:    make(map[string]int),
		sentArgs:     make(map[string]bool),
	}
}

// Encode returns the frames for e, which must be the run's next event. It returns nil for the many events that the
// format has no chunk for.
func (enc *Encoder) Encode(e event.Event) []sse.Frame {
	switch b := e.Body.(type) {
	case event.Start:
		enc.structured = b.StructuredOutput
		empty := ""
		return enc.encodeDelta(delta{Role: "assistant", Content: &empty})
	case event.StepStart:
		enc.needsBreak = enc.hasText
	case event.TextDelta:
		// Clients join the contents of all chunks and parse them. With the text of earlier steps, or of an answer that
		// the model has to correct, that would not be JSON. So only the final answer is sent, in one chunk. The text
		// beside calls that the client executes is not the answer.
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
		case !enc.sentArgs[b.CallID]:
			// For a tool without parameters, the model may write no arguments. Clients parse the arguments as JSON, so
			// they get those of the event, such as {}.
			return enc.encodeArguments(b.CallID, b.Arguments())
		}
	case event.StepReset:
		// The stream's text cannot be withdrawn, so a break separates it from the text of the repeated step.
		enc.needsBreak = enc.hasText
		return enc.encodeReasoning("\n[the answer begins again]\n")
	case event.StepEnd:
		if b.Usage != nil {
			enc.usage = enc.usage.Plus(*b.Usage)
		}
	case event.FinalAnswer:
		enc.usage = b.Metadata.Usage
		if enc.structured && b.Answer != "" && b.FinishReason != "tool_calls" {
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

// TokenExpired returns the frames that end the stream early because the caller's token has expired. They do not include
// [DONE], because the answer is not complete.
func (enc *Encoder) TokenExpired() []sse.Frame {
	expired := Error{Message: "The access token has expired. The run goes on.", Type: "authentication_error", Code: "token_expired"}
	return []sse.Frame{jsonFrame(errorBody{expired})}
}

// encodeText returns the chunk for a delta of the text. A blank line separates the texts of two steps.
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

// encodeCallStart returns the first chunk of a call that the client executes, and gives the call its index. Later
// chunks have the same index, and clients add their arguments to this call.
func (enc *Encoder) encodeCallStart(c event.Call) []sse.Frame {
	index := len(enc.callIndex)
	enc.callIndex[c.CallID] = index
	start := callDelta{Index: index, ID: c.CallID, Type: "function", Function: functionDelta{Name: c.Tool}}
	return enc.encodeDelta(delta{ToolCalls: []callDelta{start}})
}

// encodeArguments returns a chunk with a piece of a call's arguments. encodeCallStart must have begun the call.
func (enc *Encoder) encodeArguments(callID, piece string) []sse.Frame {
	enc.sentArgs[callID] = true
	args := callDelta{Index: enc.callIndex[callID], Function: functionDelta{Arguments: piece}}
	return enc.encodeDelta(delta{ToolCalls: []callDelta{args}})
}

// endStream returns the stream's last chunks: one with the finish_reason, one with the usage if the client asked for
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
	return append(frames, sse.Frame{Data: []byte("[DONE]")}) // clients read until it arrives
}

// encodeDelta returns the frame of a chunk whose delta is d.
func (enc *Encoder) encodeDelta(d delta) []sse.Frame { return []sse.Frame{jsonFrame(enc.newChunk(d))} }

// newChunk returns a chunk whose only choice has the delta d. If the client asked for the usage, which only the last
// chunk has, the chunk's usage is null; otherwise it is absent.
func (enc *Encoder) newChunk(d delta) chunk {
	c := enc.head
	c.Choices = []choice{{Delta: d}}
	if enc.includeUsage {
		c.Usage = json.RawMessage("null")
	}
	return c
}

// jsonFrame returns a frame with v as its data. Streams of this format have no event types.
func jsonFrame(v any) sse.Frame {
	data, _ := json.Marshal(v) // cannot fail: v has only texts, numbers and valid JSON
	return sse.Frame{Data: data}
}

// finishReason returns the format's finish_reason for a run's finish reason. An answer at one of the run's limits
// counts as cut off ("length"). Other reasons of model providers become "stop", because clients may refuse unknown
// values.
func finishReason(reason string) string {
	switch reason {
	case "stop", "length", "content_filter", "tool_calls":
		return reason
	case "max_turns", "budget_exceeded":
		return "length"
	}
	return "stop"
}

// Collector builds a run's completion from its events. It needs all of them, because the message has the reasoning of
// all steps and the calls that the client executes.
type Collector struct {
	head        Header
	structured  bool // the answer must be JSON
	reasoning   strings.Builder
	clientCalls []call // calls that the client executes
	answer      event.FinalAnswer
	calledTools bool // the model has called a tool that the server executes
}

// NewCollector returns a collector that has no events yet.
func NewCollector(h Header) *Collector { return &Collector{head: h} }

// Add adds e, which must be the run's next event.
func (c *Collector) Add(e event.Event) {
	c.reasoning.WriteString(reasoningText(e.Body))
	switch b := e.Body.(type) {
	case event.Start:
		c.structured = b.StructuredOutput
	case event.ToolCall:
		if b.Executor != event.Client {
			c.calledTools = true
			return
		}
		c.clientCalls = append(c.clientCalls, call{ID: b.CallID, Type: "function", Function: function{b.Tool, b.Arguments()}})
	case event.StepReset:
		c.clientCalls = nil // the step is repeated; only the last step of a run has calls that the client executes
	case event.FinalAnswer:
		c.answer = b
	}
}

// CalledTools reports whether the model has called tools that the server executes. If so, clients must not retry a
// failed request, because that would execute the calls again.
func (c *Collector) CalledTools() bool { return c.calledTools }

// Completion returns the response's body, to be encoded as JSON. The final answer must have been added before. The
// completion's content is that answer; only streams have the text of earlier steps.
func (c *Collector) Completion() any {
	m := message{Role: "assistant", Content: &c.answer.Answer, Reasoning: c.reasoning.String(), ToolCalls: c.clientCalls}
	if len(c.clientCalls) > 0 && (c.answer.Answer == "" || c.structured) {
		// In this format, the content of a message that only calls tools is null. Text beside such calls is not the
		// answer, and clients would parse it as JSON if the answer must be JSON.
		m.Content = nil
	}
	return completion{
		ID: completionID(c.head), Object: "chat.completion", Created: c.head.Created.Unix(), Model: c.head.Model,
		Choices: []completionChoice{{Message: m, FinishReason: finishReason(c.answer.FinishReason)}},
		Usage:   wireUsage(c.answer.Metadata.Usage),
	}
}
