package aisdk

import (
	"encoding/json"

	"answerd/internal/event"
	"answerd/internal/sse"
)

// Encoder encodes the events of one run as the chunks of one stream. It needs all of the run's events, in order.
//
// The SDK keeps a state for each part of a message, and a chunk that does not fit the state is fatal: for example, a
// delta of a part that is not open. So the Encoder tracks which parts are open, and closes each of them once.
//
// The frames of a suspended event end the stream, because the SDK posts answers only after the stream has ended. If the
// suspension is already over, the caller may drop these frames and continue with the same encoder: later frames are the
// same as without the suspended event.
type Encoder struct {
	head   Header
	seq    int64       // the sequence number of the event that is being encoded
	frames []sse.Frame // the frames of that event

	inStep      bool   // a step is open
	textID      string // the id of the open text part; "" if none is open
	reasoningID string // the id of the open reasoning part; "" if none is open

	pageCalls      map[string]bool              // calls that the page executes, by call id
	heldCalls      []event.ToolCall             // calls that the page executes, until encodeHeldCalls sends them
	denied         map[string]bool              // calls that a person did not approve, by call id
	childApprovals map[string]bool              // approvals of child runs' calls, by interrupt id
	elicitations   map[string]event.Elicitation // elicitations of the run so far, by interrupt id
}

// NewEncoder returns the encoder of a new stream.
func NewEncoder(h Header) *Encoder {
	return &Encoder{
		head: h, pageCalls: make(map[string]bool), denied: make(map[string]bool), childApprovals: make(map[string]bool),
		elicitations: make(map[string]event.Elicitation),
	}
}

// chunk is one chunk of the stream. No member is null unless a comment says so, because the SDK
// validates chunks and refuses null in place of a missing optional member.
type chunk = map[string]any

// emitChunk adds c to the current event's frames, unless an earlier stream has sent them (Header.After).
func (enc *Encoder) emitChunk(c chunk) {
	if enc.seq <= enc.head.After {
		return
	}
	data, _ := json.Marshal(c) // cannot fail: c has only texts, numbers and valid JSON
	enc.frames = append(enc.frames, sse.Frame{Data: data})
}

// Encode returns the frames for e, which must be the run's next event. It returns nil for events up to Header.After.
// The frames of the first event after them begin with the start of the stream.
func (enc *Encoder) Encode(e event.Event) []sse.Frame {
	enc.seq = e.Seq
	enc.frames = nil
	if e.Seq == enc.head.After+1 {
		enc.emitChunk(chunk{"type": "start", "messageId": enc.head.MessageID,
			"messageMetadata": chunk{"runId": enc.head.RunID, "threadId": enc.head.ThreadID}})
	}
	enc.encodeEvent(e.Body)
	return enc.frames
}

// encodeEvent encodes the events of steps and their parts. It leaves the events of calls, approvals and elicitations to
// encodeCall, and those that end a stream to endStream.
func (enc *Encoder) encodeEvent(body event.Body) {
	switch b := body.(type) {
	case event.StepStart:
		enc.endStep()
		enc.inStep = true
		enc.emitChunk(chunk{"type": "start-step"})
	case event.TextStart:
		enc.textID = b.PartID
		enc.emitChunk(chunk{"type": "text-start", "id": b.PartID})
	case event.TextDelta:
		enc.emitChunk(chunk{"type": "text-delta", "id": b.PartID, "delta": b.Delta})
	case event.TextEnd:
		enc.endPart(&enc.textID, "text-end")
	case event.ReasoningStart:
		enc.reasoningID = b.PartID
		enc.emitChunk(chunk{"type": "reasoning-start", "id": b.PartID})
	case event.ReasoningDelta:
		enc.emitChunk(chunk{"type": "reasoning-delta", "id": b.PartID, "delta": b.Delta})
	case event.ReasoningEnd:
		enc.endPart(&enc.reasoningID, "reasoning-end")
	case event.StepReset:
		// The stream's text cannot be withdrawn, but a page that knows this data part can hide it.
		enc.endPart(&enc.textID, "text-end")
		enc.endPart(&enc.reasoningID, "reasoning-end")
		enc.heldCalls = nil // only the last step of a run has calls of the page's tools
		enc.emitChunk(chunk{"type": "data-step-reset", "data": chunk{"step": b.Step, "reason": b.Reason}})
	case event.Budget:
		data := chunk{"limit": b.Limit, "used": b.Used, "max": b.Max}
		enc.emitChunk(chunk{"type": "data-budget", "transient": true, "data": data})
	case event.Suspended, event.FinalAnswer, event.RunError, event.Cancelled:
		enc.endStream(b)
	default:
		enc.encodeCall(b)
	}
}

// endStream encodes the stream's last chunks, and [DONE], which ends every stream of this protocol. body is suspended
// or a terminal event.
func (enc *Encoder) endStream(body event.Body) {
	if _, ok := body.(event.FinalAnswer); ok {
		enc.encodeHeldCalls()
	}
	wasInStep := enc.inStep
	enc.endStep()

	switch b := body.(type) {
	case event.Suspended:
		enc.emitChunk(chunk{"type": "finish", "finishReason": "tool-calls"})
		enc.inStep = wasInStep // if the caller drops these frames and continues, the step is still open
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
		// The error chunk can have only a text, so the code is in the message's metadata.
		failed := chunk{"code": b.Code, "retryable": b.Retryable}
		if len(b.Errors) > 0 {
			failed["errors"] = b.Errors
		}
		enc.emitChunk(chunk{"type": "message-metadata", "messageMetadata": chunk{"error": failed}})
		enc.emitChunk(chunk{"type": "error", "errorText": b.MessageWithErrors()})
	case event.Cancelled:
		enc.emitChunk(chunk{"type": "abort"})
	}

	if enc.seq > enc.head.After {
		enc.frames = append(enc.frames, sse.Frame{Data: []byte("[DONE]")})
	}
}

// TokenExpired returns the frames that end the stream early because the caller's token has expired. The error chunk can
// have only a text, so a transient data chunk before it tells pages the reason.
func (enc *Encoder) TokenExpired() []sse.Frame {
	enc.seq = max(enc.seq, enc.head.After+1) // so that emitChunk does not drop the chunks
	enc.frames = nil
	enc.emitChunk(chunk{"type": "data-token-expired", "transient": true, "data": chunk{"runId": enc.head.RunID}})
	enc.emitChunk(chunk{"type": "error", "errorText": "The access token has expired. The answer goes on."})
	return append(enc.frames, sse.Frame{Data: []byte("[DONE]")})
}

// endStep closes the open step, if any. The event step_end does not call it, because the results of the step's calls
// follow that event and belong to the same step.
func (enc *Encoder) endStep() {
	if enc.inStep {
		enc.inStep = false
		enc.emitChunk(chunk{"type": "finish-step"})
	}
}

// endPart closes the part with the id *id, if it is open, by a chunk of that type, and sets *id to "". It must not close
// one twice, because that is fatal to the SDK.
func (enc *Encoder) endPart(id *string, chunkType string) {
	if *id != "" {
		enc.emitChunk(chunk{"type": chunkType, "id": *id})
		*id = ""
	}
}

// finishReason returns the SDK's name for a run's finish reason. The message's metadata has the run's own name.
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
