package chat

import (
	"encoding/json"

	"answerd/internal/event"
	"answerd/internal/sse"
)

// Encoder turns the events of one run into the chunks of one stream. It must see them
// all, from the first on.
type Encoder struct {
	head         chunk
	includeUsage bool
	begun        bool // the message's text has begun
	newStep      bool // text so far is of an earlier step
	byID         map[string]int
	usage        event.Usage
}

// NewEncoder returns the encoder of a stream that no event has gone through.
func NewEncoder(h Header, includeUsage bool) *Encoder {
	return &Encoder{
		head:         chunk{ID: completionID(h), Object: "chat.completion.chunk", Created: h.Created.Unix(), Model: h.Model},
		includeUsage: includeUsage,
		byID:         make(map[string]int),
	}
}

// done ends every stream that says how it ended.
var done = sse.Frame{Data: []byte("[DONE]")}

// Encode returns the frames that e adds to the stream: none for most events.
func (enc *Encoder) Encode(e event.Event) []sse.Frame {
	switch b := e.Body.(type) {
	case event.Start:
		empty := ""
		return enc.encodeDelta(delta{Role: "assistant", Content: &empty})
	case event.StepStart:
		enc.newStep = enc.begun
	case event.TextDelta:
		return enc.encodeText(b.Delta)
	case event.ToolCallStart:
		if b.Executor == event.Client {
			return enc.encodeCallStart(b.Call)
		}
	case event.ToolCallArgs:
		if i, ok := enc.byID[b.CallID]; ok {
			return enc.encodeDelta(delta{ToolCalls: []callDelta{{Index: i, Function: functionDelta{Arguments: b.Delta}}}})
		}
	case event.StepReset:
		// What was streamed cannot be taken back; at least it is told from what follows.
		enc.newStep = enc.begun
		return enc.encodeReasoning("\n[the answer begins again]\n")
	case event.StepEnd:
		if b.Usage != nil {
			enc.usage = enc.usage.Plus(*b.Usage)
		}
	case event.FinalAnswer:
		enc.usage = b.Metadata.Usage
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

// TokenExpired returns the frames of a stream that ends before its run, because its
// caller's token has. There is no [DONE]: it is not done.
func (enc *Encoder) TokenExpired() []sse.Frame { return []sse.Frame{jsonFrame(errorBody{tokenExpired()})} }

// encodeText returns a piece of the answer. The text of a later step is set off from what was
// said before the tools ran.
func (enc *Encoder) encodeText(s string) []sse.Frame {
	if enc.newStep {
		enc.newStep = false
		s = "\n\n" + s
	}
	enc.begun = true
	return enc.encodeDelta(delta{Content: &s})
}

// encodeReasoning returns what UIs show as thinking. It never shares a chunk with content: there are
// clients that lose one of the two.
func (enc *Encoder) encodeReasoning(s string) []sse.Frame { return enc.encodeDelta(delta{Reasoning: s}) }

func (enc *Encoder) encodeCallStart(c event.Call) []sse.Frame {
	i := len(enc.byID)
	enc.byID[c.CallID] = i
	return enc.encodeDelta(delta{ToolCalls: []callDelta{{Index: i, ID: c.CallID, Type: "function", Function: functionDelta{Name: c.Tool}}}})
}

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

func (enc *Encoder) encodeDelta(d delta) []sse.Frame { return []sse.Frame{jsonFrame(enc.newChunk(d))} }

func (enc *Encoder) newChunk(d delta) chunk {
	c := enc.head
	c.Choices = []choice{{Delta: d}}
	if enc.includeUsage {
		c.Usage = json.RawMessage("null")
	}
	return c
}

func jsonFrame(v any) sse.Frame {
	data, _ := json.Marshal(v) // nothing in it can fail
	return sse.Frame{Data: data}
}

// finishReason returns a run's in the words of the format: a run that was cut off had an
// answer all the same, whose metadata say why.
func finishReason(reason string) string {
	switch reason {
	case "stop", "length", "content_filter", "tool_calls":
		return reason
	case "max_turns", "budget_exceeded":
		return "length"
	}
	return "stop"
}
