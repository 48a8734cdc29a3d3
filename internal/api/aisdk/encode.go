package aisdk

import (
	"encoding/json"

	"answerd/internal/event"
	"answerd/internal/sse"
)

// Encoder encodes the events of one run as the chunks of one stream. It needs all events of the
// run in order, from the first on.
//
// The SDK keeps a state for each part, and a chunk that does not fit it is fatal: a delta of a part that
// is not open, for example. So the Encoder remembers which parts are open, and closes each of them once,
// at the event that ends it or at a step_reset.
//
// The frames of a suspended event end a stream, because the SDK posts answers only when the stream
// has ended. A reader that continues with the same encoder gets later frames as if that event had
// not been encoded.
type Encoder struct {
	head   Header
	seq    int64       // the sequence number of the event that is being encoded
	frames []sse.Frame // the frames of that event

	inStep  bool
	text    string                       // the id of the open text part
	reason  string                       // the id of the open reasoning part
	clients map[string]bool              // the calls that the page executes, by call id
	held    []event.ToolCall             // the complete calls among them (encodeHeldCalls)
	refused map[string]bool              // the calls that a person refused, by call id
	asked   map[string]event.Elicitation // the open elicitations, by interrupt id

	children map[string]bool // the approvals of asked agents' calls, by interrupt id
}

// NewEncoder returns the encoder of a new stream.
func NewEncoder(h Header) *Encoder {
	return &Encoder{
		head: h, clients: make(map[string]bool), refused: make(map[string]bool), children: make(map[string]bool),
		asked: make(map[string]event.Elicitation),
	}
}

// chunk is one chunk of the stream. No member is null unless a comment says so, because the SDK
// validates chunks and refuses null in place of a missing optional member.
type chunk = map[string]any

// emitChunk adds a chunk to the frames of the event, unless an earlier stream has sent that event.
func (enc *Encoder) emitChunk(c chunk) {
	if enc.seq <= enc.head.After {
		return
	}
	data, _ := json.Marshal(c) // cannot fail: c has only texts, numbers and valid JSON
	enc.frames = append(enc.frames, sse.Frame{Data: data})
}

// Encode returns the frames that e adds to the stream. The first event after head.After also
// starts the stream.
func (enc *Encoder) Encode(e event.Event) []sse.Frame {
	enc.seq, enc.frames = e.Seq, nil
	if e.Seq == enc.head.After+1 {
		enc.emitChunk(chunk{"type": "start", "messageId": enc.head.MessageID,
			"messageMetadata": chunk{"runId": enc.head.RunID, "threadId": enc.head.ThreadID}})
	}
	enc.encodeEvent(e.Body)
	return enc.frames
}

// encodeEvent encodes the events of steps and their parts, and leaves those of calls to encodeCall.
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
		enc.held = nil // only the last step of a run has calls of the page's tools
		enc.emitChunk(chunk{"type": "data-step-reset", "data": chunk{"step": b.Step, "reason": b.Reason}})
	case event.Budget:
		enc.emitChunk(chunk{"type": "data-budget", "transient": true, "data": chunk{"limit": b.Limit, "used": b.Used, "max": b.Max}})
	case event.Suspended, event.FinalAnswer, event.RunError, event.Cancelled:
		enc.endStream(b)
	default:
		enc.encodeCall(b)
	}
}

// endStream encodes the last chunks of a stream, and [DONE], with which every stream of this
// protocol ends.
func (enc *Encoder) endStream(body event.Body) {
	if _, ok := body.(event.FinalAnswer); ok {
		enc.encodeHeldCalls()
	}
	inStep := enc.inStep
	enc.endStep()

	switch b := body.(type) {
	case event.Suspended:
		enc.emitChunk(chunk{"type": "finish", "finishReason": "tool-calls"})
		enc.inStep = inStep // a later event continues the step for readers that keep the stream
	case event.FinalAnswer:
		u := b.Metadata.Usage
		metadata := chunk{
			"finishReason": b.FinishReason, "model": b.Metadata.Model,
			"usage": chunk{"inputTokens": u.InputTokens, "outputTokens": u.OutputTokens, "totalTokens": u.TotalTokens},
		}
		if b.Output != nil {
			metadata["output"] = b.Output
		}
		enc.emitChunk(chunk{"type": "finish", "finishReason": finishReason(b.FinishReason), "messageMetadata": metadata})
	case event.RunError:
		// The error chunk can have only a text, so the metadata have the code.
		failed := chunk{"code": b.Code, "retryable": b.Retryable}
		if len(b.Errors) > 0 {
			failed["errors"] = b.Errors
		}
		enc.emitChunk(chunk{"type": "message-metadata", "messageMetadata": chunk{"error": failed}})
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

// endStep closes the open step. That is not done at step_end, because the results of the step's
// calls follow and belong to the same step.
func (enc *Encoder) endStep() {
	if enc.inStep {
		enc.inStep = false
		enc.emitChunk(chunk{"type": "finish-step"})
	}
}

// endText closes the open text part. A delta of a part that is not open is fatal to the SDK.
func (enc *Encoder) endText() {
	if enc.text != "" {
		enc.emitChunk(chunk{"type": "text-end", "id": enc.text})
		enc.text = ""
	}
}

// endReasoning closes the open reasoning part.
func (enc *Encoder) endReasoning() {
	if enc.reason != "" {
		enc.emitChunk(chunk{"type": "reasoning-end", "id": enc.reason})
		enc.reason = ""
	}
}

// finishReason returns the SDK's name for the reason why a run ended. The metadata of the message
// have the run's own name.
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
