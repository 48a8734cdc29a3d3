package aisdk

import (
	"encoding/json"

	"answerd/internal/event"
	"answerd/internal/sse"
)

// Encoder turns the events of one run into the chunks of one stream. It must see all of
// them, from the first of the run on.
type Encoder struct {
	head   Header
	frames []sse.Frame // of the event that is being encoded

	inStep  bool
	text    string            // the open text part
	reason  string            // the open reasoning part
	names   map[string]string // of client tools, by call id
	asked   map[string]bool   // calls that a person was asked to agree to
	refused map[string]bool   // and to which he did not
}

// NewEncoder returns the encoder of a stream that no event has gone through.
func NewEncoder(h Header) *Encoder {
	return &Encoder{head: h, names: make(map[string]string), asked: make(map[string]bool), refused: make(map[string]bool)}
}

// chunk is one chunk. Its members are never null but where that is said: a null is
// fatal in place of a member that may be missing.
type chunk = map[string]any

func (enc *Encoder) emit(c chunk) {
	data, _ := json.Marshal(c) // nothing in it can fail
	enc.frames = append(enc.frames, sse.Frame{Data: data})
}

// Encode returns the frames that e adds to the stream.
func (enc *Encoder) Encode(e event.Event) []sse.Frame {
	enc.frames = nil
	if e.Seq == enc.head.After+1 {
		enc.emit(chunk{"type": "start", "messageId": enc.head.MessageID,
			"messageMetadata": chunk{"runId": enc.head.RunID, "threadId": enc.head.ThreadID}})
	}
	enc.encode(e.Body)
	if e.Seq <= enc.head.After {
		return nil
	}
	return enc.frames
}

func (enc *Encoder) encode(body event.Body) {
	switch b := body.(type) {
	case event.StepStart:
		enc.endStep()
		enc.inStep = true
		enc.emit(chunk{"type": "start-step"})
	case event.TextStart:
		enc.text = b.PartID
		enc.emit(chunk{"type": "text-start", "id": b.PartID})
	case event.TextDelta:
		enc.emit(chunk{"type": "text-delta", "id": b.PartID, "delta": b.Delta})
	case event.TextEnd:
		enc.endText()
	case event.ReasoningStart:
		enc.reason = b.PartID
		enc.emit(chunk{"type": "reasoning-start", "id": b.PartID})
	case event.ReasoningDelta:
		enc.emit(chunk{"type": "reasoning-delta", "id": b.PartID, "delta": b.Delta})
	case event.ReasoningEnd:
		enc.endReasoning()
	case event.StepReset:
		// What was streamed cannot be taken back; the data part tells pages that know it.
		enc.endText()
		enc.endReasoning()
		enc.emit(chunk{"type": "data-step-reset", "data": chunk{"step": b.Step, "reason": b.Reason}})
	case event.Suspended:
		enc.endStep()
		enc.emit(chunk{"type": "finish", "finishReason": "tool-calls"})
		enc.done()
	case event.FinalAnswer:
		enc.endStep()
		enc.emit(chunk{"type": "finish", "finishReason": finishReason(b.FinishReason), "messageMetadata": chunk{
			"runId": enc.head.RunID, "threadId": enc.head.ThreadID, "finishReason": b.FinishReason, "model": b.Metadata.Model,
			"usage": chunk{"inputTokens": b.Metadata.Usage.InputTokens, "outputTokens": b.Metadata.Usage.OutputTokens, "totalTokens": b.Metadata.Usage.TotalTokens},
		}})
		enc.done()
	case event.RunError:
		enc.emit(chunk{"type": "error", "errorText": b.Message})
		enc.done()
	case event.Cancelled:
		enc.emit(chunk{"type": "abort"})
		enc.done()
	default:
		enc.encodeCall(b)
	}
}

// endStep closes the step that is open. It is not closed at step_end, because the
// results of the step's calls belong to it.
func (enc *Encoder) endStep() {
	if enc.inStep {
		enc.inStep = false
		enc.emit(chunk{"type": "finish-step"})
	}
}

func (enc *Encoder) endText() {
	if enc.text != "" {
		enc.emit(chunk{"type": "text-end", "id": enc.text})
		enc.text = ""
	}
}

func (enc *Encoder) endReasoning() {
	if enc.reason != "" {
		enc.emit(chunk{"type": "reasoning-end", "id": enc.reason})
		enc.reason = ""
	}
}

func (enc *Encoder) done() { enc.frames = append(enc.frames, sse.Frame{Data: []byte("[DONE]")}) }

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
