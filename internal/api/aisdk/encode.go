package aisdk

import (
	"encoding/json"

	"answerd/internal/event"
	"answerd/internal/sse"
)

// Encoder encodes the events of one run as the chunks of one stream. It must get all events, from the
// first of the run on. The frames of a suspended event end a stream. Later frames are the same as if
// that event had not been encoded.
type Encoder struct {
	head   Header
	seq    int64       // of the event that is being encoded
	frames []sse.Frame // of it

	inStep  bool
	text    string           // the open text part
	reason  string           // the open reasoning part
	clients map[string]bool  // calls that the page executes
	held    []event.ToolCall // those of them that are complete
	refused map[string]bool  // calls that the person did not agree to
	asked   map[string]event.Elicitation
}

// NewEncoder returns the encoder of a stream that no event has gone through.
func NewEncoder(h Header) *Encoder {
	return &Encoder{head: h, clients: make(map[string]bool), refused: make(map[string]bool), asked: make(map[string]event.Elicitation)}
}

// chunk is one chunk. Its members are not null unless a comment says so: null is fatal to the SDK
// where an optional member is expected.
type chunk = map[string]any

func (enc *Encoder) emitChunk(c chunk) {
	if enc.seq <= enc.head.After {
		return
	}
	data, _ := json.Marshal(c) // nothing in it can fail
	enc.frames = append(enc.frames, sse.Frame{Data: data})
}

// Encode returns the frames that e adds to the stream.
func (enc *Encoder) Encode(e event.Event) []sse.Frame {
	enc.seq, enc.frames = e.Seq, nil
	if e.Seq == enc.head.After+1 {
		enc.emitChunk(chunk{"type": "start", "messageId": enc.head.MessageID,
			"messageMetadata": chunk{"runId": enc.head.RunID, "threadId": enc.head.ThreadID}})
	}
	enc.encodeEvent(e.Body)
	return enc.frames
}

func (enc *Encoder) encodeEvent(body event.Body) {
	switch b := body.(type) {
	case event.StepStart:
		enc.endStep()
		enc.inStep = true
		enc.emitChunk(chunk{"type": "start-step"})
	case event.TextStart:
		enc.text = b.PartID
		enc.emitChunk(chunk{"type": "text-start", "id": b.PartID})
	case event.TextDelta:
		enc.emitChunk(chunk{"type": "text-delta", "id": b.PartID, "delta": b.Delta})
	case event.TextEnd:
		enc.endText()
	case event.ReasoningStart:
		enc.reason = b.PartID
		enc.emitChunk(chunk{"type": "reasoning-start", "id": b.PartID})
	case event.ReasoningDelta:
		enc.emitChunk(chunk{"type": "reasoning-delta", "id": b.PartID, "delta": b.Delta})
	case event.ReasoningEnd:
		enc.endReasoning()
	case event.StepReset:
		// Streamed text cannot be withdrawn, but a page may know this data part.
		enc.endText()
		enc.endReasoning()
		enc.emitChunk(chunk{"type": "data-step-reset", "data": chunk{"step": b.Step, "reason": b.Reason}})
	case event.Budget:
		enc.emitChunk(chunk{"type": "data-budget", "transient": true, "data": chunk{"limit": b.Limit, "used": b.Used, "max": b.Max}})
	case event.Suspended, event.FinalAnswer, event.RunError, event.Cancelled:
		enc.endStream(b)
	default:
		enc.encodeCall(b)
	}
}

// endStream encodes the last chunks of a stream.
func (enc *Encoder) endStream(body event.Body) {
	if _, ok := body.(event.FinalAnswer); ok {
		enc.encodeHeldCalls()
	}
	inStep := enc.inStep
	enc.endStep()
	switch b := body.(type) {
	case event.Suspended:
		enc.emitChunk(chunk{"type": "finish", "finishReason": "tool-calls"})
		enc.inStep = inStep // readers that go on were not told this
	case event.FinalAnswer:
		u := b.Metadata.Usage
		enc.emitChunk(chunk{"type": "finish", "finishReason": finishReason(b.FinishReason), "messageMetadata": chunk{
			"finishReason": b.FinishReason, "model": b.Metadata.Model,
			"usage": chunk{"inputTokens": u.InputTokens, "outputTokens": u.OutputTokens, "totalTokens": u.TotalTokens},
		}})
	case event.RunError:
		// The error chunk can have only a text, so the metadata have the code.
		enc.emitChunk(chunk{"type": "message-metadata", "messageMetadata": chunk{"error": chunk{"code": b.Code, "retryable": b.Retryable}}})
		enc.emitChunk(chunk{"type": "error", "errorText": b.Message})
	case event.Cancelled:
		enc.emitChunk(chunk{"type": "abort"})
	}
	if enc.seq > enc.head.After {
		enc.frames = append(enc.frames, sse.Frame{Data: []byte("[DONE]")})
	}
}

// TokenExpired returns the chunks that end a stream before its message, because the caller's token
// has expired. The error chunk can have only a text, so a transient data chunk before it tells pages
// the reason.
func (enc *Encoder) TokenExpired() []sse.Frame {
	enc.seq, enc.frames = max(enc.seq, enc.head.After+1), nil
	enc.emitChunk(chunk{"type": "data-token-expired", "transient": true, "data": chunk{"runId": enc.head.RunID}})
	enc.emitChunk(chunk{"type": "error", "errorText": "The access token has expired. The answer goes on."})
	return append(enc.frames, sse.Frame{Data: []byte("[DONE]")})
}

// endStep closes the step that is open. It is not closed at step_end, because the
// results of the step's calls belong to it.
func (enc *Encoder) endStep() {
	if enc.inStep {
		enc.inStep = false
		enc.emitChunk(chunk{"type": "finish-step"})
	}
}

func (enc *Encoder) endText() {
	if enc.text != "" {
		enc.emitChunk(chunk{"type": "text-end", "id": enc.text})
		enc.text = ""
	}
}

func (enc *Encoder) endReasoning() {
	if enc.reason != "" {
		enc.emitChunk(chunk{"type": "reasoning-end", "id": enc.reason})
		enc.reason = ""
	}
}

// finishReason returns the SDK's name for why a run ended; the run's own is in the message's
// metadata.
func finishReason(reason string) string {
	switch reason {
	case "stop", "length":
		return reason
	case "tool_calls":
		return "tool-calls"
	case "content_filter":
		return "content-filter"
	case "max_turns", "budget_exceeded":
		return "length"
	}
	return "other"
}
