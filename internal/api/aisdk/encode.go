package aisdk

import (
	"encoding/json"

	"answerd/internal/event"
	"answerd/internal/sse"
)

// Encoder encodes the events of one run as the chunks of one stream. It needs all events of the
// run in order, from the first on.
//
// The SDK keeps a state for each part of a message, and a chunk that does not fit the state is fatal: a delta of a part
// that is not open, for example. So the Encoder tracks which parts are open, and closes each of them once.
//
// The frames of a suspended event end a stream, because the SDK posts answers only when the stream has ended. A caller
// that drops these frames, because the suspension is over, may continue with the same encoder: the later frames are the
// same as without the suspended event.
type Encoder struct {
	head   Header
	seq    int64       // the sequence number of the event that is being encoded
	frames []sse.Frame // the frames of that event

	inStep    bool   // a step is open
	text      string // the id of the open text part; "" if none is open
	reasoning string // the id of the open reasoning part; "" if none is open

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

// emitChunk adds a chunk to the frames of the current event, unless an earlier stream has sent that event (Header.After).
func (enc *Encoder) emitChunk(c chunk) {
	if enc.seq <= enc.head.After {
		return
	}
	data, _ := json.Marshal(c) // cannot fail: c has only texts, numbers and valid JSON
	enc.frames = append(enc.frames, sse.Frame{Data: data})
}

// Encode returns the frames that e, the next event of the run, adds to the stream. It returns nil for events up to
// Header.After. The frames of the first event after them begin with the start of the stream.
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

// encodeEvent encodes the events of steps and their parts. It calls encodeCall for the events of calls, approvals and
// elicitations, and endStream for those that end a stream.
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
		enc.reasoning = b.PartID
		enc.emitChunk(chunk{"type": "reasoning-start", "id": b.PartID})
	case event.ReasoningDelta:
		enc.emitChunk(chunk{"type": "reasoning-delta", "id": b.PartID, "delta": b.Delta})
	case event.ReasoningEnd:
		enc.endReasoning()
	case event.StepReset:
		// Text of the stream cannot be withdrawn, but a page that knows this data part can hide the text.
		enc.endText()
		enc.endReasoning()
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

// endStream encodes the last chunks of a stream, and [DONE], with which every stream of this protocol ends. body is
// suspended or a terminal event.
func (enc *Encoder) endStream(body event.Body) {
	if _, ok := body.(event.FinalAnswer); ok {
		enc.encodeHeldCalls()
	}
	wasInStep := enc.inStep
	enc.endStep()

	switch b := body.(type) {
	case event.Suspended:
		enc.emitChunk(chunk{"type": "finish", "finishReason": "tool-calls"})
		enc.inStep = wasInStep // for a caller that drops these frames and continues: the step is then still open
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
		// The error chunk can have only a text, so the message's metadata have the code.
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

// TokenExpired returns the frames that end a stream before its message is complete, because the caller's token has
// expired. The error chunk can have only a text, so a transient data chunk before it tells pages the reason.
func (enc *Encoder) TokenExpired() []sse.Frame {
	enc.seq = max(enc.seq, enc.head.After+1) // so that emitChunk does not drop the chunks
	enc.frames = nil
	enc.emitChunk(chunk{"type": "data-token-expired", "transient": true, "data": chunk{"runId": enc.head.RunID}})
	enc.emitChunk(chunk{"type": "error", "errorText": "The access token has expired. The answer goes on."})
	return append(enc.frames, sse.Frame{Data: []byte("[DONE]")})
}

// endStep closes the open step, if there is one. It is not called at step_end, because the results of the step's calls
// follow and belong to the same step.
func (enc *Encoder) endStep() {
	if enc.inStep {
		enc.inStep = false
		enc.emitChunk(chunk{"type": "finish-step"})
	}
}

// endText closes the open text part, if there is one: the end of a part that is not open is fatal to the SDK.
func (enc *Encoder) endText() {
	if enc.text != "" {
		enc.emitChunk(chunk{"type": "text-end", "id": enc.text})
		enc.text = ""
	}
}

// endReasoning closes the open reasoning part, if there is one.
func (enc *Encoder) endReasoning() {
	if enc.reasoning != "" {
		enc.emitChunk(chunk{"type": "reasoning-end", "id": enc.reasoning})
		enc.reasoning = ""
	}
}

// finishReason returns the SDK's name for the finish reason of a run. The metadata of the message have the run's own name.
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
